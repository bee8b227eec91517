"""The state of an optimizer as a file: moments and counters, as arrays and JSON, which can be read without running anything.

The file is a parameter file of MXNet. Its array ``json`` is text, bytes of UTF-8: an object with the fields

==================================  ==========================================================================================
``format``                          1
``optimizer``                       the name of its class
``begin_num_update, num_update``    its counters
``counts``                          the updates of each parameter: device number -> number of the parameter -> count
``states``                          number of the parameter -> null, the name of an array in this file, or a list of these
==================================  ==========================================================================================
"""

import json

import mxnet as mx
import numpy as np

from ...container import is_parameter_file, read_parameters, write_parameters
from ...errors import UserError
from .pickled_states import read_pickle

FORMAT = 1
_TEXT = 'json'


def save_optimizer(trainer, path):
    """Write the moments and counters of a `gluon.Trainer`, whose file this replaces in one step."""
    optimizer, arrays = trainer.optimizer, {}
    states = {str(index): _name_arrays(state, str(index), arrays) for index, state in sorted(_updaters(trainer)[0].states.items())}
    fields = {
        'format': FORMAT,
        'optimizer': type(optimizer).__name__,
        'begin_num_update': optimizer.begin_num_update,
        'num_update': optimizer.num_update,
        'counts': optimizer._all_index_update_counts,
        'states': states,
    }
    text = np.frombuffer(json.dumps(fields, sort_keys=True).encode(), np.uint8)
    write_parameters(path, {_TEXT: text, **arrays})


def load_optimizer(trainer, path):
    """Bring the moments and counters of a `gluon.Trainer` into a saved state; the settings and the schedule of its optimizer stay.

    Parameters
    ----------
    trainer : gluon.Trainer
        Its parameters are initialized.
    path : str
        A file of `save_optimizer`, or one that ``Trainer.save_states`` of MXNet wrote: that is a pickle, and what else it may hold than
        the state of an optimizer is refused, not run.

    Raises
    ------
    UserError
        Naming the file when it is damaged, or of another optimizer or network. The trainer is as it was.
    """
    optimizer = trainer.optimizer
    states, name, counters, counts = (_read if is_parameter_file(path) else read_pickle)(path)
    if name not in (None, type(optimizer).__name__):
        raise UserError(f'{path} is the state of {name}, not of {type(optimizer).__name__}')
    parameters = trainer._params
    unknown = set(states).difference(range(len(parameters)))
    if unknown:
        raise UserError(f'{path} is the state of another network: of a parameter number {max(unknown)}, this one has {len(parameters)}')
    for index, state in states.items():
        parameter = parameters[index]
        needed = optimizer.create_state_multi_precision(index, parameter.list_data()[0])
        if _shapes(state) != _shapes(needed):
            raise UserError(
                f'{path} is the state of another network, or of other settings: of {parameter.name} it has {_shapes(state)}, '
                f'and {_shapes(needed)} are needed'
            )
    for updater in _updaters(trainer):  # one for each device
        updater.states = {index: _to_mxnet(state) for index, state in states.items()}
        updater.states_synced = dict.fromkeys(states, False)  # MXNet moves them to the device in the next update
    if name is not None:
        optimizer.begin_num_update, optimizer.num_update = counters['begin_num_update'], counters['num_update']
        optimizer._all_index_update_counts = {0: {}, **counts}
        optimizer._index_update_count = optimizer._all_index_update_counts[0]


def _updaters(trainer):
    """The updaters of a trainer, which are made, as MXNet's own functions do, when they are first needed."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()
    return trainer._updaters


def _name_arrays(state, name, arrays):
    """Add the arrays of a state to `arrays`; return the state with their names instead."""
    if state is None:
        return None
    if isinstance(state, (tuple, list)):
        return [_name_arrays(part, f'{name}.{number}', arrays) for number, part in enumerate(state)]
    arrays[name] = state.asnumpy()
    return name


def _read(path):
    """The content of a file of `save_optimizer`, as `read_pickle` returns that of a pickle."""
    arrays = read_parameters(path)
    if _TEXT not in arrays:
        raise UserError(f'{path} holds no state of an optimizer')
    try:
        fields = json.loads(arrays.pop(_TEXT).tobytes())
        if fields['format'] != FORMAT:
            raise UserError(f'{path} was written by another version of this program (format {fields["format"]}, not {FORMAT})')
        states = {int(index): _take_arrays(state, arrays) for index, state in fields['states'].items()}
        counts = {int(device): {int(index): int(count) for index, count in row.items()} for device, row in fields['counts'].items()}
        counters = {name: int(fields[name]) for name in ('begin_num_update', 'num_update')}
        return states, fields['optimizer'], counters, counts
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f'{path} is damaged: {error}') from error


def _take_arrays(state, arrays):
    """The reverse of `_name_arrays`."""
    return tuple(_take_arrays(part, arrays) for part in state) if isinstance(state, list) else None if state is None else arrays[state]


def _to_mxnet(state):
    if state is None:
        return None
    if isinstance(state, tuple):
        return tuple(map(_to_mxnet, state))
    return mx.nd.array(state, dtype=state.dtype)


def _shapes(state):
    """What a state is made of, in words: 'none', 'float32 (3, 4)', '[float32 (3, 4), float32 (3, 4)]'."""
    if state is None:
        return 'none'
    if isinstance(state, (tuple, list)):
        return f'[{", ".join(map(_shapes, state))}]'
    return f'{np.dtype(state.dtype).name} {state.shape}'
