"""Programs exported as C: compiled for this machine, against the NumPy interpreter and the engine, bit for bit."""

import platform
import random as randoms

import mxnet as mx
import numpy as np
import pytest
from support.engines import assert_same_bits
from support.exported_c import SANITIZED, bits_of_layers, compile_networks, exported, needs_gcc, reals
from support.long_runs import mostly_long
from support.packed import binary_conv, binary_layers, chain, conv, make_image, operation, sign, window
from support.packed_networks import engine_of
from support.random_programs import Maker, describe, numbers_beside_ties, programs_with_all
from support.small_networks import initialized
from support.zeros import MAXIMA, OTHERS, program_of

import bmx_melius as bmx
from bmx_melius.deployment.c_export.layer_calls import UNSUPPORTED
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import OPERATIONS
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.packed_files import read_packed
from model_zoo import get_model

pytest_plugins = ['support.conversions']  # its fixtures
pytestmark = needs_gcc

POPCNT = ['-mpopcnt'] if platform.machine() == 'x86_64' else []  # the other way to count bits
FMA = ['-mfma'] if platform.machine() == 'x86_64' else []
SEEDS = {3: SANITIZED, 6: SANITIZED, 8: ['-O2'], 13: ['-O3', *POPCNT]}
SUPPORTED = [name for name in OPERATIONS if name not in UNSUPPORTED]


def random_programs(seed, count):
    """Yield at least `count` programs that can be exported, together with every operation: name, `Maker`, program."""
    random = randoms.Random(seed)

    def make():
        while True:
            maker = Maker(random, exact=random.random() < 0.6)
            program = maker.program(random.randint(1, 14))
            if all(operation.name in SUPPORTED for operation in program.operations):
                return maker, program

    for number, (maker, program) in enumerate(programs_with_all(SUPPORTED, count, make), 1):
        yield f'net{number}', maker, program


def compare(compiled, name, maker, program):
    inputs = maker.data([(value.height, value.width) for value in program.inputs], batch=2)
    expected = reference.run(program, inputs) if maker.exact else engine_of(program).run(inputs)
    for found, values in zip(reals(compiled.run(name, inputs), compiled.networks[name]), expected):
        assert_same_bits(found, values.reshape(len(values), -1), describe(program))


@pytest.mark.parametrize('seed', mostly_long(SEEDS, 3, 8))
def test_random_programs_have_the_bits_of_the_interpreter_and_the_engine(seed, tmp_path, long_run):
    """Exact programs are compared with NumPy; others, whose sums depend on the order, with the engine."""
    engine.require_engine()
    cases = list(random_programs(seed, 150 if long_run else 8))
    networks = {name: exported(program, name) for name, _, program in cases}
    compiled = compile_networks(tmp_path, networks, SEEDS[seed])
    for case in cases:
        compare(compiled, *case)


SMALL = {'block_numbers': (1, 2), 'transitions': (64,), 'groups': 4, 'growth_rate': 32, 'init_features': 32}
LARGE = [
    ('birealnet18', 8, {'initial_layers': 'thumbnail'}),
    ('reactnet18', 32, {}),
    ('quicknet_small', 32, {}),
    ('real_to_binary18', 32, {}),
    ('resnet18_xnor', 16, {'initial_layers': 'thumbnail'}),
]
NETWORKS = [  # grouped convolutions and a shuffle; depthwise convolutions; padding at one end; sums of floats, PReLU, gates, ELU, means
    ('meliusnet_flex', 32, SMALL),
    ('mobilenet0.25', 32, None),
    ('resnet8', 32, None),
    *(pytest.param(*network, marks=pytest.mark.long) for network in LARGE),
]


@pytest.mark.parametrize('name, size, options', NETWORKS)
def test_a_network_of_the_zoo_has_the_bits_of_the_engine_in_every_layer(name, size, options, convert, tmp_path):
    engine.require_engine()
    shape = (1, 3, size, size)
    net = initialized(get_model(name, classes=10, **(options or {})), shape, mx.init.Normal(0.2))
    _, prefix = convert(net, shape, verify=False)
    program, _, _, outputs, _ = read_packed(prefix)
    images = np.random.RandomState(0).randn(2, *shape[1:]).astype(np.float32)
    compiled = compile_networks(tmp_path, {'net': exported(program, 'net', outputs=outputs)}, ['-O2'])
    if options is not None:
        np.testing.assert_array_equal(compiled.trace('net', [images]), bits_of_layers(program, [images]))
    (scores,) = compiled.run('net', [images])
    np.testing.assert_array_equal(scores, bmx.Session(prefix)(images))


def run_one(tmp_path, program, inputs, **flags):
    """Return the outputs of a program exported as C."""
    outputs = compile_networks(tmp_path, {'net': exported(program, 'net')}, **flags).run('net', inputs)
    return [output.reshape(-1, *program.values()[number].shape) for output, number in zip(outputs, program.outputs)]


