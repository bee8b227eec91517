"""The NumPy interpreter against MXNet's operators, and against loops that follow the format's words; what it computes, the engine does."""

import dataclasses
import itertools

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.large_programs import record, sums, words_of
from support.packed import binary_conv, chain, conv, operation, sign, window
from support.packed_networks import engine_of

from bmx_melius.deployment.program import reader, reference
from bmx_melius.deployment.program.operations import REAL_KIND, ProgramError, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine
from bmx_melius.errors import UserError

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))
PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))
STRIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))
DILATIONS = st.tuples(st.integers(1, 2), st.integers(1, 2))
PADS = st.one_of(  # (top, left, bottom, right)
    st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda pad: pad * 2), st.tuples(*[st.integers(0, 3)] * 4)
)


def run_one(shape, *operations, batch=2, x=None):
    """Return an input of a chain of operations, and the result of NumPy, which the engine must equal."""
    x = np.random.randn(batch, *shape).astype(np.float32) if x is None else x
    program = chain(shape, *operations)
    (y,) = reference.run(program, [x])
    assert y.dtype == np.float32
    if not engine.missing():
        np.testing.assert_allclose(engine_of(program).run([x])[0], y, rtol=1e-5, atol=1e-5)
    return x, y


def padded(x, pad, value=0.0):
    top, left, bottom, right = pad
    return np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=value)


def fits(size, kernel, pad, dilation=(1, 1)):
    return all(one + pad[i] + pad[i + 2] >= dilation[i] * (kernel[i] - 1) + 1 for i, one in enumerate(size))


