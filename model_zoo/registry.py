"""Registry of networks by name, and `get_model`."""

import dataclasses
import functools
import numbers
import os
import re
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import mxnet as mx
from mxnet.gluon import HybridBlock

from bmx_melius.errors import UserError, did_you_mean
from bmx_melius.files.parameters import read_arrays
from bmx_melius.files.stored_networks import StoredNetwork, network_key
from bmx_melius.gluon_cv import gluoncv
from bmx_melius.nn.fine_tuning import load_weights
from bmx_melius.reporting import LOG
from bmx_melius.user_functions import find_function

from .user_functions import build, is_path

Context = Union[mx.Context, List[mx.Context]]
_CLASSES = 1000  # of ImageNet
IMAGENET, CIFAR = (3, 224, 224), (3, 32, 32)  # shapes of images
DEFAULT_ROOT = os.path.join('~', '.mxnet', 'models')
BMXNET_V2 = 'github.com/hpi-xnor/BMXNet-v2-examples'  # source of networks that no paper describes
_ARGUMENTS = ('classes', 'pretrained', 'ctx', 'root')  # of `get_model` for every network
_BLOCK_ARGUMENTS = ('prefix', 'params')  # accepted by every Gluon block
# Value of get_model's `pretrained` -> (function that returns the arguments that the weights need, function that returns the network)
_PROVIDERS: Dict[Any, Any] = {}


@dataclasses.dataclass(frozen=True)
class RegisteredNetwork:
    """A registered network.

    Attributes
    ----------
    name : str
    build : callable (architecture, options, classes=..., prefix=..., params=...) -> HybridBlock
    architecture : dataclass
        Architecture of the network.
    options : dataclass
        Options, with the defaults of this network.
    flexible : bool
        Whether the fields of `architecture` are also arguments of `get_model`.
    source : str or None
        Paper or code that describes it.
    preset : str or None
        Protocol of its authors, a value of ``bmx-melius train --preset``; None: the default.
    classes : int
        Number of outputs, unless `get_model` is called with another one.
    stored : StoredNetwork or None
        Its weights, if they ship with this project.
    input_shape : tuple of int
        Shape (C, H, W) of the images for which it was published.
    """

    name: str
    build: Callable[..., HybridBlock]
    architecture: Any
    options: Any
    flexible: bool
    source: Optional[str]
    preset: Optional[str]
    classes: int = _CLASSES
    stored: Optional[StoredNetwork] = None
    input_shape: Tuple[int, int, int] = IMAGENET

    @property
    def defaults(self) -> Dict[str, Any]:
        """Arguments of `get_model` for this network, and their defaults."""
        return {**vars(self.architecture), **vars(self.options)}

    @property
    def arguments(self) -> List[str]:
        """Names of the keyword arguments of `get_model` for this network."""
        return [*(self._names(self.architecture) if self.flexible else ()), *self._names(self.options), *_BLOCK_ARGUMENTS]

    def with_defaults(self, arguments: Dict[str, Any]) -> 'RegisteredNetwork':
        """Return the network with these values of some of `arguments`."""
        parts = {
            name: dataclasses.replace(part, **{key: value for key, value in arguments.items() if key in self._names(part)})
            for name, part in (('architecture', self.architecture), ('options', self.options))
        }
        return dataclasses.replace(self, **parts)

    def make(self, classes: Optional[int], arguments: Dict[str, Any]) -> HybridBlock:
        """Build the network with these values of some of `arguments`."""
        variant = self.with_defaults(arguments)
        block = {name: value for name, value in arguments.items() if name in _BLOCK_ARGUMENTS}
        return self.build(variant.architecture, variant.options, classes=classes or self.classes, **block)

    def make_trained(self, arguments: Dict[str, Any]) -> HybridBlock:
        """Build the network with the weights that ship with this project. Raises `UserError` if the arguments do not fit them."""
        assert self.stored, self.name
        net, path = self.make(None, arguments), self.stored.training_weights()
        try:
            load_weights(net, read_arrays(path), self.classes)
        except UserError as error:
            raise UserError(f'the weights of {self.name} do not fit the network: {error}; omit {", ".join(arguments)}') from error
        return net

    @staticmethod
    def _names(part):
        return [field.name for field in dataclasses.fields(part)]


