"""Step functions and weights of few levels, recognized: exactly, or not at all."""

import random

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_onnx import make, node

from bmx_melius.deployment.convert.weight_levels import weight_parts
from bmx_melius.deployment.onnx.evaluation import Evaluator
from bmx_melius.deployment.onnx.model import read_model
from bmx_melius.deployment.onnx.recognition import find_step, is_nonnegative

CHANNELS = 3
LARGEST = np.finfo(np.float32).max
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1.1754942e-38,
        -1.1754942e-38,
        1.17549435e-38,
        0.5,
        1,
        -1,
        2,
        1e-3,
        4095,
        4096,
        1e15,
        -1e15,
        LARGEST,
        -LARGEST,
    ],
    np.float32,
)


def evaluator_of(model, tmp_path, shape=(1, CHANNELS, 8, 8)):
    path = tmp_path / 'net.onnx'
    path.write_bytes(model.SerializeToString())
    return Evaluator(read_model(path), {'x': shape})


def step_of(nodes, constants, tmp_path, channels=CHANNELS):
    """Return the step by which the last node's output y is computed from x, and a function of x (channels, n) -> (source, y)."""
    model = make(nodes, constants, {'x': (1, channels, 'h', 'w')})
    step = find_step(evaluator_of(model, tmp_path, (1, channels, 8, 8)), 'y')
    if step is None:
        return None, None
    del model.graph.output[:]
    wanted = [name for name in ('y', step.source) if name != 'x']
    model.graph.output.extend(type(model.graph.input[0])(name=name) for name in wanted)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)

    def computed(x):
        maps = {'x': x.reshape(1, channels, 1, -1), **dict(zip(wanted, session.run(None, {'x': x.reshape(1, channels, 1, -1)})))}
        return tuple(maps[name].reshape(channels, -1) for name in (step.source, 'y'))

    return step, computed


def require_exact(step, computed, interesting=(), channels=CHANNELS, widest_tie=0):
    """Require the levels of the step at numbers of all magnitudes, next to thresholds, at the extremes, and next to given numbers.

    A tie is of at most 17 numbers, or of an interval of at most `widest_tie`.
    """
    bits = np.random.RandomState(0).randint(0, 1 << 32, 4000, np.uint64).astype(np.uint32)
    near = [bits.view(np.float32), np.random.RandomState(1).normal(size=2000).astype(np.float32), SPECIAL]
    numbers = [threshold for threshold, _ in step.comparisons] + ([step.upper[0]] if step.upper else [])
    with np.errstate(over='ignore'):
        around = np.concatenate([*numbers, np.ravel(np.asarray(interesting, np.float32)), SPECIAL])
    for direction in (-np.inf, np.inf):
        moved = around
        for _ in range(20):
            near.append(moved)
            moved = np.nextafter(moved, np.float32(direction))
    with np.errstate(over='ignore', invalid='ignore'):
        near += [around * np.float32(factor) for factor in (0.5, 0.99, 0.9999, 1.0001, 1.01, 2)]
        near += [(around[:, None] / 2 + around / 2).ravel()]
    x = np.unique(np.concatenate(near))
    x = np.append(x[np.isfinite(x)], np.float32(-0.0))
    source, y = computed(np.tile(x, (channels, 1)))
    index = sum(((source >= threshold[:, None]) != flip[:, None]).astype(int) for threshold, flip in step.comparisons)
    expected = np.take_along_axis(step.levels.T, index, axis=1)
    valid = np.abs(source) <= step.bound
    wrong = (np.abs(y - expected) > 2 * step.tolerance) & valid
    if step.tie_channels:
        (lower, flip), (upper, upper_flip) = step.comparisons[0], step.upper
        tie = ((source >= lower[:, None]) != flip[:, None]) != ((source >= upper[:, None]) != upper_flip[:, None])
        ties = [row[where] for row, where in zip(source, tie) if where.any()]
        assert all(len(np.unique(row)) <= 17 or np.ptp(row) <= widest_tie for row in ties)
        wrong &= ~tie
    assert not wrong.any(), (source[wrong][:5], y[wrong][:5], expected[wrong][:5])


# --- forms of signs -----------------------------------------------------------------------------------------------------------------------

