"""LQ-Net against the authors' pre-activation ResNet, its stem and two stages, and its learned bases."""

import dataclasses

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.authors_arrays import assert_same, learned, read_cases
from support.gradients import descend, gradients
from support.networks import layers_of
from support.small_networks import sequence

from bmx_melius import UserError
from bmx_melius.nn.methods.lq_net import MOMENTUM, LQActivation, LQConv2D, LQWeights, best_basis, update_bases
from bmx_melius.nn.methods.updates import finish_update
from model_zoo.residual import NETWORKS, ResidualArchitecture, ResidualNetwork

ROW = NETWORKS['resnet{}_lqnet_w1a2']


def bases(quantizers):
    return [layer.basis.data().asnumpy().ravel() for layer in quantizers]


def test_maps_gradients_and_bases_after_an_update_are_those_of_the_authors_code():
    case = read_cases('lq_net')[0]['stages']
    options = dataclasses.replace(ROW.options, init_features=8, same_padding=True)
    network = ResidualNetwork(ResidualArchitecture((4, 4), ROW), options)
    stages = sequence(*list(network.features._children.values())[:7])
    theirs = [parameter for parameter in learned(stages) if 'moments' not in parameter.name]
    assert_same(stages, case, parameters=lambda _: theirs, tolerance=1e-4)  # their code ran in float32

    activations, weights = layers_of(stages, LQActivation), layers_of(stages, LQWeights)
    first, _, shortcut, *_ = layers_of(stages[5], LQActivation)  # of the same map, which the authors quantize once
    before = bases([*activations, *weights])
    update_bases(stages)
    np.testing.assert_array_equal(*bases([first, shortcut]))
    # theirs is the least-squares solution after the first update, because their moving average is corrected for its start
    updated = [array for key, array in sorted(case.arrays.items()) if key.startswith('updated')]
    solutions = [
        *(solution for solution in updated if solution.shape == (2, 1)),
        *(solution for solution in updated if solution.shape[0] == 1),
    ]
    solutions.insert(activations.index(shortcut), solutions[activations.index(first)])
    for old, new, solution in zip(before, bases([*activations, *weights]), solutions):
        np.testing.assert_allclose(new, MOMENTUM * old + (1 - MOMENTUM) * solution.ravel(), rtol=1e-4)
    assert len(solutions) == len(before) == 18


# --- the bases -----------------------------------------------------------------------------------------------------------------------


def codes_of(x, basis):
    """Codes of the nearest levels (n, 2) for x of any shape."""
    small, large = np.sort(basis)
    index = np.searchsorted([small / 2, (small + large) / 2, large + small / 2], x.ravel())
    return np.array([[0, 0], [1, 0], [0, 1], [1, 1]])[index]


def trained(layer, x, updates, hybridize=False):
    layer.initialize(mx.init.Normal(1))
    layer.hybridize(hybridize)
    for _ in range(updates):
        gradients(layer, [x])
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


def test_bases_do_not_change_without_a_backward_pass_or_through_the_optimizer():
    layer, x = LQConv2D(4, 3, in_channels=3), nd.random.normal(shape=(2, 3, 6, 6))
    layer.initialize()
    initial = layer.qact.basis.data().asnumpy()
    layer(x)
    update_bases(layer)
    np.testing.assert_array_equal(layer.qact.basis.data().asnumpy(), initial)
    trainer = mx.gluon.Trainer(layer.collect_params(), 'adam', {'learning_rate': 0.1, 'wd': 0.1})
    weight = layer.qconv.weight.data().asnumpy()
    descend(trainer, 2, lambda: layer(x))
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
        parts = mx.gluon.utils.split_and_load(x, devices)
        descend(trainer, 8, lambda layer=layer, parts=parts: [layer(part) for part in parts])
        update_bases(layer)
        bases.extend(basis.asnumpy() for basis in layer.basis.list_data())
    assert len(bases) == 3
    np.testing.assert_allclose(bases[1], bases[0], rtol=1e-6)
    np.testing.assert_allclose(bases[2], bases[0], rtol=1e-6)