_NETWORKS: Dict[str, RegisteredNetwork] = {}  # `network_key` of a name or alias -> network
_GLUONCV_ARGUMENTS = ('classes', 'pretrained', 'ctx', 'root', 'norm_layer', 'norm_kwargs', 'prefix', 'params')  # of most of its networks
# Modules of GluonCV whose networks classify images and take the arguments `classes` and `prefix`.
_GLUONCV_MODULES = (
    'alexnet', 'cifarresnet', 'cifarresnext', 'cifarwideresnet', 'densenet', 'googlenet', 'inception', 'mobilenet', 'residual_attentionnet',
    'resnet', 'resnetv1b', 'resnext', 'senet', 'squeezenet', 'vgg',
)  # fmt: skip


def find(name: str) -> Optional[RegisteredNetwork]:
    """Return the network of this zoo with this name or alias in any spelling; None if there is none."""
    return _NETWORKS.get(network_key(name))


def register(
    name: str,
    build: Callable[..., HybridBlock],
    architecture: Any,
    options: Any,
    *,
    alias: Optional[str] = None,
    flexible: bool = False,
    source: Optional[str] = None,
    preset: Optional[str] = None,
    classes: int = _CLASSES,
    stored: Optional[StoredNetwork] = None,
    input_shape: Tuple[int, int, int] = IMAGENET,
) -> None:
    """Register a network, here and for ``gluoncv.model_zoo.get_model``.

    Parameters
    ----------
    name : str
        Name in the literature.
    build, architecture, options, flexible, source, preset, classes, stored, input_shape
        As in `RegisteredNetwork`. The fields of `options`, and of `architecture` for a `flexible` network, are the keyword arguments of
        `get_model` for this network.
    alias : str or None
        Name in other libraries; not listed.
    """
    network = RegisteredNetwork(name, build, architecture, options, flexible, source, preset, classes, stored, input_shape)
    for known in (name, alias or name):
        key = network_key(known)
        if _NETWORKS.setdefault(key, network) is not network:
            raise ValueError(f'two networks are called {key!r}')
        for spelling in {key, known}:
            gluoncv.model_zoo.model_zoo._models[spelling] = functools.partial(get_model, name)


def provide(pretrained: str, options: Callable[[str], Dict[str, Any]]) -> Callable[[Any], Any]:
    """Decorate a function ``(name, ctx, root, **kwargs)`` that builds the networks of ``get_model(pretrained=...)``.

    `options(name)` returns the arguments of the network that its weights require.
    """

    def add(function):
        _PROVIDERS[pretrained] = options, function
        return function

    return add


def get_pretrained_list() -> List[str]:
    """Return the values of ``get_model(pretrained=...)``, besides True for networks of GluonCV.

    Examples
    --------
    >>> from model_zoo import get_pretrained_list
    >>> get_pretrained_list()
    ['larq']
    """
    return sorted(_PROVIDERS)


def get_pretrained_options(name: str, pretrained: Union[bool, str]) -> Dict[str, Any]:
    """Return the arguments of `get_model`, a dict, that pretrained weights require.

    ``get_model(name, **get_pretrained_options(name, pretrained))`` builds the same network without weights. Raises as `get_model` does.

    Examples
    --------
    >>> from model_zoo import get_pretrained_options
    >>> get_pretrained_options('meliusnet22', 'larq')['stem_pool']
    2
    """
    return dict(_PROVIDERS[pretrained][0](name)) if pretrained in _PROVIDERS else {}


def get_model_list() -> List[str]:
    """Return the names of all networks, sorted.

    Examples
    --------
    >>> from model_zoo import get_model_list
    >>> [name for name in get_model_list() if name.startswith('birealnet')]
    ['birealnet18', 'birealnet34']
    """
    return sorted({network.name for network in _NETWORKS.values()})


def get_gluoncv_list() -> List[str]:
    """Return the names of GluonCV's networks that classify images, sorted, without int8 networks and those with group normalization.

    Examples
    --------
    >>> from model_zoo import get_gluoncv_list
    >>> [name for name in get_gluoncv_list() if name.startswith('mobilenet1')]
    ['mobilenet1.0']
    """
    modules = {f'gluoncv.model_zoo.{module}' for module in _GLUONCV_MODULES}
    networks = gluoncv.model_zoo.model_zoo._models
    excluded = ('_int8', '_gn')
    return sorted(name for name, build in networks.items() if getattr(build, '__module__', '') in modules and not name.endswith(excluded))


