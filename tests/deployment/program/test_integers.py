"""Operations of 8-bit layers against Python's integers and fractions, which neither overflow nor round."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import Operation

INT32 = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from((-(2**31), -1, 0, 1, 2**31 - 1)))
LIMITS = st.tuples(st.integers(-32766, 32766), st.integers(-32766, 32766))
SHIFTS = st.integers(8, 38)


def half_up(x):
    """The nearest integer of a fraction, the larger one of two."""
    return math.floor(x + Fraction(1, 2))


def rescaled(n, multiplier, offset, shift, low, high):
    exact = Fraction(n * multiplier, 2**shift) + Fraction(offset, 2**8)
    return min(max(half_up(exact), low), high)


def integers(*numbers):
    return np.array(numbers, np.int32)


@given(n=st.integers(-(2**24), 2**24), multiplier=INT32, offset=INT32, shift=SHIFTS, limits=LIMITS)
def test_rescaling_is_a_product_and_a_sum_that_are_rounded_once(n, multiplier, offset, shift, limits):
    low, high = sorted(limits)
    attributes = {'shift': shift, 'result_min': low, 'result_max': high}
    operation = Operation('rescale', (0,), attributes, {'multiplier': integers(multiplier), 'offset': integers(offset)})
    limited = min(max(n, -(2**23)), 2**23)
    (y,) = reference.apply(operation, [np.full((1, 1), n, np.float32)])[0]
    assert y == rescaled(limited, multiplier, offset, shift, low, high)


@pytest.mark.parametrize(
    'x,n',
    [(255.5, 256), (256.5, 256), (-255.5, -256), (767.5, 768), (768.4999, 768), (1e30, 2**23), (-np.inf, -(2**23)), (4194303.5, 4194304)],
)
def test_rescaling_rounds_real_numbers_to_even_and_limits_them(x, n):
    attributes = {'shift': 30, 'result_min': -32766, 'result_max': 32766}
    operation = Operation('rescale', (0,), attributes, {'multiplier': integers(2**21), 'offset': integers(0)})
    (y,) = reference.apply(operation, [np.full((1, 1), x, np.float32)])[0]
    assert y == half_up(Fraction(n, 512))


@given(
    random=st.randoms(use_true_random=True),
    groups=st.integers(1, 3),
    inputs=st.integers(1, 5),
    filters=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
)
def test_a_convolution_adds_products_of_integers(random, groups, inputs, filters, kernel, stride, dilation, pads):
    generator = np.random.RandomState(random.getrandbits(32))
    height, width, channels = kernel * dilation + 2, kernel * dilation + 1, groups * inputs
    x = generator.randint(-20, 300, (1, channels, height, width)) + generator.choice((0, 0.25), (1, channels, height, width))
    weight = generator.randint(-128, 128, (groups * filters, inputs, kernel, kernel)).astype(np.int8)
    pad = generator.randint(-5, 260, channels).astype(np.int32)
    multiplier, offset = (generator.randint(-(2**31), 2**31, groups * filters).astype(np.int32) for _ in range(2))
    window = {
        f'{name}_{axis}': number for name, number in (('kernel', kernel), ('stride', stride), ('dilation', dilation)) for axis in 'hw'
    }
    sides = dict(zip(('pad_top', 'pad_left', 'pad_bottom', 'pad_right'), pads))
    rescaling = {'shift': 38, 'result_min': -32766, 'result_max': 32766}
    arrays = {'weight': weight, 'pad': pad, 'multiplier': multiplier, 'offset': offset}
    operation = Operation('int8_conv', (0,), {'out_channels': groups * filters, **window, **sides, 'groups': groups, **rescaling}, arrays)
    y = reference.apply(operation, [x.astype(np.float32)])

    def element(channel, row, column):
        inside = 0 <= row < height and 0 <= column < width
        number = round(float(x[0, channel, row, column])) if inside else int(pad[channel])
        return min(max(number, 0), 255)

    for f, row, column in np.ndindex(*y.shape[1:]):
        total = sum(
            int(weight[f, c, i, j])
            * element(f // filters * inputs + c, row * stride - pads[0] + i * dilation, column * stride - pads[1] + j * dilation)
            for c, i, j in np.ndindex(inputs, kernel, kernel)
        )
        assert y[0, f, row, column] == rescaled(total, int(multiplier[f]), int(offset[f]), 38, -32766, 32766)


@given(random=st.randoms(use_true_random=True), bits=st.integers(0, 8), count_pad=st.booleans(), pad=st.integers(0, 1))
def test_means_of_integers_are_rounded_fractions(random, bits, count_pad, pad):
    generator = np.random.RandomState(random.getrandbits(32))
    x = generator.randint(-32766, 32767, (2, 3, 3, 4)).astype(np.float32)
    (image, _), unit = x.astype(int), 2**bits
    mean = reference.apply(Operation('integer_mean', (0,), {'fraction_bits': bits}), [x])
    assert mean[0, :, 0, 0].tolist() == [half_up(Fraction(int(channel.sum()) * unit, channel.size)) for channel in image]
    window = {'kernel_h': 2, 'kernel_w': 2, 'stride_h': 1, 'stride_w': 2}
    sides = dict.fromkeys(('pad_top', 'pad_left', 'pad_bottom', 'pad_right'), pad)
    attributes = {**window, **sides, 'ceil': 0, 'count_pad': int(count_pad), 'fraction_bits': bits}
    y = reference.apply(Operation('integer_avg_pool', (0,), attributes), [x])
    for c, row, column in np.ndindex(*y.shape[1:]):
        top, left = row - pad, 2 * column - pad
        part = image[c, max(top, 0) : top + 2, max(left, 0) : left + 2]
        assert y[0, c, row, column] == half_up(Fraction(int(part.sum()) * unit, 4 if count_pad else part.size))
