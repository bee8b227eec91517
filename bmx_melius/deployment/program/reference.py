"""Reference implementation of packed programs in NumPy, with xor and popcount on packed words.

It defines the results of the engine's kernels (bits and integers are equal, floats up to the order of summation) and is used if the
engine is not compiled. Real values are float32 arrays (batch, channels, height, width) or (batch, channels), bits are bool arrays.
"""

import math
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ...arithmetic import ceil_div, multiply_add
from .layer_weights import expanded
from .limits import MEMORY_VARIABLE, memory_limit
from .operation_table import MAX_BYTE, MAX_INT16, OFFSET_SHIFT
from .operations import REAL_KIND, Operation, ProgramError, Value
from .program import Program
from .words import pack_bits

_BLOCK = 1 << 15  # 64-bit words combined at a time, so that they stay in the cache
_ZERO = np.float32(0)  # a sum with it is never -0: which of two zeros NumPy's maxima return, and where its sums begin, is not defined


def run(program: Program, inputs: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Run a program.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
    inputs : list of numpy.ndarray
        float32, (batch, channels, height, width) or (batch, channels), one for each input of the program.

    Returns
    -------
    list of numpy.ndarray
        float32, one for each output.

    Raises
    ------
    ProgramError
        When the inputs do not fit, or the run would need more memory than `limits.memory_limit` allows.
    """
    check_inputs(program, inputs)
    last_use = _last_uses(program)
    check_memory(_memory(program, program.values([array.shape[2:] for array in inputs]), last_use, len(inputs[0])))
    first = len(program.inputs)
    values = dict(enumerate(inputs))
    for number, operation in enumerate(program.operations, first):
        values[number] = apply(operation, [values[source] for source in operation.inputs])
        for source in set(operation.inputs):
            if last_use[source] == number:
                del values[source]
    return [values[number] for number in program.outputs]


def _last_uses(program: Program) -> Dict[int, Optional[int]]:
    """Return a dict from each value to the value computed at its last use, or None for outputs."""
    first = len(program.inputs)
    last_use = {source: first + number for number, operation in enumerate(program.operations) for source in operation.inputs}
    return {**last_use, **dict.fromkeys(program.outputs)}


def _memory(program: Program, values: Sequence[Value], last_use: Dict[int, Optional[int]], batch: int) -> int:
    """Estimate the peak memory of `run` in bytes, excluding the inputs: values, and the copies of windows."""

    def size(value: Value) -> int:
        return value.channels * value.height * value.width * (4 if value.kind == REAL_KIND else 1)

    first = len(program.inputs)
    peak = held = 0
    for number, operation in enumerate(program.operations, first):
        held += size(values[number])
        peak = max(peak, held + _copied(operation, values[operation.inputs[0]], values[number]))
        held -= sum(size(values[source]) for source in set(operation.inputs) if last_use[source] == number and source >= first)
    return peak * batch


def _copied(operation: Operation, x: Value, result: Value) -> int:
    """Return the bytes per image of the windows of a convolution."""
    attributes = operation.attributes
    windows = result.height * result.width * attributes.get('kernel_h', 1) * attributes.get('kernel_w', 1)
    products = operation.row.products
    if products == 'binary':
        groups = attributes['groups']
        return 8 * windows * groups * -(-(x.channels // groups) // 64)
    return {None: 0, 'floats': 4, 'int8': 8}[products] * windows * x.channels


def check_memory(size: int, what: str = 'working memory') -> None:
    """Raise `ProgramError` if a run needs more bytes than the limit. `what` names the kind of memory."""
    limit = memory_limit()
    if size > limit:
        raise ProgramError(
            f'a run on these inputs needs {size} bytes of {what}; at most {limit} are allowed: give smaller inputs or fewer at a time, or'
            f' set the environment variable {MEMORY_VARIABLE} to more bytes'
        )


def check_inputs(program: Program, inputs: Sequence[np.ndarray]) -> None:
    """Raise `ProgramError` unless the arrays fit the inputs of the program. Does not check whether the windows fit the maps."""
    check_shapes(program, [array.shape for array in inputs])
    for number, array in enumerate(inputs):
        if array.dtype != np.float32:
            raise ProgramError(f'input {number} must be float32, not {array.dtype}: use astype')


def check_shapes(program: Program, shapes: Sequence[Tuple[int, ...]]) -> None:
    """Raise `ProgramError` unless arrays of these shapes fit the inputs of the program, like `check_inputs`."""
    if len(shapes) != len(program.inputs):
        raise ProgramError(f'the network has {len(program.inputs)} inputs, {len(shapes)} are given')
    for number, (shape, value) in enumerate(zip(shapes, program.inputs)):
        if len(shape) != (2 if value.flat else 4) or shape[1] != value.channels:
            expected = f'(batch, {value.channels})' if value.flat else f'(batch, {value.channels}, height, width)'
            raise ProgramError(f'input {number} must have the shape {expected}, not {tuple(shape)}')
        if shape[0] < 1:
            raise ProgramError(f'input {number} has the batch {shape[0]}; it must be 1 or more')
        if shape[0] != shapes[0][0]:
            raise ProgramError(f'input {number} has the batch {shape[0]}, input 0 has {shapes[0][0]}')


def infer_shapes(program: Program, shapes: Sequence[Tuple[int, ...]]) -> List[Tuple[int, ...]]:
    """Return the shapes of the outputs for inputs of the given shapes, batch included.

    Raises
    ------
    ProgramError
        If they do not fit the program.
    """
    check_shapes(program, shapes)
    values = program.values([shape[2:] for shape in shapes])
    return [(shapes[0][0], *values[number].shape) for number in program.outputs]


def apply(operation: Operation, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the array that an operation computes from the arrays `inputs`."""
    function, arguments = _FUNCTIONS[operation.name], {**operation.attributes, **operation.arrays}
    if inputs[0].ndim == 2 and operation.row.on_maps:
        return function(inputs[0][:, :, None, None], **arguments)[:, :, 0, 0]
    return function(*inputs, **arguments)


# --- windows --------------------------------------------------------------------------------------------------------------------------


def _geometry(kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, pad_bottom, pad_right, dilation_h=1, dilation_w=1):
    pad = (pad_top, pad_bottom), (pad_left, pad_right)
    return {'kernel': (kernel_h, kernel_w), 'stride': (stride_h, stride_w), 'pad': pad, 'dilation': (dilation_h, dilation_w)}


def _pad(x, pad, fill):
    """Pad the last two axes, each with (before, after) elements."""
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + list(pad), constant_values=fill)


