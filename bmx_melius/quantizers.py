"""Quantizers: the one definition of binarization and of its k-bit relatives, with their gradients.

A quantizer is a pair: a *surrogate*, an ordinary differentiable function, and a *rounding* of it. Forward gives the rounded value,
backward the gradient of the surrogate (the straight-through estimator, Bengio et al. 2013, arXiv:1308.3432)::

    q(x) = rounded(x) + surrogate(x) - BlockGrad(surrogate(x))

The last two terms cancel exactly, so the value is ``rounded(x)`` bit for bit. With ``bits=32`` nothing is rounded: the result is the
surrogate without the cancelled gradient. Everything is written in MXNet's stock operators, chosen for speed on the CPU: comparisons,
minima and maxima run at memory speed there, while ``clip``, ``sign`` and ``contrib.sign_ste`` branch on every element and
``contrib.sign_ste`` has sign(0) = 0.

Every function takes ``F`` (``mx.nd`` or ``mx.sym``) and an array or symbol ``x`` of any shape, float32 or float64, and returns the same
shape and dtype.
"""

import dataclasses
from typing import Any, Callable, Optional, Sequence, Tuple

from .errors import UserError

Array = Any  # NDArray or Symbol, of which MXNet has no types; each function returns what it is given

FULL_PRECISION = 32  # the number of bits that stands for "not quantized"
CLIP_THRESHOLD = 1.3  # the gradient of a sign is cancelled where its input's magnitude exceeds this (MeliusNet, section 4.1)
TINY = 1e-6  # below any mean magnitude of a filter that is trained, and above zero in float16
FINITE = 6e4  # stands for infinity: no quantizer tells larger inputs apart, and float16 can hold it


def clip(F: Any, x: Array, low: float, high: float) -> Array:
    """min(max(x, low), high). Gradient: 1 where low <= x <= high, both ends included, else 0."""
    return F.maximum(F.minimum(x, high), low)


def zero_with_gradient(F: Any, surrogate: Array) -> Array:
    """An array of zeros whose gradient is that of `surrogate`: added to a rounded value it makes the straight-through estimator."""
    return surrogate - F.BlockGrad(surrogate)


def cancelled(F: Any, x: Array, threshold: Optional[float], scale: float = 1) -> Array:
    """scale x where |x| <= threshold, else 0, with gradient scale 1[|x| <= threshold] (Hubara et al. 2016, arXiv:1602.02830).

    A stand-in for x in a surrogate whose value is not needed. Without a threshold: scale x. x must be finite: an infinity gives NaN.
    """
    if threshold is None:
        return x if scale == 1 else x * scale
    mask = F.abs(x) <= threshold
    return x * F.BlockGrad(mask if scale == 1 else mask * scale)


def cancel_gradient(F: Any, x: Array, threshold: Optional[float]) -> Array:
    """The value of x with the gradient of `cancelled`."""
    return x if threshold is None else F.BlockGrad(x) + zero_with_gradient(F, cancelled(F, x, threshold))


# --- binary: sign(x) = +1 if x >= 0 else -1; both zeros give +1 -----------------------------------------------------------------------


def sign(F: Any, x: Array) -> Array:
    """sign(x) in {-1, +1}, without a gradient (MeliusNet, section 3.1)."""
    return (x >= 0) * 2 - 1


def quadratic(F: Any, x: Array) -> Array:
    """2x - x|x|: a smooth stand-in for sign on [-1, 1]; gradient 2 - 2|x| (Bi-Real Net, Liu et al. 2018, arXiv:1808.00278, eq. 5).

    It is not clipped here: BMXNet-v2 cancels its gradient only beyond the activation's threshold, and never for weights.
    """
    return x * (2 - F.abs(x))


def unit_magnitude(F: Any, weight: Array) -> Array:
    """Each filter divided by its mean magnitude: the real weights that their signs approximate best, in least squares.

    (Rastegari et al. 2016, arXiv:1603.05279, eq. 6: alpha sign(w) with alpha = mean |w| is closest to w.) The gradient flows through the
    mean too. A filter of zeros stays one.
    """
    magnitude = F.maximum(F.mean(F.abs(weight), axis=0, exclude=True, keepdims=True), TINY)
    return weight / F.broadcast_mul(magnitude, F.ones_like(weight))  # other broadcasts hide the shape that deferred initialization needs


# --- k bits ---------------------------------------------------------------------------------------------------------------------------


def round_to_levels(F: Any, x: Array, bits: int) -> Array:
    """round(x (2^k - 1)) / (2^k - 1): the nearest of 2^k levels of [0, 1], halves away from zero; without a gradient."""
    steps = 2**bits - 1
    return F.round(x * steps) / steps


def unit_interval(F: Any, x: Array) -> Array:
    """clip(x, 0, 1); gradient 1[0 <= x <= 1]."""
    return clip(F, x, 0, 1)


def normalized_tanh(F: Any, x: Array) -> Array:
    """tanh(x) / max|tanh(x)|, the maximum over the whole array (DoReFa-Net, Zhou et al. 2016, arXiv:1606.06160, eq. 9).

    The gradient flows through the maximum too.
    """
    squashed = F.tanh(x)
    largest = F.max(F.abs(squashed), keepdims=True)
    return squashed / F.broadcast_like(largest, squashed)  # broadcast_div would hide the shape that deferred initialization needs


