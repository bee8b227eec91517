"""Names of BMXNet-v2 on stock MXNet: scripts written for this fork of MXNet run after one changed import.

``from bmx_melius.compat.bmxnet import mx`` instead of ``import mxnet as mx`` adds to MXNet what BMXNet-v2 added, and replaces only
``mx.viz.print_summary``, by one that also takes ``quantized_bitwidth``:

- in ``mx.gluon.nn`` the layers `QActivation`, `QDense`, `QConv1D`, `QConv2D`, `QConv3D`, `BinaryConvolution`, `ScaledWeightsBinaryConv`,
  `ScaledBinaryConv`, `activated_conv`, and `set_binary_layer_config`;
- in ``mx.nd`` and ``mx.sym``, which are the ``F`` of ``hybrid_forward``, the operators `det_sign`, `approx_sign` and `round_ste`, also as
  methods of arrays and symbols, and ``contrib.gradcancel``;
- in ``mx.nd`` the operators `BinaryInferenceConvolution` and `BinaryInferenceFullyConnected` of networks packed by its model converter.

Arguments, default values and results follow BMXNet-v2. The layers are built on `bmx_melius.nn.layers`: exported networks consist of
stock operators and can be converted by `bmx_melius.convert`. Differences from the layers of `bmx_melius`: the gradient of an activation is
cancelled from 1.0 on instead of 1.3, also with 32 bits; `bits` is the third positional argument of a convolution; layers with 32 bits also
pad with -1 and, in `QDense`, add an offset.

Source: github.com/hpi-xnor/BMXNet-v2, python/mxnet/gluon/nn/binary_layers.py and src/operator.
"""

import contextlib
import contextvars
import dataclasses
from typing import Any, Dict, Iterator, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock

from ..analysis.counting import BOPS_PER_OP, FLOAT_BITS
from ..analysis.summary import summary
from ..errors import UserError
from ..nn import layers
from ..nn.binarization import APPROXIMATIONS, Binarization, QuantizedConvolution, check_approximation
from ..nn.channels import CHANNELS, mean, repeated
from ..nn.quantizers import (
    FULL_PRECISION,
    Array,
    Quantizer,
    cancelled,
    register_quantizer,
    sign,
    without_gradient_beyond,
    zero_with_gradient,
)

__all__ = [
    'BinaryConvolution',
    'BinaryInferenceConvolution',
    'BinaryInferenceFullyConnected',
    'QActivation',
    'QConv1D',
    'QConv2D',
    'QConv3D',
    'QDense',
    'ScaledBinaryConv',
    'ScaledWeightsBinaryConv',
    'activated_conv',
    'approx_sign',
    'binary_layer_config',
    'det_sign',
    'gradcancel',
    'mx',
    'print_summary',
    'round_ste',
    'set_binary_layer_config',
]

# --- operators ------------------------------------------------------------------------------------------------------------------------


def det_sign(F: Any, x: Array) -> Array:
    """Return +1 where x >= 0, else -1. Gradient: 1."""
    return F.contrib.sign_ste(x) + F.BlockGrad(x == 0)


def approx_sign(F: Any, x: Array) -> Array:
    """Return +1 where x >= 0, else -1. Gradient: 2 - 2 |x|, which BMXNet-v2 does not cut off: it is negative where |x| > 1."""
    return F.BlockGrad(sign(F, x)) + zero_with_gradient(F, _uncut(F, x, None, 1))


def round_ste(F: Any, x: Array) -> Array:
    """Return the nearest integer, halves away from zero. Gradient: 1."""
    return F.contrib.round_ste(x)


def gradcancel(F: Any, x: Array, threshold: float = 1.0) -> Array:
    """Return x. Gradient: 1 where |x| <= threshold, else 0."""
    return without_gradient_beyond(F, x, threshold)


def _uncut(F, x, threshold, scale):
    x = cancelled(F, x, threshold)
    return (2 * x - x * F.abs(x)) * scale


