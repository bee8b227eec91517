"""Programs with layers of 8-bit integers exported as C: without floats from the pixels to the outputs, against the NumPy interpreter."""

import random as randoms
import re
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.conversions import programs
from support.exported_c import DTYPES, SANITIZED, bits_of_layers, compile_networks, exported, needs_gcc, reals
from support.networks import of_size
from support.packed import chain, conv, operation, window
from support.paths import ROOT
from support.random_programs import PixelMaker, describe, programs_with_all
from support.small_networks import initialized, randomize_statistics

import bmx_melius as bmx
from bmx_melius.deployment.c_export.rescaling import limits_of, rescaling_of
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import Operation
from bmx_melius.deployment.runtime import engine
from model_zoo import get_model

pytest_plugins = ['support.conversions']  # its fixtures
pytestmark = needs_gcc

INTEGERS = {
    f'__aeabi_{name}' for name in ('idiv', 'idivmod', 'uidiv', 'uidivmod', 'ldivmod', 'lmul', 'lasr', 'llsl', 'llsr')
}  # of the compiler's library
INT32 = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**20), 2**20), st.sampled_from((-(2**31), -1, 0, 1, 2**31 - 1)))


def pixel_programs(seed, count):
    """Yield programs with, together, every operation of `PixelMaker`: name, `PixelMaker`, program."""
    random = randoms.Random(seed)

    def make():
        maker = PixelMaker(random)
        return maker, maker.program(random.randint(1, 12))

    for number, (maker, program) in enumerate(programs_with_all(PixelMaker.names, count, make), 1):
        yield f'net{number}', maker, program


def has_floats(network):
    return any(re.search(r'\b(float|double)\b', text) for text in network.files.values())


@pytest.mark.parametrize('seed, flags', [(1, SANITIZED), (2, ['-O2'])])
def test_random_programs_of_integers_contain_no_floats_and_equal_the_interpreter(seed, flags, tmp_path, long_run):
    cases = list(pixel_programs(seed, 300 if long_run else 20))
    networks = {name: exported(program, name, spec=maker.spec) for name, maker, program in cases}
    compiled = compile_networks(tmp_path, networks, flags)
    for name, maker, program in cases:
        assert not has_floats(networks[name]), describe(program)
        pixels = maker.pixels(batch=3)
        expected = reference.run(program, [maker.spec.normalized(pixels)])
        for found, values in zip(compiled.run(name, [pixels.transpose(0, 2, 3, 1)]), expected):
            assert found.dtype.kind == 'i'
            np.testing.assert_array_equal(found, values.reshape(len(values), -1), err_msg=describe(program))


