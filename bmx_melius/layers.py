"""Gluon layers of binary and k-bit networks, on MXNet's stock operators.

Every layer is an ordinary HybridBlock: it gives the same numbers imperatively and hybridized, whichever comes first, and infers its
input channels. Configuration is by arguments alone.

A binary convolution of signs with padding -1 is computed as a convolution of bits with padding 0. With x the input, p the padding value
and w the quantized weights,

    conv(x padded with p, w) = conv(x - p padded with 0, w) + p sum(w)

holds for every p, and for x in {-1, +1} and p = -1 the difference x - p is in {0, 2}: all sums are small integers, exact in float32.
"""

from mxnet.gluon import HybridBlock, nn

from .errors import UserError
from .marks import ACTIVATION, ACTIVATION_INPUT, CONVOLUTION, CONVOLUTION_INPUT, DENSE, mark
from .quantizers import FULL_PRECISION, UNIT_MAGNITUDE, check_quantizer, quantize, quantize_in_parts, rounds_to_sign

ENCODINGS = ('sign', 'bit')


def _plain_layout(F, x):
    """x itself, in MXNet's plain memory layout (the symbol's value does not change).

    oneDNN leaves the result of a grouped convolution in a blocked layout in which MXNet runs slow reference code for batch
    normalization and pooling; a slice over everything brings the plain one back.
    """
    return F.slice_axis(x, axis=1, begin=0, end=None)


def _sum_per_filter(F, weight, filters):
    """The sum of each filter's weights: (filters, ...) -> (filters,).

    A batched product, because a sum over axes is several times slower in MXNet and a plain product hides the shape that
    deferred initialization needs.
    """
    rows = F.reshape(weight, shape=(1, filters, -1))
    ones = F.ones_like(F.slice_axis(rows, axis=1, begin=0, end=1))
    return F.reshape(F.batch_dot(rows, ones, transpose_b=True), shape=(-1,))


def concat(F, *maps):
    """Maps (N, C_i, H, W) or vectors (N, C_i) joined along the channels: ``F.concat(*maps, dim=1)``, but training loses no memory by it.

    The gradient of MXNet 1.9.1's concatenation of two or four axes, which is oneDNN's, leaks about 1 KB for each map in every update: a
    MeliusNet22 60 KB. With three or five axes MXNet takes code of its own.
    """
    return F.reshape(F.concat(*(F.expand_dims(x, axis=0) for x in maps), dim=2), shape=(-3, -2))


def _quantizer_facts(method, bits):
    """What a mark says about a quantizer."""
    return {'method': method, 'bits': bits, 'sign': int(rounds_to_sign(method, bits))}


class QActivation(HybridBlock):
    """Quantized activation.

    Forward ``quantize(x, method, bits)`` with the gradient cancelled where |x| > threshold; see `bmx_melius.quantizers` for the
    equations and sources.

    Parameters
    ----------
    bits : int
        1 for binary, 32 for none.
    method : str
        ``sign`` (default), ``approx_sign``, ``round``, ``dorefa``, ``clip``, ``identity``.
    threshold : float or None
        MeliusNet trains with 1.3 (section 4.1).
    encoding : str
        ``sign``: the quantizer's own values. ``bit``: (q(x) + 1) / 2 in {0, 1} for a binary quantizer, to be consumed by a convolution
        or dense layer that is told so.

    Input and output: any shape, the same dtype.
    """

    def __init__(self, bits=1, method='sign', threshold=1.3, encoding='sign', **kwargs):
        super().__init__(**kwargs)
        check_quantizer(method, bits, threshold)
        _check_encoding(encoding, method, bits, rounds_to_sign(method, bits))
        self.bits, self.method, self.threshold, self.encoding = bits, method, threshold, encoding

    def hybrid_forward(self, F, x):
        if self.bits == FULL_PRECISION:
            return quantize(F, x, self.method, self.bits)
        # The reshape changes nothing but the memory layout: once here instead of once in each elementwise pass below.
        with mark(ACTIVATION_INPUT):
            x = F.reshape(x, shape=(-2,))
        terms = quantize_in_parts(F, x, self.method, self.bits, self.threshold, self.encoding)
        with mark(ACTIVATION, **_quantizer_facts(self.method, self.bits), encoding=self.encoding):
            return terms[0] + terms[1]

    def __repr__(self):
        return f'{type(self).__name__}({self.method}, bits={self.bits}, threshold={self.threshold}, encoding={self.encoding})'


