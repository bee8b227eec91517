"""Quantizers for activations and weights, binary and k-bit, with their gradients.

A quantizer consists of a *surrogate*, an ordinary differentiable function, and a *rounding*. The forward pass returns the rounded value,
the backward pass uses the gradient of the surrogate (straight-through estimator, Bengio et al. 2013, arXiv:1308.3432)::

    q(x) = rounded(x) + surrogate(x) - BlockGrad(surrogate(x))

The last two terms cancel exactly, so the value is ``rounded(x)`` bit for bit. With ``bits=32`` nothing is rounded: the result is the
surrogate without the cancelled gradient. All functions use MXNet's stock operators, chosen for speed on the CPU: comparisons, minima and
maxima run at memory speed there, while ``clip``, ``sign`` and ``contrib.sign_ste`` branch on every element. ``contrib.sign_ste`` also has
sign(0) = 0.

Every function takes ``F`` (``mx.nd`` or ``mx.sym``) and an array or symbol ``x`` of any shape, float32 or float64, and returns an array or
symbol of the same shape and dtype.
"""

import dataclasses
import math
import numbers
from typing import Any, Callable, Optional, Sequence, Tuple

import mxnet as mx

from ..errors import UserError

Array = Any  # NDArray or Symbol, for which MXNet has no type annotations; functions return the kind that they are given

FULL_PRECISION = 32  # number of bits that means "not quantized"
CLIP_THRESHOLD = 1.3  # the gradient of a sign is cancelled where its input's magnitude exceeds this (MeliusNet, section 3.3)
HWGQ_STEP = 0.538  # distance of the levels of the 2-bit half-wave Gaussian quantizer (HWGQ, arXiv:1702.00953)
TERNARY_THRESHOLD = 0.05  # of the largest magnitude (TTQ, arXiv:1612.01064)
TINY = 1e-6  # smaller than the mean magnitude of any trained filter, and not zero in float16
WITHIN = 1 - 2.0**-7  # of a clipping bound, up to which a rounded number has a gradient (AQT, `bmx_melius.nn.methods.pokebnn`)
ABOVE_ZERO = 2.0**-23  # added to clipping bounds of weights (AQT)
FINITE = 6e4  # replaces infinity: quantizers give the same result for all larger inputs, and float16 can represent it


def clip(F: Any, x: Array, low: float, high: float) -> Array:
    """Return min(max(x, low), high). Gradient: 1 where low <= x <= high, both bounds included, else 0."""
    return F.maximum(F.minimum(x, high), low)


def zero_with_gradient(F: Any, surrogate: Array) -> Array:
    """Return zeros with the gradient of `surrogate`. Added to a rounded value they form the straight-through estimator."""
    return surrogate - F.BlockGrad(surrogate)


def cancelled(F: Any, x: Array, threshold: Optional[float], scale: float = 1) -> Array:
    """Return scale x where |x| <= threshold, else 0. Gradient: scale 1[|x| <= threshold] (Hubara et al. 2016, arXiv:1602.02830).

    Replaces x in surrogates of which only the gradient is used. Without a threshold the result is scale x. x must be finite: infinities
    give NaN.
    """
    if threshold is None:
        return x if scale == 1 else x * scale
    mask = F.abs(x) <= threshold
    return x * F.BlockGrad(mask if scale == 1 else mask * scale)


def cancel_gradient(F: Any, x: Array, threshold: Optional[float]) -> Array:
    """Return x, with the gradient of `cancelled`."""
    return x if threshold is None else F.BlockGrad(x) + zero_with_gradient(F, cancelled(F, x, threshold))


def without_gradient_beyond(F: Any, x: Array, threshold: Optional[float]) -> Array:
    """Return x, which may be infinite. Gradient: 1[|x| <= threshold]; None: 1."""
    return x if threshold is None else F.BlockGrad(x) + zero_with_gradient(F, cancelled(F, clip(F, x, -FINITE, FINITE), threshold))


# --- binary: sign(x) = +1 if x >= 0 else -1; both zeros give +1 -----------------------------------------------------------------------


def sign(F: Any, x: Array) -> Array:
    """Return sign(x) in {-1, +1}, without a gradient (MeliusNet, section 3.3)."""
    return (x >= 0) * 2 - 1


