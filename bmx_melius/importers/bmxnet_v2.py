"""Importer of checkpoints of BMXNet-v2, the fork of MXNet in which the networks of the paper were trained.

There are two kinds of files. Exported files (``arg:NAME`` and ``aux:NAME``) contain full parameter names, which equal the names in this
project except for the number in the prefix of the network. Files written by ``save_parameters`` contain structural names, paths through the
blocks of BMXNet-v2; they store the last stage twice, as ``current_stage.*`` and as ``layer3.1.*``. Their modules are matched in the order
in which data flows through them. All shapes are checked against those inferred for the network.
"""

import collections
import os
import re
from typing import Dict, Union

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError

from ..errors import UserError
from ..files.parameters import read_parameters
from ..graph.tracing import read_graph

_DUPLICATE = 'current_stage.'
_KINDS = ('weight', 'bias', 'gamma', 'beta', 'running_mean', 'running_var')
# Weight shape of the first convolution -> initial_layers.
_STEMS = {(32, 3, 3, 3): 'grouped_stem', (64, 3, 7, 7): 'imagenet', (64, 3, 3, 3): 'thumbnail'}
_SIZE = 64  # pixels; an image size that all networks accept unless they have one size, small so that shape inference is quick
_HIDDEN = re.compile(r'features\.|_qdense')  # fully connected layers before the output layer
_STAGE = re.compile(r'stage\d+')
_SECTIONS = re.compile(r'(features|layer\d+|finalize|output)\.')


class _WrongNetwork(UserError):
    def __init__(self, filename, difference):
        super().__init__(f'{filename} is not a checkpoint of this network: {difference}')


def load_reference_parameters(net: mx.gluon.HybridBlock, filename: Union[str, os.PathLike]) -> Dict[str, str]:
    """Load a BMXNet-v2 checkpoint into a network of this project's zoo.

    Parameters
    ----------
    net : gluon.HybridBlock
        Built by `model_zoo.get_model` with the ``classes`` and ``initial_layers`` of the checkpoint; initialized if necessary.
    filename : str
        A file written by BMXNet-v2's ``save_parameters`` or ``export`` (stored as float32).

    Returns
    -------
    dict of str to str
        Parameter name of the network -> name in the file. If an error is raised, no parameter has been changed.

    Raises
    ------
    UserError
        If the file is not a checkpoint, or belongs to another network; the message names the first difference.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import load_reference_parameters
    >>> from model_zoo import get_model
    >>> network = {'name': 'meliusnet_flex', 'block_numbers': [1], 'transitions': [], 'classes': 10, 'initial_layers': 'thumbnail'}
    >>> trained, x = get_model(**network), mx.nd.random.normal(shape=(1, 3, 16, 16))
    >>> trained.initialize()
    >>> trained.hybridize()
    >>> y = trained(x)
    >>> _ = trained.export('checkpoint')  # a file as BMXNet-v2 writes it
    >>> net = get_model(**network)
    >>> matched = load_reference_parameters(net, 'checkpoint-0000.params')
    >>> matched.keys() == net.collect_params().keys(), bool((net(x) == y).asnumpy().all())
    (True, True)
    """
    arrays = _read(filename)
    if all(key.startswith(('arg:', 'aux:')) for key in arrays):
        sources = _match_full_names(net, arrays, filename)
    else:
        sources = _match_structure(net, arrays, filename)
    parameters = net.collect_params()
    for name, key in sources.items():
        _set(parameters[name], arrays[key])
    return sources


def reference_options(filename):
    """Infer the arguments ``classes`` and ``initial_layers`` of `model_zoo.get_model` from a BMXNet-v2 checkpoint.

    Returns a dict without the arguments that cannot be inferred. Raises `UserError` if the file cannot be read.
    """
    options = {}
    for key, array in _read(filename).items():
        if array.shape in _STEMS:
            options.setdefault('initial_layers', _STEMS[array.shape])
        elif array.ndim == 2 and not _HIDDEN.search(key):
            options['classes'] = array.shape[0]
    return options


def _read(filename):
    try:
        arrays = read_parameters(filename)
    except UserError as error:
        raise UserError(f'cannot read the checkpoint: {error}') from error
    if not arrays:
        raise UserError(f'{filename} holds no named parameters')
    return arrays


