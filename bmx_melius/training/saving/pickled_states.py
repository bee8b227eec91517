"""Pickles of optimizers that ``Trainer.save_states`` of MXNet wrote, read without running anything that is in them.

Unpickling calls whatever a file names, so it runs the code of whoever wrote it. Here a pickle may name only the classes that the state of
an optimizer has, and what is called in their place are stand-ins that do nothing. Arrays are read as in parameter files, not by MXNet.
"""

import io
import pickle

from ...container import decode_array
from ...errors import UserError

COUNTERS = ('begin_num_update', 'num_update')  # attributes of an optimizer, and:
_COUNTS = '_all_index_update_counts'
_ARRAYS = (('mxnet.ndarray.ndarray', 'NDArray'), ('mxnet.numpy.multiarray', 'ndarray'))
_BYTES = (('builtins', 'bytearray'), ('_codecs', 'encode'))
_NUMPY = (('numpy', 'dtype'), ('numpy', 'ndarray'), ('numpy.core.multiarray', 'scalar'), ('numpy.core.multiarray', '_reconstruct'))
_MODULES = ('mxnet.optimizer', 'mxnet.lr_scheduler', 'gluoncv.utils.lr_scheduler', 'bmx_melius.optimizers')  # of optimizers and schedules


def read_pickle(path):
    """Read a file of ``Trainer.save_states``, or of ``Updater.get_states`` with or without the optimizer.

    Returns
    -------
    states : dict of int to (None, numpy.ndarray or nested tuple of them)
        Of each parameter, by its number.
    optimizer : str or None
        The name of its class; None where the file has the states only.
    counters : dict of str to int
        The `COUNTERS`; empty where there is no optimizer.
    counts : dict of int to dict of int to int
        For each device and parameter the number of updates.

    Raises
    ------
    UserError
        When the file is no such pickle, or names anything else.
    """
    with open(path, 'rb') as file:
        content = file.read()
    try:
        loaded = _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle may raise anything, the more as stand-ins are not what it expects
        raise UserError(f'{path} is no state of an optimizer, or damaged: {error}') from error
    states, optimizer = loaded if isinstance(loaded, tuple) and len(loaded) == 2 else (loaded, None)
    try:
        found = {_number(index): _to_numpy(state, f'{path}: the state of parameter {index}') for index, state in _items(states)}
        if optimizer is None:
            return found, None, {}, {}
        attributes = dict(_items(getattr(optimizer, 'state', None)))
        counters = {name: _number(attributes.get(name)) for name in COUNTERS}
        counts = {
            _number(device): {_number(index): _number(count) for index, count in _items(of_device)}
            for device, of_device in _items(attributes.get(_COUNTS))
        }
    except TypeError as error:
        raise UserError(f'{path} is no state of an optimizer, or damaged: {error}') from error
    return found, type(optimizer).__name__, counters, counts


class _StandIn:
    """Takes whatever a pickle does with an object of some class, and keeps its `state`."""

    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, state):
        self.state = state


class _Array(_StandIn):
    """Stands for an NDArray, whose state is a dict with its bytes."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in _ARRAYS:
            return _Array
        if (module, name) in _BYTES:
            return _as_bytes
        if (module, name) in _NUMPY or any(module == known or module.startswith(known + '.') for known in _MODULES):
            return type(name, (_StandIn,), {})
        raise pickle.UnpicklingError(f'it names {module}.{name}, which no state of an optimizer has')


def _as_bytes(content=b'', encoding='latin-1'):
    """The bytes of ``bytearray(content)``, and of ``_codecs.encode(text, 'latin1')``, as old protocols have them."""
    if isinstance(content, str) and encoding in ('latin1', 'latin-1'):
        return content.encode('latin-1')
    if isinstance(content, bytes):
        return content
    raise pickle.UnpicklingError('an array has no bytes')


def _items(value):
    if not isinstance(value, dict):
        raise TypeError(f'a dictionary was expected, not {type(value).__name__}')
    return value.items()


def _number(value):
    if type(value) is not int or value < 0:
        raise TypeError(f'a number from 0 on was expected, not {type(value).__name__}')
    return value


def _to_numpy(state, source, levels=2):
    """Arrays for a state; the deepest is (weight in float32, (moment, moment))."""
    if isinstance(state, _Array):
        content = dict(_items(getattr(state, 'state', None))).get('handle')
        if not isinstance(content, bytes):
            raise TypeError('an array has no bytes')
        return decode_array(content, source)
    if isinstance(state, (tuple, list)) and levels:
        return tuple(_to_numpy(part, source, levels - 1) for part in state)
    if state is None:
        return None
    raise TypeError(f'an array was expected, not {type(state).__name__}')
