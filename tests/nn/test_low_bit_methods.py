"""Layers with weights or activations of few bits against their equations in float64 NumPy, and the learned bases of LQ-Net."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from support.equations import assert_equals, conv, filter_mean
from support.training_runs import train

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.nn.methods.bwn import BWNConv2D
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.lq_net import LQActivation, LQConv2D, LQWeights, best_basis, update_bases
from bmx_melius.nn.methods.syq import SYQConv2D
from bmx_melius.nn.methods.ttq import TTQConv2D
from bmx_melius.nn.methods.updates import finish_update
from bmx_melius.nn.quantizers import quantize
from model_zoo import get_model

S = 0.538  # HWGQ: distance of the levels


def everywhere(x):
    return np.ones_like(x)


def above(x):
    return (x > 0) * 1.0


def inputs(boundary, dtype=np.float64):
    """Two maps of three channels that contain the values `boundary` and the numbers next to them."""
    x = np.random.RandomState(1).randn(2, 3, 4, 5).astype(dtype)
    values = [value for bound in map(dtype, boundary) for value in (bound, np.nextafter(bound, dtype(9)), np.nextafter(bound, dtype(-9)))]
    x.reshape(-1)[: len(values)] = values
    return x


def zero_padded(x, w):
    return conv(x, w, value=0)


# --- quantizers ------------------------------------------------------------------------------------------------------------------------


def hwgq(x):
    bounds = [x.dtype.type(bound) for bound in (0, 1.5 * S, 2.5 * S)]
    return np.select([x <= bound for bound in bounds], [0, S, 2 * S], 3 * S)


def hwgq_slope(x):
    return ((x > 0) & (x <= x.dtype.type(3 * S))) * 1.0


def ternary(w):
    d = 0.05 * np.abs(w).max()
    return np.select([w > d, w < -d], [1.0, -1.0], 0.0)


@pytest.mark.parametrize(
    'method, bits, boundary, value, slope',
    [
        ('hwgq', 2, (0, 1.5 * S, 2.5 * S, 3 * S), hwgq, hwgq_slope),
        ('hwgq', 32, (0, 3 * S), lambda x: np.clip(x, 0, 3 * S), hwgq_slope),
        ('ternary', 2, (8.0, 0.4, -0.4, 0), ternary, everywhere),
        ('ternary', 32, (0,), lambda x: x, everywhere),
        ('scaled_sign', 1, (0, -1), lambda x: filter_mean(x)[..., None] * np.where(x >= 0, 1.0, -1.0), everywhere),
        ('scaled_sign', 32, (0,), lambda x: x, everywhere),
    ],
)
def test_quantizers_have_their_values_and_gradients_at_the_bounds_of_regions_too(method, bits, boundary, value, slope):
    numbers = inputs(boundary, np.float32)  # MXNet parses scalars for float64 with an error in the last bit
    x = nd.array(numbers)
    x.attach_grad()
    with autograd.record():
        y = quantize(nd, x, method, bits)
    y.backward()
    np.testing.assert_allclose(y.asnumpy(), value(numbers), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(x.grad.asnumpy(), slope(numbers))


def test_levels_of_hwgq_are_those_printed_in_the_paper():
    x = nd.array([-5, 0, 1e-6, 0.8, 0.81, 1.34, 1.35, 100])
    expected = [0, 0, 0.538, 0.538, 1.076, 1.076, 1.614, 1.614]
    np.testing.assert_allclose(quantize(nd, x, 'hwgq', 2).asnumpy(), expected, rtol=1e-6)


# --- layers ----------------------------------------------------------------------------------------------------------------------------


def two_bits(s, x):
    """The 2-bit activation of DoReFa-Net: clip(x, 0, 1), rounded."""
    inside = ((x >= 0) & (x <= 1)) * 1.0
    clipped = np.clip(x, 0, 1)
    return s.estimate(np.floor(3 * clipped + 0.5) / 3, x, inside)


@pytest.mark.parametrize('stride', [1, 2])
def test_bwn_has_relu_and_scaled_signs_with_the_gradient_of_xnor_net(stride):
    def equation(s, x, w):
        alpha = filter_mean(w)[..., None]
        slope = (w[0].size - 9) * (1 / w[0].size + alpha * (np.abs(w) < 1))
        binary = s.estimate(alpha * np.where(w >= 0, 1.0, -1.0), w, slope)
        return conv(s.estimate(np.maximum(x, 0), x, above(x)), binary, stride, value=0)

    assert_equals(BWNConv2D(4, 3, stride, 1), equation, inputs([0]), ['w'])


def test_dorefa_rounds_both_operands_to_two_bits():
    def equation(s, x, w):
        scaled = np.tanh(w) / np.abs(np.tanh(w)).max()
        rounded = s.estimate(2 * np.floor(3 * (scaled / 2 + 0.5) + 0.5) / 3 - 1, scaled, everywhere(w))
        return zero_padded(two_bits(s, x), rounded)

    assert_equals(DoReFaConv2D(4, 3, 1, 1), equation, inputs([0, 1 / 6, 0.5, 5 / 6, 1]), ['w'])


def test_hwgq_has_half_wave_activations_and_scaled_signs():
    def equation(s, x, w):
        binary = s.estimate(filter_mean(w)[..., None] * np.where(w >= 0, 1.0, -1.0), w, everywhere(w))
        return zero_padded(s.estimate(hwgq(x), x, hwgq_slope(x)), binary)

    assert_equals(HWGQConv2D(4, 3, 1, 1), equation, inputs([0]), ['w'])


@pytest.mark.parametrize('size', [1, 3])
def test_syq_learns_a_scale_for_each_position_of_the_kernel(size):
    def equation(s, x, w, scale):
        return conv(two_bits(s, x), scale * s.sign(w, everywhere), pad=size // 2, value=0)

    assert_equals(SYQConv2D(4, size, 1, size // 2), equation, inputs([0, 0.5, 1]), ['w', 'scale'])


@pytest.mark.parametrize('boundary', [True, False])
def test_ttq_learns_the_scales_of_positive_and_negative_weights(boundary):
    def equation(s, x, w, positive, negative):
        codes = ternary(w)
        slopes = np.select([codes > 0, codes < 0], [positive, negative], 1.0)
        weight = s.constant(above(codes)) * positive - s.constant(above(-codes)) * negative
        return zero_padded(s.estimate(np.maximum(x, 0), x, above(x)), weight + s.estimate(np.zeros_like(w), w, slopes))

    assert_equals(TTQConv2D(4, 3, 1, 1), equation, inputs([0]), ['w', 'positive', 'negative'], boundary)


def test_lq_net_multiplies_codes_by_bases_and_passes_gradients_within_the_largest_level():
    def equation(s, x, basis, moments, w, scale):
        small, large = np.sort(basis)
        top = small + large
        levels = np.select([x <= small / 2, x <= top / 2, x <= large + small / 2], [0, small, large], top)
        activation = s.estimate(s.constant(levels), x, ((x > 0) & (x <= top)) * 1.0)
        weight = s.estimate(s.constant(scale * np.where(w >= 0, 1.0, -1.0)), w, everywhere(w))
        return zero_padded(activation, weight)

    names = ['basis', 'moments', 'w', 'scale']
    assert_equals(LQConv2D(4, 3, 1, 1), equation, inputs([0]), names, ungraded=['basis', 'moments', 'scale'])


# --- the bases of LQ-Net ---------------------------------------------------------------------------------------------------------------


def codes_of(x, basis):
    """Codes of the nearest levels (n, 2) for x of any shape."""
    small, large = np.sort(basis)
    index = np.searchsorted([small / 2, (small + large) / 2, large + small / 2], x.ravel())
    return np.array([[0, 0], [1, 0], [0, 1], [1, 1]])[index]


def trained(layer, x, updates, hybridize=False):
    layer.initialize(mx.init.Normal(1))
    layer.hybridize(hybridize)
    for _ in range(updates):
        with autograd.record():
            y = layer(x)
        y.backward()
        update_bases(layer)
    return layer


@pytest.mark.parametrize('hybridize', [False, True])
def test_an_update_moves_the_basis_a_tenth_of_the_way_to_the_least_squares_solution(hybridize):
    x = np.random.RandomState(0).randn(4, 3, 16, 16)
    before = np.array([0.6745 * 2 / 3, 0.6745 * 4 / 3])
    codes = codes_of(x.astype(np.float32), before.astype(np.float32))
    best = np.linalg.lstsq(codes, x.ravel(), rcond=None)[0]
    assert np.abs(best - before).min() > 0.05
    layer = trained(LQActivation(2, 'round'), nd.array(x), 1, hybridize)
    np.testing.assert_allclose(layer.basis.data().asnumpy(), 0.9 * before + 0.1 * best, rtol=1e-5)


def test_the_basis_reaches_the_least_squares_optimum_of_its_codes():
    x = np.random.RandomState(0).randn(4, 3, 16, 16)
    layer = trained(LQActivation(2, 'round'), nd.array(x), 200)
    basis = layer.basis.data().asnumpy().astype(np.float64)
    best = np.linalg.lstsq(codes_of(x, basis), x.ravel(), rcond=None)[0]
    np.testing.assert_allclose(basis, best, rtol=1e-4)
    errors = [np.square(codes_of(x, v) @ v - np.maximum(x.ravel(), 0)).mean() for v in (basis, *(basis * f for f in (0.9, 1.1)))]
    assert errors[0] == min(errors)


def test_bases_of_weights_approach_their_mean_magnitudes():
    layer = LQWeights(4, 3, in_channels=2, pad_value=0, no_offset=True)
    trained(layer, nd.ones((1, 2, 3, 3)), 1)
    magnitude = np.abs(layer.weight.data().asnumpy()).mean(axis=(1, 2, 3))
    initial = 0.6745 * np.sqrt(2 / (4 * 9))
    np.testing.assert_allclose(layer.basis.data().asnumpy().ravel(), 0.9 * initial + 0.1 * magnitude, rtol=1e-6)
    for _ in range(200):
        finish_update(layer)
    np.testing.assert_allclose(layer.basis.data().asnumpy().ravel(), magnitude, rtol=1e-6)


def test_a_code_that_does_not_occur_keeps_its_basis():
    gram, before = np.diag([4.0, 0.0]), np.array([0.5, 1.0])
    np.testing.assert_allclose(best_basis(gram, np.array([2.4, 0.0]), before), [0.6, 1.0], rtol=1e-4)


def test_statistics_that_are_not_finite_are_refused():
    layer = LQActivation(2, 'round')
    with pytest.raises(UserError, match='not finite: training diverged, or .* float16'):
        trained(layer, nd.array([[[[np.inf, 1]]]]), 1)


@pytest.mark.parametrize('bits, method', [(3, 'round'), (1, 'sign')])
def test_activations_of_lq_net_have_two_bits(bits, method):
    with pytest.raises(UserError, match=f'2 bits, or 32 for full precision, not {bits}'):
        LQConv2D(4, 3, activation_bits=bits, activation_method=method)


def test_bases_do_not_change_without_a_backward_pass_or_through_the_optimizer():
    layer, x = LQConv2D(4, 3, in_channels=3), nd.random.normal(shape=(2, 3, 6, 6))
    layer.initialize()
    initial = layer.qact.basis.data().asnumpy()
    layer(x)
    update_bases(layer)
    np.testing.assert_array_equal(layer.qact.basis.data().asnumpy(), initial)
    trainer = mx.gluon.Trainer(layer.collect_params(), 'adam', {'learning_rate': 0.1, 'wd': 0.1})
    with autograd.record():
        y = layer(x)
    y.backward()
    weight = layer.qconv.weight.data().asnumpy()
    trainer.step(2)
    assert (layer.qconv.weight.data().asnumpy() != weight).all()
    np.testing.assert_array_equal(layer.qact.basis.data().asnumpy(), initial)
    assert not layer.qact.moments.data().asnumpy().any()


def test_statistics_of_all_devices_are_added():
    x = nd.random.normal(shape=(8, 3, 6, 6))
    bases = []
    for devices in ([mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]):
        layer = LQActivation(2, 'round')
        layer.initialize(ctx=devices)
        trainer = mx.gluon.Trainer(layer.collect_params(), 'sgd', {'learning_rate': 0.1}, update_on_kvstore=False)
        with autograd.record():
            outputs = [layer(part) for part in mx.gluon.utils.split_and_load(x, devices)]
        autograd.backward(outputs)
        trainer.step(8)
        update_bases(layer)
        bases.extend(basis.asnumpy() for basis in layer.basis.list_data())
    assert len(bases) == 3
    np.testing.assert_allclose(bases[1], bases[0], rtol=1e-6)
    np.testing.assert_allclose(bases[2], bases[0], rtol=1e-6)


# --- counts and networks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'name, ops, size',
    [
        ('resnet18_bwn', 18.14, 4.00),
        ('resnet18_ttq', 18.14, 5.30),
        ('resnet18_dorefa_w2a2', 2.42, 5.31),
        ('resnet18_hwgq', 1.71, 3.37),
        ('resnet18_lqnet_w1a2', 1.71, 3.39),
        ('resnet18_syq_w1a2', 1.90, 4.00),
    ],
)
def test_counts_follow_from_the_bits(name, ops, size):
    counted = bmx.summary(get_model(name))
    assert counted.ops / 1e8 == pytest.approx(ops, abs=0.005) and counted.size_bytes / 2**20 == pytest.approx(size, abs=0.006)
    assert {layer.bits for layer in counted.layers if layer.kind == 'k-bit layer'} <= {2}


@pytest.mark.parametrize(
    'name, flags, bits',
    [
        ('resnet18_bwn', [], (32, 1)),
        ('resnet18_ttq', [], (32, 2)),
        ('resnet18_dorefa_w2a2', [], (2, 2)),
        ('resnet18_dorefa_w2a2', ['--model-options', '{"bits": 4}'], (4, 4)),
        ('resnet18_hwgq', ['--weight-bits', '32'], (2, 32)),
        ('resnet18_syq_w1a2', ['--bits', '32'], (32, 32)),
    ],
)
def test_the_plan_of_a_training_shows_the_bits_of_the_layers(name, flags, bits, tmp_path, capsys):
    train('--model', name, '--dataset', 'digits', *flags, '--dry-run', '--save-dir', tmp_path / 'run')
    assert '; activations of {}, weights of {} bits\n'.format(*bits) in capsys.readouterr().out


@pytest.mark.parametrize('layer', [BWNConv2D, DoReFaConv2D, HWGQConv2D, LQConv2D, SYQConv2D, TTQConv2D])
@pytest.mark.parametrize('hybridize', [False, True])
def test_shapes_are_inferred_and_full_precision_counterparts_have_only_a_weight(layer, hybridize):
    for arguments in ({}, {'bits': 32}):
        net = layer(4, 3, padding=1, **arguments)
        net.initialize()
        net.hybridize(hybridize)
        assert net(nd.ones((1, 3, 5, 5))).shape == (1, 4, 5, 5)
    counterpart = layer(4, 3, padding=1, bits=32, in_channels=3)
    assert [parameter.shape for parameter in counterpart.collect_params().values()] == [(4, 3, 3, 3)]
