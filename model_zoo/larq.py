"""Networks trained with Larq, a library for binary networks on TensorFlow (https://docs.larq.dev/zoo/).

The networks of Larq Zoo differ from this zoo's by options. All of them add no offset to dot products, and pad layers of stride 2 as
TensorFlow does (`model_zoo.padding`): height and width of the input must be multiples of 32 pixels, and are fixed for XNOR-Net. All but
QuickNet pad binary convolutions with zeros.
"""

import dataclasses
import os
from typing import Any, Dict, Optional, Tuple, Type, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.importers.keras import read_keras_layers
from bmx_melius.nn.channelwise import PReLU
from bmx_melius.nn.methods.real_to_binary import GatedBinaryConv2D
from bmx_melius.nn.methods.xnor_net import XNORWeights
from bmx_melius.vision.preprocessing import InputSpec

from . import registry, store
from .quicknet import BLUR, Transition
from .registry import Context
from .stems import KERAS_NORM

Path = Union[str, os.PathLike]

# Larq Zoo crops 7/8 of the short side, resizes that to 224 pixels (bicubic; here bilinear) and normalizes pixels of 0 to 1.
INPUT = InputSpec(size=224, resize=256, mean=(0.485 * 255, 0.456 * 255, 0.406 * 255), std=(0.229 * 255, 0.224 * 255, 0.225 * 255))

_CONVOLUTION = {'pad_value': 0, 'no_offset': True}
_NORM = {'epsilon': 1e-5, 'momentum': 0.9}
_DENSENET = {'initial_layers': 'imagenet', 'same_padding': True, 'conv_kwargs': _CONVOLUTION, 'norm_kwargs': _NORM}
_QUICKNET = {'same_padding': True}

# Name of a network -> arguments of get_model that build Larq Zoo's version (larq-zoo 2.4.0, larq_zoo/literature/*.py and sota/*.py).
NETWORKS: Dict[str, Dict[str, Any]] = {
    'meliusnet22': {
        'initial_layers': 'grouped_stem',
        'stem_pool': 2,
        'same_padding': True,
        'conv_kwargs': _CONVOLUTION,
        'norm_kwargs': _NORM,
    },
    'binary_densenet28': _DENSENET,
    'binary_densenet37': _DENSENET,
    'binary_densenet37_dilated': _DENSENET,
    'binary_densenet45': _DENSENET,
    'resnet_e18': {**_DENSENET, 'input_norm': False, 'clip_threshold': 1.25},
    'birealnet18': {**_DENSENET, 'norm_kwargs': {'epsilon': 1e-3, 'momentum': 0.8}},
    'real_to_binary18': {
        'stem_prelu': True,
        'same_padding': True,
        'conv_kwargs': {'pad_value': 0, 'factor': 1},
        'norm_kwargs': KERAS_NORM,
    },
    'alexnet_xnor': {
        'initial_layers': 'alexnet_same',
        'use_bias': False,
        'conv_kwargs': {'pad_value': 0, 'center_weights': False, 'weight_threshold': 1},
        'norm_kwargs': {'scale': False, **_NORM},
    },
    'quicknet_small': _QUICKNET,
    'quicknet': _QUICKNET,
    'quicknet_large': _QUICKNET,
}


@dataclasses.dataclass(frozen=True)
class KerasArrays:
    """Arrays of a layer in Keras.

    Attributes
    ----------
    names : dict of str to str
        Names of the parameters in MXNet and of the arrays in Keras, {MXNet: Keras}. Other parameters are constants here.
    constants : dict of str to array
        Arrays of the file that the layer does not need, and the values that they must have for each channel.
    limit : float or None
        Magnitude to which the quantizer of Larq Zoo clips the arrays.
    """

    names: Dict[str, str]
    constants: Dict[str, Any] = dataclasses.field(default_factory=dict)
    limit: Optional[float] = None


_WEIGHT_AND_BIAS = {'weight': 'kernel', 'bias': 'bias'}
_DEPTHWISE = 'depthwise_kernel'

KINDS: Dict[Type[HybridBlock], KerasArrays] = {  # the first row that fits a layer counts
    XNORWeights: KerasArrays(_WEIGHT_AND_BIAS, limit=1),
    nn.Conv2D: KerasArrays(_WEIGHT_AND_BIAS),
    nn.Dense: KerasArrays(_WEIGHT_AND_BIAS),
    nn.BatchNorm: KerasArrays({'gamma': 'gamma', 'beta': 'beta', 'running_mean': 'moving_mean', 'running_var': 'moving_variance'}),
    PReLU: KerasArrays({'slope': 'alpha'}),
    Transition: KerasArrays({}, constants={_DEPTHWISE: BLUR}),
}
DEPTHWISE = KerasArrays({'weight': _DEPTHWISE, 'bias': 'bias'})  # of a nn.Conv2D