NUMBERS = {'zero': np.float32(0), 'one': np.float32(1), 'two': np.float32(2), 'minus': np.float32(-1), 'half': np.float32(0.5)}
POLYNOMIAL = [node('Clip', 'x minus one', 'c'), node('Mul', 'c c', 'cc'), node('Mul', 'c two', 'c2'), node('Add', 'cc c2', 'p')]
FORMS = {
    'where greater': ([node('Greater', 'x zero', 'g'), node('Where', 'g one minus')], True),
    'where at least': ([node('GreaterOrEqual', 'x zero', 'g'), node('Where', 'g one minus')], False),
    'where less': ([node('Less', 'x zero', 'g'), node('Where', 'g minus one')], False),
    'sign': ([node('Sign', 'x')], None),
    'cast': ([node('Greater', 'x zero', 'g'), node('Cast', 'g', 'b', to=1), node('Mul', 'b two', 'd'), node('Sub', 'd one')], True),
    'polynomial': (
        [node('Less', 'x zero', 'g'), node('Where', 'g minus one', 's'), *POLYNOMIAL, node('Sub', 's p', 'd'), node('Add', 'd p')],
        False,
    ),
    'difference': ([node('Less', 'x zero', 'g'), node('Where', 'g minus one', 's'), node('Sub', 's x', 'd'), node('Add', 'd x')], False),
    'clip and round': (
        [
            *(node('Div', 'x two', 'd'), node('Add', 'd half', 'e'), node('Clip', 'e zero one', 'c'), node('Round', 'c', 'r')),
            *(node('Mul', 'r two', 'm'), node('Sub', 'm one')),
        ],
        True,
    ),
}


@pytest.mark.parametrize('form', FORMS)
def test_signs_in_many_forms_are_recognized(form, tmp_path):
    nodes, strict = FORMS[form]
    step, computed = step_of(nodes, NUMBERS, tmp_path)
    assert step is not None and np.allclose(step.levels, [[-1], [1]], atol=1e-3)
    assert bool(step.tie_channels) == (strict is None)
    require_exact(step, computed)
    (threshold, flip) = step.comparisons[0]
    assert not flip.any() and (threshold >= 0).all() and (threshold <= 1e-6).all()
    if strict is not None and form != 'clip and round':
        assert ((threshold > 0) == strict).all()


@pytest.mark.parametrize('least', [30, 30_000, 500_000])
def test_near_thresholds_of_large_sums_are_found(least, tmp_path):
    thresholds = {f't{n}': np.float32(least * 1.03**n) for n in range(15)}
    nodes = []
    for name in thresholds:
        nodes += [node('Less', f'x {name}', f'{name}_less'), node('Where', f'{name}_less zero one', f'{name}_step')]
    step, computed = step_of([*nodes, node('Sum', ' '.join(f'{name}_step' for name in thresholds))], {**thresholds, **NUMBERS}, tmp_path)
    np.testing.assert_array_equal(step.levels[:, 0], np.arange(16))
    require_exact(step, computed, list(thresholds.values()))


def test_levels_beyond_the_magnitudes_that_are_tried_are_not_forgotten(tmp_path):
    # (y - x) + x has levels for small x only, and x has numbers up to more than a million here
    nodes = [node('Mul', 'u million', 'x'), node('Less', 'x zero', 'l0'), node('Where', 'l0 minus one', 's0')]
    nodes += [node('Less', 'x far', 'l1'), node('Where', 'l1 zero one', 's1'), node('Add', 's0 s1', 's')]
    model = make(
        [*nodes, node('Sub', 's x', 'd'), node('Add', 'd x')],
        {**NUMBERS, 'million': np.float32(1e6), 'far': np.float32(1e5)},
        {'u': (1, 3, 8, 8)},
    )
    path = tmp_path / 'net.onnx'
    onnx.save(model, path)
    assert find_step(Evaluator(read_model(path), {'u': (1, CHANNELS, 8, 8)}), 'y') is None


@pytest.mark.parametrize('after', [[], [node('MaxPool', 'r', 'q', kernel_shape=[2, 2])], [node('Relu', 'x', 'o'), node('Add', 'r o', 'q')]])
def test_signs_of_what_is_not_negative_are_strict_comparisons(after, tmp_path):
    last = after[-1].output[0] if after else 'r'
    model = make([node('Relu', 'x', 'r'), *after, node('Sign', last)], {}, {'x': (1, CHANNELS, 8, 8)})
    step = find_step(evaluator_of(model, tmp_path), 'y')
    assert not step.tie_channels and np.array_equal(step.levels, [[0] * CHANNELS, [1] * CHANNELS])
    threshold, flip = step.comparisons[0]
    assert (threshold == np.float32(1e-45)).all() and not flip.any()