# --- the quantizers by name -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Quantizer:
    """One row of the table of quantizers.

    Attributes
    ----------
    bits : sequence of int
        The numbers of bits this quantizer can be asked for; 32 stands for no rounding.
    surrogate : callable (F, x, threshold, scale) -> array, or None
        `scale` times the differentiable function whose gradient is used backward, cancelled where |x| > threshold.
    rounded : callable (F, x, surrogate, bits) -> array, or None
        The forward value, given the input and the surrogate's value. None: nothing is rounded, whatever the bits. With 1 bit such a
        quantizer gives real weights that take the place of signs, in an otherwise binary layer.
    full_precision : callable (F, x) -> array
        The result where nothing is rounded: the part of the surrogate that is a function in its own right.
    sign : bool
        Whether one bit of it is `sign`: +1 where x >= 0 and -1 elsewhere, for every x. Only such values can be computed on as bits.
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
        surrogate=lambda F, x, threshold, scale: quadratic(F, cancelled(F, x, threshold)) * scale,
        rounded=lambda F, x, surrogate, bits: sign(F, x),
        full_precision=lambda F, x: quadratic(F, clip(F, x, -1, 1)),
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
    'clip': Quantizer(bits=(FULL_PRECISION,), surrogate=None, rounded=None, full_precision=lambda F, x: clip(F, x, -1, 1)),
    'identity': Quantizer(bits=(FULL_PRECISION,), surrogate=None, rounded=None, full_precision=lambda F, x: x),
    UNIT_MAGNITUDE: Quantizer(bits=(1,), surrogate=None, rounded=None, full_precision=unit_magnitude),
}


def check_quantizer(method: str, bits: int, threshold: Optional[float] = None) -> None:
    """Raise UserError unless `method` is a known quantizer that can round to `bits` bits and the threshold is positive or None."""
    if method not in QUANTIZERS:
        raise UserError(f'unknown quantizer {method!r}; known: {", ".join(QUANTIZERS)}')
    choices = QUANTIZERS[method].bits
    if bits not in choices:
        raise UserError(f'quantizer {method!r} cannot round to {bits!r} bits; choose from {", ".join(map(str, choices))}')
    if threshold is not None and not 0 < threshold < FINITE:
        raise UserError(
            f'the threshold must be positive and below {FINITE:g} (or None for a gradient that is never cancelled), not {threshold!r}'
        )


def rounds_to_sign(method: str, bits: int) -> bool:
    """Whether quantizing to `bits` bits with `method` gives the sign."""
    return bits == 1 and QUANTIZERS[method].sign


def stored_bits(method: str, bits: int) -> int:
    """The bits of a value that the quantizer `method` gives when asked for `bits`: 32 where it does not round."""
    return FULL_PRECISION if QUANTIZERS[method].rounded is None else bits


def quantize_in_parts(
    F: Any, x: Array, method: str, bits: int, threshold: Optional[float] = None, encoding: str = 'sign'
) -> Tuple[Array, Array]:
    """`quantize` as two terms whose sum is the result: the caller adds them, and so decides which node is the last one.

    With ``encoding='bit'`` the result of a quantizer q that rounds to the sign is (q(x) + 1) / 2 in {0, 1}, the bit that stands for it,
    with half of q's gradient: for a convolution of bits, MXNet's native padding with 0 *is* padding with -1. This is the form that
    training spends its time in. It spares the passes that make infinities finite, so that they give NaN.
    """
    quantizer = QUANTIZERS[method]
    if encoding == 'bit':
        surrogate = quantizer.surrogate(F, x, threshold, 0.5)
        if threshold is not None:
            # surrogate + (bit - surrogate) is the bit exactly, because |surrogate| <= threshold / 2 is small; it is faster than zeros
            return surrogate, F.BlockGrad((x >= 0) - surrogate)
        return F.BlockGrad(x >= 0), zero_with_gradient(F, surrogate)
    if threshold is not None:
        x = clip(F, x, -FINITE, FINITE)
    surrogate = quantizer.surrogate(F, x, threshold, 1)
    return F.BlockGrad(quantizer.rounded(F, x, surrogate, bits)), zero_with_gradient(F, surrogate)


def quantize(F: Any, x: Array, method: str, bits: int, threshold: Optional[float] = None) -> Array:
    """Quantize `x` to `bits` bits with the quantizer named `method`.

    Parameters
    ----------
    x : NDArray or Symbol
        Any shape; finite if there is no threshold.
    method : str
        A key of `QUANTIZERS`: ``sign``, ``approx_sign``, ``round``, ``dorefa``, ``clip``, ``identity``, ``unit_magnitude`` (of weights).
    bits : int
        1 for the binary quantizers and ``unit_magnitude``, 1 to 16 for ``round`` and ``dorefa``, 32 for no rounding.
    threshold : float or None
        The gradient is cancelled where |x| > threshold; None never cancels it (weights). Without effect for 32 bits.

    Returns
    -------
    NDArray or Symbol of the same shape and dtype: ``sign`` and ``approx_sign`` give {-1, +1}, ``round`` 2^bits levels of [0, 1],
    ``dorefa`` 2^bits levels of [-1, 1], ``unit_magnitude`` real numbers.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.quantizers import quantize
    >>> x = mx.nd.array([-2, -0.4, 0, 0.6])
    >>> x.attach_grad()
    >>> with mx.autograd.record():
    ...     y = quantize(mx.nd, x, 'sign', bits=1, threshold=1.3)
    >>> y.backward()
    >>> y.asnumpy(), x.grad.asnumpy()
    (array([-1., -1.,  1.,  1.], dtype=float32), array([0., 1., 1., 1.], dtype=float32))
    """
    if stored_bits(method, bits) == FULL_PRECISION:
        return QUANTIZERS[method].full_precision(F, x)
    value, gradient = quantize_in_parts(F, x, method, bits, threshold)
    return value + gradient
