"""ONNX models of the test data, with an input that was recorded with each."""

import gzip

import numpy as np

from support.paths import DATA

FOLDER = DATA / 'onnx'


def unpacked(name, folder):
    """Write the files of a model to a folder; return the path of the model."""
    for file in FOLDER.glob(f'{name}.onnx*.gz'):
        (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    return folder / f'{name}.onnx'


def recorded_input(name):
    """Return the first input that was recorded with a model."""
    recorded = np.load(FOLDER / f'{name}.npz')
    return next(recorded[key] for key in recorded.files if key.startswith('input.'))