_UNCUT_SIGN = 'bmxnet_approx_sign'
register_quantizer(
    _UNCUT_SIGN,
    Quantizer(bits=(1,), surrogate=_uncut, rounded=lambda F, x, surrogate, bits: sign(F, x), full_precision=lambda F, x: x, sign=True),
)

_WORD = 32  # bits


def _signs(words, count):
    """Return `count` weights, -1 and +1, of packed words: integers, or floats that hold the bits (float32) or the number (float64)."""
    words = words.asnumpy()
    words = words.astype(np.uint32) if words.dtype == np.float64 else words
    bits = np.unpackbits(np.frombuffer(words.tobytes(), dtype=np.uint8), bitorder='little')
    if words.itemsize != _WORD // 8 or bits.size != count:
        raise UserError(f'{count} binary weights need {count / _WORD:g} words of {_WORD} bits, not {words.size} of type {words.dtype}')
    return bits * np.float32(2) - 1


def BinaryInferenceConvolution(  # noqa: N802
    data: mx.nd.NDArray, weight: mx.nd.NDArray, kernel: Any, num_filter: int, stride: Any = (1, 1), pad: Any = (0, 0)
) -> mx.nd.NDArray:
    """Return the number of agreeing bits of packed weights and signs of `data` (N, C, H, W) padded with +1: (N, num_filter, H', W')."""
    shape = (num_filter, data.shape[1], *kernel)
    unpacked = mx.nd.array(_signs(weight, int(np.prod(shape))).reshape(shape), ctx=data.context)
    padded = mx.nd.pad(data, mode='constant', pad_width=(0, 0, 0, 0, pad[0], pad[0], pad[1], pad[1]), constant_value=0)
    h = mx.nd.Convolution(sign(mx.nd, padded), unpacked, kernel=kernel, stride=stride, num_filter=num_filter, no_bias=True)
    return (h + int(np.prod(shape[1:]))) / 2