AXES = {('kernel', 2): (1, 0), ('kernel', 4): (3, 2, 0, 1), (_DEPTHWISE, 4): (2, 3, 0, 1)}  # by which Keras' arrays are transposed


def from_larq(name: str, path: Path, ctx: Context = mx.cpu(), **kwargs: Any) -> HybridBlock:  # noqa: B008
    """Build a network of Larq Zoo with the weights of a file that Larq wrote.

    Parameters
    ----------
    name : str
        A key of `NETWORKS`, in any spelling that `get_model` accepts.
    path : str or os.PathLike
        HDF5 file of Keras, with only weights or a whole model. It is read with h5py; TensorFlow is not needed.
    ctx : mx.Context
        Device of the parameters.
    **kwargs
        Arguments of the network that override `NETWORKS`.

    Returns
    -------
    gluon.HybridBlock. Input (N, 3, H, W), float32, H and W multiples of 32 (8 for the dilated network; of XNOR-Net `input_size`, 224);
    output (N, classes) logits, of which Larq's networks give the softmax.

    Raises
    ------
    UserError
        If the file is not a file of Keras weights, or contains weights of another network; the message names the first difference. Every
        array of the file must be used once.
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> import mxnet as mx
    >>> from model_zoo import from_larq
    >>> net = from_larq('meliusnet22', 'meliusnet22_weights.h5')
    >>> net(mx.nd.zeros((1, 3, 64, 64))).shape
    (1, 1000)
    """
    return load(name, path, ctx, **kwargs)[0]


def load(
    name: str,
    path: Path,
    ctx: Context = mx.cpu(),  # noqa: B008
    **kwargs: Any,
) -> Tuple[HybridBlock, Dict[str, Any], Dict[str, str]]:
    """Return the network of `from_larq`, its arguments of `model_zoo.get_model`, and the result of `load_larq_parameters`."""
    layers = read_keras_layers(path)
    if not layers or layers[-1].weights.get('kernel', np.empty(0)).ndim != 2:
        raise UserError(f'{path} does not end in a dense layer: it has no classifier (Larq Zoo also publishes files without one, "notop")')
    arguments = {'name': registry.listed_name(name), 'classes': layers[-1].weights['kernel'].shape[1], **_options(name), **kwargs}
    net = registry.get_model(**arguments)
    return net, arguments, _set(net, layers, path, ctx)


def load_larq_parameters(net: HybridBlock, path: Path, ctx: Context = mx.cpu()) -> Dict[str, str]:  # noqa: B008
    """Load a file written by Larq or Keras into a network, as `bmx_melius.load_reference_parameters` does for BMXNet-v2.

    `from_larq` builds networks of Larq Zoo; this function is for networks of other sizes trained with Larq.

    Parameters
    ----------
    net : gluon.HybridBlock
        A network of this zoo, such as ``meliusnet_flex``, built with the options of the corresponding network in `NETWORKS`.
    path, ctx
        As in `from_larq`, with the same errors.

    Returns
    -------
    dict of str to str
        Parameter name of the network -> ``LAYER/WEIGHT`` of Keras, several of them joined by +.

    Examples
    --------
    >>> from model_zoo import get_model, larq, load_larq_parameters
    >>> net = get_model('meliusnet_flex', block_numbers=[4, 5, 4, 4], transitions=[160, 224, 256], **larq.NETWORKS['meliusnet22'])
    >>> sources = load_larq_parameters(net, 'meliusnet22_weights.h5')
    >>> sources[net.output.weight.name]
    'head_dense/kernel'
    """
    return _set(net, read_keras_layers(path), path, ctx)


def _set(net, layers, path, ctx):
    matches = _match(net, layers, f'{path} does not hold the weights of this network')
    net.initialize(mx.init.Zero(), ctx=ctx)
    for parameter, value, _ in matches:
        parameter.set_data(mx.nd.array(value, dtype='float32'))
    return {parameter.name: source for parameter, _, source in matches}


def _options(name):
    listed = registry.listed_name(name)
    if listed not in NETWORKS:
        raise UserError(f'Larq Zoo has no {name} that is supported here; known: {", ".join(NETWORKS)}')
    return NETWORKS[listed]


@registry.provide('larq', _options)
def pretrained(name: str, ctx: Context, root: str, **kwargs: Any) -> HybridBlock:
    """Return the network of ``get_model(name, pretrained='larq')``, with weights of Larq Zoo, downloaded to `root` if necessary."""
    weights = next(row for row in store.WEIGHTS if row.kind == 'larq' and row.network == registry.listed_name(name))
    return from_larq(name, store.fetch(weights, root), ctx, **kwargs)


