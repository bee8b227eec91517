"""RAdam against the reference trajectories and an independent implementation in float64, and as Gluon's Trainer uses it."""

import json
import math
import warnings

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon
from support.gradients import descend
from support.paths import DATA

from bmx_melius.errors import UserError
from bmx_melius.optimizers import RAdam

RUNS = json.loads((DATA / 'radam.json').read_text())


def create(**kwargs):
    return mx.optimizer.create('radam', **kwargs)


def trajectory(optimizer, weight, gradients, dtype='float32'):
    """Return the weights after each update, shape (updates, ...), and the final state."""
    weight = mx.nd.array(weight, dtype=dtype)
    state = optimizer.create_state_multi_precision(0, weight)
    weights = []
    for gradient in gradients:
        optimizer.update_multi_precision(0, weight, mx.nd.array(gradient, dtype=dtype), state)
        weights.append(weight.asnumpy())
    return np.array(weights), state


def liu_2020_algorithm_2(weight, gradients, lr, beta1, beta2, epsilon, threshold, wd, rescale, clip):
    """The paper's algorithm in float64, term by term in its own notation; epsilon outside the root of the raw second moment."""
    weight = weight.astype(np.float64)
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    rho_infinity = 2 / (1 - beta2) - 1
    weights = []
    for t, gradient in enumerate(gradients.astype(np.float64), start=1):
        g = rescale * gradient + wd * weight
        g = g if clip is None else np.clip(g, -clip, clip)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        corrected_m = m / (1 - beta1**t)
        rho = rho_infinity - 2 * t * beta2**t / (1 - beta2**t)
        if rho > threshold:
            correction = math.sqrt(1 - beta2**t)
            rectification = math.sqrt((rho - 4) * (rho - 2) * rho_infinity / ((rho_infinity - 4) * (rho_infinity - 2) * rho))
            weight = weight - lr * rectification * corrected_m * correction / (np.sqrt(v) + epsilon)
        else:
            weight = weight - lr * corrected_m
        weights.append(weight)
    return np.array(weights), m, v


@pytest.mark.parametrize('parameter', [0, 1])
@pytest.mark.parametrize('run', sorted(RUNS['runs']))
def test_trajectories_equal_the_reference(run, parameter):
    with np.load(DATA / 'radam.npz') as data:
        start, gradients = data[f'w0_{parameter}'], data[f'grads_{parameter}']
        rates, expected = data[f'{run}/lr'], {name: data[f'{run}/{name}_{parameter}'] for name in 'wmv'}
    arguments = {name: value for name, value in RUNS['runs'][run].items() if name != 'sched'}
    if RUNS['runs'][run]['sched']:
        arguments['lr_scheduler'] = lambda update: float(rates[update - 1])
    weights, (m, v) = trajectory(create(**arguments), start, gradients)
    np.testing.assert_allclose(weights, expected['w'], rtol=0, atol=1e-5)
    np.testing.assert_allclose(m.asnumpy(), expected['m'], rtol=0, atol=1e-5)
    np.testing.assert_allclose(v.asnumpy(), expected['v'], rtol=0, atol=1e-5)


def test_defaults_are_those_of_the_reference():
    optimizer = create()
    names = {'beta1': 'beta1', 'beta2': 'beta2', 'epsilon': 'epsilon', 'n_sma_threshold': 'N_sma_threshhold'}
    assert {names[name]: getattr(optimizer, name) for name in names} == RUNS['defaults']
    assert optimizer.learning_rate == RUNS['runs']['default']['learning_rate']