def BinaryInferenceFullyConnected(data: mx.nd.NDArray, weight: mx.nd.NDArray, num_hidden: int) -> mx.nd.NDArray:  # noqa: N802
    """Return the number of agreeing bits of the signs of `data` (N, inputs) and packed weights: (N, num_hidden)."""
    inputs = data.shape[1]
    blocks = _signs(weight, num_hidden * inputs).reshape(inputs // _WORD, num_hidden, _WORD)
    unpacked = mx.nd.array(blocks.transpose(1, 0, 2).reshape(num_hidden, inputs), ctx=data.context)
    return (mx.nd.dot(sign(mx.nd, data), unpacked.T) + inputs) / 2


# --- configuration --------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class BinaryLayerConfig:
    """Values of arguments that layers are not given: BMXNet-v2's unless `set_binary_layer_config` surrounds their creation.

    Attributes
    ----------
    grad_cancel : float
        ``gradient_cancel_threshold`` of `QActivation`, ``clip_threshold`` of `activated_conv`.
    bits, bits_a : int
        Bits of weights and activations.
    activation, weight_quantization : str
        Quantizers. A value that does not support the number of bits is replaced by the default for this number.
    approximation : {'', 'binet', 'xnor'}
        Layer that `activated_conv` creates: `BinaryConvolution`, `ScaledWeightsBinaryConv` or `ScaledBinaryConv`.
    """

    grad_cancel: float = 1.0
    bits: int = 1
    bits_a: int = 1
    activation: str = 'det_sign'
    weight_quantization: str = 'det_sign'
    approximation: str = ''

    def __post_init__(self):
        check_approximation(self.approximation)

    def set_values(self, **values: Any) -> None:
        """Raise `UserError`: nothing is global here."""
        arguments = ', '.join(f'{name}={value!r}' for name, value in values.items())
        raise UserError(
            'the configuration of layers is not global: create the layers within `with set_binary_layer_config('
            f'{arguments}):`, or give them these arguments ({"; ".join(f"{name}: {_ARGUMENTS.get(name)}" for name in values)})'
        )

    def with_defaults(self) -> 'BinaryLayerConfig':
        """Return the configuration with quantizers that support the numbers of bits, as BMXNet-v2 replaces them."""
        changes = {}
        if self.activation not in _ACTIVATIONS.get(self.bits_a, _MULTI_BIT_ACTIVATIONS):
            changes['activation'] = {1: 'det_sign', FULL_PRECISION: 'relu'}.get(self.bits_a, 'round')
        if self.weight_quantization not in _WEIGHTS.get(self.bits, _MULTI_BIT_WEIGHTS):
            changes['weight_quantization'] = {1: 'det_sign', FULL_PRECISION: 'identity'}.get(self.bits, 'dorefa')
        return dataclasses.replace(self, **changes)


# Field of `BinaryLayerConfig` -> the arguments that have this meaning here.
_ARGUMENTS = {
    'grad_cancel': 'gradient_cancel_threshold of QActivation, threshold of BinaryConv2D, clip_threshold of get_model',
    'bits': 'bits of each layer, weight_bits of get_model',
    'bits_a': 'bits of QActivation, bits_a of activated_conv, activation_bits of get_model',
    'activation': 'method of QActivation, activation_method of get_model',
    'weight_quantization': 'quantization of QConv2D, weight_quantization of get_model',
    'approximation': 'the class of the layer, such as ScaledBinaryConv, approximation of get_model',
}

# Number of bits -> quantizers that support it in BMXNet-v2.
_ACTIVATIONS = {1: ('det_sign', 'sign_approx_sign', 'round'), FULL_PRECISION: ('identity', 'approx_sign', 'relu', 'clip', 'leaky_clip')}
_MULTI_BIT_ACTIVATIONS = ('round', 'dorefa')
_WEIGHTS = {1: ('det_sign', 'sign_approx_sign'), FULL_PRECISION: ('identity',)}
_MULTI_BIT_WEIGHTS = ('dorefa',)
# Names of quantizers in BMXNet-v2 -> here, where they differ.
_QUANTIZERS = {'det_sign': 'sign', 'sign_approx_sign': _UNCUT_SIGN}

_DEFAULTS = BinaryLayerConfig()
_config: 'contextvars.ContextVar[BinaryLayerConfig]' = contextvars.ContextVar('binary_layer_config', default=_DEFAULTS)


class _CurrentConfig:
    """``nn.binary_layer_config``: the `BinaryLayerConfig` of the surrounding `set_binary_layer_config`; its values cannot be assigned."""

    def __getattr__(self, name):
        return getattr(_config.get(), name)

    def __setattr__(self, name, value):
        self.set_values(**{name: value})


binary_layer_config = _CurrentConfig()


@contextlib.contextmanager
def set_binary_layer_config(**values: Any) -> Iterator[BinaryLayerConfig]:
    """Give values to arguments of the layers of this module that are created within a ``with`` block; None: unchanged.

    The values belong to the block and to its thread or task, not to the process. Layers of `bmx_melius` and networks of `model_zoo` take
    arguments instead.

    Raises
    ------
    UserError
        For unknown names and an unknown approximation.
    """
    unknown = [name for name in values if name not in _ARGUMENTS]
    if unknown:
        raise UserError(f'set_binary_layer_config takes no {", ".join(unknown)}; known: {", ".join(_ARGUMENTS)}')
    chosen = {name: value for name, value in values.items() if value is not None}
    token = _config.set(dataclasses.replace(_config.get(), **chosen).with_defaults())
    try:
        yield _config.get()
    finally:
        _config.reset(token)


def _quantizer(method, bits, known, role):
    if method not in known:
        raise UserError(f'{method!r} with {bits} bits is not supported for {role}; choose from {", ".join(known)}')
    return _QUANTIZERS.get(method, method)


# --- layers ---------------------------------------------------------------------------------------------------------------------------


class QActivation(layers.QActivation):
    """Quantized activation: `bmx_melius.QActivation` with the arguments and default values of BMXNet-v2.

    Parameters
    ----------
    bits : int or None
        None: 1.
    gradient_cancel_threshold : float or None
        None: 1.0.
    method : str or None
        ``det_sign``, ``sign_approx_sign``, ``round``, ``dorefa``, or with 32 bits ``identity``, ``approx_sign``, ``relu``, ``clip`` and
        ``leaky_clip``. None: ``det_sign``.

    Raises
    ------
    UserError
        For a method that does not support the number of bits.

    Examples
    --------
    >>> from bmx_melius.compat.bmxnet import mx
    >>> mx.gluon.nn.QActivation()(mx.nd.array([-2, -0.5, 0, 3])).asnumpy()
    array([-1., -1.,  1.,  1.], dtype=float32)
    """

    cancels_with_32_bits = True

    def __init__(
        self,
        *block: Any,
        bits: Optional[int] = None,
        gradient_cancel_threshold: Optional[float] = None,
        method: Optional[str] = None,
        encoding: str = 'sign',
        **names: Any,
    ) -> None:
        config = _config.get()
        bits, method = bits or config.bits_a, method or config.activation
        method = _quantizer(method, bits, _ACTIVATIONS.get(bits, _MULTI_BIT_ACTIVATIONS), 'activations')
        threshold = config.grad_cancel if gradient_cancel_threshold is None else gradient_cancel_threshold
        super().__init__(bits, method, threshold, encoding, *block, **names)


class _Settings(Binarization):
    """Quantization arguments of layers that treat 32 bits like other numbers of bits, and never decay their weights."""

    is_float, wd_mult = False, 0.0


def _weight_quantizer(bits, method):
    config = _config.get()
    bits, method = bits or config.bits, method or config.weight_quantization
    return {'bits': bits, 'quantization': _quantizer(method, bits, _WEIGHTS.get(bits, _MULTI_BIT_WEIGHTS), 'weights')}


def _refuse_bias(use_bias, activation):
    if use_bias:
        raise UserError('Bias is not supported for a binary layer.')
    if activation is not None:
        raise UserError(f'Activation {activation!r} is not supported for a binary layer.')


class QDense(layers.QDense):
    """Quantized fully connected layer: `bmx_melius.QDense` with the arguments of BMXNet-v2. ``bits`` None: 1."""

    settings = _Settings

    def __init__(
        self, units: int, *dense: Any, bits: Optional[int] = None, activation: Any = None, use_bias: bool = False, **arguments: Any
    ) -> None:
        _refuse_bias(use_bias, activation)
        names = ('activation', 'use_bias', 'flatten', 'dtype', 'weight_initializer', 'bias_initializer', 'in_units')
        super().__init__(units, **dict(zip(names, dense)), **_weight_quantizer(bits, None), **arguments)


class _QConvolution(QuantizedConvolution):
    settings = _Settings

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        bits: Optional[int] = None,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: Optional[str] = None,
        activation: Any = None,
        use_bias: bool = False,
        quantization: Optional[str] = None,
        **arguments: Any,
    ) -> None:
        _refuse_bias(use_bias, activation)
        arguments.update(_weight_quantizer(bits, quantization), layout=layout)
        arguments.setdefault('scaling_gradient', _config.get().approximation != 'xnor')
        super().__init__(channels, kernel_size, strides, padding, dilation, groups, **arguments)
        self._kwargs['pad'] = (0,) * len(self.padding)  # BMXNet-v2 pads in an operator before the convolution


