"""A comparison: the rows that can run here are timed in turns; of the others it is said why they cannot."""

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
        As in `rounds.measure`.

    Returns
    -------
    dict of row key to a dict: title, threads and images of the row, and what `rounds.measure` gives, or 'absent', the packages to
    install.
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
    """The input every row of this shape is given, float32."""
    return np.random.default_rng(_SEED).standard_normal(shape, dtype=np.float32)


def _write_input(folder, shape):
    path = os.path.join(folder, f'{"x".join(map(str, shape))}.npy')
    np.save(path, make_input(shape))
    return path