def quadratic(F: Any, x: Array) -> Array:
    """Return 2x - x|x|, a smooth approximation of sign on [-1, 1]. Gradient: 2 - 2|x| (Bi-Real Net, arXiv:1808.00278, eq. 5).

    Not clipped: BMXNet-v2 cancels this gradient only beyond the threshold of the activation, and never for weights.
    """
    return x * (2 - F.abs(x))


def triangular(F: Any, x: Array, threshold: Optional[float], scale: float) -> Array:
    """Return a number whose gradient is scale times the gradient of `quadratic` where |x| <= threshold, else 0.

    Only the gradient is used, and the derivative of ``abs`` is slow on CPUs; so the slope is computed in the forward pass.
    """
    magnitude = F.abs(x)
    slope = 2 * scale - magnitude * (2 * scale)
    return x * F.BlockGrad(slope if threshold is None else slope * (magnitude <= threshold))


def leaky_clip(F: Any, x: Array) -> Array:
    """Return x where |x| <= 1, else 0.1 x. Gradient: 1 where |x| <= 1, else 0.1.

    This is the function of BMXNet-v2 (``leaky_clip`` in its binary_layers.py), which is not continuous: it jumps from 1 to 0.1 at x = 1.
    """
    return x * F.BlockGrad((F.abs(x) <= 1) * 0.9 + 0.1)


def unit_magnitude(F: Any, weight: Array) -> Array:
    """Return each filter divided by its mean magnitude. The gradient also flows through the mean.

    By least squares, sign(w) is the best multiple of sign(w) for the result, as alpha sign(w) is for w, with alpha = mean |w| (Rastegari
    et al. 2016, arXiv:1603.05279, eq. 6). A filter of zeros remains zero.
    """
    return weight / F.maximum(filter_magnitude(F, weight), TINY)


def filter_magnitude(F: Any, weight: Array) -> Array:
    """Return the mean magnitude of each filter, in an array of the shape of `weight`."""
    return everywhere(F, F.mean(F.abs(weight), axis=0, exclude=True, keepdims=True), weight)


def centred(F: Any, weight: Array) -> Array:
    """Return each filter minus its mean."""
    return weight - everywhere(F, F.mean(weight, axis=0, exclude=True, keepdims=True), weight)


def deviation(F: Any, centred: Array, unbiased: bool = True, epsilon: float = TINY**2) -> Array:
    """Return the deviation of each filter, given minus its mean, in an array of the shape of the weight.

    Parameters
    ----------
    unbiased : bool
        Divide the sum of squares by n - 1, not n.
    epsilon : float
        Lower limit of the square of the deviation.
    """
    squares = F.sum(F.square(centred), axis=0, exclude=True, keepdims=True)
    number = F.sum(F.ones_like(centred), axis=0, exclude=True, keepdims=True)
    if unbiased:
        number = F.maximum(number - 1, 1)
    return everywhere(F, F.sqrt(F.maximum(squares / number, epsilon)), centred)


def everywhere(F: Any, value: Array, array: Array) -> Array:
    """Return `value`, whose axes may have length 1, in the shape of `array`. With other broadcasts shape inference fails."""
    return F.broadcast_mul(value, F.ones_like(array))


def scaled_sign(F: Any, weight: Array) -> Array:
    """Return alpha sign(w) with alpha = mean |w| of the filter, without a gradient (arXiv:1603.05279, equation 6)."""
    return filter_magnitude(F, weight) * sign(F, weight)


def within_bound(F: Any, x: Array, threshold: Optional[float], scale: float) -> Array:
    """Return a number whose gradient is 2 scale / B where |x| is below the bound B = `threshold`, up to a margin, else 0.

    That is the gradient of sign(x) where B / 2 sign(x) has the gradient 1, as in PokeBNN (arXiv:2112.00133). Without a threshold B is 2.
    """
    return cancelled(F, x, threshold and threshold * WITHIN, 2 * scale / (threshold or 2))


def largest_magnitude(F: Any, weight: Array) -> Array:
    """Return the largest magnitude of each filter plus a small number, in an array of the shape of `weight`, without a gradient."""
    return F.BlockGrad(everywhere(F, F.max(F.abs(weight), axis=0, exclude=True, keepdims=True), weight) + ABOVE_ZERO)