class QConv1D(_QConvolution, layers.QConv1D):
    """Quantized 1-D convolution, see `QConv2D`."""


class QConv2D(_QConvolution, layers.QConv2D):
    """Quantized 2-D convolution: `bmx_melius.QConv2D` with the arguments of BMXNet-v2.

    Parameters
    ----------
    channels, kernel_size, bits, strides, padding, dilation, groups, layout, activation, use_bias
        In this order. ``bits`` None: 1.
    quantization : str or None
        ``det_sign``, ``sign_approx_sign``, ``dorefa`` or, with 32 bits, ``identity``. None: ``det_sign``.
    no_offset, apply_scaling
        As in `bmx_melius.QConv2D`.

    Raises
    ------
    UserError
        For a bias, an activation, and a quantizer that does not support the number of bits.

    Examples
    --------
    >>> from bmx_melius.compat.bmxnet import mx
    >>> layer = mx.gluon.nn.QConv2D(16, 3, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((1, 8, 5, 5))).shape
    (1, 16, 5, 5)
    """


class QConv3D(_QConvolution, layers.QConv3D):
    """Quantized 3-D convolution, see `QConv2D`."""


class BinaryConvolution(HybridBlock):
    """Quantized activation and convolution.

    Parameters
    ----------
    channels, kernel_size, stride, padding, in_channels, dilation
        As in `QConv2D`.
    bits, bits_a : int or None
        Bits of weights and activations.
    clip_threshold, activation_method
        ``gradient_cancel_threshold`` and ``method`` of `QActivation`.
    prefix : str or None
        Prefix of the names of the convolution's parameters.

    Input (N, C, H, W); output (N, channels, H', W').
    """

    convolution: Dict[str, Any] = {}  # further arguments of the convolution

    def __init__(
        self,
        channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 0,
        in_channels: int = 0,
        dilation: int = 1,
        *,
        bits: Optional[int] = None,
        bits_a: Optional[int] = None,
        clip_threshold: Optional[float] = None,
        activation_method: Optional[str] = None,
        prefix: Optional[str] = None,
        **block: Any,
    ) -> None:
        super().__init__(**block)
        config = _config.get()
        is_binary = (bits or config.bits, bits_a or config.bits_a) == (1, 1) and (activation_method or config.activation) != 'round'
        encoding = 'bit' if is_binary else 'sign'
        self.qact = QActivation(bits=bits_a, gradient_cancel_threshold=clip_threshold, method=activation_method, encoding=encoding)
        geometry = {'strides': stride, 'padding': padding, 'dilation': dilation, 'in_channels': in_channels}
        self.qconv = QConv2D(channels, kernel_size, bits, prefix=prefix, encoding=encoding, **geometry, **self.convolution)

    def hybrid_forward(self, F, x):
        return self.qconv(self.qact(x))