EPSILON = 1e-4
THREE = {
    'a': np.float32(1),
    'b': np.float32(1 + EPSILON),
    'near': np.float32(1e-5),
    'large': np.float32(5000),
    'h': np.float32(1e4),
    **NUMBERS,
}
SUM_OF_SIGNS = [node('Sub', 'x a', 'u'), node('Sign', 'u', 's'), node('Sub', 'x b', 'v'), node('Sign', 'v', 't'), node('Add', 's t')]
NOT_STEPS = {
    'a narrow level between two others': SUM_OF_SIGNS,
    'a narrow gap': [
        *(node('Sub', 'x b', 'u'), node('Abs', 'u', 'v'), node('Less', 'v near', 'w'), node('Sign', 'x', 's')),
        node('Where', 'w minus s'),
    ],
    'a narrow bump by two comparisons': [
        *(node('Greater', 'x a', 'u'), node('Less', 'x b', 'v'), node('And', 'u v', 'w'), node('Less', 'x zero', 'n')),
        *(node('Where', 'n minus one', 's'), node('Where', 'w minus s')),
    ],
    'a bump at one number': [
        node('Equal', 'x a', 'w'),
        node('Less', 'x zero', 'n'),
        node('Where', 'n minus one', 's'),
        node('Where', 'w minus s'),
    ],
    'both ends': [node('Abs', 'x', 'u'), node('Sub', 'u one', 'v'), node('Sign', 'v')],
    'a period': [node('Sin', 'x', 'u'), node('Sign', 'u')],
    'a remainder': [node('Mod', 'x two', 'u', fmod=1), node('Sign', 'u')],
    'a step down and up': [node('Sign', 'x', 's'), node('Greater', 'x large', 'g'), node('Where', 'g minus s')],
}


@pytest.mark.parametrize('form', NOT_STEPS)
def test_other_functions_are_not_taken_as_signs(form, tmp_path):
    """Unless a value on the way is the source, or the function is a step up to a bound."""
    step, computed = step_of(NOT_STEPS[form], THREE, tmp_path)
    if step is not None:
        assert step.source != 'x' or step.bound == 4096 and form == 'a step down and up'
        require_exact(step, computed, [1, 1 + EPSILON, 5000])


def test_an_interval_around_0_that_a_sum_absorbs_is_a_tie(tmp_path):
    """As between two shifts that cancel: the sign of (x + 0.5) - 0.5 is 0 within 2^-25."""
    step, computed = step_of([node('Add', 'x half', 'a'), node('Sub', 'a half', 'b'), node('Sign', 'b')], NUMBERS, tmp_path)
    assert np.array_equal(step.levels, [[-1] * CHANNELS, [1] * CHANNELS]) and step.tie_channels == CHANNELS
    require_exact(step, computed, [2**-25, -(2**-26)], widest_tie=2**-24)


def test_a_dead_zone_is_a_level(tmp_path):
    limits = {'low': np.float32(-1e-4), 'high': np.float32(1e-4)}
    nodes = [node('Greater', 'x high', 'g'), node('Less', 'x low', 'l'), node('Where', 'l minus zero', 'w'), node('Where', 'g one w')]
    step, computed = step_of(nodes, {**NUMBERS, **limits}, tmp_path)
    require_exact(step, computed, [1e-4, -1e-4])
    assert len(step.levels) == 3


def test_channels_may_be_constant_and_have_other_levels(tmp_path):
    by_channel = {'scale': np.array([0, 2, -3], np.float32).reshape(3, 1, 1), 'low': np.array([1, -1, 0.5], np.float32).reshape(3, 1, 1)}
    nodes = [node('Mul', 'x scale', 'm'), node('Less', 'm half', 'g'), node('Where', 'g low two')]
    step, computed = step_of(nodes, {**NUMBERS, **by_channel}, tmp_path)
    require_exact(step, computed, [0.25, -1 / 6])
    assert not step.tie_channels


def test_a_channel_without_the_upper_level_is_not_a_tie(tmp_path):
    """Its sign is 0 or -1, never 1."""
    limit = {'limit': np.array([0, 1, 1], np.float32).reshape(3, 1, 1)}
    step, computed = step_of([node('Sign', 'x', 's'), node('Min', 's limit')], {**NUMBERS, **limit}, tmp_path)
    require_exact(step, computed)
    assert len(step.levels) == 3 and not step.tie_channels


# --- random forms -------------------------------------------------------------------------------------------------------------------------


