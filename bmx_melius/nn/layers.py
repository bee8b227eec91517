"""Gluon layers for binary and k-bit networks, built from MXNet's stock operators.

Every layer is an ordinary HybridBlock: imperative and hybridized execution give the same numbers, in any order, and the number of input
channels is inferred. Layers are configured by their arguments only. The arithmetic is defined in `bmx_melius.nn.binarization`.
"""

from typing import Any, Dict, Optional, Tuple, Type

from mxnet.gluon import Block, HybridBlock, Parameter, nn

from ..errors import UserError
from ..signatures import hands_on
from .binarization import Binarization, QuantizedConvolution, Size, check_encoding, quantizer_facts
from .marks import ACTIVATION, ACTIVATION_INPUT, DENSE, FLOAT_ACTIVATION, mark
from .quantizers import (
    CLIP_THRESHOLD,
    FULL_PRECISION,
    UNIT_MAGNITUDE,
    Array,
    check_quantizer,
    quantize,
    quantize_in_parts,
    rounds_to_sign,
    stored_bits,
    without_gradient_beyond,
)


class QActivation(HybridBlock):
    """Quantized activation.

    Returns ``quantize(x, method, bits)``; the gradient is 0 where |x| > threshold. `bmx_melius.nn.quantizers` gives equations and sources.

    Parameters
    ----------
    bits : int
        1 for binary activations, 32 for no quantization.
    method : str
        ``sign`` (default), ``approx_sign``, ``round``, ``dorefa``; only with 32 bits ``clip``, ``leaky_clip``, ``relu``, ``tanh``,
        ``identity``.
    threshold : float or None
        The gradient is cancelled where |x| exceeds this; 1.3 in MeliusNet (section 3.3). None: it is never cancelled. Has no effect with 32
        bits but in a layer with quantized weights, see `BinaryConv2D`.
    encoding : str
        ``sign``: the output is q(x), the value of the quantizer. ``bit``: it is (q(x) + 1) / 2 in {0, 1}, only for a binary quantizer and
        followed by a convolution or dense layer with the same encoding.

    Input and output: any shape, the same dtype.

    Raises
    ------
    UserError
        For an unknown method or encoding, and for combinations that are not supported.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import QActivation
    >>> QActivation()(mx.nd.array([-2, -0.5, 0, 3])).asnumpy()
    array([-1., -1.,  1.,  1.], dtype=float32)
    >>> QActivation(bits=2, method='round')(mx.nd.array([-2, 0.3, 0.5, 3])).asnumpy()
    array([0.        , 0.33333334, 0.6666667 , 1.        ], dtype=float32)
    """

    facts_of_method: Dict[str, object] = {}  # for the mark, in place of the quantizer's facts; subclasses may replace it
    cancels_with_32_bits = False  # whether the gradient is also cancelled if nothing is rounded

    def __init__(
        self,
        bits: int = 1,
        method: str = 'sign',
        threshold: Optional[float] = CLIP_THRESHOLD,
        encoding: str = 'sign',
        prefix: Optional[str] = None,
        params: Any = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        check_quantizer(method, bits, threshold)
        if stored_bits(method, bits) != bits:
            raise UserError(f'{method!r} normalizes weights and cannot quantize activations; use another method')
        check_encoding(encoding, method, bits, rounds_to_sign(method, bits))
        self.bits, self.method, self.threshold, self.encoding = bits, method, threshold, encoding

    @property
    def facts(self) -> Dict[str, object]:
        """Facts for the mark of this layer, a dict (`bmx_melius.nn.marks`)."""
        return {**quantizer_facts(self.method, self.bits), **self.facts_of_method}

    def quantized_in_parts(self, F: Any, x: Array) -> Tuple[Array, Array]:
        """Return two terms whose sum is the output. Subclasses with parameters take them as further arguments."""
        return quantize_in_parts(F, x, self.method, self.bits, self.threshold, self.encoding)

    def hybrid_forward(self, F, x, **learned):
        if self.bits == FULL_PRECISION:
            if self.cancels_with_32_bits:
                x = without_gradient_beyond(F, x, self.threshold)
            with mark(FLOAT_ACTIVATION):
                return quantize(F, x, self.method, self.bits)
        # This reshape only changes the memory layout, once, instead of in each of the elementwise operators below.
        with mark(ACTIVATION_INPUT):
            x = F.reshape(x, shape=(-2,))
        terms = self.quantized_in_parts(F, x, **learned)
        with mark(ACTIVATION, **self.facts, encoding=self.encoding, threshold=self.threshold):
            return terms[0] + terms[1]

    def __repr__(self):
        return f'{type(self).__name__}({self.method}, bits={self.bits}, threshold={self.threshold}, encoding={self.encoding})'


class QConv1D(QuantizedConvolution, nn.Conv1D):
    """Quantized 1-D convolution: `QConv2D` with one spatial axis, the same parameters and errors.

    Input (N, C, W), output (N, channels, W'), the same dtype.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import QConv1D
    >>> layer = QConv1D(4, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 8, 10))).shape
    (2, 4, 10)
    """

    layout = 'NCW'


class QConv2D(QuantizedConvolution, nn.Conv2D):
    """Quantized 2-D convolution.

    Forward, with w = quantize(weight) and x padded with `pad_value`::

        h = conv(x, w)
        y = (h + n) / 2      if bits = 1 (default): for binary inputs the number of agreeing bits; n = weights per filter
        y = h                if no_offset or bits > 1
        y = alpha h          if apply_scaling: alpha = mean |weight| of the filter

    Backward, for ``sign``: the gradient of w with respect to weight is 1 (straight-through estimator), or with `weight_threshold` t
    1[|weight| <= t].

    The input is not quantized here: put a `QActivation` before this layer, or use `BinaryConv2D`, which contains both.

    Parameters
    ----------
    channels, kernel_size, strides, padding, dilation, groups, in_channels, activation, weight_initializer, bias_initializer
        As in `gluon.nn.Conv2D`. All channel counts, groups, strides and dilations are allowed.
    bits : int
        Bits of a weight: 1 for binary weights, 2 to 16 with ``quantization='dorefa'`` or ``'round'``, 32 for an ordinary convolution
        (zero padding, no offset).
    quantization : str
        Quantizer of the weights, see `bmx_melius.nn.quantizers`. ``unit_magnitude`` is for the first stage of two-stage training: a binary
        convolution whose signs are replaced by real weights of mean magnitude 1.
    pad_value : float
        -1 as in the paper's implementation, so that the padded input is binary; 0 or +1 for networks trained with other libraries.
    no_offset : bool
        Return the dot product h.
    apply_scaling : bool
        Multiply by the filter scale alpha of XNOR-Net (Rastegari et al. 2016, arXiv:1603.05279, eq. 6), without offset.
    scaling_gradient : bool or str
        Gradient of W = alpha sign(weight), where dW is the gradient of a convolution with W. True: dweight = alpha dW, plus the derivative
        of alpha. False: alpha dW, with alpha as a constant. ``straight_through``: dW, as if W were the weight itself, as in the authors'
        code of Bi-Real Net and ReActNet. Beyond `weight_threshold` all three are 0, except for the derivative of alpha.
    scale_over : str
        The weights whose mean magnitude is alpha: of each ``filter``, or of the ``layer`` as in the authors' code of GroupNet and CBCN.
    encoding : str
        ``sign``: the input is used as it is. ``bit``: the input is (sign(x) + 1) / 2, the output of ``QActivation(encoding='bit')``; the
        result is the same as with ``sign``, in less time. Requires ``pad_value=-1``.
    weight_threshold : float or None
        The gradient of a latent weight is cancelled where its magnitude exceeds this; None: it is never cancelled. Weights beyond the
        threshold no longer change, so clip them after each update, `bmx_melius.nn.methods.bnn.clip_latent_weights`.
    clip_weights : bool
        Whether that function clips the weights of this layer. In the authors' code of Bi-Real Net and ReActNet they are not clipped.
    weight_decay : bool or None
        Whether weight decay applies to the latent weight (``weight.wd_mult`` is 1 or 0). None: only if its magnitude has an effect on the
        output, with `apply_scaling` or a quantizer other than the sign, as in the networks of HWGQ, LQ-Net and TTQ; it does not change
        the sign of a weight, and MeliusNet trains without it. Always True for weights that are not quantized.
    use_bias : bool
        Add a bias to the result, before the activation.
    layout, prefix, params
        As in `gluon.nn.Conv2D`; ``NCHW`` is the only layout.

    Input (N, C, H, W), output (N, channels, H', W'), the same dtype.

    Raises
    ------
    UserError
        For an unknown quantizer, a number of bits that it does not support, another layout, and combinations that are not supported.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import QConv2D
    >>> layer = QConv2D(16, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> y = layer(mx.nd.sign(mx.nd.random.normal(shape=(2, 8, 5, 5))))
    >>> y.shape
    (2, 16, 5, 5)
    >>> int(y.min().asscalar()) >= 0, int(y.max().asscalar()) <= 8 * 3 * 3  # the number of agreeing bits
    (True, True)
    """

    layout = 'NCHW'


class QConv3D(QuantizedConvolution, nn.Conv3D):
    """Quantized 3-D convolution: `QConv2D` with three spatial axes, the same parameters and errors.

    Input (N, C, D, H, W), output (N, channels, D', H', W'), the same dtype.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import QConv3D
    >>> layer = QConv3D(4, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((1, 8, 3, 5, 5))).shape
    (1, 4, 3, 5, 5)
    """

    layout = 'NCDHW'


class QDense(nn.Dense):
    """Quantized fully connected layer.

    Forward, with w = quantize(weight) and n = inputs per unit: ``h = x w^T``, ``y = (h + n) / 2``, or ``y = h`` with `no_offset`. As in
    BMXNet-v2, and unlike in `QConv2D`, the offset applies for all bits below 32. Gradients as in `QConv2D`.

    Parameters
    ----------
    units, in_units, activation, use_bias, flatten, dtype, weight_initializer, bias_initializer, prefix, params
        As in `gluon.nn.Dense`; no bias by default.
    bits, quantization, no_offset, encoding
        As in `QConv2D`.

    Input (N, ...) flattened to (N, in_units), or (..., in_units) with flatten=False; output (N, units) or (..., units).

    Raises
    ------
    UserError
        As `QConv2D`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import QDense
    >>> layer = QDense(10)
    >>> layer.initialize(mx.init.Constant(1))
    >>> layer(mx.nd.array([[1, 1, -1, 1]])).asnumpy()[0, :3]  # three of four bits agree
    array([3., 3., 3.], dtype=float32)
    """

    settings: Type[Binarization] = Binarization  # subclasses may replace it

    @hands_on(nn.Dense, HybridBlock)
    def __init__(
        self,
        units: int,
        in_units: int = 0,
        bits: int = 1,
        quantization: str = 'sign',
        no_offset: bool = False,
        use_bias: bool = False,
        encoding: str = 'sign',
        **gluon: Any,
    ) -> None:
        # encoded bits are (sign + 1) / 2, as in a convolution padded with -1
        self.binarization = self.settings(bits, quantization, -1 if encoding == 'bit' else 0, no_offset, encoding=encoding)
        super().__init__(units, use_bias=use_bias, in_units=in_units, **gluon)
        self.weight.wd_mult = self.binarization.wd_mult

    def hybrid_forward(self, F, x, weight, bias=None):
        settings = self.binarization
        if settings.is_float:
            return super().hybrid_forward(F, x, weight, bias)
        offset = not settings.no_offset
        scaled, constant = settings.weight_and_constant(F, settings.quantized(F, weight), self._units, settings.pad_value, offset)
        inputs = [v for v in (x, scaled, constant) if v is not None]
        with mark(DENSE, **settings.facts, offset=int(offset)):
            y = F.FullyConnected(*inputs, no_bias=constant is None, num_hidden=self._units, flatten=self._flatten, name='fwd')
        if bias is not None:
            y = F.broadcast_add(y, bias)
        return y if self.act is None else self.act(y)

    def _alias(self):
        return 'qdense'


class BinaryConv2D(HybridBlock):
    """Quantized activation followed by a quantized convolution, ``QConv2D(QActivation(x))``: the basic layer of binary networks.

    Put a BatchNorm before this layer. The output of a binary convolution, the number of agreeing bits, is never negative and mostly
    exceeds the threshold. If it reaches another `BinaryConv2D` without a BatchNorm, even through a ReLU or PReLU, all signs are +1 and the
    gradient is cancelled: the layers before are not trained, and no error is raised. `bmx_melius.check` finds such layers.

    Activation and convolution use the encoding ``bit`` where it gives the same result (see `quantizers.quantize_in_parts`).

    Parameters
    ----------
    channels, kernel_size, **convolution
        As in `QConv2D`, in the same order; ``bits`` applies to activations and weights.
    threshold : float or None
        The gradient of the activation is cancelled where the magnitude of its input exceeds this, also with ``activation_bits=32``, as in
        BMXNet-v2; None: it is never cancelled. Has no effect with ``bits=32``.
    activation_method : str
        Quantizer of the activation.
    activation_bits : int or None
        Bits of the activations if they differ from `bits`: 32 for binary weights with float activations, 2 with
        ``activation_method='hwgq'``. Has no effect with ``bits=32``.
    weight_bits : int or None
        Bits of the weights if they differ from `bits`. 32 with binary activations is the first stage of two-stage training (Bulat et al.
        2019, arXiv:1904.05868; Martinez et al. 2020, arXiv:2003.11535), with ``quantization='unit_magnitude'``. Names and shapes of the
        parameters do not change, so the second stage, without this argument, starts from the weights of the first.

    Input (N, C, H, W) float; output (N, channels, H', W').

    Raises
    ------
    UserError
        As `QConv2D` and `QActivation`; for other values of `weight_bits`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import BinaryConv2D
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.BatchNorm(), BinaryConv2D(64, kernel_size=3, padding=1))
    >>> net.initialize()
    >>> net(mx.nd.random.normal(shape=(1, 32, 8, 8))).shape
    (1, 64, 8, 8)
    """

    activation: Type[QActivation] = QActivation  # subclasses may replace these two
    convolution: Type[QConv2D] = QConv2D

    @hands_on(QConv2D, without=['encoding'])
    def __init__(
        self,
        channels: int,
        kernel_size: Size,
        *geometry: Any,
        threshold: Optional[float] = CLIP_THRESHOLD,
        activation_method: str = 'sign',
        activation_bits: Optional[int] = None,
        weight_bits: Optional[int] = None,
        prefix: Optional[str] = None,
        params: Any = None,
        **convolution: Any,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        bits: int = convolution.get('bits', 1)
        pad_value = convolution.get('pad_value', -1)
        if weight_bits not in (None, bits):
            if (bits, weight_bits) != (1, FULL_PRECISION):
                raise UserError(
                    f'weight_bits={weight_bits} with bits={bits} is not supported: weight_bits must equal bits, or be 32 with bits=1'
                )
            convolution['quantization'] = UNIT_MAGNITUDE
        if activation_bits is None or bits == FULL_PRECISION:
            activation_bits = bits
        check_quantizer(activation_method, activation_bits)
        encoding = 'bit' if bits == 1 and rounds_to_sign(activation_method, activation_bits) and pad_value == -1 else 'sign'
        with self.name_scope():
            self.qact = self.activation(activation_bits, activation_method, threshold, encoding)
            self.qact.cancels_with_32_bits = bits != FULL_PRECISION
            self.qconv = self.convolution(channels, kernel_size, *geometry, encoding=encoding, **convolution)

    def hybrid_forward(self, F, x):
        return self.qconv(self.qact(x))


def binary_weights(block: Block, path: str = '') -> Dict[str, Parameter]:
    """Return the binary weights of a network, a dict of layer paths (as in the names of a ``.params`` file) to `Parameter`.

    These are the weights of which the network sees the sign, also where the sign is scaled (``scaled_sign``, ``largest_sign``), but not
    if they are centred first. (With one bit, the quantizer ``round`` compares with 1/2, and ``dorefa`` takes negative numbers next to 0 for
    +1: both are left out.)
    """
    if isinstance(block, (QConv1D, QConv2D, QConv3D, QDense)):
        method, bits = block.binarization.quantization, block.binarization.bits
        is_sign = rounds_to_sign(method, bits) or (method in ('scaled_sign', 'largest_sign') and bits == 1)
        return {path: block.weight} if is_sign and not getattr(block, 'centres_weights', False) else {}
    return {
        name: weight
        for key, child in block._children.items()
        for name, weight in binary_weights(child, f'{path}.{key}' if path else key).items()
    }
