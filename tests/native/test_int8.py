"""Layers of 8-bit integers in the engine against the NumPy interpreter: groups, chains, pooling and limits of scales."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import Engine, assert_same_bits, needs_engine
from support.random_programs import PixelMaker, describe

from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operation_table import MAX_BYTE, MAX_INT16, OFFSET_SHIFT
from bmx_melius.deployment.program.operations import PADDING, REAL_KIND, Operation, Value
from bmx_melius.deployment.program.program import Program

pytest_plugins = ['support.engines']  # its fixtures
pytestmark = needs_engine

LARGEST = 2**31 - 1
GROUPED = (  # input channels, filters, groups
    (3, 32, 1),
    (32, 32, 4),
    (32, 64, 8),
    (16, 32, 2),
    (64, 64, 16),
    (64, 32, 8),
    (24, 24, 3),
    (30, 20, 5),
    (17, 17, 17),
    (128, 128, 4),
    (12, 200, 1),
    (64, 100, 2),
    (160, 48, 4),
)


class Maker:
    """Operations of a program with random arrays."""

    def __init__(self, seed, channels, height, width):
        self.random = np.random.RandomState(seed)
        self.inputs = [Value(REAL_KIND, channels, height, width, False)]
        self.operations = []
        self.channels = channels

    def add(self, name, attributes=None, arrays=None):
        self.operations.append(Operation(name, (len(self.operations),), attributes or {}, arrays or {}))

    def pick(self, *choices):
        return choices[self.random.randint(len(choices))]

    def rescaling(self, channels, typical, to_bytes):
        """Return attributes and arrays of a rescaling of numbers of about `typical` magnitude. Others than bytes if not `to_bytes`."""
        low, high = (0, MAX_BYTE) if to_bytes else self.pick((0, MAX_INT16), (-MAX_INT16, MAX_INT16), (-128, 127), (0, MAX_BYTE + 1))
        if self.random.rand() < 0.3:
            low, high = sorted(self.random.randint(low, high + 1, 2).tolist())
        shift = int(self.pick(8, 16, 16, 17, 18, 23, 23, 24, 30, 31, 32, 38))
        factor = self.random.uniform(-1, 3, channels) * (MAX_BYTE if to_bytes else MAX_INT16) / typical
        multiplier = np.rint(factor * 2.0**shift).clip(-LARGEST, LARGEST)
        offset = np.rint(self.random.uniform(-0.5, 1, channels) * max(high, 1) * 2.0**OFFSET_SHIFT).clip(-LARGEST, LARGEST)
        for array in (multiplier, offset):
            array[self.random.rand(channels) < 0.05] = self.pick(0, LARGEST, -LARGEST, 1 << min(shift, 30))
        if self.random.rand() < 0.3:  # no channel is scaled, and none or some are shifted
            shift = min(shift, 30)
            multiplier[:] = 1 << shift
            offset[:] = np.where(self.random.rand(channels) < self.pick(0, 0.5), self.random.randint(-99, 100, channels) << OFFSET_SHIFT, 0)
        attributes = {'shift': shift, 'result_min': int(low), 'result_max': int(high)}
        return attributes, {'multiplier': multiplier.astype(np.int32), 'offset': offset.astype(np.int32)}

    def rescale(self, typical, to_bytes=True):
        self.add('rescale', *self.rescaling(self.channels, typical, to_bytes))

    def window(self, kernel, stride, pad):
        sizes = {f'{name}_{axis}': size for name, size in (('kernel', kernel), ('stride', stride)) for axis in 'hw'}
        return {**sizes, **dict.fromkeys(PADDING, pad)}

    def max_pool(self):
        kernel, stride, pad = self.pick((3, 2, 1), (2, 2, 0), (3, 1, 1))
        if self.is_large():
            self.add('max_pool', {**self.window(kernel, stride, pad), 'ceil': self.pick(0, 1)})

    def is_large(self):
        """Return whether windows of 3 x 3 fit."""
        value = self.program().values()[-1]
        return min(value.height, value.width) >= 3

    def conv(self, filters, groups, to_bytes):
        kernel, pad = self.pick((1, 0), (3, 1), (3, 1), (3, 0)) if self.is_large() else (1, 0)
        weight = self.random.randint(-128, 128, (filters, self.channels // groups, kernel, kernel)).astype(np.int8)
        if self.random.rand() < 0.2:
            weight[self.random.rand(filters) < 0.5] = self.pick(127, -128)  # sums as large as there are
        attributes = {**self.window(kernel, self.pick(1, 1, 2), pad), 'dilation_h': 1, 'dilation_w': 1, 'groups': groups}
        pads = self.random.randint(-9, 300, self.channels).astype(np.int32)
        rescaling, arrays = self.rescaling(filters, 2000 * np.sqrt(weight[0].size), to_bytes)
        self.add('int8_conv', {'out_channels': filters, **attributes, **rescaling}, {'weight': weight, 'pad': pads, **arrays})
        self.channels = filters

    def program(self):
        return Program(self.inputs, self.operations, [len(self.operations)])


def random_program(seed, grouped):
    """Return a program with a chain of 8-bit layers, the first of which has the channels and groups of a row of `GROUPED`."""
    random = np.random.RandomState([seed, *grouped])
    channels, filters, groups = grouped
    maker = Maker([seed, *grouped], channels, random.randint(6, 20), random.randint(6, 20))
    if maker.pick(True, False):  # integers of 16 bits as source
        maker.rescale(3000, to_bytes=False)
    if maker.pick(True, False):
        arrays = {'scale': random.randn(channels).astype(np.float32), 'shift': random.randn(channels).astype(np.float32)}
        maker.add('affine', arrays=arrays)
    if maker.pick(True, True, False):  # otherwise the layer rounds its inputs and limits them to bytes
        maker.rescale(maker.pick(300, 1000, MAX_INT16), to_bytes=maker.pick(True, True, True, False))
    if maker.operations and maker.pick(True, False):
        maker.max_pool()
    if channels % 2 == 0 and maker.pick(True, False):
        maker.add('shuffle', {'groups': maker.pick(*(groups for groups in (2, 8, 16) if channels % groups == 0))})
    layers = random.randint(1, 4)
    for layer in range(layers):
        is_last = layer + 1 == layers  # after one of 16 bits in the middle a new step begins
        maker.conv(filters, groups, to_bytes=maker.pick(True, False, False) if is_last else maker.pick(True, True, True, False))
        following = [row for row in GROUPED if row[0] == maker.channels] or [(maker.channels, random.randint(1, 70), 1)]
        _, filters, groups = following[random.randint(len(following))]
    if maker.pick(True, False):
        maker.max_pool()
    return maker.program()


@pytest.mark.parametrize('grouped', GROUPED, ids=str)
def test_chains_of_layers_equal_the_interpreter_in_every_bit(grouped, library, long_run):
    for seed in range(60 if long_run else 12):
        program = random_program(seed, grouped)
        value = program.inputs[0]
        random = np.random.RandomState([seed, *grouped])
        x = (random.randn(2, value.channels, value.height, value.width) * random.choice([100, 1000, 30000])).astype(np.float32)
        if program.operations[0].name == 'rescale':  # which limits them; the maximum of NaN and a number is undefined
            x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
        expected = reference.run(program, [x])[0]
        engine = Engine.of(library, program)
        for threads in (1, 3):
            np.testing.assert_array_equal(engine.run([x], threads)[0], expected, f'seed {seed}, {threads} threads')


@given(random=st.randoms(use_true_random=True))
@settings(max_examples=settings().max_examples * 4, suppress_health_check=list(HealthCheck))
def test_random_programs_of_integers_equal_the_interpreter_in_every_bit(library, random):
    maker = PixelMaker(random)
    program = maker.program(random.randint(1, 12))
    mean, std = (np.reshape(numbers, (-1, 1, 1)) for numbers in (maker.spec.mean, maker.spec.std))
    inputs = [((maker.pixels(batch=2) - mean) / std).astype(np.float32)]
    engine = Engine.of(library, program)
    for number, wanted in enumerate(reference.run(program, inputs)):
        for threads in (1, 2):
            assert_same_bits(engine.run(inputs, threads)[number], wanted, f'output {number} of\n{describe(program)}')


@given(
    random=st.randoms(use_true_random=True),
    kind=st.sampled_from(('binary_conv', 'binary_conv', 'int8_conv')),
    channels=st.sampled_from((3, 16, 20, 32, 80)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.sampled_from((1, 3)),
    pad_value=st.sampled_from((-1, 1, 0)),
    chain=st.lists(st.sampled_from(('rescale', 'add', 'add rescaled', 'affine', 'max_pool', 'threshold')), min_size=1, max_size=6),
)
@settings(max_examples=settings().max_examples * 4, suppress_health_check=list(HealthCheck))
def test_integers_after_a_convolution_equal_the_interpreter_in_every_bit(library, random, kind, channels, size, kernel, pad_value, chain):
    maker = PixelMaker(random)
    maker.inputs = [Value(REAL_KIND, channels, *size, False)] * 2
    maker.values, maker.operations, maker.bounds = list(maker.inputs), [], [(40000.0, 1.0)] * 2
    limits = {'result_min': -random.choice((9, 6000, MAX_INT16)), 'result_max': random.choice((9, 6000, MAX_INT16))}
    source = maker.add('rescale', 0, **limits)
    shortcut = maker.add('rescale', 1, **limits)
    geometry = {**{f'{name}_{axis}': extent for name, extent in (('kernel', kernel), ('stride', 1), ('dilation', 1)) for axis in 'hw'}}
    geometry.update(dict.fromkeys(PADDING, kernel // 2), groups=1, out_channels=channels)
    if kind == 'binary_conv':
        x = maker.add(kind, maker.add('threshold', source), pad_value=pad_value, offset=0, **geometry)
    else:
        x = maker.add(kind, maker.add('rescale', source, result_min=0, result_max=MAX_BYTE), **geometry)
    for name in chain:
        if name == 'max_pool':
            x = maker.add(name, x, kernel_h=1, kernel_w=1, stride_h=1, stride_w=1, ceil=0, **dict.fromkeys(PADDING, 0))
        elif name == 'threshold':  # another reader of the integers, which remain those of the next operation
            other = maker.add('binary_conv', maker.add(name, x), pad_value=1, offset=0, **geometry)
            shortcut = maker.add('rescale', other, **limits)
        elif name.startswith('add'):
            x = maker.add('add', *random.sample([x, maker.add('rescale', shortcut, **limits) if 'rescaled' in name else shortcut], 2))
        else:
            x = maker.add(name, x, **(limits if name == 'rescale' else {}))
    program = Program(maker.inputs, maker.operations, [x])
    inputs = [np.rint(maker.numpy.standard_normal((2, channels, *size)) * random.choice((5, 300, 20000))).astype(np.float32) for _ in 'xy']
    (expected,) = reference.run(program, inputs)
    engine = Engine.of(library, program)
    for threads in (1, 3):
        np.testing.assert_array_equal(engine.run(inputs, threads)[0], expected, f'{threads} threads\n{describe(program)}')


@pytest.mark.parametrize('to_bytes', [True, False])
def test_rescaling_of_all_integers_of_16_bits_equals_the_interpreter(to_bytes, library):
    channels = 40
    for seed in range(40):
        maker = Maker(seed, channels, 1, 512)
        # as they are, in 16 bits
        whole = {'shift': OFFSET_SHIFT, 'result_min': -MAX_INT16, 'result_max': MAX_INT16}
        maker.add('rescale', whole, {'multiplier': np.full(channels, 1 << OFFSET_SHIFT, np.int32), 'offset': np.zeros(channels, np.int32)})
        maker.rescale(maker.pick(100, 3000, MAX_INT16), to_bytes)
        if to_bytes:  # what integers of 16 bits become in front of a layer
            weight = np.eye(channels, dtype=np.int8)[:, :, None, None]
            window = {**maker.window(1, 1, 0), 'dilation_h': 1, 'dilation_w': 1, 'groups': 1}
            rescaling = {'shift': OFFSET_SHIFT, 'result_min': 0, 'result_max': MAX_BYTE}
            ones = {'multiplier': np.full(channels, 1 << OFFSET_SHIFT, np.int32), 'offset': np.zeros(channels, np.int32)}
            arrays = {'weight': weight, 'pad': np.zeros(channels, np.int32), **ones}
            maker.add('int8_conv', {'out_channels': channels, **window, **rescaling}, arrays)
        x = np.random.RandomState(seed).randint(-MAX_INT16, MAX_INT16 + 1, (1, channels, 1, 512)).astype(np.float32)
        program = maker.program()
        expected = reference.run(program, [x])[0]
        assert np.ptp(expected) > 0
        np.testing.assert_array_equal(Engine.of(library, program).run([x])[0], expected, f'seed {seed}')


@pytest.mark.parametrize('channels', (3, 16, 33))
def test_scale_and_shift_before_rounding_to_integers_are_rounded_once(channels, library):
    # products slightly below 1001.5, which is the nearest float32 number: a product rounded to it and shifted by -1000 is 1.5, rounded to 2
    random = np.random.RandomState(0)
    scale = random.uniform(1, 2, 10000).astype(np.float32)
    numbers = (1001.5 / scale).astype(np.float32)
    below = np.flatnonzero((scale * numbers == 1001.5) & (scale.astype(np.float64) * numbers < 1001.5))[:channels]
    scale, shift = scale[below], np.full(channels, -1000, np.float32)
    x = np.broadcast_to(numbers[below][:, None, None], (2, channels, 7, 9))
    rescaling = {'shift': 24, 'result_min': -MAX_INT16, 'result_max': MAX_INT16}
    arrays = {'multiplier': np.full(channels, 1 << 24, np.int32), 'offset': np.zeros(channels, np.int32)}
    operations = [
        Operation('affine', (0,), {}, {'scale': scale, 'shift': shift}),
        Operation('rescale', (1,), rescaling, arrays),
    ]
    inputs = [np.ascontiguousarray(x)]
    program = Program([Value(REAL_KIND, channels, 7, 9, False)], operations, [2])
    for (integers,) in (reference.run(program, inputs), Engine.of(library, program).run(inputs, 1)):
        assert (integers == 1).all()