def _match(net, layers, complaint):
    """Match the parameters of a network with the arrays of Keras layers: a list of (Parameter, array, source). Raises `UserError`."""
    size = getattr(net, 'input_size', None) or INPUT.size
    net.infer_shape(mx.nd.zeros((1, 3, size, size)))
    matches, waiting = [], list(layers)
    for layer in _layers(net):
        kind, groups = _kind_and_groups(layer, waiting)
        theirs, waiting = waiting[:groups], waiting[groups:]
        if len(theirs) < groups:
            raise UserError(f'{complaint}: it ends before {layer.name}')
        needed = _stored(layer, kind)
        for part in theirs:
            names = [*needed, *kind.constants]
            if set(part.weights) != set(names):
                raise UserError(f'{complaint}: its {part.name} holds {", ".join(part.weights)}, but {layer.name} needs {", ".join(names)}')
        for there, constant in kind.constants.items():
            _require_constant(theirs[0], there, constant, complaint)
        for there, parameter in needed.items():
            parts = [part.weights[there] for part in theirs]
            parts = [part.transpose(AXES.get((there, part.ndim), range(part.ndim))) for part in parts]
            given = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
            if _long_axes(given) != _long_axes(parameter.shape) or len({part.shape for part in parts}) > 1:
                shape = f'the shape {given} in the axis order of MXNet, {parameter.name} has {parameter.shape}'
                raise UserError(f'{complaint}: {there} of its {theirs[0].name} has {shape}')
            value = np.concatenate(parts).reshape(parameter.shape)
            if kind.limit:
                value = value.clip(-kind.limit, kind.limit)
            matches.append((parameter, value, ' + '.join(f'{part.name}/{there}' for part in theirs)))
    if waiting:
        raise UserError(f'{complaint}: after the last layer of the network it has {waiting[0].name}')
    return matches


def _kind_and_groups(layer, waiting):
    """Return the `KerasArrays` of a layer, and how many of the layers `waiting` in the file belong to it.

    Larq Zoo has a separate layer for each group of a grouped convolution, but one layer for a depthwise convolution.
    """
    kind = next((kind for block, kind in KINDS.items() if isinstance(layer, block)), None)
    if kind is None or any(own not in kind.names and parameter._differentiable for own, parameter in _own_parameters(layer)):
        raise UserError(f'Keras weights can be loaded into {", ".join(block.__name__ for block in KINDS)}, not into {layer!r}')
    if isinstance(layer, nn.Conv2D):
        return (DEPTHWISE, 1) if waiting and _DEPTHWISE in waiting[0].weights else (kind, layer._kwargs['num_group'])
    return kind, 1


def _own_parameters(layer):
    """Return (name, Parameter) of a layer, that it has: a bias, for example, is optional."""
    return [(own, parameter) for own, parameter in layer._reg_params.items() if parameter is not None]


def _stored(layer, kind):
    """Return {name in Keras: Parameter} of a layer, without scale and shift of a normalization that has none."""
    return {
        kind.names[own]: parameter
        for own, parameter in _own_parameters(layer)
        if own in kind.names and (parameter._differentiable or own not in ('gamma', 'beta'))
    }


def _require_constant(layer, name, constant, complaint):
    array = layer.weights[name]
    expected = np.reshape(constant, (*np.shape(constant), *(1 for _ in array.shape[np.ndim(constant) :])))
    if array.shape[: np.ndim(constant)] != np.shape(constant) or not np.allclose(array, expected, rtol=0, atol=1e-6):
        raise UserError(f'{complaint}: {name} of its {layer.name} is not {np.array(constant).tolist()} for each channel')


def _long_axes(shape):
    """Return a shape without axes of one element: a dense layer is a 1x1 convolution, and slopes of channels have axes for positions."""
    return [size for size in shape if size > 1]


def _layers(block):
    """Yield the layers with arrays in the order of Keras, by distance from the output: layers of parallel paths alternate."""
    if isinstance(block, Transition):
        yield block  # its filter precedes its layers with parameters
    if block._reg_params:
        yield block
    elif isinstance(block, GatedBinaryConv2D):
        yield from _layers(block.gate)
        yield from _layers(block.qconv)
    else:
        shortcut = getattr(block, 'shortcut', None)
        longer = [layer for child in block._children.values() if child is not shortcut for layer in _layers(child)]
        shorter = list(_layers(shortcut)) if shortcut is not None else []
        yield from longer[: len(longer) - len(shorter)]
        for pair in zip(longer[len(longer) - len(shorter) :], shorter):
            yield from pair
