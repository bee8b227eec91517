"""Batch normalization and sign as one comparison, against MXNet's own batch normalization, bit for bit."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd

from bmx_melius.deployment.convert.mxnet_rounding import BLOCKED, PLAIN, MxnetBatchNorm, fold, layout_in_use
from bmx_melius.deployment.convert.thresholds import NotMonotoneError, rising_levels, switching_points

LARGEST = np.finfo(np.float32).max
EXTREMES = np.array([0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e30, -1e30, LARGEST, -LARGEST], dtype=np.float32)


def around(numbers, steps=120):
    """Each number, the float32 numbers next to it on both sides, and extreme numbers: (len(numbers), 256)."""
    bits = numbers.astype(np.float32).view(np.int32).astype(np.int64)
    places = np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))[:, None] + np.arange(-steps, steps + 1)
    places = np.clip(places, -0x7F7FFFFF, 0x7F7FFFFF)
    near = np.where(places >= 0, places, -places | 0x80000000).astype(np.uint32).view(np.float32)
    rest = 256 - near.shape[1]
    return np.concatenate([near, np.broadcast_to(np.resize(EXTREMES, rest), (len(numbers), rest))], axis=1)


def normalized(batch_norm, x, rank, layout):
    """MXNet's result for x (channels, 256), called here with everything spelled out."""
    parameters = [nd.array(a) for a in (batch_norm.gamma, batch_norm.beta, batch_norm.mean, batch_norm.variance)]
    options = {'eps': batch_norm.eps, 'fix_gamma': batch_norm.fix_gamma}
    if rank == 2:
        return nd.BatchNorm(nd.array(x.T), *parameters, **options).asnumpy().T
    maps = nd.array(x.reshape(1, -1, 16, 16))
    if layout == BLOCKED:  # what a convolution leaves; this one changes nothing
        maps = nd.Convolution(maps, nd.array(np.eye(len(x))[:, :, None, None]), kernel=(1, 1), num_filter=len(x), no_bias=True)
    return nd.BatchNorm(maps, *parameters, **options).asnumpy().reshape(x.shape)


def check(batch_norm, rank=4, layout=PLAIN):
    threshold, flip = fold(batch_norm, rank, layout)
    assert threshold.dtype == np.float32 and flip.dtype == bool and not np.isnan(threshold).any()
    x = around(np.where(np.isfinite(threshold), threshold, 0))
    folded = (x >= threshold[:, None]) != flip[:, None]
    np.testing.assert_array_equal(folded, normalized(batch_norm, x, rank, layout) >= 0)
    return threshold, flip


def usual(channels, **changes):
    random = np.random.RandomState(1)
    arrays = dict(gamma=random.randn(channels), beta=random.randn(channels), mean=random.randn(channels), variance=random.rand(channels))
    arrays = {name: np.asarray(changes.get(name, array) * np.ones(channels), dtype=np.float32) for name, array in arrays.items()}
    return MxnetBatchNorm(**arrays, eps=changes.get('eps', 1e-5), fix_gamma=changes.get('fix_gamma', False))


NUMBERS = st.one_of(st.floats(-4, 4), st.floats(-1e30, 1e30), st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 1e-30, 1e30]))
VARIANCES = st.one_of(st.floats(0, 4), st.sampled_from([0.0, 1e-45, 1e-38, 1e-20, 1e20, 3e38]))


@given(
    columns=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, VARIANCES), min_size=1, max_size=16),
    eps=st.sampled_from([1e-3, 1e-5, 2e-5]),
    fix_gamma=st.booleans(),
    rank=st.sampled_from([2, 4]),
    layout=st.sampled_from([PLAIN, BLOCKED]),
)
def test_comparison_equals_the_sign_of_mxnets_batch_norm(columns, eps, fix_gamma, rank, layout):
    columns = (columns * 16)[:16]  # as many channels as a blocked layout needs
    gamma, beta, mean, variance = np.array(columns, dtype=np.float32).T.copy()
    check(MxnetBatchNorm(gamma, beta, mean, variance, eps, fix_gamma), rank, PLAIN if rank == 2 else layout)


@pytest.mark.parametrize('layout', [PLAIN, BLOCKED])
@pytest.mark.parametrize('channels', [1, 3, 16, 40, 64])
def test_thresholds_are_exact_for_any_number_of_channels(channels, layout):
    check(usual(channels), layout=layout)


def test_negative_gamma_flips_and_a_result_of_zero_counts_as_positive():
    threshold, flip = check(usual(2, gamma=np.array([1, -1]), beta=0, mean=3))
    assert threshold[0] == 3 and not flip[0]
    assert threshold[1] == np.nextafter(np.float32(3), np.float32(4)) and flip[1]  # 3 itself gives 0, so +1


