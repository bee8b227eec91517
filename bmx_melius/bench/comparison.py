"""Comparison of libraries: rows whose packages are installed are timed in turns, the others are reported as absent."""

import os
import tempfile

import numpy as np

from .rounds import measure

_SEED = 1


def compare(rows, repetitions, rounds, progress):
    """Time `rows`.

    Parameters
    ----------
    rows : list of rows.Row
    repetitions, rounds, progress
        See `rounds.measure`.

    Returns
    -------
    dict of row key to dict
        ``title``, ``threads`` and ``images`` of the row, and the result of `rounds.measure`; or ``absent``, the packages to install.
    """
    absent = {row.key: row.missing_packages() for row in rows}
    present = [row for row in rows if not absent[row.key]]
    with tempfile.TemporaryDirectory() as folder:
        inputs = {shape: _write_input(folder, shape) for shape in {row.input_shape for row in present}}
        measured = measure(present, inputs, repetitions, rounds, progress)
    results = {}
    for row in rows:
        outcome = {'absent': absent[row.key]} if absent[row.key] else measured[row.key]
        results[row.key] = {'title': row.title, 'threads': row.threads, 'images': row.input_shape[0], **outcome}
    return results


def make_input(shape):
    """Return the input array of all rows with this input shape: standard normal float32, with a fixed seed."""
    return np.random.default_rng(_SEED).standard_normal(shape, dtype=np.float32)


def _write_input(folder, shape):
    path = os.path.join(folder, f'{"x".join(map(str, shape))}.npy')
    np.save(path, make_input(shape))
    return path