class ScaledWeightsBinaryConv(BinaryConvolution):
    """`BinaryConvolution` times the mean magnitude of each filter, with its gradient (Bi-Real Net, arXiv:1808.00278, eq. 7)."""

    convolution = {'apply_scaling': True}


class ScaledBinaryConv(BinaryConvolution):
    """`BinaryConvolution` times the mean magnitudes of each filter and of each window of the input (XNOR-Net, arXiv:1603.05279)."""

    convolution = {'apply_scaling': True, 'no_offset': True}

    def hybrid_forward(self, F, x):
        y = super().hybrid_forward(F, x)
        window = {'kernel': self.qconv._kwargs['kernel'], 'stride': self.qconv._kwargs['stride'], 'pad': self.qconv.padding}
        scale = F.Pooling(mean(F, F.abs(F.BlockGrad(x)), CHANNELS), pool_type='avg', count_include_pad=True, **window)
        return y * repeated(F, scale, y, CHANNELS, gradient=False)


_ACTIVATED = dict(zip(APPROXIMATIONS, (BinaryConvolution, ScaledWeightsBinaryConv, ScaledBinaryConv)))


def activated_conv(*arguments: Any, **keywords: Any) -> HybridBlock:
    """Return a `BinaryConvolution`, or the layer of the ``approximation`` that `set_binary_layer_config` selects."""
    return _ACTIVATED[_config.get().approximation](*arguments, **keywords)


# --- summary --------------------------------------------------------------------------------------------------------------------------

_mxnet_summary = mx.viz.print_summary