def _match_full_names(net, arrays, filename):
    # Binary layers of shortcuts have no number there.
    names = {key: key.partition(':')[2].replace('_sc_qconv_', '_sc_qconv0_') for key in arrays}
    # All names have the prefix of the network, except in layers created outside of its name scope: the output layer of ResNetE, and
    # all layers of ResNet and BiNet, whose names begin with the names of stages and layers.
    ((network, _),) = collections.Counter(name.partition('_')[0] for name in names.values()).most_common(1)
    prefix = '' if _STAGE.fullmatch(network) else f'{network}_'
    keys = {name[len(prefix) :] if name.startswith(prefix) else name: key for key, name in names.items()}
    shapes = _shapes(net)
    parameters = {name[len(net.prefix) :]: name for name in shapes}
    for own, name in parameters.items():
        if own not in keys:
            raise _WrongNetwork(filename, f'it has no parameter ..._{own}')
        _check_shape(name, shapes, keys[own], arrays, filename)
    for key in keys:
        if key not in parameters:
            raise _WrongNetwork(filename, f'the network has no parameter like its {keys[key]}')
    return {name: keys[own] for own, name in parameters.items()}


def _match_structure(net, arrays, filename):
    keys = [key for key in arrays if not key.startswith(_DUPLICATE)]
    for key in keys:
        if not _SECTIONS.match(key):
            raise _WrongNetwork(filename, f'its parameter {key} is in no part of a network of this kind')
    shapes = _shapes(net)
    theirs = _by_module(sorted(keys, key=_flow_order), '.')
    ours = _by_module(shapes, '_')
    sources = {}
    for (module, kinds), (path, found) in zip(ours.items(), theirs.items()):
        if set(kinds) != set(found):
            raise _WrongNetwork(filename, f'its {path} holds {", ".join(found)} where {module} holds {", ".join(kinds)}')
        for kind, name in kinds.items():
            _check_shape(name, shapes, found[kind], arrays, filename)
            sources[name] = found[kind]
    if len(ours) != len(theirs):
        raise _WrongNetwork(filename, f'it has {len(theirs)} layers with parameters instead of {len(ours)}')
    _check_duplicates(arrays, filename)
    return sources


def _check_duplicates(arrays, filename):
    """Raise `UserError` unless both copies of the last stage are equal; otherwise it is unknown which one was trained."""
    last_stage = max((key.partition('.')[0] for key in arrays if key.startswith('layer')), default=None)
    for key in arrays:
        if key.startswith(_DUPLICATE):
            original = f'{last_stage}.1.{key[len(_DUPLICATE) :]}'
            if original not in arrays or not np.array_equal(arrays[key], arrays[original]):
                raise UserError(f'{filename} is damaged: its {key} is not equal to {original}, of which it is a copy')


def _by_module(names, separator):
    """Group parameter names by module: {module: {kind: name}}, in the order given."""
    modules = {}
    for name in names:
        kind = next((k for k in _KINDS if name.endswith(separator + k)), None)
        if kind is None:
            raise UserError(f'parameter {name} is of no known kind ({", ".join(_KINDS)})')
        modules.setdefault(name[: -len(separator + kind)], {})[kind] = name
    return modules


def _flow_order(key):
    """Return a sort key of a structural name: features, layer0, layer1, ..., finalize, output; numbers in numeric order."""
    section = ('features', 'layer', 'finalize', 'output').index(re.match('[a-z]+', key).group())
    parts = re.split(r'\.|(?<=layer)(?=\d)', key)
    return section, [(0, int(part), '') if part.isdigit() else (2 if part == 'downsample' else 1, 0, part) for part in parts]


def _shapes(net):
    """Return the shapes of the parameters by name, in order, by shape inference: deferred shapes are still unknown."""
    size = getattr(net, 'input_size', None) or _SIZE
    graph = read_graph(net, (1, 3, size, size))
    inferred = {node.name: node.shape for node in graph.parameters + graph.statistics}
    return {name: inferred[name] for name in net.collect_params()}


def _check_shape(name, shapes, key, arrays, filename):
    if shapes[name] != arrays[key].shape:
        raise _WrongNetwork(filename, f'its {key} has shape {arrays[key].shape}, but {name} needs {shapes[name]}')


def _set(parameter, array):
    parameter.shape = array.shape
    try:
        parameter.data()
    except DeferredInitializationError:
        parameter.initialize(ctx=parameter.list_ctx())
    except RuntimeError:  # it was never initialized
        parameter.initialize()
    parameter.set_data(mx.nd.array(array, dtype=array.dtype))
