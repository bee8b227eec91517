"""Optimizer state files: moments and counters as arrays and JSON, so that reading them does not execute code, unlike pickles.

The file is a parameter file of MXNet. Its array ``json`` contains a JSON object as bytes of UTF-8 text, with the fields

==================================  ==========================================================================================
``format``                          1
``optimizer``                       class name of the optimizer; of several, see `BinarySplit`, all names
``begin_num_update, num_update``    counters of the optimizer
``attributes``                      other numbers of the optimizer that change in training, such as the ``m_schedule`` of Nadam
``counts``                          number of updates: device number -> parameter number -> count
``states``                          parameter number -> null, the name of an array in this file, or a list of these
==================================  ==========================================================================================
"""

import json

import mxnet as mx
import numpy as np

from ...errors import UserError
from ...files.parameters import is_parameter_file, read_parameters, write_parameters
from ...optimizers import BinarySplit
from .pickled_states import read_pickle

FORMAT = 1
_TEXT = 'json'
_ATTRIBUTES = {'Nadam': ('m_schedule',)}  # what optimizers keep outside of states and counters, by class name


def save_optimizer(trainer, path):
    """Write the moments and counters of a `gluon.Trainer`; an existing file is replaced atomically."""
    optimizer, arrays = trainer.optimizer, {}
    states = {str(index): _name_arrays(state, str(index), arrays) for index, state in sorted(_updaters(trainer)[0].states.items())}
    fields = {
        'format': FORMAT,
        'optimizer': _name(optimizer),
        'begin_num_update': optimizer.begin_num_update,
        'num_update': optimizer.num_update,
        'attributes': {key: getattr(part, name) for key, (part, name) in _attributes(optimizer).items()},
        'counts': optimizer._all_index_update_counts,
        'states': states,
    }
    text = np.frombuffer(json.dumps(fields, sort_keys=True).encode(), np.uint8)
    write_parameters(path, {_TEXT: text, **arrays})


def load_optimizer(trainer, path):
    """Load the moments and counters of a `gluon.Trainer`; the settings and the schedule of its optimizer are not changed.

    Parameters
    ----------
    trainer : gluon.Trainer
        Trainer with initialized parameters.
    path : str
        File written by `save_optimizer` or by MXNet's ``Trainer.save_states``. The latter is a pickle; if it refers to anything other than
        the state of an optimizer, it is refused without executing it.

    Raises
    ------
    UserError
        When the file is damaged, or of another optimizer or network. The trainer is left unchanged.
    """
    optimizer = trainer.optimizer
    states, name, counters, counts = (_read if is_parameter_file(path) else read_pickle)(path)
    attributes = _attributes(optimizer)
    if name is not None and not attributes.keys() <= counters.keys():
        raise UserError(f'{path} lacks {", ".join(attributes)} of {name}, without which it cannot continue; start from the weights only')
    if name not in (None, _name(optimizer)):
        raise UserError(f'{path} is the state of {name}, not of {_name(optimizer)}')
    parameters = trainer._params
    unknown = set(states).difference(range(len(parameters)))
    if unknown:
        raise UserError(f'{path} is the state of another network: it has a parameter number {max(unknown)}, this one has {len(parameters)}')
    for index, state in states.items():
        parameter = parameters[index]
        needed = optimizer.create_state_multi_precision(index, parameter.list_data()[0])
        if _shapes(state) != _shapes(needed):
            raise UserError(
                f'{path} is the state of another network, or of other settings: for {parameter.name} it has {_shapes(state)}, '
                f'but {_shapes(needed)} is needed'
            )
    for updater in _updaters(trainer):  # one for each device
        updater.states = {index: _to_mxnet(state) for index, state in states.items()}
        updater.states_synced = dict.fromkeys(states, False)  # MXNet moves them to the device in the next update
    if name is not None:
        optimizer.begin_num_update, optimizer.num_update = counters['begin_num_update'], counters['num_update']
        optimizer._all_index_update_counts = {0: {}, **counts}
        optimizer._index_update_count = optimizer._all_index_update_counts[0]
        for key, (part, attribute) in attributes.items():
            setattr(part, attribute, counters[key])


def _parts(optimizer):
    """Return the optimizers of which an optimizer consists, a dict with prefixes of their names in files."""
    return {f'{name}.': part for name, part in optimizer.parts.items()} if isinstance(optimizer, BinarySplit) else {'': optimizer}


def _name(optimizer):
    """Return the class name of an optimizer, or the class names of its parts: 'SGD and Adam for binary weights'."""
    return ' and '.join(type(part).__name__ for part in _parts(optimizer).values()) + (
        ' for binary weights' if isinstance(optimizer, BinarySplit) else ''
    )


def _attributes(optimizer):
    """Return the attributes to save beside states and counters: name in files -> (optimizer, attribute)."""
    return {prefix + name: (part, name) for prefix, part in _parts(optimizer).items() for name in _ATTRIBUTES.get(type(part).__name__, ())}


def _updaters(trainer):
    """Return the updaters of a trainer, which are created on first use, as MXNet's functions do."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()
    return trainer._updaters


def _name_arrays(state, name, arrays):
    """Add the arrays of a state to the dict `arrays`; return the state with arrays replaced by their names."""
    if state is None:
        return None
    if isinstance(state, (tuple, list)):
        return [_name_arrays(part, f'{name}.{number}', arrays) for number, part in enumerate(state)]
    arrays[name] = state.asnumpy()
    return name


def _read(path):
    """Read a file written by `save_optimizer`; return the same values as `read_pickle`."""
    arrays = read_parameters(path)
    if _TEXT not in arrays:
        raise UserError(f'{path} does not contain the state of an optimizer')
    try:
        fields = json.loads(arrays.pop(_TEXT).tobytes())
        if fields['format'] != FORMAT:
            raise UserError(f'{path} was written by another version of this program (format {fields["format"]}, not {FORMAT})')
        states = {int(index): _take_arrays(state, arrays) for index, state in fields['states'].items()}
        counts = {int(device): {int(index): int(count) for index, count in row.items()} for device, row in fields['counts'].items()}
        counters = {name: int(fields[name]) for name in ('begin_num_update', 'num_update')}
        counters.update({name: float(number) for name, number in fields.get('attributes', {}).items()})
        return states, fields['optimizer'], counters, counts
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f'{path} is damaged: {error}') from error


def _take_arrays(state, arrays):
    """Return a state with names replaced by their arrays, the inverse of `_name_arrays`."""
    return tuple(_take_arrays(part, arrays) for part in state) if isinstance(state, list) else None if state is None else arrays[state]


def _to_mxnet(state):
    if state is None:
        return None
    if isinstance(state, tuple):
        return tuple(map(_to_mxnet, state))
    return mx.nd.array(state, dtype=state.dtype)


def _shapes(state):
    """Return dtypes and shapes of a state as text: 'none', 'float32 (3, 4)', '[float32 (3, 4), float32 (3, 4)]'."""
    if state is None:
        return 'none'
    if isinstance(state, (tuple, list)):
        return f'[{", ".join(map(_shapes, state))}]'
    return f'{np.dtype(state.dtype).name} {state.shape}'