@pytest.mark.parametrize('channels', [3, 24])
def test_a_bias_before_a_scale_has_the_bits_of_the_engine(channels, tmp_path):
    """The engine makes one shift of both. The first layers add in another order than the layers after them, and layers of many inputs."""
    engine.require_engine()
    random, operations = np.random.RandomState(0), []
    for inputs in (channels, 5):
        weight, (bias, scale, shift) = random.randn(5, inputs, 3, 3).astype('f'), random.randn(3, 5).astype('f')
        operations += [conv(weight, bias=bias, **window(3, pad=1)), operation('affine', arrays={'scale': scale, 'shift': shift})]
    program = chain((channels, 6, 6), *operations)
    inputs = [random.randn(2, channels, 6, 6).astype('f')]
    np.testing.assert_array_equal(run_one(tmp_path, program, inputs), engine_of(program).run(inputs))


def test_rounding_is_that_of_ieee_754(tmp_path):
    inputs = numbers_beside_ties()
    np.testing.assert_array_equal(run_one(tmp_path, chain(inputs[0].shape[1:], operation('round')), inputs)[0], np.rint(inputs[0]))


@pytest.mark.parametrize('flags', [SANITIZED, ['-O2', *FMA]], ids=['in integers', 'optimized'])
def test_zeros_have_the_signs_of_the_interpreter(flags, tmp_path):
    """`SANITIZED` has no instruction for fused multiply-adds, which are then computed in integers."""
    names = {f'net{number}': name for number, name in enumerate((*MAXIMA, *OTHERS))}
    compiled = compile_networks(tmp_path, {net: exported(program_of(name)[0], net) for net, name in names.items()}, flags)
    for net, name in names.items():
        program, inputs = program_of(name)
        (expected,) = reference.run(program, inputs)
        (found,) = reals(compiled.run(net, inputs), compiled.networks[net])
        assert_same_bits(found, expected.reshape(len(expected), -1), name)


def test_groups_of_bits_have_the_bits_of_the_interpreter_with_optimization(tmp_path):
    """GCC 12.2 removed the calls that copy the groups to words of their own (`kernel_sources`)."""
    weight = np.random.RandomState(0).rand(64, 3, 3, 4) < 0.5
    program = chain((8, 10, 4), sign(8), binary_conv(weight, groups=2, **window(3, pad=1)))
    inputs = [make_image(batch=2, channels=8, height=10, width=4)]
    np.testing.assert_array_equal(run_one(tmp_path, program, inputs, flags=['-O2']), reference.run(program, inputs))


@pytest.mark.parametrize('reader', [{'begin': 0, 'end': 32}, {'begin': 8, 'end': 24}], ids=['all channels', 'some channels'])
def test_a_map_that_is_read_before_a_binary_layer_is_added_to_it_keeps_its_values(reader, tmp_path):
    operations = *binary_layers(), operation('slice', 2, **reader), operation('relu'), operation('add', 2, 3)
    program = chain((32, 5, 5), *operations, outputs=[5, 6])
    inputs = [make_image(batch=2, channels=32, height=5, width=5)]
    for found, expected in zip(run_one(tmp_path, program, inputs), reference.run(program, inputs)):
        np.testing.assert_array_equal(found, expected)


def test_the_maximum_of_a_map_with_negative_scales_is_that_of_the_scaled_map(tmp_path):
    scaling = operation('affine', arrays={'scale': np.linspace(-1, 1, 32).astype('f'), 'shift': np.linspace(-3, 2, 32).astype('f')})
    program = chain((32, 7, 6), *binary_layers()[:2], operation('abs'), scaling, operation('max_pool', **window(3, 2, 1)))
    inputs = [make_image(batch=2, channels=32, height=7, width=6)]
    np.testing.assert_allclose(run_one(tmp_path, program, inputs), reference.run(program, inputs), rtol=1e-6)


def test_sums_beyond_16_bits_are_integers(tmp_path):
    random, filters = np.random.RandomState(0), 3
    weight = random.rand(filters, 3, 3, 4096) < 0.5
    weight[0] = True
    compare = {'threshold': np.array([36864, 35, -np.inf], 'f'), 'flip': np.zeros(filters, bool)}
    program = chain(
        (4096, 3, 3), sign(4096), binary_conv(weight), operation('threshold', arrays=compare), operation('expand', 3), outputs=[2, 4]
    )
    assert 'bmx_threshold_i32(' in exported(program, 'net').files['net.c']
    inputs = [np.concatenate([np.ones((1, 4096, 3, 3), 'f'), random.randn(1, 4096, 3, 3).astype('f')])]
    for found, expected in zip(run_one(tmp_path, program, inputs), reference.run(program, inputs)):
        np.testing.assert_array_equal(found, expected)