@pytest.mark.parametrize('beta, always', [(0.5, True), (0.0, True), (-0.0, True), (-0.5, False)])
def test_gamma_of_zero_is_constant(beta, always):
    threshold, flip = check(usual(1, gamma=0, beta=beta))
    assert threshold[0] == -np.inf and flip[0] == (not always)


def test_fixed_gamma_is_one_whatever_is_stored():
    np.testing.assert_array_equal(check(usual(4, gamma=-7, fix_gamma=True)), check(usual(4, gamma=1)))


def test_overflow_to_nan_counts_as_negative():
    threshold, flip = check(usual(1, gamma=0, beta=1, mean=-LARGEST))  # infinity times 0 is not a number, and not >= 0
    assert np.isfinite(threshold[0]) and flip[0]


@pytest.mark.parametrize(
    'predicate', [lambda x: abs(x) < 1, lambda x: (x >= 2) & ~((x >= 1e10) & (x < 1e30)), lambda x: (x >= 0) & ~np.signbit(x)]
)
def test_a_predicate_that_changes_twice_or_at_minus_zero_is_refused(predicate):
    with pytest.raises(NotMonotoneError, match='channel 1'):
        switching_points(lambda x: np.stack([x[0] >= 5, predicate(x[1])]), 2)


@pytest.mark.parametrize('shape', [(1, 64, 1, 1), (3, 64, 7, 7), (2, 64, 1, 9), (1, 64, 28, 14)])
def test_arithmetic_does_not_depend_on_the_size_of_a_map(shape):
    batch_norm = usual(64)
    threshold, _ = fold(batch_norm, 4)
    x = np.resize(around(threshold).T, (np.prod(shape) // 64, 64))  # a row holds one number of each channel
    maps = np.ascontiguousarray(x.reshape(shape[0], *shape[2:], 64).transpose(0, 3, 1, 2))
    expected = batch_norm(x.reshape(-1, 64, 1, 1)).reshape(x.shape)
    np.testing.assert_array_equal(batch_norm(maps).transpose(0, 2, 3, 1).reshape(x.shape), expected)
    np.testing.assert_array_equal(batch_norm(x), expected)


def test_arrays_of_rank_2_are_normalized_after_a_blocked_map_of_their_sizes():
    # MXNet 1.9.1 crashes with AVX-512 in its own `nd.BatchNorm` of the second array
    batch_norm, x = usual(64), np.random.randn(16, 64).astype(np.float32)
    expected = batch_norm(np.concatenate([x, x]))[:16]
    maps = nd.Convolution(nd.array(x[:, :, None, None]), nd.ones((64, 64, 3, 3)), kernel=(3, 3), pad=(1, 1), num_filter=64, no_bias=True)
    parameters = [nd.array(a) for a in (batch_norm.gamma, batch_norm.beta, batch_norm.mean, batch_norm.variance)]
    nd.BatchNorm(maps, *parameters, eps=batch_norm.eps, fix_gamma=False, use_global_stats=True).wait_to_read()
    np.testing.assert_array_equal(batch_norm(x), expected)


def test_memory_layout_is_determined_from_values_of_the_network():
    batch_norm = usual(64)
    x = np.random.randn(2, 64, 9, 9).astype(np.float32)
    assert layout_in_use(batch_norm, x, batch_norm(x)) == PLAIN
    assert layout_in_use(batch_norm, x[:, :, 0, 0], batch_norm(x[:, :, 0, 0])) == PLAIN
    assert layout_in_use(batch_norm, x, x) is None
    weight = nd.random.normal(shape=(64, 64, 3, 3))
    y = nd.Convolution(nd.array(x), weight, kernel=(3, 3), num_filter=64, no_bias=True)
    parameters = [nd.array(a) for a in (batch_norm.gamma, batch_norm.beta, batch_norm.mean, batch_norm.variance)]
    z = nd.BatchNorm(y, *parameters, eps=1e-5, fix_gamma=False)
    expected = BLOCKED if mx.runtime.Features().is_enabled('MKLDNN') else PLAIN
    assert layout_in_use(batch_norm, y.asnumpy(), z.asnumpy()) == expected


@pytest.mark.parametrize(
    'function, most, levels',
    [
        (lambda x: np.round(np.clip(x, 0, 1) * 3) / np.float32(3), 4, (0, np.float32(1) / np.float32(3), np.float32(2) / np.float32(3), 1)),
        (lambda x: np.round(np.clip(x, 0, 1) * 3) / np.float32(3), 3, None),  # there are more
        (lambda x: (x >= -5) * 0.5 + (x > 1e30) * 2, 8, (0, 0.5, 2.5)),
        (lambda x: (abs(x) < 1) * 1.0, 8, None),  # it falls
        (lambda x: (x >= 0) * 2 - 1, 8, None),  # it begins below 0
        (lambda x: x * 0, 8, None),  # it has one level
        (lambda x: np.maximum(x, 0), 8, None),
    ],
)
def test_the_levels_of_a_step_function_are_found(function, most, levels):
    assert rising_levels(function, most) == levels
