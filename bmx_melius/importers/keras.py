"""Reader of Keras weights in HDF5 files that does not need TensorFlow.

Keras up to version 2 writes two kinds of files: only weights, with the groups of the layers at the root, and whole models, with these in
the group ``model_weights`` (https://github.com/keras-team/keras/blob/v2.15.0/keras/saving/legacy/hdf5_format.py). The attributes
``layer_names`` and ``weight_names`` give the order; an attribute too long for HDF5 is split into ``layer_names0``, ``layer_names1``, ...

`keras_reader` reads them in another process, because the HDF5 library does not withstand damaged files.
"""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess

import numpy as np

from ..errors import UserError, last_line
from ..limited_process import child_environment, command_of
from . import keras_reader

MAX_BYTES = 1 << 30  # of the arrays of a file
_MEMORY = 3 << 30  # bytes of address space of the process that reads a file
_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class KerasLayer:
    """A layer with weights: its name, and its arrays by the last part of their names, such as ``kernel`` or ``moving_mean``."""

    name: str
    weights: dict


def read_keras_layers(path):
    """Read the layers with weights, in the order of the network.

    Parameters
    ----------
    path : str or os.PathLike
        Written by ``model.save_weights('....h5')`` or ``model.save('....h5')`` of Keras 2.

    Returns
    -------
    list of KerasLayer with NumPy arrays

    Raises
    ------
    UserError
        If h5py is not installed, the file is of another kind or damaged, its arrays take more than `MAX_BYTES`, or it refers to data in
        other files.
    OSError
        If the file cannot be opened.
    """
    if importlib.util.find_spec('h5py') is None:
        raise UserError("reading Keras files needs h5py, which is not installed: pip install 'bmx-melius[larq]'")
    path = os.path.abspath(os.fspath(path))
    with open(path, 'rb'):
        pass  # Python's error names the file, h5py's does not
    line, _, elements = _run_reader(path).partition(b'\n')
    answer = json.loads(line)
    if 'error' in answer:
        raise UserError(answer['error'])
    layers, position = [], 0
    for name, weights in answer['layers']:
        arrays = {}
        for kind, dtype, shape in weights:
            arrays[kind] = np.frombuffer(elements, dtype, int(np.prod(shape)), position).reshape(shape)
            position += arrays[kind].nbytes
        layers.append(KerasLayer(name, arrays))
    return layers


def _run_reader(path):
    """Return the output of `keras_reader`. Raises `UserError` if it crashes or takes too long."""
    command = command_of(keras_reader.__name__, path, MAX_BYTES, _MEMORY)
    try:
        done = subprocess.run(command, env=child_environment(), capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(f'{path} is not an HDF5 file of Keras weights, or is damaged: reading it takes too long') from error
    if done.returncode:
        why = f'the HDF5 library fails with {signal.Signals(-done.returncode).name}' if done.returncode < 0 else ''
        reason = why or last_line(done.stderr.decode(errors='replace'))
        raise UserError(f'{path} is not an HDF5 file of Keras weights, or is damaged: {reason}')
    return done.stdout