def print_summary(
    symbol: mx.sym.Symbol,
    shape: Optional[Dict[str, Tuple[int, ...]]] = None,
    *table: Any,
    quantized_bitwidth: Optional[int] = None,
    **columns: Any,
) -> None:
    """Print the layers of a symbol and its totals, in place of MXNet's ``mx.viz.print_summary``, which fails on quantized layers.

    Parameters
    ----------
    symbol, shape, *table, **columns
        Arguments of MXNet's function; `shape` is a dict of names of inputs to shapes.
    quantized_bitwidth : int or None
        Bits of quantized weights in the size of the compressed model. None: MXNet's function is called.

    Parameters are weights, biases, scales and shifts. FLOPS are multiply-accumulates of convolutions; 64 of quantized layers are combined
    as one. They equal `bmx_melius.summary`, whose layers know their bits; BMXNet-v2 finds quantized layers by their names.

    Raises
    ------
    UserError
        With `quantized_bitwidth` and without `shape`.
    """
    if quantized_bitwidth is None:
        _mxnet_summary(symbol, shape, *table, **columns)
        return
    if shape is None:
        raise UserError("print_summary(quantized_bitwidth=...) needs the shapes of the inputs: shape={'data': (1, 3, 224, 224)}")
    found = summary(symbol, shape)
    print(found)
    convolutions = [layer for layer in found.layers if layer.operator != 'FullyConnected']
    quantized = sum(layer.binary_params + layer.quantized_params for layer in found.layers)
    total = quantized + sum(layer.float_params for layer in found.layers)
    operations, binary = (sum(layer.macs for layer in convolutions if layer.bits < bits) for bits in (FLOAT_BITS + 1, FLOAT_BITS))
    compressed = ((total - quantized) * FLOAT_BITS + quantized * quantized_bitwidth) / 8
    for title, text in (
        ('Total params', f'{total}'),
        ('FP params', f'{total - quantized} ({1 - quantized / total:.2%})'),
        ('Quantized params', f'{quantized} ({quantized / total:.2%})'),
        ('Model size (full-precision)', f'{total * FLOAT_BITS / 8 / 2**20:.2f} MB'),
        ('Model size (compressed)', f'{compressed / 2**20:.2f} MB'),
        ('FLOPS (total)', f'{operations:.3g}'),
        ('FLOPS (full-precision)', f'{operations - binary:.3g}'),
        ('FLOPS (binary)', f'{binary:.3g}'),
        ('FLOPS (combined)', f'{binary / BOPS_PER_OP + operations - binary:.3g}'),
    ):
        print(f'{title + ":":29}{text}')


# --- in MXNet -------------------------------------------------------------------------------------------------------------------------


def _add_to_mxnet():
    """Add the names of this module to MXNet, where BMXNet-v2 has them."""
    for F in (mx.nd, mx.sym):
        for operator in (det_sign, approx_sign, round_ste):
            setattr(F, operator.__name__, _operator_of(F, operator))
        F.contrib.gradcancel = _operator_of(F, gradcancel)
    for F, array in ((mx.nd, mx.nd.NDArray), (mx.sym, mx.sym.Symbol)):
        for operator in (det_sign, approx_sign, round_ste):
            setattr(array, operator.__name__, _operator_of(F, operator))
    for operator in (BinaryInferenceConvolution, BinaryInferenceFullyConnected):
        setattr(mx.nd, operator.__name__, operator)
    for name in ('activated_conv', 'binary_layer_config', 'set_binary_layer_config'):
        setattr(mx.gluon.nn, name, globals()[name])
    for layer in (QActivation, QDense, QConv1D, QConv2D, QConv3D, *_ACTIVATED.values()):
        setattr(mx.gluon.nn, layer.__name__, layer)
    mx.viz.print_summary = print_summary


def _operator_of(F, operator):
    def call(data, *arguments, name=None, **keywords):
        return operator(F, data, *arguments, **keywords)

    call.__name__, call.__doc__ = operator.__name__, operator.__doc__
    return call


_add_to_mxnet()