def _check_encoding(encoding, method, bits, stands_for_signs):
    if encoding not in ENCODINGS:
        raise UserError(f'unknown encoding {encoding!r}; known: {", ".join(ENCODINGS)}')
    if encoding == 'bit' and not stands_for_signs:
        raise UserError(f"encoding='bit' is for signs, not for bits={bits} of the quantizer {method!r}; leave encoding='sign'")


def _weight_and_constant(F, quantized, filters, pad_value, offset, encoding):
    """The weight to multiply x - p with, and the constant of each filter to add, by the identity at the top of this file.

    The constant is p sum(w), or (n + p sum(w)) / 2 with the offset, of shape (filters,), and None where it would be 0. The weight is
    halved with the offset, and doubled for an input of bits, which are half of x - p.
    """
    constant = None
    if offset:
        constant = _sum_per_filter(F, quantized * (pad_value / 2) + 0.5, filters)
    elif pad_value:
        constant = _sum_per_filter(F, quantized, filters) * pad_value
    factor = (0.5 if offset else 1) * (2 if encoding == 'bit' else 1)
    return (quantized if factor == 1 else quantized * factor), constant


class _QuantizedConvolution:
    """What QConv1D, QConv2D and QConv3D share; mixed in before the Gluon layer of the same dimension.

    Forward, with w = quantize(weight) and x padded with `pad_value`::

        h = conv(x, w)
        y = (h + n) / 2      binary, the default: for signs the number of agreeing bits, n = weights per filter
        y = h                with no_offset=True, and for bits > 1
        y = alpha h          with apply_scaling=True: alpha = mean |weight| of the filter

    Backward: the gradient of w with respect to weight is 1 (straight-through, not clipped) for ``sign``. Weight decay does not apply to
    binary weights (``wd_mult = 0``), since only their signs matter.

    Parameters
    ----------
    channels, kernel_size, strides, padding, dilation, groups, in_channels, weight_initializer, bias_initializer
        As in the Gluon layer. All channel counts, groups, strides and dilations are allowed.
    bits : int
        Of the weights: 1 binary, 2 to 16 with ``quantization='dorefa'`` or ``'round'``, 32 an ordinary convolution (zero padding,
        no offset), unless the quantizer is ``unit_magnitude``.
    quantization : str
        The weights' quantizer, see `bmx_melius.quantizers`. ``unit_magnitude`` with 32 bits is the first stage of two-stage training: the
        equations above with real weights whose magnitude is 1 on average as that of signs is.
    pad_value : float
        -1 as in the paper's implementation, which keeps the padded input binary; 0 or +1 for networks trained elsewhere.
    no_offset : bool
        Leave the dot product h as it is.
    apply_scaling : bool
        XNOR-Net's filter scale alpha (Rastegari et al. 2016, arXiv:1603.05279, eq. 6), which with its gradient is Bi-Real Net's
        magnitude-aware weight (arXiv:1808.00278, eq. 7). There is no offset then.
    scaling_gradient : bool
        Whether the gradient flows through alpha; XNOR-Net's own implementation treats it as a constant.
    use_bias : bool
        A bias added last, before the activation.
    encoding : str
        ``sign``: the input is what it is. ``bit``: the input is (sign(x) + 1) / 2 as given by ``QActivation(encoding='bit')``; the
        result is the same, faster. Needs pad_value -1.

    Input (N, C, spatial...) and output (N, channels, spatial...), the same dtype.
    """

    def __init__(
        self,
        channels,
        kernel_size,
        strides=1,
        padding=0,
        dilation=1,
        groups=1,
        layout=None,
        in_channels=0,
        activation=None,
        use_bias=False,
        weight_initializer=None,
        bias_initializer='zeros',
        bits=1,
        quantization='sign',
        pad_value=-1,
        no_offset=False,
        apply_scaling=False,
        scaling_gradient=True,
        encoding='sign',
        **kwargs,
    ):
        check_quantizer(quantization, bits)
        stands_for_signs = bits == 1 or quantization == UNIT_MAGNITUDE
        _check_encoding(encoding, quantization, bits, stands_for_signs)
        if encoding == 'bit' and pad_value != -1:
            raise UserError(f"encoding='bit' pads with -1, not with pad_value={pad_value}; use encoding='sign'")
        if layout not in (None, self.layout):
            raise UserError(f'{type(self).__name__} computes in layout {self.layout} alone, not {layout}; transpose the input instead')
        super().__init__(
            channels,
            kernel_size,
            strides,
            padding,
            dilation,
            groups,
            self.layout,
            activation,
            use_bias,
            weight_initializer,
            bias_initializer,
            in_channels,
            **kwargs,
        )
        if bits != FULL_PRECISION:
            self.weight.wd_mult = 0.0
        self.bits, self.quantization, self.pad_value, self.encoding = bits, quantization, pad_value, encoding
        self.apply_scaling, self.scaling_gradient = apply_scaling, scaling_gradient
        self.offset = stands_for_signs and not no_offset and not apply_scaling

    def hybrid_forward(self, F, x, weight, bias=None):
        if self.bits == FULL_PRECISION and self.quantization != UNIT_MAGNITUDE:
            return super().hybrid_forward(F, x, weight, bias)
        y = self._convolve(F, x, quantize(F, weight, self.quantization, self.bits))
        if self.apply_scaling:
            scale = F.mean(F.abs(weight), axis=0, exclude=True)
            y = F.broadcast_mul(y, self._per_channel(F, scale if self.scaling_gradient else F.BlockGrad(scale)))
        if bias is not None:
            y = F.broadcast_add(y, self._per_channel(F, bias))
        return y if self.act is None else self.act(y)

    def _convolve(self, F, x, quantized):
        """(h + n) / 2 or h, by the identity at the top of this file."""
        scaled, constant = _weight_and_constant(F, quantized, self._channels, self.pad_value, self.offset, self.encoding)
        if self.encoding == 'sign' and self.pad_value:
            with mark(CONVOLUTION_INPUT, pad_value=self.pad_value):
                x = x - self.pad_value
        grouped = self._kwargs['num_group'] > 1
        if grouped:
            x = _plain_layout(F, x)
        arguments = dict(self._kwargs, no_bias=constant is None)
        facts = dict(encoding=self.encoding, pad_value=self.pad_value, offset=int(self.offset))
        with mark(CONVOLUTION, **_quantizer_facts(self.quantization, self.bits), **facts):
            y = F.Convolution(*[v for v in (x, scaled, constant) if v is not None], name='fwd', **arguments)
        return _plain_layout(F, y) if grouped else y

    def _per_channel(self, F, vector):
        return F.reshape(vector, shape=(1, -1) + (1,) * len(self._kwargs['kernel']))

    def _alias(self):
        return 'qconv'


