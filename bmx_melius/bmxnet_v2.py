"""Reading checkpoints of BMXNet-v2, the fork of MXNet in which the paper's networks were trained.

Two kinds of file exist. An exported one (``arg:NAME`` and ``aux:NAME``) holds full parameter names, which the networks of this project
share up to the number in the network's own prefix. One written by ``save_parameters`` holds structural names, paths through the
reference's blocks; its last stage is stored twice, as ``current_stage.*`` and as ``layer3.1.*``. There modules are matched in the order
in which data flows through them, and every shape is checked.
"""
import collections
import re

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError

from .container import read_parameters
from .errors import UserError

_DUPLICATE = 'current_stage.'
_KINDS = ('weight', 'bias', 'gamma', 'beta', 'running_mean', 'running_var')
_SECTIONS = re.compile(r'(features|layer\d+|finalize|output)\.')


class _WrongNetwork(UserError):
    def __init__(self, filename, difference):
        super().__init__(f'{filename} is not a checkpoint of this network: {difference}')


def load_reference_parameters(net, filename):
    """Load a BMXNet-v2 checkpoint into a network of this project's zoo.

    Parameters
    ----------
    net : gluon.HybridBlock
        As given by `model_zoo.get_model` with the checkpoint's ``classes`` and ``initial_layers``; it is initialized where it is not yet.
    filename : str
        A file written by BMXNet-v2's ``save_parameters`` or ``export`` (stored as float32).

    Returns
    -------
    dict of str to str: this network's parameter names and where each came from. Every parameter is set, or none.

    Raises
    ------
    UserError
        If the file cannot be read as a checkpoint or is one of another network; the message names the first difference.
    """
    arrays = _read(filename)
    if all(key.startswith(('arg:', 'aux:')) for key in arrays):
        sources = _match_full_names(net, arrays, filename)
    else:
        sources = _match_structure(net, arrays, filename)
    for name, key in sources.items():
        _set(net.collect_params()[name], arrays[key])
    return sources


def _read(filename):
    try:
        arrays = read_parameters(filename)
    except (UserError, OSError) as error:
        raise UserError(f'cannot read the checkpoint: {error}') from error
    if not arrays:
        raise UserError(f'{filename} holds no named parameters')
    return arrays


def _match_full_names(net, arrays, filename):
    names = {key: key.partition(':')[2] for key in arrays}
    # All names begin with that of the network, except the output layer's of ResNetE, which was made outside of its name scope.
    (network, _), = collections.Counter(name.partition('_')[0] for name in names.values()).most_common(1)
    keys = {name[len(network) + 1:] if name.startswith(f'{network}_') else name: key for key, name in names.items()}
    parameters = {name[len(net.prefix):]: parameter for name, parameter in net.collect_params().items()}
    for own, parameter in parameters.items():
        if own not in keys:
            raise _WrongNetwork(filename, f'it has no parameter ..._{own}')
        _check_shape(parameter, keys[own], arrays, filename)
    for key in keys:
        if key not in parameters:
            raise _WrongNetwork(filename, f'the network has no parameter like its {keys[key]}')
    return {parameter.name: keys[own] for own, parameter in parameters.items()}


def _match_structure(net, arrays, filename):
    keys = [key for key in arrays if not key.startswith(_DUPLICATE)]
    for key in keys:
        if not _SECTIONS.match(key):
            raise _WrongNetwork(filename, f'its parameter {key} is in no part of a network of this kind')
    parameters = net.collect_params()
    theirs = _by_module(sorted(keys, key=_flow_order), '.')
    ours = _by_module(parameters, '_')
    sources = {}
    for (module, kinds), (path, found) in zip(ours.items(), theirs.items()):
        if set(kinds) != set(found):
            raise _WrongNetwork(filename, f'its {path} holds {", ".join(found)} where {module} holds {", ".join(kinds)}')
        for kind, name in kinds.items():
            _check_shape(parameters[name], found[kind], arrays, filename)
            sources[name] = found[kind]
    if len(ours) != len(theirs):
        raise _WrongNetwork(filename, f'it has {len(theirs)} layers with parameters instead of {len(ours)}')
    return sources


def _by_module(names, separator):
    """Group parameter names by the module they belong to: {module: {kind: name}}, in the order given."""
    modules = {}
    for name in names:
        kind = next((k for k in _KINDS if name.endswith(separator + k)), None)
        if kind is None:
            raise UserError(f'parameter {name} is of no known kind ({", ".join(_KINDS)})')
        modules.setdefault(name[: -len(separator + kind)], {})[kind] = name
    return modules


def _flow_order(key):
    """Sort key of a structural name: features, layer0, layer1, ..., finalize, output; within each, path numbers in numeric order."""
    section = ('features', 'layer', 'finalize', 'output').index(re.match('[a-z]+', key).group())
    parts = re.split(r'\.|(?<=layer)(?=\d)', key)
    return section, [(0, int(part), '') if part.isdigit() else (1, 0, part) for part in parts]


def _check_shape(parameter, key, arrays, filename):
    shape, given = parameter.shape, arrays[key].shape
    if len(shape) != len(given) or not all(own in (0, -1, other) for own, other in zip(shape, given)):
        raise _WrongNetwork(filename, f'its {key} has shape {given}, but {parameter.name} needs {shape} (0: any)')


def _set(parameter, array):
    parameter.shape = array.shape
    try:
        parameter.data()
    except DeferredInitializationError:
        parameter.initialize(ctx=parameter.list_ctx())
    except RuntimeError:  # MXNet's way to say that it was never initialized
        parameter.initialize()
    parameter.set_data(mx.nd.array(array, dtype=array.dtype))
