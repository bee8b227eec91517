"""Safe reading of the pickles that MXNet's ``Trainer.save_states`` writes.

Unpickling calls any function that a file names, so an untrusted file can execute arbitrary code. Here a pickle may name only the classes
that occur in the state of an optimizer, and they are replaced by placeholders that do nothing. Arrays are decoded as in parameter files,
not by MXNet.
"""

import io
import pickle
import pickletools

from ...errors import UserError, last_line
from ...files.parameters import decode_array

COUNTERS = ('begin_num_update', 'num_update')  # attributes of an optimizer; so is:
_COUNTS = '_all_index_update_counts'
_ARRAYS = (('mxnet.ndarray.ndarray', 'NDArray'), ('mxnet.numpy.multiarray', 'ndarray'))
_BYTES = (('builtins', 'bytearray'), ('_codecs', 'encode'))
_NUMPY = (('numpy', 'dtype'), ('numpy', 'ndarray'), ('numpy.core.multiarray', 'scalar'), ('numpy.core.multiarray', '_reconstruct'))
_MODULES = (
    'mxnet.optimizer',
    'mxnet.lr_scheduler',
    'gluoncv.utils.lr_scheduler',
    'bmx_melius.optimizers',
)  # modules of optimizers and schedules


def read_pickle(path):
    """Read a file with the result of ``Trainer.save_states``, or of ``Updater.get_states`` with or without the optimizer.

    Returns
    -------
    states : dict of int to (None, numpy.ndarray or nested tuple of them)
        State of each parameter, by parameter number.
    optimizer : str or None
        Class name of the optimizer; None if the file contains only the states.
    counters : dict of str to (int or float)
        The `COUNTERS` and all attributes that are floating-point numbers; empty if there is no optimizer.
    counts : dict of int to dict of int to int
        Number of updates of each parameter on each device.

    Raises
    ------
    UserError
        When the file is not such a pickle, or names anything else.
    """
    with open(path, 'rb') as file:
        content = file.read()
    try:
        _check_sizes(content)
        loaded = _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # damaged pickles may raise any exception, especially with placeholders
        raise UserError(f'{path} is not the state of an optimizer, or is damaged: {last_line(error)}') from error
    states, optimizer = loaded if isinstance(loaded, tuple) and len(loaded) == 2 else (loaded, None)
    try:
        found = {_number(index): _to_numpy(state, f'{path}: the state of parameter {index}') for index, state in _items(states)}
        if optimizer is None:
            return found, None, {}, {}
        attributes = dict(_items(getattr(optimizer, 'state', None)))
        counters = {name: value for name, value in attributes.items() if type(value) is float}
        counters.update({name: _number(attributes.get(name)) for name in COUNTERS})
        counts = {
            _number(device): {_number(index): _number(count) for index, count in _items(of_device)}
            for device, of_device in _items(attributes.get(_COUNTS))
        }
    except TypeError as error:
        raise UserError(f'{path} is not the state of an optimizer, or is damaged: {last_line(error)}') from error
    return found, type(optimizer).__name__, counters, counts


def _check_sizes(content):
    """Raise `ValueError` if a pickle would allocate more memory than its size justifies: for objects that are shorter, or for its memo."""
    for operation, argument, _ in pickletools.genops(content):  # also checks that the bytes of all objects exist
        if operation.name.endswith('PUT') and int(argument) > len(content):
            raise ValueError(f'it numbers an object {argument}, and has {len(content)} bytes')


class _Placeholder:
    """Replaces an object in a pickle: accepts any arguments and stores the pickled `state`."""

    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, state):
        self.state = state


class _Array(_Placeholder):
    """Replaces an NDArray, whose state is a dict with its bytes."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in _ARRAYS:
            return _Array
        if (module, name) in _BYTES:
            return _as_bytes
        if (module, name) in _NUMPY or any(module == known or module.startswith(known + '.') for known in _MODULES):
            return type(name, (_Placeholder,), {})
        raise pickle.UnpicklingError(f'it names {module}.{name}, which no state of an optimizer has')


def _as_bytes(content=b'', encoding='latin-1'):
    """Return the bytes of ``bytearray(content)``, or of ``_codecs.encode(text, 'latin1')``, which old pickle protocols use."""
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
        raise TypeError(f'a non-negative integer was expected, not {type(value).__name__}')
    return value


def _to_numpy(state, source, levels=2):
    """Convert a state to NumPy arrays; the deepest nesting is (weight in float32, (moment, moment))."""
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