def _windows(x, kernel, stride, dilation, ceil=False, beyond=0):
    """Slide a window over the last two axes: (..., height, width) -> a view (..., kernel_h, kernel_w, rows, columns).

    With `ceil` the last window may extend beyond the edge, where the elements are `beyond`.
    """
    room = [size - step * (count - 1) - 1 for size, count, step in zip(x.shape[-2:], kernel, dilation)]
    steps = [ceil_div(left, step) if ceil else left // step for left, step in zip(room, stride)]
    missing = [max(0, count * step - left) for count, step, left in zip(steps, stride, room)]
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, size) for size in missing], constant_values=beyond)
    down, right = x.strides[-2:]
    shape = (*x.shape[:-2], *kernel, steps[0] + 1, steps[1] + 1)
    strides = (*x.strides[:-2], down * dilation[0], right * dilation[1], down * stride[0], right * stride[1])
    return as_strided(x, shape, strides, writeable=False)


# --- convolutions ---------------------------------------------------------------------------------------------------------------------


def _conv(x, out_channels, groups, has_bias, half, weight, bias=None, **geometry):
    geometry = _geometry(**geometry)
    windows = _windows(_pad(x, geometry.pop('pad'), 0), **geometry)
    size = windows.shape[-2:]
    columns = windows.reshape(len(x), groups, -1, size[0] * size[1])  # the third axis: channels of the group, kernel_h, kernel_w
    filters = weight.astype(np.float32).reshape(groups, out_channels // groups, -1)
    y = np.matmul(filters, columns).reshape(len(x), out_channels, *size) + _ZERO
    return y + bias[:, None, None] if has_bias else y


def _level_conv(x, out_channels, groups, bits, by_position, has_bias, codes, levels, scale, bias=None, **geometry):
    shape = out_channels, x.shape[1] // groups, geometry['kernel_h'], geometry['kernel_w']
    weight = expanded(shape, codes, levels)
    y = _conv(x, out_channels, groups, has_bias=0, half=0, weight=weight, **geometry)
    return y * scale[:, None, None] + (bias[:, None, None] if has_bias else _ZERO)


def _binary_conv(bits, out_channels, groups, pad_value, offset, planes, weight, **geometry):
    geometry, weight = _geometry(**geometry), np.tile(weight, planes)
    pad = geometry.pop('pad')
    padded = _pad(bits, pad, pad_value == 1)
    words = _pack_channels(padded.reshape(len(bits), groups, -1, *padded.shape[2:]), axis=2)
    windows = _windows(words, **geometry)
    size = windows.shape[-2:]
    windows = windows.reshape(len(bits), groups, -1, size[0] * size[1])  # the third axis: words of the group, kernel_h, kernel_w
    filters = _pack_channels(weight.transpose(0, 3, 1, 2), axis=1).reshape(groups, out_channels // groups, -1)

    different = np.empty((len(bits), groups, out_channels // groups, size[0] * size[1]), dtype=np.int32)
    for image in range(len(bits)):
        for group in range(groups):
            _count_different_bits(windows[image, group], filters[group], different[image, group])
    weights = weight[0].size
    sums = weights - 2 * different.reshape(len(bits), out_channels, *size)  # equal bits minus differing bits
    if pad_value == 0:
        sums += _weights_on_padding(weight, bits.shape[2:], pad, geometry)  # where clear bits, -1, have been counted
    y = sums.astype(np.float32)
    return (y + np.float32(weights)) / 2 if offset else y


def _pack_channels(bits, axis):
    """Pack an axis of a bool array into 64-bit words; missing bits of the last word are 0."""
    words = pack_bits(np.moveaxis(bits, axis, -1))
    words = np.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, words.shape[-1] % 2)]).view(np.uint64)
    return np.moveaxis(words, -1, axis)


def _count_different_bits(windows, filters, counts):
    """Count differing bits of windows (words, positions) and filters (filters, words), uint64, into `counts` (filters, positions)."""
    step = max(1, _BLOCK // windows.size)
    for begin in range(0, len(filters), step):
        block = filters[begin : begin + step]
        counts[begin : begin + step] = _popcount(windows[:, None] ^ block.T[:, :, None]).sum(axis=0)


def _popcount(x):
    """Return the number of set bits of each uint64. Overwrites `x`."""
    x -= (x >> np.uint64(1)) & np.uint64(0x5555555555555555)  # each two bits hold the number of their set bits
    high = (x >> np.uint64(2)) & np.uint64(0x3333333333333333)
    x &= np.uint64(0x3333333333333333)
    x += high  # likewise four bits
    x += x >> np.uint64(4)
    x &= np.uint64(0x0F0F0F0F0F0F0F0F)  # likewise eight bits
    x *= np.uint64(0x0101010101010101)  # the highest eight bits hold the sum of all
    x >>= np.uint64(56)
    return x


def _weights_on_padding(weight, size, pad, geometry):
    """Return the sums of the weights that lie on padding, (out_channels, rows, columns)."""
    outside = _windows(_pad(np.zeros(size, dtype=np.int32), pad, 1), **geometry)
    sums = np.where(weight, 1, -1).sum(axis=-1).reshape(len(weight), -1)  # of each tap
    return (sums @ outside.reshape(sums.shape[1], -1)).reshape(-1, *outside.shape[-2:])


# --- 8-bit integers -------------------------------------------------------------------------------------------------------------------


def _integers(x, low, high):
    """Round to the nearest integers, ties to even, limited to `low` to `high`; NaN becomes `high`."""
    limited = np.where(x < high, np.where(x > low, x, np.float32(low)), np.float32(high))
    return np.rint(limited).astype(np.int64)


def _rescaled(sums, multiplier, offset, shift, result_min, result_max):
    product = sums * _of_channels(multiplier.astype(np.int64), sums)
    exact = product + (_of_channels(offset.astype(np.int64), sums) << (shift - OFFSET_SHIFT)) + (1 << (shift - 1))
    return np.minimum(np.maximum(exact >> shift, result_min), result_max).astype(np.float32)


def _rescale(x, **rescaling):
    return _rescaled(_integers(x, -(2**23), 2**23), **rescaling)


def _int8_conv(x, out_channels, groups, weight, pad, multiplier, offset, shift, result_min, result_max, **geometry):
    geometry = _geometry(**geometry)
    sides = geometry.pop('pad')
    outside = np.broadcast_to(pad[:, None, None].clip(0, MAX_BYTE), _pad(x[0], sides, 0).shape).astype(np.float32)
    padded = np.repeat(outside[None], len(x), axis=0)
    padded[:, :, sides[0][0] : sides[0][0] + x.shape[2], sides[1][0] : sides[1][0] + x.shape[3]] = _integers(x, 0, MAX_BYTE)
    windows = _windows(padded.astype(np.float64), **geometry)  # whose products and sums are exact, and whose matrix products are fast
    size = windows.shape[-2:]
    columns = windows.reshape(len(x), groups, -1, size[0] * size[1])
    sums = np.matmul(weight.astype(np.float64).reshape(groups, out_channels // groups, -1), columns)
    return _rescaled(sums.astype(np.int64).reshape(len(x), out_channels, *size), multiplier, offset, shift, result_min, result_max)


def _level_int8_conv(x, out_channels, groups, bits, by_position, codes, levels, kernel_h, kernel_w, **others):
    shape = out_channels, x.shape[1] // groups, kernel_h, kernel_w
    return _int8_conv(x, out_channels, groups, expanded(shape, codes, levels), kernel_h=kernel_h, kernel_w=kernel_w, **others)


def _multi_threshold(x, thresholds, threshold, flip):
    counts = sum(((x >= _of_channels(row, x)) != _of_channels(flip, x)).astype(np.float32) for row in threshold)
    return np.asarray(counts, np.float32)


def _rounded_quotient(sums, counts, fraction_bits):
    return ((2 * (sums << fraction_bits) + counts) // (2 * counts)).astype(np.float32)


def _integer_mean(x, fraction_bits):
    sums = _integers(x, -MAX_INT16, MAX_INT16).sum(axis=(2, 3), keepdims=True)
    return _rounded_quotient(sums, x.shape[2] * x.shape[3], fraction_bits)


def _integer_avg_pool(x, ceil, count_pad, fraction_bits, **geometry):
    sums, counts = _window_sums(_integers(x, -MAX_INT16, MAX_INT16), ceil, count_pad, geometry)
    return _rounded_quotient(sums, counts, fraction_bits)


# --- pooling --------------------------------------------------------------------------------------------------------------------------


def _max_pool(x, ceil, **geometry):
    geometry = _geometry(**geometry)
    return _windows(_pad(x, geometry.pop('pad'), -np.inf), **geometry, ceil=ceil, beyond=-np.inf).max(axis=(2, 3)) + _ZERO


def _window_sums(x, ceil, count_pad, geometry):
    """Return the sums of windows, and the numbers of elements by which means divide them."""
    geometry = _geometry(**geometry)
    pad = geometry.pop('pad')
    sums = _windows(_pad(x, pad, 0), **geometry, ceil=ceil).sum(axis=(2, 3)) + x.dtype.type(0)
    counted = _pad(np.ones(x.shape[2:], dtype=x.dtype), pad, count_pad)
    return sums, _windows(counted, **geometry, ceil=ceil).sum(axis=(0, 1))


def _avg_pool(x, ceil, count_pad, **geometry):
    return np.divide(*_window_sums(x, ceil, count_pad, geometry))


# --- the rest -------------------------------------------------------------------------------------------------------------------------


def _of_channels(numbers, x):
    """Reshape `numbers`, one per channel, to broadcast to `x`."""
    return numbers.reshape(-1, *(1,) * (x.ndim - 2))


def _sigmoid(x):
    decay = np.exp(-np.abs(x.astype(np.float64)))
    return (np.where(x >= 0, 1, decay) / (1 + decay)).astype(np.float32)


def _softplus(x):
    return np.logaddexp(0, x.astype(np.float64)).astype(np.float32)


def _gelu(x):
    exact = x.astype(np.float64)
    return (exact * np.vectorize(math.erfc, otypes=[np.float64])(-exact / math.sqrt(2)) / 2).astype(np.float32)


def _clip(x, low, high):
    low, high = _of_channels(low, x), _of_channels(high, x)
    limited = np.where(x < low, low, x)
    return np.where(limited > high, high, limited)


def _upsample(x, scale_h, scale_w, repeat):
    if repeat:
        return x.repeat(scale_h, axis=2).repeat(scale_w, axis=3)
    y = np.zeros((*x.shape[:2], (x.shape[2] - 1) * scale_h + 1, (x.shape[3] - 1) * scale_w + 1), dtype=x.dtype)
    y[:, :, ::scale_h, ::scale_w] = x
    return y


def _normalize(x, groups, by_position, eps):
    parts = x.reshape(len(x), groups, -1, *x.shape[2:]).astype(np.float64)
    axes = (2,) if by_position else (2, 3, 4)
    mean, variance = parts.mean(axis=axes, keepdims=True), parts.var(axis=axes, keepdims=True)
    return ((parts - mean) / np.sqrt(variance + eps.astype(np.float64))).astype(np.float32).reshape(x.shape)


def _transpose(x, **_):
    return x.reshape(*x.shape[:2], -1).swapaxes(1, 2)[:, :, None]


def _arrange(x, row_length):
    return x.reshape(*x.shape[:2], *((-1, row_length) if row_length else (1, -1)))


def _matmul(x, y, heads, positions, transposed):
    rows, others = (
        array.reshape(len(array), heads, array.shape[1] // heads, -1) for array in (x, y)
    )  # (batch, heads, channels, positions)
    y = np.matmul(others.swapaxes(2, 3) if transposed else others, rows)
    return y.reshape(len(x), -1, *x.shape[2:]) + _ZERO


def _row_matmul(x, y, **attributes):
    rows = [_matmul(x[:, :, i : i + 1], y[:, :, i : i + 1], **attributes) for i in range(x.shape[2])]
    return np.concatenate(rows, axis=2)


def _gather(*inputs, positions, height, width, places):
    lines = np.concatenate([x.reshape(*x.shape[:2], -1) for x in inputs], axis=2)
    return lines[:, :, places.clip(0, positions - 1)]


def _softmax(x, groups):
    parts = x.reshape(len(x), groups, -1, *x.shape[2:]).astype(np.float64)
    powers = np.exp(parts - parts.max(axis=2, keepdims=True))
    return (powers / powers.sum(axis=2, keepdims=True)).astype(np.float32).reshape(x.shape)


def _embedding(x, rows, features, half, table):
    return np.moveaxis(table.astype(np.float32)[_integers(x[:, 0], 0, rows - 1)], -1, 1)


def _of_positions(numbers, x):
    """Reshape `numbers`, (channels, height, width), to broadcast to `x`."""
    return numbers.reshape(-1) if x.ndim == 2 else numbers


_FUNCTIONS = {
    'conv': _conv,
    'binary_conv': _binary_conv,
    'threshold': lambda x, threshold, flip: (x >= _of_channels(threshold, x)) != _of_channels(flip, x),
    'affine': lambda x, scale, shift: multiply_add(x, _of_channels(scale, x), _of_channels(shift, x)),
    'relu': lambda x: np.where(x < 0, _ZERO, x),
    'max_pool': _max_pool,
    'avg_pool': _avg_pool,
    'global_avg_pool': lambda x: (x.mean(axis=(2, 3), keepdims=True, dtype=np.float64) + _ZERO).astype(np.float32),
    'add': np.add,
    'concat': lambda *inputs: np.concatenate(inputs, axis=1),
    'slice': lambda x, begin, end: x[:, begin:end],
    'shuffle': lambda x, groups: x.reshape(len(x), groups, -1, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape),
    'flatten': lambda x: x.reshape(len(x), -1),
    'expand': lambda bits, low: np.where(bits, np.float32(1), np.float32(low)),
    'prelu': lambda x, slope: np.where(x > 0, x, x * _of_channels(slope, x)),
    'clip': _clip,
    'sigmoid': _sigmoid,
    'abs': np.abs,
    'multiply': np.multiply,
    'channel_mean': lambda x: (x.mean(axis=1, keepdims=True, dtype=np.float64) + _ZERO).astype(np.float32),
    'scale_map': lambda x, factor, **_: x * _of_positions(factor, x),
    'shift_map': lambda x, summand, **_: x + _of_positions(summand, x),
    'unflatten': lambda x: x[:, :, None, None],
    'elu': lambda x, slope: np.where(x > 0, x, np.expm1(np.minimum(x, 0)) * _of_channels(slope, x)),
    'gelu': _gelu,
    'upsample': _upsample,
    'global_max_pool': lambda x: x.max(axis=(2, 3), keepdims=True) + _ZERO,
    'normalize': _normalize,
    'maximum': lambda x, y: np.maximum(x, y) + _ZERO,
    'rescale': _rescale,
    'int8_conv': _int8_conv,
    'integer_mean': _integer_mean,
    'integer_avg_pool': _integer_avg_pool,
    'round': np.rint,
    'divide': lambda x, divisor: x / _of_channels(divisor, x),
    'softplus': _softplus,
    'transpose': _transpose,
    'arrange': _arrange,
    'matmul': _matmul,
    'softmax': _softmax,
    'embedding': _embedding,
    'gather': _gather,
    'row_matmul': _row_matmul,
    'level_conv': _level_conv,
    'level_int8_conv': _level_int8_conv,
    'multi_threshold': _multi_threshold,
}