class Forms:
    """A random chain of operators from x, with the constants."""

    def __init__(self, seed):
        self.random, self.nodes, self.constants, self.count = random.Random(seed), [], {}, 0

    def number(self):
        draw = self.random.random()
        if draw < 0.5:
            return np.float32(self.random.choice((0, 1, -1, 2, 0.5, 0.25, 3, -0.5, 1.5)))
        if draw < 0.8:
            return np.float32(self.random.gauss(0, 1))
        if draw < 0.9:
            return np.array([self.random.getrandbits(32)], np.uint32).view(np.float32)[0]
        return np.float32(self.random.choice((*SPECIAL, np.inf, -np.inf, np.nan)))

    def constant(self, by_channel=None):
        name = f'k{len(self.constants)}'
        by_channel = self.random.random() < 0.4 if by_channel is None else by_channel
        if by_channel:
            self.constants[name] = np.array([self.number() for _ in range(CHANNELS)], np.float32).reshape(CHANNELS, 1, 1)
        else:
            self.constants[name] = self.number()
        return name

    def op(self, kind, *inputs, **attributes):
        self.count += 1
        self.nodes.append(node(kind, ' '.join(inputs), f'v{self.count}', **attributes))
        return f'v{self.count}'

    def fixed(self, value):
        name = f'c{value}'.replace('-', 'm').replace('.', '_')
        self.constants[name] = np.float32(value)
        return name

    def affine(self, x):
        if self.random.random() < 0.3:
            parameters = [f'{name}{self.count}' for name in ('gamma', 'beta', 'mean', 'var')]
            for name in parameters:
                self.constants[name] = np.array([self.random.gauss(0, 1) for _ in range(CHANNELS)], np.float32)
            self.constants[parameters[3]] = np.abs(self.constants[parameters[3]])
            return self.op('BatchNormalization', x, *parameters)
        return self.op(self.random.choice(('Add', 'Sub', 'Mul', 'Div')), x, self.constant())

    def condition(self, x):
        condition = self.op(self.random.choice(('Greater', 'GreaterOrEqual', 'Less', 'LessOrEqual')), x, self.constant())
        return self.op('Not', condition) if self.random.random() < 0.2 else condition

    def sign(self, x):
        one, minus, zero, two = (self.fixed(value) for value in (1, -1, 0, 2))
        form = self.random.randrange(9)
        if form == 0:
            return self.op('Sign', x)
        if form in (1, 2):
            return self.op('Where', self.condition(x), *self.random.sample((one, minus, self.constant(), self.constant()), 2))
        if form == 3:
            return self.op('Sub', self.op('Mul', self.op('Cast', self.condition(x), to=1), two), one)
        if form == 4:
            return self.op('Sub', self.op('Mul', self.op('Round', self.op('Clip', x, zero, one)), two), one)
        if form == 5:
            return self.op('Add', self.sign(x), self.sign(self.affine(x)))
        if form == 6:
            combined = self.op(self.random.choice(('And', 'Or', 'Xor')), self.condition(x), self.condition(self.affine(x)))
            return self.op('Where', combined, one, minus)
        if form == 7:
            near = self.op('Less', self.op('Abs', self.op('Sub', x, self.constant())), self.fixed(self.random.choice((1e-6, 1e-3, 0.5))))
            return self.op('Where', near, self.sign(x), self.fixed(self.random.choice((1, -1))))
        return self.op('Clip', self.op('Mul', x, self.fixed(self.random.choice((1e6, 1e30)))), minus, one)

    def estimated(self, x, sign):
        form, one, minus, two = self.random.randrange(4), self.fixed(1), self.fixed(-1), self.fixed(2)
        if form == 0:
            return sign
        estimate = x if form == 1 else self.op('Clip', x, minus, one)
        if form == 3:
            estimate = self.op('Add', self.op('Mul', estimate, estimate), self.op('Mul', estimate, two))
        return self.op('Add', self.op('Sub', sign, estimate), estimate)

    def build(self):
        x = 'x'
        for _ in range(self.random.randrange(3)):
            x = self.affine(x)
        if self.random.random() < 0.15:
            x = self.op(self.random.choice(('Relu', 'Abs', 'Tanh', 'Sin', 'HardSigmoid', 'Neg', 'Floor')), x)
        y = self.estimated(x, self.sign(x))
        for _ in range(self.random.randrange(3)):
            y = self.affine(y)
        self.nodes.append(node('Identity', y))
        return self.nodes, self.constants


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('forms')


