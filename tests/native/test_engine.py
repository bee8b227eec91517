"""The engine against the NumPy interpreter: random programs and programs that are rare among them, with every instruction set."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import Engine, needs_engine
from support.packed import binary_conv, chain, conv, operation, sign, window
from support.random_programs import Maker, describe, numbers_beside_ties, other_sizes

from bmx_melius import __version__
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import OPERATIONS, REAL_KIND, Value, result_of
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

pytest_plugins = ['support.engines']  # its fixtures
pytestmark = needs_engine


def test_the_library_returns_its_version():
    assert engine.open_library(engine.ENGINE_LIBRARY).bmx_version().decode() == __version__


@given(random=st.randoms(use_true_random=False), exact=st.booleans())
@settings(max_examples=settings().max_examples * 10, suppress_health_check=list(HealthCheck))
def test_an_instruction_set_equals_the_interpreter_but_for_rounding_and_itself_in_every_bit(library, random, exact):
    """Results of exact programs, of which nothing is rounded, are equal; others do not depend on threads and batch."""
    maker = Maker(random, exact)
    program = maker.program(random.randint(1, 12 if exact else 8))
    inputs = maker.data(other_sizes(random, program), random.randint(1, 4))
    engine = Engine.of(library, program)
    single = engine.run(inputs)
    for number, (y, wanted) in enumerate(zip(single, reference.run(program, inputs))):
        tolerance = {'rtol': 0} if exact else {'rtol': 1e-5, 'atol': 1e-5 * max(1, np.abs(wanted).max())}
        np.testing.assert_allclose(y, wanted, **tolerance, err_msg=f'output {number} of\n{describe(program)}')
    for threads in (2, 3):
        for y, one in zip(engine.run(inputs, threads), single):
            np.testing.assert_array_equal(y, one, f'{threads} threads of\n{describe(program)}')
    for image in range(len(inputs[0])):
        for y, one in zip(engine.run([array[image : image + 1] for array in inputs]), single):
            np.testing.assert_array_equal(y[0], one[image], f'image {image} alone')


@given(
    random=st.randoms(use_true_random=False),
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
    random=st.randoms(use_true_random=False),
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


def test_sigmoids_are_within_4e_7_of_their_value(library):
    x = np.concatenate([np.linspace(-87, 90, 5000), [0, -0.0, 1e-40, -1e4, 1e4, -3e38, 3e38, 1e-3]]).astype(np.float32)[None]
    program = chain(x.shape[1:], operation('sigmoid'))
    with np.errstate(over='ignore'):
        expected = 1 / (1 + np.exp(-x.astype(np.longdouble)))
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