def below_largest(F: Any, weight: Array, threshold: Optional[float], scale: float) -> Array:
    """Return scale w, up to `threshold`. Its gradient is 0 for weights next to the largest magnitude of their filter, too."""
    weight = cancelled(F, weight, threshold)
    return weight * F.BlockGrad((F.abs(weight) <= largest_magnitude(F, weight) * WITHIN) * scale)


def largest_sign(F: Any, weight: Array) -> Array:
    """Return alpha sign(w), where alpha is half the largest |w| of the filter, without a gradient (PokeBNN, arXiv:2112.00133)."""
    return largest_magnitude(F, weight) * 0.5 * sign(F, weight)


def largest_levels(F: Any, weight: Array, bits: int) -> Array:
    """Return the nearest of 2^k - 1 levels from -m to m, m = max |w| of the filter, halves upwards; without a gradient (AQT)."""
    steps, largest = 2 ** (bits - 1) - 1, largest_magnitude(F, weight)
    return F.floor(weight / largest * steps + 0.5) * (largest / steps)


# --- k bits ---------------------------------------------------------------------------------------------------------------------------


def round_to_levels(F: Any, x: Array, bits: int) -> Array:
    """Return round(x (2^k - 1)) / (2^k - 1), the nearest of 2^k levels in [0, 1], halves away from zero; without a gradient."""
    steps = 2**bits - 1
    return F.round(x * steps) / steps


def unit_interval(F: Any, x: Array) -> Array:
    """Return clip(x, 0, 1). Gradient: 1[0 <= x <= 1]."""
    return clip(F, x, 0, 1)


def normalized_tanh(F: Any, x: Array) -> Array:
    """Return tanh(x) / max|tanh(x)|, the maximum over the whole array (DoReFa-Net, Zhou et al. 2016, arXiv:1606.06160, eq. 9).

    The gradient also flows through the maximum.
    """
    squashed = F.tanh(x)
    largest = F.max(F.abs(squashed), keepdims=True)
    return squashed / F.broadcast_like(largest, squashed)  # with broadcast_div shape inference fails


def half_wave(F: Any, x: Array) -> Array:
    """Return clip(x, 0, 3 s) with s = 0.538. Gradient: 1[0 < x <= 3 s] (clipped ReLU of HWGQ, Cai et al. 2017, arXiv:1702.00953)."""
    return F.minimum(F.relu(x), 3 * HWGQ_STEP)


def half_wave_levels(F: Any, x: Array) -> Array:
    """Return the nearest of s, 2 s, 3 s for x > 0, halves downwards, and 0 for x <= 0; without a gradient.

    The levels with s = 0.538 are the best for the positive part of a standard normal distribution, so put a BatchNorm before.
    """
    return ((x > 0) + (x > 1.5 * HWGQ_STEP) + (x > 2.5 * HWGQ_STEP)) * HWGQ_STEP


def ternary(F: Any, x: Array) -> Array:
    """Return 1 where x > d, -1 where x < -d, else 0, with d = 0.05 max |x|, without a gradient (TTQ, arXiv:1612.01064)."""
    largest = F.max(F.abs(x), keepdims=True) * TERNARY_THRESHOLD
    threshold = F.broadcast_like(largest, x)  # with broadcast comparisons shape inference fails
    return (x > threshold) - (x < -threshold)


# --- the quantizers by name -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Quantizer:
    """A quantizer: its rounding, and the function whose gradient replaces the rounding's. `register_quantizer` gives it a name.

    Attributes
    ----------
    bits : sequence of int
        Supported numbers of bits; 32 means no rounding.
    surrogate : callable (F, x, threshold, scale) -> array, or None
        `scale` times the differentiable function whose gradient is used in the backward pass, cancelled where |x| > threshold.
    rounded : callable (F, x, surrogate, bits) -> array, or None
        The forward value, given the input and the value of the surrogate. None: nothing is rounded for any number of bits. With 1 bit
        such a quantizer gives real weights instead of signs, in an otherwise binary layer.
    full_precision : callable (F, x) -> array
        The result without rounding: the surrogate without its cancelled gradient.
    sign : bool
        Whether it is `sign` for 1 bit: +1 where x >= 0, else -1, for all x. Only such values can be represented as bits.

    Examples
    --------
    `register_quantizer` has one with a gradient.

    >>> import bmx_melius as bmx
    >>> half_circle = bmx.Quantizer(
    ...     bits=(32,), surrogate=None, rounded=None, full_precision=lambda F, x: F.sqrt(F.relu(1 - x * x))
    ... )
    >>> bmx.register_quantizer('half_circle', half_circle)
    """

    bits: Sequence[int]
    surrogate: Optional[Callable[..., Any]]
    rounded: Optional[Callable[..., Any]]
    full_precision: Callable[[Any, Any], Any]
    sign: bool = False