@pytest.mark.filterwarnings('ignore')
@given(seed=st.integers(0, 1 << 32))
def test_random_forms_are_recognized_exactly_or_not_at_all(folder, seed):
    nodes, constants = Forms(seed).build()
    step, computed = step_of(nodes, constants, folder)
    if step is not None:
        interesting = np.concatenate([np.ravel(value) for value in constants.values()]) if constants else ()
        require_exact(step, computed, interesting, widest_tie=1e-6)  # 2^-22 of the largest number of the sample


# --- what cannot be negative --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'nodes, expected',
    [
        ([node('Relu', 'x')], True),
        ([node('Relu', 'x', 'r'), node('MaxPool', 'r', kernel_shape=[2, 2])], True),
        ([node('Relu', 'x', 'r'), node('Sigmoid', 'x', 's'), node('Add', 'r s')], True),
        ([node('Relu', 'x', 'r'), node('Add', 'r x')], False),
        ([node('Relu', 'x', 'r'), node('Add', 'r minus')], False),
        ([node('Relu', 'x', 'r'), node('Sub', 'r half')], False),
        ([node('Clip', 'x zero one')], True),
        ([node('Clip', 'x zero')], True),
        ([node('Clip', 'x zero minus')], False),
        ([node('Clip', 'x minus one')], False),
        ([node('Relu', 'x', 'r'), node('Resize', 'r zero scales', mode='nearest')], True),
        ([node('Relu', 'x', 'r'), node('Resize', 'r zero scales', mode='cubic')], False),
    ],
)
def test_values_that_cannot_be_negative(nodes, expected, tmp_path):
    constants = {**NUMBERS, 'scales': np.array([1, 1, 2, 2], np.float32)}
    for each in nodes:
        if each.op_type == 'Resize':
            each.input[1] = ''
    model = make(nodes, constants, {'x': (1, CHANNELS, 8, 8)})
    evaluator = evaluator_of(model, tmp_path)
    assert is_nonnegative(evaluator, 'y') == expected
    assert not expected or (evaluator.sampled['y'] >= 0).all()


# --- weights ------------------------------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 1 << 32),
    levels=st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=5),
    shape=st.sampled_from([(4, 8), (3, 4, 3, 3), (2, 1, 1, 1), (1, 6, 2), (2, 3, 2, 2, 2)]),
    by=st.sampled_from(['filter', 'nothing', 'position', 'exponent']),
)
def test_parts_of_weights_are_signs_times_numbers_and_sum_to_the_weight(seed, levels, shape, by):
    generator = np.random.RandomState(seed)
    weight = generator.choice(np.array(levels, np.float32), shape)
    sizes = {'filter': (len(weight), *(1,) * (weight.ndim - 1)), 'position': (1, 1, *weight.shape[2:])}
    if by == 'exponent':
        weight = weight * np.float32(10.0) ** generator.randint(-30, 30, sizes['filter']).astype(np.float32)
    elif by in sizes:
        weight = weight * generator.normal(size=sizes[by]).astype(np.float32)
    weight = weight.astype(np.float32)
    found = weight_parts(weight)
    if found is None:
        assert by == 'position' or not weight.any() or len(np.unique(levels)) > 1
        return
    axes = tuple(range(1, weight.ndim))
    total = sum(found.parts) + (0 if found.means is None else found.means.reshape(sizes['filter']))
    assert (np.abs(total - weight) <= 1e-4 * np.abs(weight).max(axis=axes, keepdims=True)).all()
    for part in found.parts:
        magnitudes = np.abs(part)
        assert np.ptp(magnitudes, axis=1).max() <= 1e-6 * magnitudes.max(), 'one number for each filter or position'


@pytest.mark.parametrize('number', [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_have_no_parts(number):
    weight = np.ones((2, 3, 3, 3), np.float32)
    weight[1, 2, 0, 0] = number
    assert weight_parts(weight) is None


def test_a_filter_of_small_real_weights_is_not_taken_as_one_of_signs():
    """A normalization behind the layer enlarges it."""
    weight = np.random.RandomState(0).normal(size=(2, 64)).astype(np.float32)
    weight[0] = np.sign(weight[0])
    weight[1] *= 1e-6
    assert weight_parts(weight) is None


def test_levels_that_run_into_each_other_are_not_one():
    assert weight_parts(np.linspace(0.9, 1, 20000, dtype=np.float32).reshape(2, -1)) is None