@given(
    seed=st.integers(0, 2**16),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    updates=st.integers(1, 40),
    lr=st.floats(1e-4, 1e-1),
    beta1=st.just(0.0) | st.floats(0.01, 0.99),
    beta2=st.floats(0.1, 0.9995),
    epsilon=st.floats(1e-6, 1e-2),
    threshold=st.floats(4, 12),
    wd=st.just(0.0) | st.floats(1e-4, 0.1),
    rescale=st.floats(0.1, 2),
    clip=st.none() | st.floats(0.1, 3),
)
def test_equals_an_independent_float64_implementation(seed, shape, updates, lr, beta1, beta2, epsilon, threshold, wd, rescale, clip):
    random = np.random.RandomState(seed)
    weight, gradients = random.randn(*shape).astype(np.float32), random.randn(updates, *shape).astype(np.float32)
    optimizer = create(
        learning_rate=lr,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        n_sma_threshold=threshold,
        wd=wd,
        rescale_grad=rescale,
        clip_gradient=clip,
    )
    weights, (m, v) = trajectory(optimizer, weight, gradients)
    expected, expected_m, expected_v = liu_2020_algorithm_2(weight, gradients, lr, beta1, beta2, epsilon, threshold, wd, rescale, clip)
    # float32 rounds 1 - beta2 by up to 2 ** -25 / (1 - beta2) < 6.0e-5 of v, half as much of a step
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=5e-5 * max(lr * updates, 0.1))
    np.testing.assert_allclose(m.asnumpy(), expected_m, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(v.asnumpy(), expected_v, rtol=1e-4, atol=1e-6)


def test_rectified_from_the_first_update_whose_average_is_longer_than_the_threshold():
    """With beta2 = .999, N is 5.0 - a little after 5 updates and above 5 after 6, as in Liu et al.'s program.

    Before, a weight moves in proportion to its gradient; from then on, weights whose gradients differ by a factor move almost alike.
    """
    gradients = np.tile([1.0, 100.0], (8, 1))
    weights, _ = trajectory(create(learning_rate=0.1), np.zeros(2), gradients)
    small, large = np.diff(weights, axis=0, prepend=np.zeros((1, 2))).T
    ratios = large / small
    n = np.array([2 / 0.001 - 1 - 2 * t * 0.999**t / (1 - 0.999**t) for t in range(1, 9)])
    assert list(n > 5) == 5 * [False] + 3 * [True]
    np.testing.assert_allclose(ratios, np.where(n > 5, 1, 100), rtol=0.01)


def test_a_weight_without_gradient_stays():
    weights, _ = trajectory(create(), np.ones(3), np.zeros((20, 3)))
    np.testing.assert_array_equal(weights, 1)


def test_the_rate_of_the_scheduler_is_used_when_none_is_given():
    scheduler = mx.lr_scheduler.FactorScheduler(step=100, base_lr=0.5)
    assert create(lr_scheduler=scheduler).learning_rate == 0.5
    assert create(lr_scheduler=scheduler, learning_rate=0.25).learning_rate == 0.25


def test_updates_are_counted_for_each_parameter():
    """A parameter that joins later starts with its own first update, not with the optimizer's."""
    gradients = np.random.RandomState(0).randn(12, 3).astype(np.float32)
    alone, _ = trajectory(create(), np.ones(3), gradients)
    optimizer = create()
    trajectory(optimizer, np.ones(3), gradients[:7])
    late = mx.nd.ones(3)
    state = optimizer.create_state(1, late)
    for gradient in gradients:
        optimizer.update(1, late, mx.nd.array(gradient), state)
    np.testing.assert_array_equal(late.asnumpy(), alone[-1])


class Affine(gluon.HybridBlock):
    """y = weight * x + bias for each element: also in float16, which MXNet's Dense has for GPUs only."""

    def __init__(self, dtype='float32'):
        super().__init__()
        start = mx.init.Constant(mx.nd.array([-2, 0.5, 3], dtype=dtype))
        with self.name_scope():
            self.weight = self.params.get('weight', shape=(3,), dtype=dtype, init=start)
            self.bias = self.params.get('bias', shape=(3,), dtype=dtype, init='zeros')
        self.initialize()

    def hybrid_forward(self, F, x, weight, bias):
        return F.broadcast_add(F.broadcast_mul(x, weight), bias)


def train(layer, trainer, steps, seed=0):
    random = np.random.RandomState(seed)
    for _ in range(steps):
        x = mx.nd.array(random.randn(8, 3), dtype=layer.weight.dtype)
        descend(trainer, 8, lambda x=x: (layer(x) - x - 1).square())
    return {'weight': layer.weight.data().asnumpy(), 'bias': layer.bias.data().asnumpy()}


def test_multipliers_of_parameters_are_honoured():
    def trained(wd, wd_mult=1):
        layer = Affine()
        layer.bias.lr_mult, layer.weight.wd_mult = 0, wd_mult
        return train(layer, gluon.Trainer(layer.collect_params(), 'radam', {'wd': wd}), 10)

    with_decay, without_decay = trained(0.5, wd_mult=0), trained(0)
    np.testing.assert_array_equal(with_decay['bias'], 0)
    np.testing.assert_array_equal(with_decay['weight'], without_decay['weight'])
    assert not np.allclose(trained(0.5)['weight'], without_decay['weight'])


@pytest.mark.parametrize('arguments', [{}, {'dtype': 'float16', 'multi_precision': True}], ids=['float32', 'float16'])
@pytest.mark.parametrize('update_on_kvstore', [False, True])
@pytest.mark.parametrize('first_steps', [3, 15])
def test_a_resumed_trainer_continues_identically(tmp_path, first_steps, update_on_kvstore, arguments):
    """Saved among the momentum steps and among the rectified steps; the schedule continues where it was."""
    dtype, options = arguments.get('dtype', 'float32'), {k: v for k, v in arguments.items() if k != 'dtype'}

    def begin():
        layer = Affine(dtype)
        scheduler = mx.lr_scheduler.CosineScheduler(max_update=30, base_lr=0.01)
        return layer, gluon.Trainer(
            layer.collect_params(),
            'radam',
            {'lr_scheduler': scheduler, 'wd': 1e-3, **options},
            kvstore=mx.kv.create('local'),
            update_on_kvstore=update_on_kvstore,
        )

    layer, trainer = begin()
    train(layer, trainer, first_steps)
    trainer.save_states(str(tmp_path / 'trainer.states'))
    layer.save_parameters(str(tmp_path / 'layer.params'))
    uninterrupted = train(layer, trainer, 12, seed=1)

    layer, trainer = begin()
    layer.load_parameters(str(tmp_path / 'layer.params'))
    trainer.load_states(str(tmp_path / 'trainer.states'))
    resumed = train(layer, trainer, 12, seed=1)
    assert trainer.learning_rate == mx.lr_scheduler.CosineScheduler(max_update=30, base_lr=0.01)(first_steps + 12)
    for name, expected in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], expected)