def listed_name(name: str) -> Optional[str]:
    """Return the name in `get_model_list` or `get_gluoncv_list` for any spelling or alias of a network; None if it is unknown.

    A path ``package.module:function`` is its own name. Raises `UserError` if there is no such function.

    Examples
    --------
    >>> from model_zoo import listed_name
    >>> listed_name('MeliusNet_22'), listed_name('resnet18_e1')
    ('meliusnet22', 'resnet_e18')
    """
    if is_path(name):
        find_function(name)
        return name
    network = find(name)
    if network:
        return network.name
    return name.lower() if name.lower() in get_gluoncv_list() else None


def takes_option(name: str, option: str) -> bool:
    """Return whether `get_model` accepts the keyword argument `option` for a network of this zoo; False for any network of GluonCV.

    Examples
    --------
    >>> from model_zoo import takes_option
    >>> takes_option('meliusnet22', 'initial_layers'), takes_option('mobilenet0.5', 'initial_layers')
    (True, False)
    """
    network = find(name)
    return network is not None and option in network.arguments


def default_of(name: str, option: str) -> Any:
    """Return the default of the keyword argument `option` of `get_model` for a network of this zoo; None if it has none.

    Examples
    --------
    >>> from model_zoo import default_of
    >>> default_of('meliusnet22', 'initial_layers'), default_of('quicknet', 'initial_layers'), default_of('mobilenet0.5', 'initial_layers')
    ('grouped_stem', 'quicknet', None)
    """
    network = find(name)
    return network and network.defaults.get(option)


def preset_of(name: str) -> Optional[str]:
    """Return the preset of ``bmx-melius train`` for the protocol of a network's authors; None if the default is meant, or for other names.

    Examples
    --------
    >>> from model_zoo import preset_of
    >>> preset_of('reactnet18'), preset_of('meliusnet22')
    ('reactnet', None)
    """
    network = find(name)
    return network and network.preset


def get_model(
    name: str,
    pretrained: Union[bool, str] = False,
    classes: Optional[int] = None,
    ctx: Context = mx.cpu(),  # noqa: B008
    root: str = DEFAULT_ROOT,
    **kwargs: Any,
) -> HybridBlock:
    """Build a network by its name, as in GluonCV.

    Parameters
    ----------
    name : str
        One of `get_model_list()`, ignoring case and underscores, or a network of GluonCV, such as ``mobilenet1.0`` and ``resnet18_v1``,
        to which the paper compares, or ``package.module:function``, a function in the current folder or in an installed package that
        returns a HybridBlock. It is called with ``classes`` and `kwargs`.
    pretrained : bool or str
        ``larq``: weights of Larq Zoo, with the options that they require, see `model_zoo.larq` and `model_zoo.store`. True: the weights
        that ship with this project, for the networks in `model_zoo.shipped`, and GluonCV's for its networks; a `UserError` for others.
    classes : int or None
        Number of outputs. If pretrained weights have another number of classes, all of them but the output layer's are loaded,
        which is initialized by MXNet's default initializer, and a warning is logged. None: the number of the weights; without weights
        that of the network, 1000 where its name does not mean others.
    ctx : mx.Context
        Device of pretrained weights, as in GluonCV.
    root : str
        Folder to which pretrained weights are downloaded, as in GluonCV.
    **kwargs
        Options of the network: ``initial_layers`` and ``init_features`` (`model_zoo.layer_options.NetworkOptions`), ``clip_threshold``,
        ``bits``, ``weight_bits``, ``norm_layer``, ``norm_kwargs``, ``conv_kwargs``, ``same_padding``
        (`model_zoo.layer_options.LayerOptions`), options of its family (in its module; for residual networks in
        `model_zoo.units`), ``prefix`` and ``params`` as in every Gluon block. ``meliusnet_flex`` also has ``block_numbers``,
        ``transitions``, ``groups``, ``block`` and ``pool_first`` (`model_zoo.meliusnet.MeliusNetArchitecture`). They must not contradict
        what pretrained weights require.

    Returns
    -------
    gluon.HybridBlock
        Has ``features`` and ``output``; not initialized without pretrained weights. Input (N, 3, H, W) float32, output (N, classes) logits.

    Raises
    ------
    UserError (a ValueError)
        For an unknown name, an unknown argument, or weights that do not exist; the message suggests known names. For an argument that
        contradicts the weights.

    Examples
    --------
    >>> import mxnet as mx
    >>> from model_zoo import get_model
    >>> net = get_model('meliusnet22', classes=10, initial_layers='thumbnail')
    >>> net.initialize()
    >>> net(mx.nd.zeros((1, 3, 32, 32))).shape
    (1, 10)
    """
    if not isinstance(name, str):
        raise UserError(f'name must be the name of a network, a str, not {name!r}')
    if classes is not None and (not isinstance(classes, numbers.Integral) or classes < 1):
        raise UserError(f'classes must be a positive whole number, or None, not {classes!r}')
    network = find(name)
    if network:
        unknown = [argument for argument in kwargs if argument not in network.arguments]
        if unknown:
            known = [*_ARGUMENTS, *network.arguments]
            suggestion = did_you_mean(unknown[0], known).rstrip('?')
            raise UserError(f'{network.name} takes no argument {", ".join(unknown)}{suggestion}; known: {", ".join(known)}')
    if pretrained in _PROVIDERS:
        for argument, needed in get_pretrained_options(name, pretrained).items():
            if kwargs.get(argument, needed) != needed:
                raise UserError(
                    f'the weights {pretrained!r} of {name} need {argument}={needed!r}, not {kwargs[argument]!r}: omit the argument'
                )
        published = _PROVIDERS[pretrained][1](name, ctx, root, **kwargs)
        options = {**get_pretrained_options(name, pretrained), **kwargs}
        return _with_classes(published, f'{pretrained} {name}', classes, ctx, functools.partial(get_model, name, **options))
    if is_path(name) and not pretrained:
        return build(name, classes or _CLASSES, **kwargs)
    if network is None and name.lower() in gluoncv.model_zoo.get_model_list():
        if not pretrained:
            _note_binary_network(name)
            return get_gluoncv_model(name, classes=classes or _CLASSES, ctx=ctx, root=root, **kwargs)
        published = get_gluoncv_model(name, pretrained=True, ctx=ctx, root=root, **kwargs)
        return _with_classes(published, f'GluonCV {name}', classes, ctx, functools.partial(get_gluoncv_model, name, **kwargs))
    if network is None and not is_path(name):
        raise UserError(unknown_network(name))
    if pretrained is True and network is not None and network.stored:
        trained = network.make_trained(kwargs)
        trained.collect_params().reset_ctx(ctx)
        return _with_classes(trained, network.name, classes, ctx, functools.partial(get_model, name, **kwargs))
    if pretrained:
        raise UserError(
            f'this project publishes no weights of {name}: use weights of others, pretrained={" or ".join(map(repr, _PROVIDERS))}, '
            'train it with bmx-melius train and call net.load_parameters(file), or read a BMXNet-v2 checkpoint with '
            'bmx_melius.load_reference_parameters(net, file)'
        )
    return network.make(classes, kwargs)