BINARY = (1, FULL_PRECISION)
MULTI_BIT = (*range(1, 17), FULL_PRECISION)
UNIT_MAGNITUDE = 'unit_magnitude'

QUANTIZERS = {
    'sign': Quantizer(
        bits=BINARY,
        surrogate=cancelled,
        rounded=lambda F, x, surrogate, bits: sign(F, x),
        full_precision=lambda F, x: x,
        sign=True,
    ),
    'approx_sign': Quantizer(
        bits=BINARY,
        surrogate=triangular,
        rounded=lambda F, x, surrogate, bits: sign(F, x),
        full_precision=lambda F, x: quadratic(F, clip(F, x, -1, 1)),
        sign=True,
    ),
    'bounded_sign': Quantizer(
        bits=BINARY,
        surrogate=within_bound,
        rounded=lambda F, x, surrogate, bits: sign(F, x),
        full_precision=lambda F, x: x,
        sign=True,
    ),
    'round': Quantizer(
        bits=MULTI_BIT,
        surrogate=lambda F, x, threshold, scale: unit_interval(F, cancel_gradient(F, x, threshold)) * scale,
        rounded=lambda F, x, surrogate, bits: round_to_levels(F, surrogate, bits),
        full_precision=unit_interval,
    ),
    'dorefa': Quantizer(
        bits=MULTI_BIT,
        surrogate=lambda F, x, threshold, scale: normalized_tanh(F, cancel_gradient(F, x, threshold)) * scale,
        rounded=lambda F, x, surrogate, bits: 2 * round_to_levels(F, surrogate / 2 + 0.5, bits) - 1,
        full_precision=normalized_tanh,
    ),
    'hwgq': Quantizer(
        bits=(2, FULL_PRECISION),
        surrogate=lambda F, x, threshold, scale: half_wave(F, cancel_gradient(F, x, threshold)) * scale,
        rounded=lambda F, x, surrogate, bits: half_wave_levels(F, x),
        full_precision=half_wave,
    ),
    'scaled_sign': Quantizer(
        bits=BINARY,
        surrogate=cancelled,
        rounded=lambda F, x, surrogate, bits: scaled_sign(F, x),
        full_precision=lambda F, x: x,
    ),
    'largest_sign': Quantizer(
        bits=BINARY,
        surrogate=below_largest,
        rounded=lambda F, x, surrogate, bits: largest_sign(F, x),
        full_precision=lambda F, x: x,
    ),
    'largest_levels': Quantizer(
        bits=(*range(2, 17), FULL_PRECISION),
        surrogate=cancelled,
        rounded=lambda F, x, surrogate, bits: largest_levels(F, x, bits),
        full_precision=lambda F, x: x,
    ),
    'ternary': Quantizer(
        bits=(2, FULL_PRECISION),
        surrogate=cancelled,
        rounded=lambda F, x, surrogate, bits: ternary(F, x),
        full_precision=lambda F, x: x,
    ),
    'clip': Quantizer(bits=(FULL_PRECISION,), surrogate=None, rounded=None, full_precision=lambda F, x: clip(F, x, -1, 1)),
    'leaky_clip': Quantizer(bits=(FULL_PRECISION,), surrogate=None, rounded=None, full_precision=leaky_clip),
    'relu': Quantizer(bits=(FULL_PRECISION,), surrogate=None, rounded=None, full_precision=lambda F, x: F.relu(x)),
    'tanh': Quantizer(bits=(FULL_PRECISION,), surrogate=None, rounded=None, full_precision=lambda F, x: F.tanh(x)),
    'identity': Quantizer(bits=(FULL_PRECISION,), surrogate=None, rounded=None, full_precision=lambda F, x: x),
    UNIT_MAGNITUDE: Quantizer(bits=(1,), surrogate=None, rounded=None, full_precision=unit_magnitude),
}
# BMXNet-v2's name of approx_sign with 1 bit; its approx_sign is the float function, here approx_sign with 32 bits.
QUANTIZERS['sign_approx_sign'] = dataclasses.replace(QUANTIZERS['approx_sign'], bits=(1,))


