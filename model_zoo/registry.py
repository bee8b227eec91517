"""The registry of networks: names, and what builds them."""

import functools
import inspect
import os

import gluoncv
import mxnet as mx
from mxnet.gluon import HybridBlock

from bmx_melius import UserError

DEFAULT_ROOT = os.path.join('~', '.mxnet', 'models')
_NETWORKS = {}  # key of a name or alias -> (name, what builds the network)
_PROVIDERS = {}  # value of get_model's `pretrained` -> (function that gives the arguments the weights need, one that gives the network)


def _key(name):
    """`name` in lower case without underscores: ``meliusnetA``, ``meliusneta`` and ``meliusnet_a`` are one network."""
    return name.lower().replace('_', '')


def register(name, build, aliases=()):
    """Make a network known, here and in ``gluoncv.model_zoo.get_model``.

    Parameters
    ----------
    name : str
        As in the literature.
    build : class or functools.partial of a class
        Of the network, a HybridBlock. The arguments that it still takes are those of the network.
    aliases : sequence of str
        Under which it is known elsewhere; lists do not show them.
    """
    for known in (name, *aliases):
        key = _key(known)
        if _NETWORKS.setdefault(key, (name, build)) != (name, build):
            raise ValueError(f'two networks are called {key!r}')
        for spelling in {key, known}:
            gluoncv.model_zoo.model_zoo._models[spelling] = functools.partial(get_model, name)


def provide(pretrained, options):
    """Decorator: make a function ``(name, classes, ctx, root, **kwargs)`` give the network of ``get_model(pretrained=...)``.

    `options(name)` gives the arguments of the network that its weights need.
    """

    def add(function):
        _PROVIDERS[pretrained] = options, function
        return function

    return add


def get_pretrained_list():
    """Whose weights ``get_model(pretrained=...)`` has, besides those of GluonCV for its own networks (True)."""
    return sorted(_PROVIDERS)


def get_pretrained_options(name, pretrained):
    """The arguments of `get_model`, a dict, that ``get_model(name, pretrained)`` brings along because its weights need them.

    The network without weights is ``get_model(name, **get_pretrained_options(name, pretrained))``. Errors are those of `get_model`.
    """
    return dict(_PROVIDERS[pretrained][0](name)) if pretrained in _PROVIDERS else {}


def get_model_list():
    """The names of all networks, sorted."""
    return sorted({name for name, _ in _NETWORKS.values()})


def listed_name(name):
    """The name in `get_model_list` of a network, from any spelling or alias; None for one that is unknown."""
    return _NETWORKS.get(_key(name), (None,))[0]


def get_model(name, pretrained=False, classes=1000, ctx=mx.cpu(), root=DEFAULT_ROOT, **kwargs):  # noqa: B008
    """Build a network by its name, as in GluonCV.

    Parameters
    ----------
    name : str
        One of `get_model_list()`, in which case and underscores do not matter, or one of GluonCV's networks, such as ``mobilenet1.0`` and
        ``resnet18_v1``, with which the paper compares.
    pretrained : bool or str
        ``larq``: the network as Larq Zoo trained it, with the options that this takes, see `model_zoo.larq` and `model_zoo.store`.
        No weights are published with this project: True raises UserError, which says how to load existing ones. GluonCV's networks
        have some.
    classes : int
        Number of outputs.
    ctx : mx.Context
        As in GluonCV: where pretrained weights are loaded to.
    root : str
        As in GluonCV: the folder of pretrained weights, to which they are downloaded.
    **kwargs
        Of the network, see `model_zoo.meliusnet.MeliusNet`: ``initial_layers``, ``clip_threshold``, ``norm_layer``, ``norm_kwargs``.
        None may contradict what pretrained weights need.

    Returns
    -------
    gluon.HybridBlock with ``features`` and ``output``, not initialized where no weights are asked for. Input (N, 3, H, W) float32, output
    (N, classes) logits.

    Raises
    ------
    UserError (a ValueError)
        For an unknown name, an argument that the network does not take, or weights that do not exist, listing what there is; for an
        argument with which the weights were not trained.
    """
    listed, build = _NETWORKS.get(_key(name), (None, None))
    if listed:
        _check_arguments(listed, build, kwargs)
    if pretrained in _PROVIDERS:
        for argument, needed in get_pretrained_options(name, pretrained).items():
            if kwargs.get(argument, needed) != needed:
                raise UserError(f'the weights {pretrained!r} of {name} need {argument}={needed!r}, not {kwargs[argument]!r}: leave it out')
        return _PROVIDERS[pretrained][1](name, classes, ctx, root, **kwargs)
    if listed is None and name.lower() in gluoncv.model_zoo.get_model_list():
        return _of_gluoncv(name, pretrained=pretrained, classes=classes, ctx=ctx, root=root, **kwargs)
    if listed is None:
        raise UserError(f'unknown network {name!r}; known: {", ".join(get_model_list())}, and those of GluonCV')
    if pretrained:
        raise UserError(
            f'this project publishes no weights of {listed}: take those of others, pretrained={" or ".join(map(repr, _PROVIDERS))}, train '
            'it with train_imagenet.py and use net.load_parameters(file), or read a BMXNet-v2 checkpoint with '
            'bmx_melius.load_reference_parameters(net, file)'
        )
    return build(classes=classes, **kwargs)


def _check_arguments(name, build, arguments):
    taken = inspect.signature(build).parameters.values()
    known = [argument.name for argument in taken if argument.kind is not inspect.Parameter.VAR_KEYWORD]
    known += inspect.signature(HybridBlock).parameters  # to which the others go
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        raise UserError(f'{name} takes no argument {", ".join(unknown)}; known: {", ".join(known)}')


def _of_gluoncv(name, **kwargs):
    try:
        return gluoncv.model_zoo.get_model(name, **kwargs)
    except TypeError as error:
        raise UserError(f'{name} is a network of GluonCV, which does not take these arguments: {error}') from error