@given(
    channels=st.lists(st.tuples(INT32, INT32), min_size=1, max_size=3),
    shift=st.integers(8, 38),
    limits=st.tuples(st.integers(-32766, 32766), st.integers(-32766, 32766)),
    bounds=st.tuples(st.integers(-(2**23), 2**23), st.integers(-(2**23), 2**23)),
    random=st.randoms(use_true_random=True),
)
def test_every_form_of_rescaling_gives_the_results_of_the_definition(channels, shift, limits, bounds, random):
    low, high = sorted(limits)
    occurring = tuple(sorted(bounds))
    arrays = {name: np.array(numbers, np.int32) for name, numbers in zip(('multiplier', 'offset'), zip(*channels))}
    made = Operation('rescale', (0,), {'shift': shift, 'result_min': low, 'result_max': high}, arrays)
    first, last = limits_of(made, [occurring] * len(channels))
    assert occurring[0] <= first <= last <= occurring[1]
    rescaling = rescaling_of(made, [(first, last)] * len(channels))
    near = [
        n + step
        for m, o in channels
        if m
        for limit in (low, high)
        for n in [((limit << shift) - (o << shift - 8)) // m]
        for step in range(-2, 3)
    ]
    numbers = [*occurring, *(random.randint(*occurring) for _ in range(20)), *(n for n in near if occurring[0] <= n <= occurring[1])]
    for c, (multiplier, offset) in enumerate(channels):
        constants = rescaling.numbers.reshape(-1)[c * rescaling.step :].tolist()
        for n in numbers:
            exact = ((n * multiplier << 8) + (offset << shift) + (1 << (shift + 7))) >> (shift + 8)
            limited = min(max(n, first), last)
            if rescaling.form == 'wide':
                found = ((limited * multiplier >> rescaling.split) + constants[1] + 128) >> 8
            else:
                upper, lower = divmod(multiplier, 1 << rescaling.split)
                total = limited * upper + constants[1] + (limited * lower >> rescaling.split)
                assert -(2**31) <= total < 2**31 and -(2**31) <= limited * lower < 2**31 and rescaling.shift < 32
                found = total >> rescaling.shift
            assert constants[0] == multiplier and min(max(found, low), high) == min(max(exact, low), high)


def test_64_bits_are_for_results_far_beyond_the_limits():
    """Not for multipliers and shifts that conversion chooses, also if results skip numbers."""
    arrays = {'multiplier': np.array([2**12, 2**14], np.int32), 'offset': np.array([0, 3000], np.int32)}
    made = Operation('rescale', (0,), {'shift': 23, 'result_min': 0, 'result_max': 255}, arrays)
    for multiplier, largest, form in ((2**15, 2**15, 'split'), (2**25 + 1, 2**15, 'split'), (2**30, 2**23, 'wide')):
        made.arrays['multiplier'][0] = multiplier
        assert rescaling_of(made, [(-largest, largest)] * 2).form == form
    first, last = (512 * (result - 3000 / 256) for result in (0.5, 254.5))  # of the second channel, the last numbers between the limits
    assert limits_of(made, [(-(2**23), 2**23)] * 2) == (first - 1, last)


SPEC = bmx.InputSpec(size=32, resize=32)
SMALL = {
    'initial_layers': 'grouped_stem',
    'block_numbers': (1, 2),
    'transitions': (64,),
    'groups': 4,
    'growth_rate': 32,
    'init_features': 32,
}
NETWORKS = [  # grouped convolutions and a shuffle; depthwise convolutions; padding at one end
    ('meliusnet_flex', SMALL),
    ('mobilenet0.25', {}),
    ('resnet8', {}),
    *(pytest.param(name, of_size(name, 32), marks=pytest.mark.long) for name in ('quicknet_small', 'reactnet18', 'real_to_binary18')),
    ('binary_ds_cnn', {'spectrogram': (32, 32)}),
]


@pytest.mark.parametrize('name, options', NETWORKS)
def test_a_network_of_the_zoo_has_the_bits_of_the_engine_in_every_layer(name, options, convert, tmp_path):
    engine.require_engine()
    net = initialized(get_model(name, classes=10, **options), (1, 3, 32, 32))
    randomize_statistics(net)
    pixels = np.random.RandomState(0).randint(0, 256, (6, 3, 32, 32)).astype(np.uint8)
    report, prefix = convert(net, (1, 3, 32, 32), input_spec=SPEC, calibration=pixels, verify=False)
    (program,) = programs(prefix)
    network = exported(program, 'net', spec=SPEC)
    assert has_floats(network) == bool(report.quantization.real)
    assert [one.type for one in (*network.inputs, *network.outputs)] == ['uint8_t', 'int16_t']
    assert '_wide' not in network.files['net.c']
    compiled = compile_networks(tmp_path, {'net': network}, ['-O2'])
    images, inputs = pixels.transpose(0, 2, 3, 1), SPEC.normalized(pixels)
    if any(one.name == 'threshold' for one in program.operations):
        np.testing.assert_array_equal(compiled.trace('net', [images]), bits_of_layers(program, [inputs]))
    (scores,) = reals(compiled.run('net', [images]), network)
    np.testing.assert_array_equal(scores, bmx.Session(prefix)(pixels))


def integer_layer(channels=3, filters=4):
    """Return a convolution of 8-bit integers with results of 16 bits, for `chain`."""
    random = np.random.RandomState(0)
    weight = random.randint(-128, 128, (filters, channels, 3, 3)).astype(np.int8)
    numbers = {'multiplier': np.full(filters, 900, np.int32), 'offset': np.full(filters, 77, np.int32)}
    arrays = {'weight': weight, 'pad': np.arange(channels, dtype=np.int32), **numbers}
    return operation('int8_conv', arrays=arrays, out_channels=filters, shift=16, result_min=-32766, result_max=32766, **window(3, pad=1))


@pytest.mark.parametrize('scales, shift', [((0.5, 0.5, 0.5, 0.5), 0), ((0.5, 0.5, 0.5, 0.5), 3), ((1, 1, 2, 1), 0), ((-1, -1, -1, -1), 0)])
def test_outputs_are_integers_where_one_scale_orders_them(scales, shift, tmp_path):
    scaling = operation('affine', arrays={'scale': np.array(scales, 'f'), 'shift': np.full(4, shift, 'f')})
    program = chain((3, 4, 4), integer_layer(), scaling)
    network = exported(program, 'net')
    header = network.files['net.h']
    if scales[0] > 0 and len(set(scales)) == 1:
        assert '// int16_t: 4 channels of 4 rows of 4' in header and '#define NET_OUTPUT_SCALE 0.5f' in header
        assert ('#define NET_OUTPUT_SHIFT 3.0f' in header) == bool(shift)
    else:
        assert 'float* output' in header and 'SCALE' not in header
    images = np.random.RandomState(0).uniform(-9, 270, (2, 3, 4, 4)).astype('f')
    images[0, 0, 0] = 0.5, 1.5, 254.5, np.inf
    (found,) = reals(compile_networks(tmp_path, {'net': network}).run('net', [images]), network)
    np.testing.assert_array_equal(found, reference.run(program, [images])[0].reshape(2, -1))


@pytest.mark.parametrize(
    'pooling', [operation('integer_mean', fraction_bits=8), operation('integer_avg_pool', fraction_bits=8, **window(18, 1, 3))]
)
def test_means_of_many_integers_need_64_bits(pooling, tmp_path):
    whole = {'multiplier': np.full(3, 256, np.int32), 'offset': np.zeros(3, np.int32)}
    rounding = operation('rescale', arrays=whole, shift=8, result_min=-32766, result_max=32766)
    program = chain((3, 20, 20), rounding, pooling)
    network = exported(program, 'net')
    assert '_i64(' in network.files['net.c'] and network.outputs[0].type == 'int32_t'
    images = np.random.RandomState(0).choice((-32766, -1, 0, 7, 32766), (3, 3, 20, 20)).astype('f')
    images[0, :2] = np.array([32766, -32766])[:, None, None]
    (found,) = compile_networks(tmp_path, {'net': network}).run('net', [images])
    np.testing.assert_array_equal(found, reference.run(program, [images])[0].reshape(3, -1))


def test_pixels_are_the_input_only_if_the_first_operations_compute_them_again():
    spec = bmx.InputSpec(3, 4, 4, (100, 110, 120), (50, 60, 70))
    rounding = {'multiplier': np.full(3, 256, np.int32), 'offset': np.zeros(3, np.int32)}
    for mean, expected in ((120, 'uint8_t'), (121, 'float')):
        scaling = operation('affine', arrays={'scale': np.array(spec.std, 'f'), 'shift': np.array([100, 110, mean], 'f')})
        program = chain((3, 4, 4), scaling, operation('rescale', arrays=rounding, shift=8, result_min=0, result_max=255), integer_layer())
        assert [one.type for one in exported(program, 'net', spec=spec).inputs] == [expected]
    assert [one.type for one in exported(program, 'net').inputs] == ['float']


def test_programs_without_layers_of_8_bit_integers_keep_their_floats():
    program = chain((3, 4, 4), conv(np.ones((2, 3, 1, 1), 'f')))
    network = exported(program, 'net', spec=bmx.InputSpec(3, 4, 4))
    assert [one.type for one in (*network.inputs, *network.outputs)] == ['float', 'float'] and 'net_normalize' in network.files['net.h']


@pytest.mark.skipif(not (shutil.which('arm-none-eabi-gcc') and shutil.which('qemu-system-arm')), reason='needs a Cortex-M in QEMU')
@pytest.mark.parametrize('processor', ['cortex-m0', 'cortex-m4'])  # without and with dual multiply-adds
def test_a_microcontroller_gives_the_results_of_the_interpreter_without_functions_for_floats(processor, tmp_path):
    cases = [case for case in pixel_programs(3, 24) if exported(case[2], 'net', spec=case[1].spec, outputs=[0]).ram < 8000][:8]
    assert len(cases) == 8
    for name, maker, program in cases:
        network, folder = exported(program, name, spec=maker.spec, outputs=[0]), tmp_path / name
        folder.mkdir()
        for file, text in network.files.items():
            (folder / file).write_text(text)
        pixels = maker.pixels(batch=2)
        (folder / 'images.bin').write_bytes(pixels.transpose(0, 2, 3, 1).tobytes())
        (output,) = network.outputs
        defined = {'NETWORK_HEADER': f'"{name}.h"', 'NETWORK_RUN': f'{name}_run', 'LAYERS': len(network.layers)}
        defined.update({f'{side}_SIZE': f'{name.upper()}_{side}_SIZE' for side in ('INPUT', 'OUTPUT')})
        defined.update(INPUT_TYPE='uint8_t', OUTPUT_TYPE=output.type)
        flags = ' '.join(f"'-D{key}={value}'" for key, value in defined.items())
        programs = [f'PROGRAM={ROOT}/tools/mcu/run.c', f'EXTRA=-include {ROOT}/tools/mcu/hooks.h {flags}']
        make = ['make', '-s', '-f', ROOT / 'examples/mcu/Makefile', f'PROCESSOR={processor}', f'NETWORK={folder / name}', f'OUT={folder}']
        subprocess.run([*make, *programs, 'run'], check=True, cwd=folder, timeout=100)
        symbols = subprocess.run(['arm-none-eabi-nm', '-u', folder / 'network.o'], stdout=subprocess.PIPE, text=True, check=True)
        assert {symbol for symbol in symbols.stdout.split() if symbol.startswith('__')} <= INTEGERS
        found = np.fromfile(folder / 'outputs.bin', DTYPES[output.type]).reshape(2, -1)
        expected = reference.run(program, [maker.spec.normalized(pixels)])[0]
        np.testing.assert_array_equal(found, expected.reshape(2, -1), err_msg=describe(program))


def packed_layer(channels, filters, groups, kernel, levels, largest):
    """Return a layer of few levels of bytes up to `largest`, for `chain`. The sums of its first filter are the largest ones."""
    random, bits = np.random.RandomState(filters), (len(levels) - 1).bit_length()
    table = np.int8([*levels, *[0] * (2**bits - len(levels))])[None]
    codes = random.rand(bits, filters, channels // groups * kernel**2) < 0.5
    codes[:, 0] = np.abs(table[0].astype(int)).argmax() >> np.arange(bits)[:, None] & 1
    numbers = {'multiplier': np.full(filters, 1 << 8, np.int32), 'offset': np.full(filters, 77, np.int32)}
    pad = random.randint(0, largest + 1, channels).astype('i4')
    arrays = {'codes': codes.reshape(bits, -1), 'levels': table, 'pad': pad, **numbers}
    attributes = {'bits': bits, 'groups': groups, 'shift': 8, 'result_min': -(1 << 14), 'result_max': 1 << 14}
    return operation('level_int8_conv', arrays=arrays, out_channels=filters, **attributes, **window(kernel, pad=kernel // 2))


@pytest.mark.parametrize(
    'levels, largest, kind, layer',
    [
        ((-1, 1), 255, 'pairs1', (129, 33, 1, 1)),
        ((8, -8), 255, 'pairs1', (21, 64, 1, 3)),  # the sums of 16 codes have 16 bits
        ((-9, 8), 255, 'codes', (21, 64, 1, 3)),
        ((-127, 0, 93), 3, 'pairs2', (45, 33, 3, 3)),
        ((-127, 0, 93), 255, 'codes', (45, 33, 3, 3)),
        (range(-4, 4), 255, 'pairs3', (21, 64, 1, 3)),
        (range(-100, 60, 20), 255, 'codes', (129, 33, 1, 1)),
        (range(-32, 0, 2), 255, 'pairs4', (45, 33, 3, 3)),
        (range(-33, -1, 2), 255, 'codes', (21, 64, 1, 3)),
    ],
)
def test_weights_of_few_levels_keep_their_bits(levels, largest, kind, layer, tmp_path):
    """Each word has the weights of a pair of filters; with an odd number of filters, the last one is a pair with itself."""
    channels, filters, groups, kernel = layer
    layer, whole = packed_layer(*layer, levels, largest), np.full(channels, 256, np.int32)
    rounding = {'multiplier': whole, 'offset': 0 * whole}
    program = chain((channels, 4, 5), operation('rescale', arrays=rounding, shift=8, result_min=0, result_max=largest), layer)
    network = exported(program, 'net')
    assert f'bmx_products_{kind}(' in network.files['net.c'] and 'bmx_products_i8(' not in network.files['net.c']
    sizes = dict(re.findall(r'static const \w+ (\w+)_2\[(\d+)\]', network.files['net_weights.h']))
    bits = layer.attributes['bits']
    assert int(sizes['levels']) == 2 ** (bits if kind == 'codes' else 2 * bits)
    assert int(sizes['weights']) == groups * -(-filters // groups // 2) * -(-channels // groups * kernel**2 // (16 // bits))
    images = np.random.RandomState(0).randint(0, largest + 1, (3, channels, 4, 5)).astype('f')
    images[0] = largest
    (found,) = compile_networks(tmp_path, {'net': network}).run('net', [images])
    np.testing.assert_array_equal(found, reference.run(program, [images])[0].reshape(3, -1))


def test_few_weights_of_few_levels_stay_bytes():
    program = chain((3, 4, 4), packed_layer(3, 2, 1, 1, (-1, 0, 1), 255))
    assert 'static const int8_t weights_1[6]' in exported(program, 'net').files['net_weights.h']