def register_quantizer(name: str, quantizer: Quantizer) -> None:
    """Make a quantizer available to all layers by a name, in this process.

    Layers whose quantizers round to the sign (``sign=True``) are packed by `bmx_melius.convert` like the built-in layers; a program
    that only runs packed networks need not register anything.

    Parameters
    ----------
    name : str
        Argument of layers, such as ``QActivation(method=name)`` and ``QConv2D(quantization=name)``.
    quantizer : Quantizer

    Raises
    ------
    UserError
        If the name is taken by another quantizer, if no number of bits is given, or if ``sign=True`` and its values with 1 bit differ from
        the sign.

    Examples
    --------
    >>> import mxnet as mx
    >>> import bmx_melius as bmx
    >>> from bmx_melius.nn.quantizers import BINARY, cancel_gradient, sign
    >>> bmx.register_quantizer('tanh_sign', bmx.Quantizer(
    ...     bits=BINARY,
    ...     surrogate=lambda F, x, threshold, scale: F.tanh(2 * cancel_gradient(F, x, threshold)) * scale,
    ...     rounded=lambda F, x, surrogate, bits: sign(F, x),
    ...     full_precision=lambda F, x: F.tanh(2 * x),
    ...     sign=True,
    ... ))
    >>> bmx.QActivation(method='tanh_sign')(mx.nd.array([-0.5, 0, 2])).asnumpy()
    array([-1.,  1.,  1.], dtype=float32)
    """
    if not isinstance(name, str) or not name or not isinstance(quantizer, Quantizer):
        raise UserError(f'register_quantizer takes a name and a Quantizer, not {name!r} and {type(quantizer).__name__}')
    if QUANTIZERS.get(name, quantizer) is not quantizer:
        raise UserError(f'a quantizer {name!r} exists already: choose another name')
    if isinstance(quantizer.bits, int) or not quantizer.bits:
        raise UserError(f'the quantizer {name!r} supports no number of bits: bits is {quantizer.bits!r}, not numbers such as (1, 32)')
    if quantizer.sign:
        if 1 not in quantizer.bits or quantizer.rounded is None or quantizer.surrogate is None:
            raise UserError(f'the quantizer {name!r} has sign=True, but not 1 among its bits, a surrogate and a rounding')
        some = [-math.inf, -2, -1, -1e-45, -0.0, 0.0, 1e-45, 0.3, 1, 2, math.inf]
        x = mx.nd.array([*some, *(sign * 2.0**exponent for sign in (-1, 1) for exponent in range(-20, 20))])
        values = quantizer.rounded(mx.nd, x, quantizer.surrogate(mx.nd, x, None, 1), 1)
        differs = values != sign(mx.nd, x)
        if differs.sum().asscalar():
            wrong = int(differs.argmax(axis=0).asscalar())
            raise UserError(
                f'the quantizer {name!r} has sign=True, but gives {values[wrong].asscalar():g} for {x[wrong].asscalar():g}: '
                'sign=True is for +1 where x >= 0, else -1'
            )
    QUANTIZERS[name] = quantizer


def check_quantizer(method: str, bits: int, threshold: Optional[float] = None) -> None:
    """Raise `UserError` unless `method` is a known quantizer that supports `bits` bits and the threshold is positive or None."""
    if method not in QUANTIZERS:
        raise UserError(f'unknown quantizer {method!r}; known: {", ".join(QUANTIZERS)}')
    choices = QUANTIZERS[method].bits
    if bits not in choices:
        raise UserError(f'quantizer {method!r} cannot round to {bits!r} bits; choose from {", ".join(map(str, choices))}')
    check_threshold(threshold)


def check_threshold(threshold: Optional[float]) -> None:
    """Raise `UserError` unless a threshold, beyond which a gradient is cancelled, is a positive number, not too large, or None."""
    is_number = isinstance(threshold, numbers.Real) and not isinstance(threshold, bool)
    if threshold is not None and not (is_number and 0 < threshold < FINITE):
        raise UserError(
            f'the threshold must be positive and below {FINITE:g} (or None for a gradient that is never cancelled), not {threshold!r}'
        )


