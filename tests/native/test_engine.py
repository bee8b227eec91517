"""The engine against the NumPy interpreter: random programs and programs that are rare among them, with every instruction set."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import Engine, assert_same_bits, needs_engine
from support.packed import binary_conv, chain, conv, operation, product_of_signs, sign, window
from support.random_programs import Maker, describe, numbers_beside_ties, other_sizes
from support.zeros import MAXIMA, OTHERS, program_of

from bmx_melius import __version__
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import OPERATIONS, REAL_KIND, Value, result_of
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

pytest_plugins = ['support.engines']  # its fixtures
pytestmark = needs_engine


def test_the_library_returns_its_version():
    assert engine.open_library(engine.ENGINE_LIBRARY).bmx_version().decode() == __version__


@given(random=st.randoms(use_true_random=True), exact=st.booleans())
@settings(max_examples=settings().max_examples * 10, suppress_health_check=list(HealthCheck))
def test_an_instruction_set_equals_the_interpreter_but_for_rounding_and_the_others_in_every_bit(library, reference_library, random, exact):
    """Results of exact programs, of which nothing is rounded, are equal; no bit depends on instruction set, threads and batch."""
    maker = Maker(random, exact)
    program = maker.program(random.randint(1, 12 if exact else 8))
    inputs = maker.data(other_sizes(random, program), random.randint(1, 4))
    engine = Engine.of(library, program)
    single = engine.run(inputs)
    for number, (y, wanted) in enumerate(zip(single, reference.run(program, inputs))):
        if exact:
            assert_same_bits(y, wanted, f'output {number} of\n{describe(program)}')
        atol = 1e-5 * max(1, np.abs(wanted).max())
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=atol, err_msg=f'output {number} of\n{describe(program)}')
    for y, one in zip(Engine.of(reference_library, program).run(inputs), single):
        assert_same_bits(y, one, f'reference kernels, of\n{describe(program)}')
    for threads in (2, 3):
        for y, one in zip(engine.run(inputs, threads), single):
            assert_same_bits(y, one, f'{threads} threads of\n{describe(program)}')
    for image in range(len(inputs[0])):
        for y, one in zip(engine.run([array[image : image + 1] for array in inputs]), single):
            assert_same_bits(y[0], one[image], f'image {image} alone')


@pytest.mark.parametrize(
    ('heads', 'inner', 'rows', 'columns', 'height'),
    [(1, 32, 16, 64, 1), (3, 64, 12, 100, 3), (2, 33, 6, 65, 2), (2, 197, 10, 17, 1), (4, 8, 9, 9, 1)],
)
@pytest.mark.parametrize('transposed', [False, True])
def test_products_of_signs_are_those_of_the_interpreter_bit_for_bit(library, heads, inner, rows, columns, height, transposed):
    program, random = product_of_signs(heads, inner, rows, columns, transposed, height), np.random.RandomState(0)
    inputs = [random.randn(2, *value.shape).astype(np.float32) for value in program.inputs]
    (expected,) = reference.run(program, inputs)
    for threads in (1, 2, 3):
        assert_same_bits(Engine.of(library, program).run(inputs, threads)[0], expected, f'{threads} threads')


@given(
    random=st.randoms(use_true_random=True),
    channels=st.sampled_from((3, 32, 64, 80)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.sampled_from((1, 3)),
    stride=st.integers(1, 2),
    pad_value=st.integers(-1, 1),
    chain=st.lists(
        st.sampled_from(('gate', 'map', *(name for name, row in OPERATIONS.items() if row.elementwise and row.rounds != 'always')))
    ),
)
@settings(max_examples=settings().max_examples * 2, suppress_health_check=list(HealthCheck))
def test_elementwise_operations_after_a_binary_convolution_equal_the_interpreter(
    library, random, channels, size, kernel, stride, pad_value, chain
):
    maker = Maker(random, exact=True)
    maker.inputs = [Value(REAL_KIND, channels, *size, False)]
    result = ((size[0] - 1) // stride + 1, (size[1] - 1) // stride + 1)
    maker.inputs += [
        Value(REAL_KIND, channels, *result, False),
        Value(REAL_KIND, channels, 1, 1, False),
        Value(REAL_KIND, 1, *result, False),
    ]
    maker.values, maker.bounds = list(maker.inputs), [(8.0, 0.5)] * 4

    geometry = window(kernel, stride, kernel // 2)
    x = maker.add('binary_conv', maker.add('threshold', 0), out_channels=channels, pad_value=pad_value, **geometry)
    others = {'gate': 2, 'map': 3, **{name: 1 for name, row in OPERATIONS.items() if row.elementwise == 'values'}}
    for name in chain[:5]:
        operands = (x, others[name]) if name in others else (x,)
        heights, widths = ((1, extent) for extent in result)
        positions = {'by_channel': random.randint(0, 1), 'height': random.choice(heights), 'width': random.choice(widths)}
        name = 'multiply' if name in ('gate', 'map') else name
        x = maker.add(name, *operands, **positions if OPERATIONS[name].elementwise == 'positions' else {})
    program = Program(maker.inputs, maker.operations, [x])
    inputs = [maker.numpy.randint(-2, 3, (2, *value.shape)).astype(np.float32) for value in maker.inputs]
    (expected,) = reference.run(program, inputs)
    engine = Engine.of(library, program)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(engine.run(inputs, threads)[0], expected, f'{threads} threads\n{describe(program)}')


@given(
    random=st.randoms(use_true_random=True),
    channels=st.sampled_from((1, 2, 3, 8, 20, 33)),
    filters=st.sampled_from(('depthwise', 1, 5, 16, 70)),
    groups=st.sampled_from((1, 1, 2)),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.sampled_from((1, 2, 3, 3, 5)), st.sampled_from((1, 2, 3, 3, 7))),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 4)] * 4),
    in_parts=st.booleans(),
    chain=st.lists(st.sampled_from(('affine', 'relu', 'prelu', 'clip', 'add', 'gate', 'threshold')), max_size=4),
)
@settings(max_examples=settings().max_examples * 2, suppress_health_check=list(HealthCheck))
def test_float_convolutions_of_any_window_equal_the_interpreter(
    library, random, channels, filters, groups, size, kernel, strides, dilation, pads, in_parts, chain
):
    if filters == 'depthwise':
        filters = groups = channels
    else:
        channels, filters = channels * groups, filters * groups
    extents = [(count - 1) * distance + 1 for count, distance in zip(kernel, dilation)]
    size = [max(length, extent - before - after) for length, extent, before, after in zip(size, extents, pads[:2], pads[2:])]
    attributes = {'out_channels': filters, 'groups': groups, **window(kernel, strides, pads, dilation)}
    maker = Maker(random, exact=True)
    maker.inputs = [Value(REAL_KIND, channels, *size, False)]
    result = result_of(operation('conv', 0, **attributes), maker.inputs)
    maker.inputs += [result, Value(REAL_KIND, filters, 1, 1, False)]
    maker.values, maker.bounds = list(maker.inputs), [(8.0, 0.5)] * 3

    x = maker.add('relu', 0)  # not the first layer
    if in_parts:
        x = maker.add('concat', x, maker.add('expand', maker.add('threshold', x), low=-1))
        x = maker.add('slice', x, begin=0, end=channels) if random.randint(0, 1) else maker.add('slice', x, begin=1, end=channels + 1)
    x = maker.add('conv', x, **attributes)
    outputs = []
    for name in chain:
        if name == 'threshold':
            outputs.append(maker.add('binary_conv', maker.add('threshold', x), out_channels=3))
        else:
            x = maker.add('multiply' if name == 'gate' else name, *{'add': (x, 1), 'gate': (x, 2)}.get(name, (x,)))
    program = Program(maker.inputs, maker.operations, [x, *outputs])
    inputs = [maker.numpy.randint(-2, 3, (2, *value.shape)).astype(np.float32) for value in maker.inputs]
    expected = reference.run(program, inputs)
    engine = Engine.of(library, program)
    for threads in (1, 2, 5):
        for y, wanted in zip(engine.run(inputs, threads), expected):
            np.testing.assert_array_equal(y, wanted, f'{threads} threads\n{describe(program)}')


@pytest.mark.parametrize('name', [*MAXIMA, *OTHERS])
def test_zeros_have_the_signs_of_the_interpreter_and_those_of_maxima_are_positive(library, name):
    program, inputs = program_of(name)
    (expected,) = reference.run(program, inputs)
    for threads in (1, 3):
        (y,) = Engine.of(library, program).run(inputs, threads)
        assert_same_bits(y, expected, f'{threads} threads')
    assert (expected == 0).any() and not (name in MAXIMA and np.signbit(expected[expected == 0]).any())


@pytest.mark.parametrize(
    'name, function', [('sigmoid', lambda x: 1 / (1 + np.exp(-x))), ('softplus', lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))]
)
def test_sigmoids_and_softplus_are_within_4e_7_of_their_value(name, function, library):
    x = np.concatenate([np.linspace(-87, 90, 5000), [0, -0.0, 1e-40, -1e4, 1e4, -3e38, 3e38, 1e-3]]).astype(np.float32)[None]
    program = chain(x.shape[1:], operation(name))
    with np.errstate(over='ignore'):
        expected = function(x.astype(np.longdouble))
    np.testing.assert_allclose(Engine.of(library, program).run([x])[0], expected, rtol=4e-7, atol=2e-38)


def test_rounding_is_that_of_ieee_754(library):
    (x,) = numbers_beside_ties()
    np.testing.assert_array_equal(Engine.of(library, chain(x.shape[1:], operation('round'))).run([x])[0], np.rint(x))


def test_quotients_are_the_nearest_numbers(library):
    divisor = np.random.RandomState(0).randn(500).astype(np.float32)
    program = chain((500,), operation('divide', arrays={'divisor': divisor}))
    x = np.random.RandomState(1).randn(7, 500).astype(np.float32)
    np.testing.assert_array_equal(Engine.of(library, program).run([x])[0], (x.astype(np.float64) / divisor).astype(np.float32))


def test_a_sum_with_a_convolution_padded_with_0_is_rounded_once(library):
    random, channels = np.random.RandomState(0), 64
    convolution = binary_conv(random.rand(channels, 3, 3, channels) < 0.5, pad_value=0, **window(3, pad=1))
    program = chain((channels, 7, 7), sign(channels), convolution, operation('add', 0, 2))
    inputs = [random.randn(1, channels, 7, 7).astype(np.float32)]
    (expected,) = reference.run(program, inputs)
    for threads in (1, 2):
        np.testing.assert_array_equal(Engine.of(library, program).run(inputs, threads)[0], expected)


@pytest.mark.parametrize('kernel', [1, 3])
def test_sums_of_up_to_3e38_are_as_exact_as_others(library, kernel):
    random = np.random.RandomState(0)
    weight = random.randn(64, 64, kernel, kernel)
    weight *= 3e38 / 3.3e38 / np.abs(weight).sum(axis=(1, 2, 3), keepdims=True)
    program = chain((64, 9, 9), conv(weight.astype('f'), **window(kernel, pad=kernel // 2)))
    x = np.where(random.rand(1, 64, 9, 9) < 0.5, -3.3e38, 3.3e38).astype(np.float32)
    (expected,) = reference.run(program, [x])
    np.testing.assert_allclose(Engine.of(library, program).run([x])[0], expected, atol=1e-6 * 3e38)


def test_any_number_of_first_layers_fits_on_the_stack(library):
    layers = 5000
    middle_and_1 = conv(np.array([[[[0, 1, 0]]]], np.float32), bias=np.ones(1, np.float32), pad_left=1, pad_right=1)
    program = chain((1, 3, 5), *[middle_and_1] * layers)
    x = np.arange(15, dtype=np.float32).reshape(1, 1, 3, 5)
    np.testing.assert_array_equal(Engine.of(library, program).run([x])[0], x + layers)


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('begin, end', [(0, 88), (0, 48), (40, 72), (8, 80)])  # of both maps, of the first, of the second, and of both
def test_a_convolution_with_kernel_1_reads_the_channels_of_concatenated_maps(library, begin, end, stride):
    random = np.random.RandomState(0)
    weight = random.randint(-2, 3, (24, end - begin, 1, 1)).astype(np.float32)
    program = Program(
        [Value(REAL_KIND, 48, 5, 6, False), Value(REAL_KIND, 40, 5, 6, False)],
        [operation('concat', 0, 1), operation('slice', 2, begin=begin, end=end), conv(weight, 3, stride_h=stride, stride_w=stride)],
        [4],
    )
    inputs = [random.randint(-8, 9, (2, *value.shape)).astype(np.float32) for value in program.inputs]
    (expected,) = reference.run(program, inputs)
    for threads in (1, 2):
        np.testing.assert_array_equal(Engine.of(library, program).run(inputs, threads)[0], expected, f'{threads} threads')


def channels_in_another_order(random):
    """Return a program that reads the channels of a map, in more parts than a view has, and some of them as one part again."""
    inputs, count = [Value(REAL_KIND, 300, 3, 2, False), Value(REAL_KIND, 33, 3, 2, False)], 300
    order = random.permutation(count)
    operations = [operation('slice', 0, begin=int(c), end=int(c) + 1) for c in order]
    operations += [operation('concat', *range(2, 2 + count)), operation('relu', count + 2)]
    operations += [
        operation('slice', 0, begin=0, end=40),
        operation('slice', 0, begin=40, end=64),
        operation('concat', count + 4, count + 5),
    ]
    return Program(inputs, [*operations, operation('abs', count + 6)], [count + 3, count + 2, count + 7])


def bits_that_no_word_begins_with(random):
    """Return a program with binary layers, with groups and without, of concatenated maps whose channels are not whole words."""
    inputs = [Value(REAL_KIND, channels, 4, 5, False) for channels in (5, 40, 19)]
    operations = [operation('concat', 0, 1, 2), sign(64, 3)]
    for groups in (1, 2, 4):
        operations.append(binary_conv(random.rand(24, 3, 3, 64 // groups) < 0.5, 4, groups=groups, **window(3, pad=1)))
    return Program(inputs, operations, [5, 6, 7])


def moved_bits(random):
    """Return a program whose binary layers read bits that are concatenated, shuffled and cut, not comparisons."""
    inputs = [Value(REAL_KIND, channels, 4, 5, False) for channels in (40, 24)]
    bits = [sign(40, 0), sign(24, 1), operation('concat', 2, 3), operation('shuffle', 4, groups=4), operation('slice', 5, begin=3, end=50)]
    layers = [binary_conv(random.rand(24, 3, 3, 64) < 0.5, 5, **window(3, pad=1)), binary_conv(random.rand(8, 1, 1, 47) < 0.5, 6)]
    planes = [binary_conv(random.rand(16, 3, 3, 16) < 0.5, 5, planes=4, **window(3, pad=1))]
    planes.append(binary_conv(random.rand(8, 1, 1, 8) < 0.5, 5, groups=4, planes=2))
    return Program(inputs, [*bits, *layers, *planes], [7, 8, 9, 10])


def sums_of_small_integers(random):
    """Return a program that adds bits as integers and results of binary layers which others read as well."""
    inputs = [Value(REAL_KIND, 40, 4, 5, False)]
    compare = operation('threshold', 0, arrays={'threshold': random.randn(40).astype('f'), 'flip': random.rand(40) < 0.5})
    layers = [compare, operation('expand', 1), operation('expand', 1, low=-1), operation('add', 2, 3), operation('add', 4, 4)]
    layers += [binary_conv(random.rand(40, 3, 3, 40) < 0.5, 1, **window(3, pad=1)) for _ in range(2)]
    layers += [operation('add', 6, 7), operation('add', 8, 5), operation('add', 6, 9), operation('flatten', 10)]
    return Program(inputs, layers, [5, 8, 11])


def sums_beyond_16_bits(random):
    """Return a program that adds results of two binary layers, each of which fits in 16 bits, in every pixel as large as they can be."""
    weight = random.rand(3, 3, 3, 2048) < 0.5
    weight[0] = True
    layers = [sign(2048, 0), binary_conv(weight, 1), binary_conv(weight, 1), operation('add', 2, 3)]
    return Program([Value(REAL_KIND, 2048, 3, 3, False)], layers, [4])


RARE = channels_in_another_order, bits_that_no_word_begins_with, moved_bits, sums_of_small_integers, sums_beyond_16_bits


@pytest.mark.parametrize('make', RARE)
def test_programs_that_are_rare_among_random_ones_equal_the_interpreter(library, make):
    program = make(np.random.RandomState(0))
    inputs = [np.random.RandomState(1).randn(2, *value.shape).astype(np.float32) for value in program.inputs]
    inputs[0][0] = np.abs(inputs[0][0])
    expected = reference.run(program, inputs)
    for threads in (1, 3):
        for found, wanted in zip(Engine.of(library, program).run(inputs, threads), expected):
            assert_same_bits(found, wanted)


def test_every_float16_weight_has_its_value(library):
    weight = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    weight = weight[~np.isnan(weight)]
    (y,) = Engine.of(library, chain((1, 1, 1), conv(weight[:, None, None, None]))).run([np.ones((1, 1, 1, 1), np.float32)])
    np.testing.assert_array_equal(y.ravel(), weight.astype(np.float32))