class QConv1D(_QuantizedConvolution, nn.Conv1D):
    __doc__ = 'Quantized 1-D convolution.' + _QuantizedConvolution.__doc__.partition('.')[2]
    layout = 'NCW'


class QConv2D(_QuantizedConvolution, nn.Conv2D):
    __doc__ = 'Quantized 2-D convolution.' + _QuantizedConvolution.__doc__.partition('.')[2]
    layout = 'NCHW'


class QConv3D(_QuantizedConvolution, nn.Conv3D):
    __doc__ = 'Quantized 3-D convolution.' + _QuantizedConvolution.__doc__.partition('.')[2]
    layout = 'NCDHW'


class QDense(nn.Dense):
    """Quantized fully connected layer.

    Forward, with w = quantize(weight): ``h = x w^T``, and ``y = (h + n) / 2`` unless `no_offset`, n = inputs per unit. As in BMXNet-v2
    the offset applies to every number of bits below 32, unlike a convolution's. Gradients as in `QConv2D`.

    Parameters
    ----------
    units, in_units, activation, use_bias, flatten, weight_initializer, bias_initializer
        As in `gluon.nn.Dense`; no bias by default.
    bits, quantization, no_offset, encoding
        As in `QConv2D`.

    Input (N, ...) flattened to (N, in_units), or (..., in_units) with flatten=False; output (N, units) or (..., units).
    """

    def __init__(self, units, in_units=0, bits=1, quantization='sign', no_offset=False, use_bias=False, encoding='sign', **kwargs):
        check_quantizer(quantization, bits)
        _check_encoding(encoding, quantization, bits, bits == 1)
        super().__init__(units, use_bias=use_bias, in_units=in_units, **kwargs)
        if bits != FULL_PRECISION:
            self.weight.wd_mult = 0.0
        self.bits, self.quantization, self.encoding = bits, quantization, encoding
        self.offset = bits != FULL_PRECISION and not no_offset

    def hybrid_forward(self, F, x, weight, bias=None):
        if self.bits == FULL_PRECISION:
            return super().hybrid_forward(F, x, weight, bias)
        quantized = quantize(F, weight, self.quantization, self.bits)
        shift = -1 if self.encoding == 'bit' else 0  # bits are signs moved by one and halved, as in a padded convolution
        scaled, constant = _weight_and_constant(F, quantized, self._units, shift, self.offset, self.encoding)
        inputs = [v for v in (x, scaled, constant) if v is not None]
        with mark(DENSE, **_quantizer_facts(self.quantization, self.bits), encoding=self.encoding, offset=int(self.offset)):
            y = F.FullyConnected(*inputs, no_bias=constant is None, num_hidden=self._units, flatten=self._flatten, name='fwd')
        if bias is not None:
            y = F.broadcast_add(y, bias)
        return y if self.act is None else self.act(y)

    def _alias(self):
        return 'qdense'