def rounds_to_sign(method: str, bits: int) -> bool:
    """Return whether the quantizer `method` with `bits` bits gives the sign."""
    return bits == 1 and QUANTIZERS[method].sign


def stored_bits(method: str, bits: int) -> int:
    """Return the bits per value that the quantizer `method` gives for the argument `bits`: 32 if it does not round."""
    return FULL_PRECISION if QUANTIZERS[method].rounded is None else bits


def quantize_in_parts(
    F: Any, x: Array, method: str, bits: int, threshold: Optional[float] = None, encoding: str = 'sign'
) -> Tuple[Array, Array]:
    """Return two terms whose sum is the result of `quantize`. The caller adds them, so that it can mark the node of the sum.

    With ``encoding='bit'`` the sum is (q(x) + 1) / 2 in {0, 1} for a quantizer q that rounds to the sign, with half of its gradient: in a
    convolution of these bits, MXNet's native padding with 0 *is* padding with -1. Training spends most of its time in this form, so it
    does not replace infinities by finite values; infinities give NaN.
    """
    quantizer = QUANTIZERS[method]
    assert quantizer.surrogate is not None
    if encoding == 'bit':
        surrogate = quantizer.surrogate(F, x, threshold, 0.5)
        if threshold is not None:
            # surrogate + (bit - surrogate) is exactly the bit, because |surrogate| <= threshold / 2 is small; faster than zeros
            return surrogate, F.BlockGrad((x >= 0) - surrogate)
        return F.BlockGrad(x >= 0), zero_with_gradient(F, surrogate)
    if threshold is not None:
        x = clip(F, x, -FINITE, FINITE)
    assert quantizer.rounded is not None
    surrogate = quantizer.surrogate(F, x, threshold, 1)
    return F.BlockGrad(quantizer.rounded(F, x, surrogate, bits)), zero_with_gradient(F, surrogate)


def quantize(F: Any, x: Array, method: str, bits: int, threshold: Optional[float] = None) -> Array:
    """Quantize `x` to `bits` bits with the quantizer named `method`.

    Parameters
    ----------
    x : NDArray or Symbol
        Any shape; finite if there is no threshold.
    method : str
        A key of `QUANTIZERS`: ``sign``, ``approx_sign`` (also called ``sign_approx_sign``), ``bounded_sign``, ``round``, ``dorefa``,
        ``clip``, ``hwgq``, ``leaky_clip``, ``relu``, ``tanh``, ``identity``; for weights only ``scaled_sign``, ``largest_sign``,
        ``largest_levels``, ``ternary``, ``unit_magnitude``.
    bits : int
        1 for the binary quantizers, ``scaled_sign``, ``largest_sign`` and ``unit_magnitude``, 1 to 16 for ``round`` and ``dorefa``, 2 to
        16 for ``largest_levels``, 2 for ``hwgq`` and ``ternary``, 32 for no rounding.
    threshold : float or None
        The gradient is cancelled where |x| > threshold; None: never, as for weights. Has no effect for 32 bits.

    Returns
    -------
    NDArray or Symbol of the same shape and dtype: ``sign``, ``approx_sign`` and ``bounded_sign`` give {-1, +1}, ``round`` 2^bits levels
    of [0, 1], ``dorefa`` 2^bits levels of [-1, 1], ``hwgq`` {0, s, 2 s, 3 s} with s = 0.538, ``scaled_sign`` {-alpha, +alpha} with the
    mean magnitude alpha of each filter, ``largest_sign`` with half its largest magnitude, ``largest_levels`` 2^bits - 1 levels up to the
    latter, ``ternary`` {-1, 0, 1}, ``unit_magnitude`` real numbers.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.quantizers import quantize
    >>> x = mx.nd.array([-2, -0.4, 0, 0.6])
    >>> x.attach_grad()
    >>> with mx.autograd.record():
    ...     y = quantize(mx.nd, x, 'sign', bits=1, threshold=1.3)
    >>> y.backward()
    >>> y.asnumpy(), x.grad.asnumpy()
    (array([-1., -1.,  1.,  1.], dtype=float32), array([0., 1., 1., 1.], dtype=float32))
    """
    check_threshold(threshold)
    if stored_bits(method, bits) == FULL_PRECISION:
        return QUANTIZERS[method].full_precision(F, x)
    value, gradient = quantize_in_parts(F, x, method, bits, threshold)
    return value + gradient
