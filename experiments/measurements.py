"""Measurements of trained networks, made after the training: accuracy on test images, and run time of the packed network."""

import contextlib
import io
import json
import os
import signal

from results import LATENCY_FILE, TEST_FILE, is_finished, network_prefix
from tqdm import tqdm

from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.bench.comparison import compare
from bmx_melius.bench.peers import session
from bmx_melius.bench.rows import Row
from bmx_melius.data.datasets import DATASETS
from bmx_melius.files.exported import Exported
from bmx_melius.files.io import sha256, write_json
from bmx_melius.process import processor

PACKED = 'packed'  # prefix of the packed network in the folder of a row
REPETITIONS, ROUNDS = 100, 10  # of the timing, in one thread


def measure_accuracy(runs, test_dir=None):
    """Evaluate the best network of each finished run on the test images, if there are any and this was not done before.

    They are those that come with the dataset, or with `test_dir` the test images in this folder of the dataset's files.
    """
    waiting = [run for run in runs if is_finished(run.folder) and not (run.folder / TEST_FILE).exists()]
    waiting = [run for run in waiting if test_dir or _has_test_images(run)]
    folder = ['--data-dir', test_dir] if test_dir else []
    for run in tqdm(waiting, desc='test images', disable=None, dynamic_ncols=True):
        found = _bmx_melius('evaluate', network_prefix(run.folder), run.row.flags['dataset'], *folder, '--json')
        write_json(run.folder / TEST_FILE, json.loads(found))


def measure_latency(runs, folder):
    """Pack the network of the first finished run of each row and time all of them in turns, unless this was done with the same files.

    The result, in `LATENCY_FILE`, names the processor; rows that are not packed as a whole have an ``error`` instead of a time.
    """
    first = {}
    for run in runs:
        if is_finished(run.folder):
            first.setdefault(run.row.name, run)
    measured = {name: sha256(Exported(network_prefix(run.folder)).parameter_file(0)) for name, run in first.items()}
    path = folder / LATENCY_FILE
    if path.exists() and json.loads(path.read_text())['parameters'] == measured:
        return
    rows = []
    for name, run in tqdm(first.items(), desc='packing', disable=None, dynamic_ncols=True):
        shape = (1, *Exported(network_prefix(run.folder)).description().input_spec().shape)
        packed = Exported(run.folder.parent / PACKED)
        for file in (packed.symbol_file, packed.parameter_file(0)):
            with contextlib.suppress(FileNotFoundError):
                os.remove(file)
        with contextlib.suppress(UserError):  # a network that is not packed has no files: an error in the comparison below
            _bmx_melius('convert', network_prefix(run.folder), run.folder.parent / PACKED)
        rows.append(Row(name, name, 'packed', session, shape, 1, {'prefix': str(run.folder.parent / PACKED)}))
    results = compare(rows, REPETITIONS, ROUNDS, lambda items, title: tqdm(items, desc=title, disable=None, dynamic_ncols=True))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {'processor': processor(), 'threads': 1, 'parameters': measured, 'rows': results})


def _has_test_images(run):
    dataset = DATASETS.get(run.row.flags.get('dataset'))
    return dataset is not None and dataset.has_test_images


def _bmx_melius(*arguments):
    """Run the command line in this process and return its standard output.

    Raises `UserError` with its last error line if it fails, and `KeyboardInterrupt` if it is interrupted.
    """
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main([str(argument) for argument in arguments])
    if status == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if status:
        raise UserError(f'{" ".join(map(str, arguments))}: {(errors.getvalue().strip().splitlines() or ["failed"])[-1]}')
    return output.getvalue()
