"""Networks trained with Larq, the library of binary networks on TensorFlow (https://docs.larq.dev/zoo/).

What tells Larq Zoo's networks from those of the same name here is a row of options. All of them pad binary convolutions with zeros, leave
their dot products as they are, and pad what halves the map as TensorFlow does (`model_zoo.padding`): inputs are multiples of 32 pixels,
or the networks refuse them.
"""

import dataclasses
import os
from typing import Any, Dict, Sequence, Tuple, Type, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.importers.keras import read_keras_layers
from bmx_melius.preprocessing import InputSpec

from . import registry, store
from .registry import Context
from .resnet import ResidualBlock

Path = Union[str, os.PathLike]

# Larq Zoo crops 7/8 of the short side and resizes that to 224 pixels (bicubic, where this is bilinear), and normalizes in units of 0..1.
INPUT = InputSpec(size=224, resize=256, mean=(0.485 * 255, 0.456 * 255, 0.406 * 255), std=(0.229 * 255, 0.224 * 255, 0.225 * 255))

_CONVOLUTION = {'pad_value': 0, 'no_offset': True}
_NORM = {'epsilon': 1e-5, 'momentum': 0.9}
_DENSENET = {'initial_layers': 'imagenet', 'same_padding': True, 'conv_kwargs': _CONVOLUTION, 'norm_kwargs': _NORM}

# Name of a network here -> the arguments of get_model that make it Larq Zoo's (larq-zoo 2.4.0, larq_zoo/literature/*.py).
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
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a layer's weights are called in both libraries, {here: there}, and the order of the axes of Keras' kernel in ours."""

    names: Dict[str, str]
    axes: Sequence[int] = ()


KINDS: Dict[Type[HybridBlock], Kind] = {
    nn.Conv2D: Kind({'weight': 'kernel', 'bias': 'bias'}, axes=(3, 2, 0, 1)),
    nn.Dense: Kind({'weight': 'kernel', 'bias': 'bias'}, axes=(1, 0)),
    nn.BatchNorm: Kind({'gamma': 'gamma', 'beta': 'beta', 'running_mean': 'moving_mean', 'running_var': 'moving_variance'}),
}


def from_larq(name: str, path: Path, ctx: Context = mx.cpu(), **kwargs: Any) -> HybridBlock:  # noqa: B008
    """Read a network that Larq trained.

    Parameters
    ----------
    name : str
        Of `NETWORKS`, in any spelling that `get_model` knows.
    path : str or os.PathLike
        The HDF5 file of Keras, weights alone or a whole model. h5py reads it; TensorFlow is not needed.
    ctx : mx.Context
        Where the parameters are loaded to.
    **kwargs
        Of the network, instead of what `NETWORKS` says.

    Returns
    -------
    gluon.HybridBlock. Input (N, 3, H, W), float32, H and W multiples of 32 (8 for the dilated network); output (N, classes) logits, of
    which Larq's networks give the softmax.

    Raises
    ------
    UserError
        When the file is no file of Keras weights, or holds those of another network: the message names the first difference. Every array
        of the file is used once.
    OSError
        When the file cannot be opened.
    """
    return load(name, path, ctx, **kwargs)[0]


def load(
    name: str,
    path: Path,
    ctx: Context = mx.cpu(),  # noqa: B008
    **kwargs: Any,
) -> Tuple[HybridBlock, Dict[str, Any], Dict[str, str]]:
    """`from_larq`, the arguments of `model_zoo.get_model` that build the network, and what `load_larq_parameters` returns."""
    layers = read_keras_layers(path)
    if not layers or layers[-1].weights.get('kernel', np.empty(0)).ndim != 2:
        raise UserError(f'{path} does not end in a dense layer: it holds no classifier (Larq Zoo also publishes files without, "notop")')
    arguments = {'name': registry.listed_name(name), 'classes': layers[-1].weights['kernel'].shape[1], **_options(name), **kwargs}
    net = registry.get_model(**arguments)
    return net, arguments, _set(net, layers, path, ctx)


def load_larq_parameters(net: HybridBlock, path: Path, ctx: Context = mx.cpu()) -> Dict[str, str]:  # noqa: B008
    """Load a file that Larq or Keras wrote into a network, as `bmx_melius.load_reference_parameters` does with BMXNet-v2's.

    `from_larq` also builds the networks of Larq Zoo; this function is for those of other sizes, trained by Larq.

    Parameters
    ----------
    net : gluon.HybridBlock
        Of this zoo, such as ``meliusnet_flex``, built with the options of its relative in `NETWORKS`.
    path, ctx
        As of `from_larq`, and errors as there.

    Returns
    -------
    dict of str to str: this network's parameter names and where each came from, ``LAYER/WEIGHT`` of Keras, with + between several.
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
        raise UserError(f'Larq Zoo has no {name} that is known here; known: {", ".join(NETWORKS)}')
    return NETWORKS[listed]