def unknown_network(name: str) -> str:
    """Return the error message for an unknown name, which suggests up to three similar names of this zoo and of GluonCV.

    Examples
    --------
    >>> from model_zoo import unknown_network
    >>> unknown_network('meliusnet99')[:34]
    "unknown network 'meliusnet99'; did"
    """
    suggestion = did_you_mean(name.lower(), [*get_model_list(), *get_gluoncv_list()]) or ';'
    return f'unknown network {name!r}{suggestion} bmx-melius models and model_zoo.list_models() list the networks of this zoo'


def _with_classes(published, source, classes, ctx, make):
    """Return a network with its published weights; if it has another number of classes, a new one that `make` builds, with most of them."""
    if classes is None:
        return published
    net = make(classes=classes)
    arrays = {name: parameter.data() for name, parameter in published._collect_params_with_prefix().items()}
    loaded = load_weights(net, arrays, classes)
    if not loaded.new:
        return published
    LOG.warning('%s: %s', source, loaded)
    net.collect_params().reset_ctx(ctx)
    return net


def _note_binary_network(name):
    """Log a warning if a network of GluonCV has the name of a binary network of BMXNet-v2."""
    binary = find(f'binary_{name}') or find(f'binary_{name}'.replace('_bn', ''))
    if binary:
        LOG.warning("%s is GluonCV's full-precision network; the binary one of BMXNet-v2 is %s", name.lower(), binary.name)


def get_gluoncv_model(name: str, **kwargs: Any) -> HybridBlock:
    """Build a network of GluonCV, with its arguments, without a note on binary networks of a similar name; see `get_model`."""
    try:
        return gluoncv.model_zoo.get_model(name, **kwargs)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        suggestion = did_you_mean(unknown[1], _GLUONCV_ARGUMENTS) if unknown else ''
        raise UserError(f'{name} is a network of GluonCV, which does not take these arguments: {error}{suggestion}') from error