def binary_convolution_by_loops(x, weight, stride, pad, dilation, groups, pad_value):
    """Products and sums of signs, one after the other; x (batch, channels, height, width), weight (out, kernel, channels / groups) bool."""
    s, w = padded(np.where(x >= 0, 1, -1), pad, pad_value), np.where(weight, 1, -1).transpose(0, 3, 1, 2)
    inputs, outputs = w.shape[1], w.shape[0] // groups
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:])]
    rows, columns = ((s.shape[2 + axis] - extent[axis]) // stride[axis] + 1 for axis in range(2))
    y = np.zeros((s.shape[0], w.shape[0], rows, columns), dtype=np.int64)
    for output, row, column in itertools.product(range(w.shape[0]), range(rows), range(columns)):
        first = output // outputs * inputs
        for tap_h, tap_w in itertools.product(*map(range, w.shape[2:])):
            x = s[:, first : first + inputs, row * stride[0] + tap_h * dilation[0], column * stride[1] + tap_w * dilation[1]]
            y[:, output, row, column] += (x * w[output, :, tap_h, tap_w]).sum(axis=1)
    return y


@given(
    size=SIZES,
    kernel=PAIRS,
    stride=STRIDES,
    pad=PADS,
    dilation=DILATIONS,
    groups=st.integers(1, 3),
    outputs=st.integers(1, 3),
    inputs=st.sampled_from((1, 2, 31, 32, 33, 64, 65)),
    pad_value=st.sampled_from((-1, 0, 1)),
    offset=st.booleans(),
)
def test_binary_convolution_counts_what_products_and_sums_give(
    size, kernel, stride, pad, dilation, groups, outputs, inputs, pad_value, offset
):
    assume(fits(size, kernel, pad, dilation))
    channels = inputs * groups
    weight = np.random.rand(outputs * groups, *kernel, inputs) < 0.5
    geometry = window(kernel, stride, pad, dilation)
    x, y = run_one(
        (channels, *size), sign(channels), binary_conv(weight, groups=groups, pad_value=pad_value, offset=int(offset), **geometry)
    )
    h = binary_convolution_by_loops(x, weight, stride, pad, dilation, groups, pad_value)
    n = inputs * kernel[0] * kernel[1]
    np.testing.assert_array_equal(y, (h + n) / 2 if offset else h)


@pytest.mark.parametrize('size,kernel', [(1, 3), (2, 3), (4, 5), (2, 5)])
@pytest.mark.parametrize('pad_value', [-1, 0, 1])
def test_binary_convolution_on_a_map_smaller_than_its_kernel(size, kernel, pad_value):
    weight, pad = np.random.rand(5, kernel, kernel, 40) < 0.5, (kernel // 2,) * 4
    x, y = run_one((40, size, size), sign(40), binary_conv(weight, pad_value=pad_value, **window(kernel, pad=pad)))
    assert y.shape[2:] == (size, size)
    np.testing.assert_array_equal(y, binary_convolution_by_loops(x, weight, (1, 1), pad, (1, 1), 1, pad_value))


@pytest.mark.parametrize('inputs', [1, 32, 100])
def test_binary_dense_layer_is_a_product_of_matrices(inputs):
    weight = np.random.rand(7, 1, 1, inputs) < 0.5
    x, y = run_one((inputs,), sign(inputs), binary_conv(weight))
    np.testing.assert_array_equal(y, np.where(x >= 0, 1, -1) @ np.where(weight[:, 0, 0], 1, -1).T)


@given(
    size=SIZES,
    kernel=PAIRS,
    stride=STRIDES,
    pad=PADS,
    dilation=DILATIONS,
    groups=st.integers(1, 3),
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 3),
    bias=st.booleans(),
    half=st.booleans(),
    before=st.booleans(),
)
def test_convolution_is_that_of_mxnet(size, kernel, stride, pad, dilation, groups, inputs, outputs, bias, half, before):
    """`before`: an operation before the convolution keeps it from being the first layer, which the engine computes in another step."""
    assume(fits(size, kernel, pad, dilation))
    weight = np.random.randn(outputs * groups, inputs, *kernel).astype(np.float16 if half else np.float32)
    arrays = [weight, np.random.randn(outputs * groups).astype(np.float32)][: 1 + bias]
    convolution = conv(weight, bias=arrays[1] if bias else None, groups=groups, **window(kernel, stride, pad, dilation))
    x, y = run_one((inputs * groups, *size), *[operation('abs')] * before, convolution)
    expected = mx.nd.Convolution(
        mx.nd.array(padded(np.abs(x) if before else x, pad)),
        *(mx.nd.array(array, dtype='float32') for array in arrays),
        no_bias=not bias,
        kernel=kernel,
        stride=stride,
        dilate=dilation,
        num_group=groups,
        num_filter=outputs * groups,
    )
    np.testing.assert_allclose(y, expected.asnumpy(), rtol=1e-5, atol=1e-5)


def test_convolution_of_a_flat_value_is_a_dense_layer():
    weight, bias = np.random.randn(5, 8, 1, 1).astype(np.float32), np.random.randn(5).astype(np.float32)
    x, y = run_one((8,), conv(weight, bias=bias))
    np.testing.assert_allclose(y, x @ weight[:, :, 0, 0].T + bias, rtol=1e-5, atol=1e-5)


def pooling_by_mxnet(x, kind, counts_padding, pad, ceil, **arguments):
    """MXNet's pooling, which pads opposite sides alike; with windows that all fit, of a map that is padded before."""
    if ceil:
        return mx.nd.Pooling(
            mx.nd.array(x), pool_type=kind, pad=pad[:2], count_include_pad=counts_padding, pooling_convention='full', **arguments
        )
    if kind == 'max':
        return mx.nd.Pooling(mx.nd.array(padded(x, pad, -1e30)), pool_type='max', **arguments)
    sums, counted = (mx.nd.Pooling(mx.nd.array(padded(one, pad)), pool_type='avg', **arguments) for one in (x, np.ones_like(x)))
    return sums if counts_padding else sums / counted


@given(
    size=SIZES,
    kernel=PAIRS,
    stride=STRIDES,
    pad=PADS,
    ceil=st.booleans(),
    kind=st.sampled_from(('max', 'avg')),
    counts_padding=st.booleans(),
    after=st.booleans(),
)
def test_pooling_is_that_of_mxnet_in_both_conventions(size, kernel, stride, pad, ceil, kind, counts_padding, after):
    """`after`: it follows a first layer, in whose step the engine computes it."""
    assume(fits(size, kernel, pad) and (not ceil or pad[:2] == pad[2:] and all(p < k for p, k in zip(pad, kernel))))
    pooling = operation(
        f'{kind}_pool', ceil=int(ceil), **window(kernel, stride, pad), **({'count_pad': int(counts_padding)} if kind == 'avg' else {})
    )
    first = [conv(np.eye(3, dtype='f')[:, :, None, None])] * after
    try:
        chain((3, *size), *first, pooling)
    except ProgramError as error:
        assert 'without an element' in str(error)
        assume(False)
    x, y = run_one((3, *size), *first, pooling)
    expected = pooling_by_mxnet(x, kind, counts_padding, pad, ceil, kernel=kernel, stride=stride)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected.asnumpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('size', [(7, 7), (1, 1), (5, 2)])
def test_global_average_pooling_is_that_of_mxnet(size):
    x, y = run_one((4, *size), operation('global_avg_pool'))
    np.testing.assert_allclose(y, mx.nd.Pooling(mx.nd.array(x), global_pool=True, pool_type='avg').asnumpy(), rtol=1e-5)


def test_thresholds_compare_inclusively_flip_and_fix():
    thresholds = np.array([0, 0, -0.0, 1.5, -np.inf, -np.inf, np.inf], np.float32)
    flips = np.array([False, True, False, True, False, True, False])
    x = np.array([[0, 0, 0, 1.5, -9, 9, 9], [-0.0, -1, -1, 1, 9, -9, np.inf]], np.float32)
    _, y = run_one((7,), operation('threshold', arrays={'threshold': thresholds, 'flip': flips}), operation('expand', low=0), x=x)
    np.testing.assert_array_equal(y, [[1, 0, 1, 0, 1, 0, 0], [1, 1, 0, 1, 1, 0, 1]])


@pytest.mark.parametrize('low', [-1, 0])
def test_expand_gives_one_and_the_low_state(low):
    x, y = run_one((3, 2, 2), sign(3), operation('expand', low=low))
    np.testing.assert_array_equal(y, np.where(x >= 0, 1, low))


def scaled_and_shifted(x, scale, shift):
    scale, shift = (mx.nd.array(constants.reshape(-1, *[1] * (x.ndim - 2))) for constants in (scale, shift))
    return mx.nd.broadcast_add(mx.nd.broadcast_mul(x, scale), shift)


def test_a_value_is_added_to_itself():
    x, y = run_one((6, 3, 4), operation('add', 0, 0))
    np.testing.assert_array_equal(y, 2 * x)


CHANNELWISE = np.array([0.5, -1, 0, 2, 0.25, -0.5], np.float32)
POSITIONS = np.arange(12, dtype=np.float32).reshape(1, 3, 4) - 5
ELEMENTWISE = {  # operation -> attributes, arrays, and MXNet's function
    'affine': ({}, {'scale': CHANNELWISE, 'shift': CHANNELWISE + 1}, lambda x: scaled_and_shifted(x, CHANNELWISE, CHANNELWISE + 1)),
    'relu': ({}, {}, mx.nd.relu),
    'prelu': ({}, {'slope': CHANNELWISE}, lambda x: mx.nd.LeakyReLU(x, mx.nd.array(CHANNELWISE), act_type='prelu')),
    'clip': ({}, {'low': np.full(6, -0.5, np.float32), 'high': np.full(6, 1, np.float32)}, lambda x: mx.nd.clip(x, -0.5, 1)),
    'sigmoid': ({}, {}, mx.nd.sigmoid),
    'softplus': ({}, {}, lambda x: mx.nd.Activation(x, act_type='softrelu')),
    'abs': ({}, {}, mx.nd.abs),
    'round': ({}, {}, lambda x: mx.np.around(x.as_np_ndarray())),
    'divide': (
        {},
        {'divisor': CHANNELWISE - 3},
        lambda x: mx.nd.broadcast_div(x, mx.nd.array((CHANNELWISE - 3).reshape(1, -1, *(1,) * (x.ndim - 2)))),
    ),
    'channel_mean': ({}, {}, lambda x: mx.nd.mean(x, axis=1, keepdims=True)),
    'scale_map': (
        {'by_channel': 0, 'height': 3, 'width': 4},
        {'factor': POSITIONS},
        lambda x: mx.nd.broadcast_mul(x, mx.nd.array(POSITIONS[None])),
    ),
    'shift_map': (
        {'by_channel': 1, 'height': 3, 'width': 1},
        {'summand': CHANNELWISE[:, None, None] * POSITIONS[:, :, :1]},
        lambda x: mx.nd.broadcast_add(x, mx.nd.array((CHANNELWISE[:, None, None] * POSITIONS[:, :, :1])[None])),
    ),
}


@pytest.mark.parametrize('groups', [1, 2, 3])
def test_softmax_of_groups_of_channels_is_that_of_mxnet(groups):
    x, y = run_one((6, 3, 4), operation('softmax', groups=groups))
    parts = mx.nd.softmax(mx.nd.array(x.reshape(2, groups, -1, 3, 4)), axis=2)
    np.testing.assert_allclose(y, parts.asnumpy().reshape(x.shape), rtol=1e-6, atol=1e-7)
    x, y = run_one((6,), operation('softmax', groups=groups))
    np.testing.assert_allclose(y.reshape(2, groups, -1), mx.nd.softmax(mx.nd.array(x.reshape(2, groups, -1))).asnumpy(), rtol=1e-6)


def test_softmax_of_large_numbers_and_of_masked_ones_is_finite():
    x = np.float32([[3e4, 3e4 - 1, -3e38, -np.inf], [-3e38, -3e38, -3e38, -3e38]])
    _, y = run_one((4,), operation('softmax'), x=x)
    np.testing.assert_allclose(y, [[0.7310586, 0.26894143, 0, 0], [0.25] * 4], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize('half', [0, 1])
def test_an_embedding_is_that_of_mxnet_and_numbers_beyond_the_table_are_those_of_its_ends(half):
    table = np.random.randn(7, 5).astype(np.float16 if half else np.float32)
    layer = operation('embedding', arrays={'table': table}, rows=7, features=5, half=half)
    x = np.float32([[[[0, 6, 2, 4.4]]], [[[-1, 7, 1e9, -np.inf]]]])
    _, y = run_one((1, 1, 4), layer, x=x)
    expected = mx.nd.Embedding(mx.nd.array([[0, 6, 2, 4], [0, 6, 6, 0]]), mx.nd.array(table, dtype='float32'), input_dim=7, output_dim=5)
    np.testing.assert_array_equal(y, expected.asnumpy().transpose(0, 2, 1)[:, :, None])
    _, y = run_one((1,), layer, x=np.float32([[3.5], [np.nan]]))
    np.testing.assert_array_equal(y, table[[4, 6]])
    with pytest.raises(ProgramError, match='more than one number at a position'):
        run_one((2, 1, 4), layer)


def test_channels_and_positions_are_exchanged_and_positions_arranged_in_other_rows():
    x, y = run_one((5, 3, 4), operation('transpose', height=3, width=4))
    np.testing.assert_array_equal(y, mx.nd.transpose(mx.nd.array(x.reshape(2, 5, 12)), (0, 2, 1)).asnumpy()[:, :, None])
    for length, size in ((0, (1, 12)), (2, (6, 2)), (12, (1, 12))):
        x, y = run_one((5, 3, 4), operation('arrange', row_length=length))
        np.testing.assert_array_equal(y, x.reshape(2, 5, *size))
    with pytest.raises(ProgramError, match='of a map of 4 x 3'):
        run_one((5, 3, 4), operation('transpose', height=4, width=3))


@pytest.mark.parametrize('heads', [1, 2, 3])
def test_matrices_of_heads_are_multiplied_as_by_mxnet(heads):
    def matrices(x):
        return mx.nd.array(x.reshape(2, heads, -1, x[0, 0].size).swapaxes(2, 3).reshape(2 * heads, x[0, 0].size, -1))

    def as_map(y, *size):
        return y.asnumpy().reshape(2, heads, -1, y.shape[2]).swapaxes(2, 3).reshape(2, -1, *size)

    values = [Value(REAL_KIND, 6, 3, 4, False), Value(REAL_KIND, 6, 1, 5, False)]
    x, other = (np.random.randn(2, *value.shape).astype(np.float32) for value in values)
    for transposed, left in ((1, x), (0, np.random.randn(2, heads * 5, 3, 4).astype(np.float32))):
        values[0] = Value(REAL_KIND, *left.shape[1:], False)
        program = Program(values, [operation('matmul', 0, 1, heads=heads, positions=5, transposed=transposed)], [2])
        expected = as_map(mx.nd.batch_dot(matrices(left), matrices(other), transpose_b=bool(transposed)), 3, 4)
        for y in (reference.run(program, [left, other])[0], *([] if engine.missing() else engine_of(program).run([left, other]))):
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(('heads', 'transposed'), [(1, 1), (3, 1), (2, 0)])
@pytest.mark.parametrize('bits', [False, True])
def test_matrices_of_rows_are_those_of_maps_of_one_row(heads, transposed, bits):
    rows, length = 3, 5
    sizes = [(6, rows, 4) if transposed else (heads * length, rows, 4), (6, rows, length)]
    values = [Value(REAL_KIND, *size, False) for size in sizes]
    product = {'heads': heads, 'positions': length, 'transposed': transposed}
    inputs = [np.random.choice((-1.0, 1.0), (2, *size)).astype(np.float32) for size in sizes]
    by_row, plain = (Program(values, [operation(name, 0, 1, **product)], [2]) for name in ('row_matmul', 'matmul'))
    if not bits:
        inputs = [x * np.float32(0.3) for x in inputs]
    (y,) = reference.run(by_row, inputs)
    plain = Program([dataclasses.replace(value, height=1) for value in values], plain.operations, [2])
    expected = [reference.run(plain, [x[:, :, row : row + 1] for x in inputs])[0] for row in range(rows)]
    np.testing.assert_array_equal(y, np.concatenate(expected, axis=2))
    if not engine.missing():
        np.testing.assert_allclose(engine_of(by_row).run(inputs)[0], y, rtol=1e-5, atol=1e-6)
    with pytest.raises(ProgramError, match='different numbers of rows'):
        Program([values[0], Value(REAL_KIND, *sizes[1][:1], rows + 1, length, False)], by_row.operations, [2]).values()


def test_positions_are_gathered_from_maps_one_after_the_other():
    places = np.int32([[0, 5, 6], [9, 2, 2]])
    values = [Value(REAL_KIND, 4, 2, 3, False), Value(REAL_KIND, 4, 1, 4, False)]
    gather = operation('gather', 0, 1, arrays={'places': places}, positions=10, height=2, width=3)
    program = Program(values, [gather], [2])
    x, other = (np.random.randn(2, *value.shape).astype(np.float32) for value in values)
    expected = np.concatenate([x.reshape(2, 4, -1), other.reshape(2, 4, -1)], axis=2)[:, :, places]
    beyond = np.int32([[-3, 5, 6], [2**31 - 1, 2, 2]])  # are limited to the positions
    limited = Program(values, [operation('gather', 0, 1, arrays={'places': beyond}, positions=10, height=2, width=3)], [2])
    for one in (program, limited):
        for y in (reference.run(one, [x, other])[0], *([] if engine.missing() else engine_of(one).run([x, other]))):
            np.testing.assert_array_equal(y, expected)
    for inputs in ([values[0]] * 2, [values[0], Value(REAL_KIND, 3, 1, 4, False)]):
        with pytest.raises(ProgramError, match='gather (from 10 positions|of values with different numbers of channels)'):
            Program(inputs, program.operations, [2]).values()


@pytest.mark.parametrize('name', ELEMENTWISE)
def test_elementwise_operations_are_those_of_mxnet(name):
    attributes, arrays, function = ELEMENTWISE[name]
    x, y = run_one((6, 3, 4), operation(name, arrays=arrays, **attributes))
    np.testing.assert_allclose(y, function(mx.nd.array(x)).asnumpy(), rtol=1e-6, atol=1e-7)
    if not attributes:
        x, y = run_one((6,), operation(name, arrays=arrays, **attributes))
        np.testing.assert_allclose(y, function(mx.nd.array(x)).asnumpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    'name, other, function',
    [('maximum', (6, 3, 4), mx.nd.broadcast_maximum)]
    + [('multiply', factor, mx.nd.broadcast_mul) for factor in ((6, 3, 4), (6, 1, 1), (1, 3, 4), (1, 1, 4), (1, 1, 1))],
)
def test_operations_on_two_values_are_those_of_mxnet(name, other, function):
    inputs = [Value(REAL_KIND, 6, 3, 4, False), Value(REAL_KIND, *other, False)]
    program = Program.from_words(Program(inputs, [operation(name, 0, 1)], [2]).to_words())
    x, y = (np.random.randn(2, *value.shape).astype(np.float32) for value in inputs)
    np.testing.assert_array_equal(reference.run(program, [x, y])[0], function(mx.nd.array(x), mx.nd.array(y)).asnumpy())
    for wrong in ((5, 1, 1), (6, 2, 4), (6, 3, 5)):
        with pytest.raises(ProgramError, match=rf'operation 0 \({name}\): {name} of real \(6, 3, 4\) and real'):
            Program([inputs[0], Value(REAL_KIND, *wrong, False)], [operation(name, 0, 1)], [2]).values()


def test_vectors_become_maps_of_one_position():
    x, y = run_one((6,), operation('unflatten'))
    np.testing.assert_array_equal(y, x[:, :, None, None])
    with pytest.raises(ProgramError, match=r'unflatten of real \(6, 1, 1\)'):
        chain((6, 1, 1), operation('unflatten'))


def test_channels_are_joined_cut_shuffled_and_flattened_in_order():
    x, y = run_one((6, 3, 4), operation('slice', 0, begin=1, end=3), operation('concat', 1, 0, 1))
    np.testing.assert_array_equal(y, np.concatenate([x[:, 1:3], x, x[:, 1:3]], axis=1))
    x, y = run_one((6, 3, 4), operation('shuffle', groups=2))
    np.testing.assert_array_equal(y, x[:, [0, 3, 1, 4, 2, 5]])
    x, y = run_one((6, 3, 4), operation('flatten'))
    np.testing.assert_array_equal(y, x.reshape(2, -1))


def test_bits_are_joined_cut_shuffled_and_flattened_as_numbers_are():
    moved = operation('slice', begin=1, end=3), operation('concat', 2, 1), operation('shuffle', groups=4), operation('flatten')
    x, y = run_one((6, 3, 4), sign(6), *moved, operation('expand', low=-1))
    joined = np.concatenate([x[:, 1:3], x], axis=1).reshape(2, 4, 2, 3, 4).swapaxes(1, 2)
    np.testing.assert_array_equal(y, np.where(joined.reshape(2, -1) >= 0, 1, -1))


def test_several_inputs_and_outputs_of_any_batch_and_size():
    value = Value(REAL_KIND, 3, 4, 4, False)
    program = Program([value, value, Value(REAL_KIND, 2, 1, 1, True)], [operation('add', 0, 1), operation('relu', 2)], [3, 0, 4, 3])
    a, b = np.random.randn(2, 5, 3, 7, 1).astype(np.float32)
    c = np.random.randn(5, 2).astype(np.float32)
    outputs = reference.run(program, [a, b, c])
    for output, expected in zip(outputs, (a + b, a, np.maximum(c, 0), a + b)):
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize(
    'inputs,message',
    [
        ([], 'has 1 inputs, 0 are given'),
        ([np.zeros((2, 3, 4, 4))], 'input 0 must be float32, not float64'),
        ([np.zeros((2, 4, 4, 4), np.float32)], r'the shape \(batch, 3, height, width\), not \(2, 4, 4, 4\)'),
        ([np.zeros((2, 3), np.float32)], r'the shape \(batch, 3, height, width\), not \(2, 3\)'),
        ([np.zeros((0, 3, 4, 4), np.float32)], 'input 0 has the batch 0; it must be 1 or more'),
        (
            [np.zeros((1, 3, 5, 4), np.float32)],
            r'operation 1 \(flatten\), channels: .* 36 .* converted with 27',
        ),
        ([np.zeros((1, 3, 1, 4), np.float32)], r'operation 0 \(max_pool\): max_pool has a window of 2 on a padded map of 1'),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_the_reason(inputs, message):
    program = chain((3, 4, 4), operation('max_pool', **window(2)), operation('flatten'))
    with pytest.raises(ProgramError, match=message):
        reference.run(program, inputs)


def test_no_text_for_an_error_is_made_while_a_valid_program_is_read(monkeypatch):
    words = words_of(
        [(4, 8, 6, 6)],
        [
            record('conv', [0], 72, kernel_h=3, kernel_w=3),
            record('max_pool', [1], kernel_h=2, kernel_w=2),
            record('threshold', [0], 9),
            record('binary_conv', [3], 9, kernel_h=3, kernel_w=3),
            record('add', [1, 4]),
            record('concat', [1, 4, 5]),
            record('slice', [6], begin=1, end=3),
            record('shuffle', [7], groups=2),
            record('flatten', [8]),
        ],
        [2, 9],
    )

    def fail(self):
        raise AssertionError('a text has been made')

    for kind in (Value, reader.FieldPlace):
        monkeypatch.setattr(kind, '__str__', fail)
    assert len(Program.from_words(words).operations) == 9


@pytest.mark.parametrize(
    'program,size,needed',
    [
        (lambda: sums(4, 8), (64, 8, 8), 5 * 64 * 8 * 8 * 4),  # four values, and the first sum of two
        (lambda: words_of([(4, 2, 9, 9)], [record('conv', [0], 18, kernel_h=3, kernel_w=3)], [1]), (2, 9, 9), 49 * 4 + 49 * 9 * 2 * 4),
    ],
    ids=['values', 'windows'],
)
def test_a_run_that_needs_more_memory_than_the_limit_is_refused(program, size, needed, monkeypatch):
    program, batch = Program.from_words(program()), 3
    x = np.ones((batch, *size), np.float32)
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', str(batch * needed))
    reference.run(program, [x])
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', str(batch * needed - 1))
    with pytest.raises(ProgramError, match=f'needs {batch * needed} bytes of working memory; at most {batch * needed - 1} are allowed'):
        reference.run(program, [x])
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '-1')
    with pytest.raises(UserError, match="BMX_MELIUS_MEMORY_LIMIT is '-1': it must be a number of bytes"):
        reference.run(program, [x])


@pytest.mark.parametrize(
    'layer, x, expected',
    [
        (operation('max_pool', **window((1, 2), (1, 2))), [[[[0.0, -0.0, -0.0, 0.0, -0.0, -0.0]]]], [0.0, 0.0, 0.0]),
        (operation('global_max_pool'), [[[[-0.0, -0.0]]]], [0.0]),
        (operation('maximum', 0, 0), [[-0.0, 0.0]], [0.0, 0.0]),
        (operation('relu'), [[-0.0, 0.0]], [-0.0, 0.0]),
        (operation('clip', arrays={'low': np.zeros(2, 'f'), 'high': np.ones(2, 'f')}), [[-0.0, 0.0]], [-0.0, 0.0]),
        (operation('clip', arrays={'low': -np.ones(2, 'f'), 'high': np.full(2, -0.0, 'f')}), [[-0.0, 0.0]], [-0.0, 0.0]),
        (operation('round'), [[-0.0, 0.0, -0.5, 0.5]], [-0.0, 0.0, -0.0, 0.0]),
        (operation('avg_pool', **window((1, 2), (1, 2))), [[[[-0.0, -0.0]]]], [0.0]),
        (operation('global_avg_pool'), [[[[-0.0, -0.0]]]], [0.0]),
        (operation('channel_mean'), [[[[-0.0]], [[-0.0]]]], [0.0]),
        (conv(-np.ones((1, 1, 1, 1), 'f')), [[[[0.0, -0.0]]]], [0.0, 0.0]),
    ],
)
def test_zeros_have_the_signs_of_the_documented_definitions(layer, x, expected):
    x = np.array(x, np.float32)
    (y,) = reference.run(chain(x.shape[1:], layer), [x])
    assert y.ravel().tolist() == expected and np.signbit(y.ravel()).tolist() == np.signbit(expected).tolist()