@registry.provide('larq', _options)
def pretrained(name: str, classes: int, ctx: Context, root: str, **kwargs: Any) -> HybridBlock:
    """What ``get_model(name, pretrained='larq')`` gives: the network with the weights of Larq Zoo, downloaded to `root` if need be."""
    weights = next(row for row in store.WEIGHTS if row.kind == 'larq' and row.network == registry.listed_name(name))
    if weights.classes != classes:
        raise UserError(
            f'{name} of Larq Zoo has {weights.classes} classes, not {classes}; replace the output layer of what has {weights.classes}'
        )
    return from_larq(name, store.fetch(weights, root), ctx, **kwargs)


def _match(net, layers, complaint):
    """Pair the parameters of a network with the arrays of Keras' layers: [(Parameter, array, source)]. Raises `UserError`."""
    net.infer_shape(mx.nd.zeros((1, *INPUT.shape)))
    matches, waiting = [], list(layers)
    for layer in _layers(net):
        kind = next((kind for block, kind in KINDS.items() if isinstance(layer, block)), None)
        if kind is None:
            raise UserError(f'weights of Keras are known for {", ".join(block.__name__ for block in KINDS)}, not for {layer!r}')
        groups = layer._kwargs['num_group'] if isinstance(layer, nn.Conv2D) else 1
        theirs, waiting = waiting[:groups], waiting[groups:]  # Larq Zoo computes each group of a grouped convolution by a layer of its own
        if len(theirs) < groups:
            raise UserError(f'{complaint}: it ends before {layer.name}')
        needed = {kind.names[own]: parameter for own, parameter in layer._reg_params.items() if parameter is not None}
        for part in theirs:
            if set(part.weights) != set(needed):
                raise UserError(f'{complaint}: its {part.name} holds {", ".join(part.weights)}, but {layer.name} needs {", ".join(needed)}')
        for there, parameter in needed.items():
            parts = [part.weights[there] for part in theirs]
            if kind.axes and there == 'kernel':
                parts = [part.transpose(kind.axes) if part.ndim == len(kind.axes) else part for part in parts]
            given = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
            if given != parameter.shape or len({part.shape for part in parts}) > 1:
                shape = f'the shape {given} in the order of axes here, {parameter.name} has {parameter.shape}'
                raise UserError(f'{complaint}: {there} of its {theirs[0].name} has {shape}')
            matches.append((parameter, np.concatenate(parts), ' + '.join(f'{part.name}/{there}' for part in theirs)))
    if waiting:
        raise UserError(f'{complaint}: it goes on after the last layer with {waiting[0].name}')
    return matches


def _layers(block):
    """The layers that have parameters in Keras' order, by their distance from the output: those of parallel paths alternate."""
    if isinstance(block, ResidualBlock) and block.shortcut is not None:
        for pair in zip([*_layers(block.conv), block.norm], _layers(block.shortcut)):
            yield from pair
    elif block._reg_params:
        yield block
    else:
        for child in block._children.values():
            yield from _layers(child)