def test_copies_on_two_devices_stay_equal_to_one_on_a_single_device():
    random = np.random.RandomState(0)
    batches = [random.randn(8, 3) for _ in range(12)]

    def run(devices):
        layer = Affine()
        layer.collect_params().reset_ctx(devices)
        trainer = gluon.Trainer(layer.collect_params(), 'radam')
        for batch in batches:
            parts = gluon.utils.split_and_load(mx.nd.array(batch), devices)
            descend(trainer, 8, lambda parts=parts: [(layer(x) - 1).square() for x in parts])
        return [copy.asnumpy() for copy in layer.weight.list_data()]

    (alone,) = run([mx.cpu()])
    for copy in run([mx.cpu(0), mx.cpu(1)]):
        np.testing.assert_allclose(copy, alone, rtol=1e-6)


def test_multi_precision_keeps_small_updates_that_float16_would_lose():
    gradients = np.ones((50, 1), np.float32)
    exact, _ = trajectory(create(learning_rate=1e-5), np.ones(1), gradients)
    kept, (master, _) = trajectory(create(learning_rate=1e-5, multi_precision=True), np.ones(1), gradients, dtype='float16')
    np.testing.assert_array_equal(master.asnumpy(), exact[-1])
    np.testing.assert_array_equal(kept, exact.astype(np.float16))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)  # MXNet's advice to use multi_precision
        lost, _ = trajectory(create(learning_rate=1e-5), np.ones(1), gradients, dtype='float16')
    np.testing.assert_array_equal(lost, 1)


def test_a_sparse_gradient_is_one_clear_error_naming_the_parameter():
    layer = gluon.nn.Embedding(5, 2, sparse_grad=True)
    layer.initialize()
    trainer = gluon.Trainer(layer.collect_params(), 'radam', kvstore=None)
    with pytest.raises(UserError, match=rf'{layer.weight.name} has a default weight and a row_sparse gradient'):
        descend(trainer, 1, lambda: layer(mx.nd.array([1, 2])))


@pytest.mark.parametrize(
    'arguments',
    [
        {'beta1': 1},
        {'beta1': -0.1},
        {'beta2': 1},
        {'beta2': float('nan')},
        {'epsilon': 0},
        {'n_sma_threshold': 3.9},
    ],
    ids=str,
)
def test_an_argument_out_of_range_is_one_clear_error(arguments):
    name = next(iter(arguments))
    with pytest.raises(UserError, match=f'RAdam: {name} must be'):
        RAdam(**arguments)


def test_radam_prints_its_hyperparameters():
    assert repr(RAdam(wd=1e-4)) == 'RAdam(learning_rate=0.002, beta1=0.95, beta2=0.999, epsilon=1e-05, wd=0.0001)'
    scheduler = mx.lr_scheduler.FactorScheduler(step=1, base_lr=0.5)
    assert 'learning_rate=0.5' in repr(RAdam(learning_rate=0.5, lr_scheduler=scheduler))