class BinaryConv2D(HybridBlock):
    """Quantized activation and convolution in one: ``QConv2D(QActivation(x))``, the unit binary networks are made of (after a BN).

    Between the two the signs travel as bits wherever that gives the same result (see `quantizers.quantize_in_parts`).

    Parameters
    ----------
    channels, kernel_size, **convolution
        As in `QConv2D`, ``bits`` included, which counts for activations and weights.
    weight_bits : int or None
        Of the weights alone; None: `bits`. 32 beside binary activations, padded with -1, is the first stage of two-stage training
        (Bulat et al. 2019, arXiv:1904.05868; Martinez et al. 2020, arXiv:2003.11535): parameters have the same names and shapes, so the
        second stage, without this argument, starts from its weights.
    threshold : float
        Of the activation's gradient.
    activation_method : str
        The activation's quantizer.

    Input (N, C, H, W) float; output (N, channels, H', W').
    """

    def __init__(
        self,
        channels,
        kernel_size,
        threshold=1.3,
        activation_method='sign',
        bits=1,
        weight_bits=None,
        pad_value=-1,
        prefix=None,
        params=None,
        **convolution,
    ):
        super().__init__(prefix=prefix, params=params)
        weight_bits = weight_bits or bits
        if weight_bits != bits and (bits != 1 or weight_bits != FULL_PRECISION or pad_value != -1):
            raise UserError(
                f'weight_bits={weight_bits} with bits={bits} and pad_value={pad_value}: weights differ from activations in one '
                'case, 32 bits beside activations of 1 bit that are padded with -1'
            )
        if weight_bits != bits:
            convolution['quantization'] = UNIT_MAGNITUDE
        encoding = 'bit' if rounds_to_sign(activation_method, bits) and pad_value == -1 else 'sign'
        with self.name_scope():
            self.qact = QActivation(bits, activation_method, threshold, encoding)
            self.qconv = QConv2D(channels, kernel_size, bits=weight_bits, pad_value=pad_value, encoding=encoding, **convolution)

    def hybrid_forward(self, F, x):
        return self.qconv(self.qact(x))


class ScaledBinaryConv2D(BinaryConv2D):
    """XNOR-Net's convolution: ``conv(sign(x), sign(w)) * alpha * K`` (Rastegari et al. 2016, arXiv:1603.05279, section 3.2).

    alpha = mean |w| of each filter, K = the mean over each window of the mean |x| over the channels, zeros outside the map. Both are
    constants for the gradient. Parameters as in `BinaryConv2D`, without dilation, scaling and offset.
    """

    def __init__(self, channels, kernel_size, dilation=1, **kwargs):
        if dilation not in (1, (1, 1)):
            raise UserError(f'ScaledBinaryConv2D averages the input over dense windows and has no dilation (got {dilation})')
        super().__init__(channels, kernel_size, apply_scaling=True, scaling_gradient=False, **kwargs)

    def hybrid_forward(self, F, x):
        magnitude = F.mean(F.abs(F.BlockGrad(x)), axis=1, keepdims=True)
        window = {key: self.qconv._kwargs[key] for key in ('kernel', 'stride', 'pad')}
        return F.broadcast_mul(super().hybrid_forward(F, x), F.Pooling(magnitude, pool_type='avg', count_include_pad=True, **window))


class GroupedConv2D(nn.Conv2D):
    """`gluon.nn.Conv2D` for ``groups > 1``, several times faster on the CPU: it keeps its neighbours in MXNet's plain memory layout."""

    def hybrid_forward(self, F, x, weight, bias=None):
        return _plain_layout(F, super().hybrid_forward(F, _plain_layout(F, x), weight, bias))


class ChannelShuffle(HybridBlock):
    """Interleave the channels of `groups` groups: channel i n/g + j becomes j g + i (ShuffleNet, Zhang et al. 2018, arXiv:1707.01083).

    Input and output (N, C, H, W); C must be a multiple of `groups`.
    """

    def __init__(self, groups, **kwargs):
        super().__init__(**kwargs)
        if groups < 1:
            raise UserError(f'groups must be at least 1, not {groups}')
        self.groups = groups

    def hybrid_forward(self, F, x):
        grouped = F.reshape(x, shape=(0, -4, self.groups, -1, -2))
        return F.reshape(F.swapaxes(grouped, 1, 2), shape=(0, -3, -2))

    def __repr__(self):
        return f'{type(self).__name__}({self.groups})'
