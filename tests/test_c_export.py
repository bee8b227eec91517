"""Programs exported as C: compiled for this machine, against the NumPy interpreter and the engine, bit for bit."""

import itertools
import json
import pathlib
import platform
import random as randoms
import re
import shutil
import subprocess

import mxnet as mx
import numpy as np
import pytest
from exported_c import FREESTANDING, SANITIZED, bits_of_layers, compile_networks
from packed import geometry, make_image, make_program, write_packed
from random_programs import Maker, describe
from small_networks import initialized

import bmx_melius as bmx
from bmx_melius import InputSpec, UserError
from bmx_melius.__main__ import main
from bmx_melius.deployment.c_export import kernel_sources
from bmx_melius.deployment.c_export.c_files import to_c
from bmx_melius.deployment.c_export.code_size import FUNCTION_BYTES
from bmx_melius.deployment.c_export.layer_calls import UNSUPPORTED
from bmx_melius.deployment.convert.conversion import convert
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import OPERATIONS, REAL_KIND, Operation, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.packed_files import read_packed
from model_zoo import get_model

pytestmark = pytest.mark.skipif(not shutil.which('gcc'), reason='the exported C is compiled by gcc')

ROOT = pathlib.Path(__file__).parent.parent
POPCNT = ['-mpopcnt'] if platform.machine() == 'x86_64' else []  # the other way to count bits
SEEDS = {3: SANITIZED, 6: SANITIZED, 8: ['-O2'], 13: ['-O3', *POPCNT]}
STRUCTURES = ('bmx_span', 'bmx_window', 'bmx_conv', 'bmx_binary_conv', 'bmx_taps')
SUPPORTED = [name for name in OPERATIONS if name not in UNSUPPORTED]


def size_of(value):
    return value.channels * value.height * value.width


def exported(program, name, **arguments):
    """Return what `compile_networks` takes: the network in C and the sizes of its inputs and outputs."""
    values = program.values(arguments.get('sizes'))
    outputs = arguments.pop('outputs', list(range(len(program.outputs))))
    network = to_c(program, outputs, name, **arguments)
    inputs = [size_of(value) for value in values[: len(program.inputs)]]
    return network, inputs, [size_of(values[program.outputs[output]]) for output in outputs]


def random_programs(seed, count):
    """Yield programs that can be exported: name, `Maker`, program."""
    random = randoms.Random(seed)
    while count:
        maker = Maker(random, exact=random.random() < 0.6)
        program = maker.program(random.randint(1, 14))
        if not any(operation.name in UNSUPPORTED for operation in program.operations):
            yield f'net{count}', maker, program
            count -= 1


def compare(compiled, networks, name, maker, program):
    inputs = maker.data([(value.height, value.width) for value in program.inputs], batch=2)
    expected = reference.run(program, inputs) if maker.exact else engine.Runner(program, program.to_words()).run(inputs)
    for found, values in zip(compiled.run(name, inputs, networks[name][2]), expected):
        np.testing.assert_array_equal(found, values.reshape(len(values), -1), err_msg=describe(program))


@pytest.mark.parametrize('seed', SEEDS)
def test_random_programs_have_the_bits_of_the_interpreter_and_the_engine(seed, tmp_path, long_run):
    """Exact programs are compared with NumPy; others, whose sums depend on the order, with the engine."""
    engine.require_engine()
    cases = list(random_programs(seed, 150 if long_run else 20))
    networks = {name: exported(program, name) for name, _, program in cases}
    compiled = compile_networks(tmp_path, networks, SEEDS[seed])
    for case in cases:
        compare(compiled, networks, *case)


def test_random_programs_contain_every_supported_operation():
    for seed in SEEDS:
        names = {operation.name for _, _, program in random_programs(seed, 20) for operation in program.operations}
        assert names == set(SUPPORTED)


SMALL = {'block_numbers': (1, 2), 'transitions': (64,), 'groups': 4, 'growth_rate': 32, 'init_features': 32}
LARGE = [
    ('birealnet18', 8, {'initial_layers': 'thumbnail'}),
    ('reactnet18', 32, {}),
    ('quicknet_small', 32, {}),
    ('real_to_binary18', 32, {}),
    ('resnet18_xnor', 16, {'initial_layers': 'thumbnail'}),
]
NETWORKS = [  # grouped convolutions and a shuffle; depthwise convolutions; and residual sums of floats, PReLU, gates, ELU, means
    ('meliusnet_flex', 32, SMALL),
    ('mobilenet0.25', 32, None),
    *(pytest.param(*network, marks=pytest.mark.long) for network in LARGE),
]


@pytest.mark.parametrize('name, size, options', NETWORKS)
def test_a_network_of_the_zoo_has_the_bits_of_the_engine_in_every_layer(name, size, options, tmp_path):
    engine.require_engine()
    shape = (1, 3, size, size)
    net = initialized(get_model(name, classes=10, **(options or {})), shape, mx.init.Normal(0.2))
    net.export(str(tmp_path / 'net'))
    convert(tmp_path / 'net-symbol.json', tmp_path / 'net-0000.params', tmp_path / 'packed', shape, verify=False)
    program, _, _, outputs, _ = read_packed(tmp_path / 'packed')
    images = np.random.RandomState(0).randn(2, *shape[1:]).astype(np.float32)
    compiled = compile_networks(tmp_path, {'net': exported(program, 'net', outputs=outputs)}, ['-O2'])
    if options is not None:
        np.testing.assert_array_equal(compiled.trace('net', [images]), bits_of_layers(program, [images]))
    (scores,) = compiled.run('net', [images], [10])
    np.testing.assert_array_equal(scores, bmx.Session(tmp_path / 'packed')(images))


def run_one(tmp_path, program, inputs):
    """Return the outputs of a program exported as C."""
    networks = {'net': exported(program, 'net')}
    return compile_networks(tmp_path, networks).run('net', inputs, networks['net'][2])


def binary_layers(inputs=32):
    """Return a sign of value 0 and two binary convolutions of it, values 1 to 3."""
    random = np.random.RandomState(0)
    sign = {'threshold': np.zeros(inputs, 'f'), 'flip': np.zeros(inputs, bool)}
    binary = {'out_channels': 32, **geometry(3, pad=1), 'dilation_h': 1, 'dilation_w': 1, 'groups': 1, 'pad_value': -1, 'offset': 1}
    weights = [{'weight': random.rand(32, 3, 3, inputs) < 0.5} for _ in range(2)]
    return [Operation('threshold', (0,), {}, sign)] + [Operation('binary_conv', (1,), {**binary, 'planes': 1}, array) for array in weights]


@pytest.mark.parametrize('channels', [3, 24])
def test_a_bias_before_a_scale_has_the_bits_of_the_engine(channels, tmp_path):
    """The engine makes one shift of both. The first layers add in another order than those after them, and those of many inputs."""
    engine.require_engine()
    random, operations = np.random.RandomState(0), []
    for source, inputs in ((0, channels), (2, 5)):
        window = {**geometry(3, pad=1), 'dilation_h': 1, 'dilation_w': 1, 'groups': 1, 'has_bias': 1, 'half': 0}
        arrays = {'weight': random.randn(5, inputs, 3, 3).astype('f'), 'bias': random.randn(5).astype('f')}
        scaling = {'scale': random.randn(5).astype('f'), 'shift': random.randn(5).astype('f')}
        operations.append(Operation('conv', (source,), {'out_channels': 5, **window}, arrays))
        operations.append(Operation('affine', (source + 1,), {}, scaling))
    program = Program([Value(REAL_KIND, channels, 6, 6, False)], operations, [4])
    inputs = [random.randn(2, channels, 6, 6).astype('f')]
    (expected,) = engine.Runner(program, program.to_words()).run(inputs)
    np.testing.assert_array_equal(run_one(tmp_path, program, inputs)[0], expected.reshape(2, -1))


def test_groups_of_bits_have_the_bits_of_the_interpreter_with_optimization(tmp_path):
    """GCC 12.2 removed the calls that copy the groups to words of their own (`kernel_sources`)."""
    sign = {'threshold': np.zeros(8, 'f'), 'flip': np.zeros(8, bool)}
    binary = {'out_channels': 64, **geometry(3, pad=1), 'dilation_h': 1, 'dilation_w': 1, 'groups': 2, 'pad_value': -1, 'offset': 0}
    weight = {'weight': np.random.RandomState(0).rand(64, 3, 3, 4) < 0.5}
    operations = [Operation('threshold', (0,), {}, sign), Operation('binary_conv', (1,), {**binary, 'planes': 1}, weight)]
    program = Program([Value(REAL_KIND, 8, 10, 4, False)], operations, [2])
    inputs = [make_image(batch=2, channels=8, height=10, width=4)]
    networks = {'net': exported(program, 'net')}
    (found,) = compile_networks(tmp_path, networks, ['-O2']).run('net', inputs, networks['net'][2])
    np.testing.assert_array_equal(found, reference.run(program, inputs)[0].reshape(2, -1))


@pytest.mark.parametrize('reader', [{'begin': 0, 'end': 32}, {'begin': 8, 'end': 24}], ids=['all channels', 'some channels'])
def test_a_map_that_is_read_before_a_binary_layer_is_added_to_it_keeps_its_values(reader, tmp_path):
    operations = binary_layers()
    operations += [Operation('slice', (2,), reader), Operation('relu', (4,)), Operation('add', (2, 3))]
    program = Program([Value(REAL_KIND, 32, 5, 5, False)], operations, [5, 6])
    inputs = [make_image(batch=2, channels=32, height=5, width=5)]
    for found, expected in zip(run_one(tmp_path, program, inputs), reference.run(program, inputs)):
        np.testing.assert_array_equal(found, expected.reshape(2, -1))


def test_the_maximum_of_a_map_with_negative_scales_is_that_of_the_scaled_map(tmp_path):
    scaling = {'scale': np.linspace(-1, 1, 32).astype('f'), 'shift': np.linspace(-3, 2, 32).astype('f')}
    pooling = Operation('max_pool', (4,), {**geometry(3, 2, 1), 'ceil': 0})
    operations = [*binary_layers()[:2], Operation('abs', (2,)), Operation('affine', (3,), {}, scaling), pooling]
    program = Program([Value(REAL_KIND, 32, 7, 6, False)], operations, [5])
    inputs = [make_image(batch=2, channels=32, height=7, width=6)]
    (expected,) = reference.run(program, inputs)
    np.testing.assert_allclose(run_one(tmp_path, program, inputs)[0], expected.reshape(2, -1), rtol=1e-6)


_ROUNDING = r"""
#include <math.h>
#include <stdio.h>
#include "kernels/conv.c"
static uint64_t state = 88172645463325252u;
static uint32_t number(int exponents, int first) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const uint32_t bits = (uint32_t)(state >> 16);
    return exponents ? (bits & 0x807fffffu) | (uint32_t)(first + (int)(state >> 50) % exponents) << 23 : bits;
}
int main(void) {
    for (int i = 0; i < 3000000; ++i) {
        bmx_float a = {.bits = number(i % 4 ? 16 : 255, i % 4 == 1 ? 0 : 110)}, b = {.bits = number(i % 4 ? 16 : 255, 110)};
        bmx_float c = {.bits = number(i % 4 == 1 ? 3 : 64, i % 4 == 1 ? 0 : 80)};
        if (i % 4 == 0) { a.bits = number(255, 0), b.bits = number(255, 0), c.bits = number(255, 0); }
        if (i % 4 == 3) { c.number = -a.number * b.number, c.bits += (uint32_t)(i % 5) - 2; }
        if (i % 11 == 0) { c.bits &= 0x80000000u; }
        if (i % 13 == 0) { a.bits &= 0x80000000u; }
        bmx_float found = {bmx_multiply_add(a.number, b.number, c.number)}, expected = {fmaf(a.number, b.number, c.number)};
        if (found.bits != expected.bits) {
            printf("%08x %08x %08x: %08x, not %08x\n", a.bits, b.bits, c.bits, found.bits, expected.bits);
            return 1;
        }
    }
    return 0;
}
"""


def test_products_and_sums_are_rounded_once_in_integers(tmp_path):
    """Among the numbers are denormal ones, zeros, sums that cancel, and results that overflow."""
    (tmp_path / 'main.c').write_text(_ROUNDING)
    flags = ['-std=c99', '-O2', '-mno-fma', '-Wno-unused-function', f'-I{kernel_sources.FOLDER.parent}']
    build = ['gcc', *(flag for flag in flags if flag != '-mno-fma' or _is_x86()), tmp_path / 'main.c', '-o', tmp_path / 'main', '-lm']
    subprocess.run(build, check=True)
    done = subprocess.run([tmp_path / 'main'], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, '')


def _is_x86():
    return subprocess.run(['gcc', '-dumpmachine'], stdout=subprocess.PIPE, text=True).stdout.startswith('x86_64')


@pytest.mark.parametrize('level', ['-Os', '-O2', '-O3'])
def test_no_library_function_is_called(level, tmp_path):
    """Also not memset or memcpy, which compilers put in place of loops."""
    functions, calls = [name for name in kernel_sources.names() if name not in STRUCTURES], []
    for name in functions:
        words = [word for word in kernel_sources.KINDS if f'_{word}' in name]
        calls += [(name, dict(zip(words, kinds))) for kinds in itertools.product(*(kernel_sources.KINDS[word] for word in words))]
    text = kernel_sources.Kernels(calls).text()
    (tmp_path / 'all.c').write_text(
        '#include <stddef.h>\n#include <stdint.h>\n' + re.sub('^(BMX_OPAQUE )?static (inline )?', '', text, flags=re.MULTILINE)
    )
    subprocess.run(['gcc', *FREESTANDING, level, '-c', 'all.c'], check=True, cwd=tmp_path)
    symbols = subprocess.run(['nm', 'all.o'], stdout=subprocess.PIPE, text=True, check=True, cwd=tmp_path).stdout
    assert symbols.count(' T ') > len(functions)
    assert [line for line in symbols.splitlines() if ' U ' in line and '_GLOBAL_OFFSET_TABLE_' not in line] == []


def write_files(folder, network):
    folder.mkdir(exist_ok=True)
    for file, text in network.files.items():
        (folder / file).write_text(text)


@pytest.mark.parametrize(
    'flag, message',
    [
        ('-ffast-math', '-ffast-math and -Ofast change results'),
        ('-mfpmath=387', 'float must be computed as float'),
    ],
)
def test_flags_with_other_results_are_refused_when_it_is_compiled(flag, message, tmp_path):
    if flag.startswith('-m') and not _is_x86():
        pytest.skip('a flag of x86')
    write_files(tmp_path, to_c(make_program(), [0], 'net'))
    done = subprocess.run(['gcc', *FREESTANDING, flag, '-c', 'net.c'], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode and f'#error "{message}' in done.stderr


@pytest.mark.skipif(not shutil.which('g++'), reason='needs a C++ compiler')
def test_a_cpp_program_can_call_several_networks(tmp_path):
    """Also of the same structure, whose kernels and constants have the same names."""
    for name in ('first', 'second'):
        write_files(tmp_path, to_c(make_program(), [0], name))
        subprocess.run(['gcc', *FREESTANDING, '-c', f'{name}.c'], check=True, cwd=tmp_path)
    (tmp_path / 'main.cc').write_text(
        '#include "first.h"\n#include "second.h"\n'
        'static float input[FIRST_INPUT_SIZE], x[FIRST_OUTPUT_SIZE], y[SECOND_OUTPUT_SIZE];\n'
        'int main() {\n    for (float& number : input) number = 1;\n    first_run(input, x);\n    second_run(input, y);\n'
        '    for (int i = 0; i < FIRST_OUTPUT_SIZE; ++i) if (x[i] != y[i]) return 1;\n    return x[0] == 0;\n}\n'
    )
    subprocess.run(['g++', '-Wall', '-Wextra', '-Werror', '-pedantic', 'main.cc', 'first.o', 'second.o'], check=True, cwd=tmp_path)
    subprocess.run([tmp_path / 'a.out'], check=True)


def test_between_binary_layers_there_is_no_float_arithmetic():
    program = make_program(channels=40)
    sign = {'threshold': np.arange(40, dtype='f'), 'flip': np.zeros(40, bool)}
    binary = program.operations[1].attributes
    weight = {'weight': np.random.RandomState(0).rand(40, 3, 3, 40) < 0.5}
    program.operations[3:] = [Operation('threshold', (3,), {}, sign), Operation('binary_conv', (4,), binary, weight)]
    program.outputs = [5]
    kernels, network = to_c(program, [0], 'net').files['net.c'].split('// --- network')
    called = re.findall(r'^    { (bmx_\w+)\(', network, re.MULTILINE)
    assert called == [
        *('bmx_transpose_f32_f32', 'bmx_threshold_f32', 'bmx_flip', 'bmx_binary_conv_i16', 'bmx_max_pool_i16', 'bmx_threshold_i16'),
        *('bmx_binary_conv_i16', 'bmx_transpose_i16_f32'),
    ]
    assert 'bmx_multiply_add' not in kernels


def test_a_residual_sum_is_added_in_place():
    """A binary layer adds to the map of an earlier one, and scaling follows the pooling: neither needs memory for another map."""
    random, shape, operations = np.random.RandomState(0), (32, 8, 8), binary_layers()
    scaling = {'scale': random.randn(32).astype('f'), 'shift': random.randn(32).astype('f')}
    operations += [Operation('add', (2, 3)), Operation('affine', (4,), {}, scaling)]
    operations.append(Operation('max_pool', (5,), {**geometry(2, 2), 'ceil': 0}))
    network = to_c(Program([Value(REAL_KIND, *shape, False)], operations, [6]), [0], 'net')
    size = int(np.prod(shape))
    # the map of the sums, 16 bits; its bits and a window; at the beginning the input in the order of pixels
    assert network.arena <= max(4 * size + size // 8, 2 * size + size // 8 + 9 * 4 + 6 * size // 4)


def test_memory_that_is_printed_is_that_of_the_object(tmp_path):
    network, inputs, outputs = exported(make_program(), 'net')
    write_files(tmp_path, network)
    subprocess.run(['gcc', *FREESTANDING, '-O1', '-c', 'net.c'], check=True, cwd=tmp_path)
    rows = subprocess.run(['size', '-A', 'net.o'], stdout=subprocess.PIPE, text=True, check=True, cwd=tmp_path).stdout.splitlines()
    sections = {row.split()[0]: int(row.split()[1]) for row in rows if row.startswith('.')}
    assert sections['.bss'] == network.arena and sections['.data'] == 0
    assert sum(layer.weights for layer in network.layers) == network.weights
    assert network.arguments == 4 * sum(inputs + outputs)
    defined = dict(re.findall(r'^#define NET_(\w+)_BYTES (\d+)', network.files['net.h'], re.MULTILINE))
    assert defined == {'ARENA': str(network.arena), 'STACK': str(network.stack)}


def test_the_stack_does_not_grow_with_the_number_of_layers(tmp_path):
    """On a 32-bit processor, where structures are passed in memory."""
    if not _is_x86():
        pytest.skip('gcc compiles for no 32-bit processor')
    processor = ['-m32', '-msse2', '-mfpmath=sse']
    frames = {}
    for count in (3, 60):
        operations = [Operation('slice', (0,), {'begin': 0, 'end': channels + 1}) for channels in range(count)]
        operations += [Operation('abs', (1 + number,)) for number in range(count)]
        program = Program([Value(REAL_KIND, 64, 5, 6, False)], operations, [2 * count])
        write_files(tmp_path, to_c(program, [0], 'net'))
        subprocess.run(['gcc', *FREESTANDING, *processor, '-Os', '-fstack-usage', '-c', 'net.c'], check=True, cwd=tmp_path)
        rows = [row.split('\t') for row in (tmp_path / 'net.su').read_text().splitlines()]
        (frames[count],) = [int(size) for name, size, _ in rows if name.endswith(':net_run')]
    assert frames[60] <= frames[3] + 64  # registers that are saved


def test_the_estimate_of_the_code_knows_every_function():
    functions = set(kernel_sources.names()) - set(STRUCTURES) - {'bmx_from_f32'}  # which compiles to nothing
    assert functions == set(FUNCTION_BYTES)


def test_an_image_is_normalized_as_for_mxnet(tmp_path):
    spec = InputSpec(size=6, resize=6)
    program = make_program(channels=3)
    program.inputs = [Value(REAL_KIND, 3, 6, 6, False)]
    (tmp_path / 'main.c').write_text(
        '#include <stdio.h>\n#include "net.h"\nint main(void) {\n    static uint8_t pixels[108];\n    static float input[NET_INPUT_SIZE];\n'
        '    if (fread(pixels, 1, 108, stdin) != 108) return 1;\n    net_normalize(pixels, input);\n'
        '    return fwrite(input, 4, 108, stdout) != 108;\n}\n'
    )
    write_files(tmp_path, to_c(program, [0], 'net', spec=spec))
    subprocess.run(['gcc', *FREESTANDING[:4], 'net.c', 'main.c', '-o', 'main'], check=True, cwd=tmp_path)
    pixels = np.random.RandomState(0).randint(0, 256, (6, 6, 3)).astype(np.uint8)
    done = subprocess.run([tmp_path / 'main'], input=pixels.tobytes(), stdout=subprocess.PIPE, check=True)
    expected = spec.normalize(mx.nd.array(pixels, dtype='uint8')).asnumpy()
    np.testing.assert_array_equal(np.frombuffer(done.stdout, 'f').reshape(3, 6, 6), expected)


# --- the command


@pytest.fixture
def packed(tmp_path):
    write_packed(tmp_path / 'packed', make_program(), outputs=[1, 0])
    return tmp_path / 'packed'


def run(*arguments):
    return main(['export-c', *map(str, arguments)])


def test_the_command_writes_three_files_that_give_the_outputs_of_the_network(packed, tmp_path, capsys):
    assert run(packed, tmp_path / 'c', '--name', 'small', '--json') == 0
    facts = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in (tmp_path / 'c').iterdir()) == ['small.c', 'small.h', 'small_weights.h']
    assert facts['ram_bytes'] == facts['arena_bytes'] + facts['stack_bytes']
    assert facts['flash_bytes'] == facts['weights_bytes'] + facts['code_bytes']
    program = make_program()
    networks = {'small': exported(program, 'small', outputs=[1, 0])}
    assert networks['small'][0].files == {path.name: path.read_text() for path in (tmp_path / 'c').iterdir()}
    image = make_image()
    for found, expected in zip(
        compile_networks(tmp_path, networks).run('small', [image], networks['small'][2]), reference.run(program, [image])[::-1]
    ):
        np.testing.assert_allclose(found, expected.reshape(2, -1), rtol=1e-5, atol=1e-5)


def test_the_command_prints_the_memory_of_each_layer(packed, tmp_path, capsys):
    assert run(packed, tmp_path / 'c') == 0
    output = capsys.readouterr().out
    network = to_c(make_program(), [1, 0], 'packed')
    assert f'without {network.arguments:,} of inputs and outputs' in output
    assert f'{network.arena:,} for values' in output and f'{network.weights:,} of weights' in output
    for layer in network.layers:
        assert (f'{layer.number:>5}  {layer.name}' in output) == (layer.weights > 0)


def test_an_input_of_another_size_needs_other_memory(packed, tmp_path, capsys):
    assert run(packed, tmp_path / 'c', '--json') == 0
    known = json.loads(capsys.readouterr().out)
    assert run(packed, tmp_path / 'c', '--json', '--input-shape', '1,5,16,12') == 0
    larger = json.loads(capsys.readouterr().out)
    assert larger['arena_bytes'] > 3 * known['arena_bytes'] and larger['weights_bytes'] == known['weights_bytes']


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--max-ram', '1000'], r'needs [\d,]+ bytes of RAM, [\d,]+ more than --max-ram 1000'),
        (['--max-flash', '2000'], r'needs [\d,]+ bytes of flash, [\d,]+ more than --max-flash 2000'),
        (['--name', '7net'], "'7net' cannot begin the names of C functions"),
        (['--name', 'while'], "'while' cannot begin .* it is a keyword"),
        (['--name', 'String'], "'String' cannot begin"),  # #include <string.h> would find it
        (['--name', 'net_weights'], "'net_weights' cannot begin"),  # net_weights.h has the weights of net
        (['--input-shape', '2,5,8,6'], 'the batch must be 1'),
        (['--input-shape', '1,4,8,6'], r'for one image it was \(5, 8, 6\)'),
        (['--input-shape', 'other=1,5,8,6'], 'for each input of the network: data0'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(arguments, message, packed, tmp_path, capsys):
    assert run(packed, tmp_path / 'c', *arguments) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1
    pytest.raises(UserError, _raise, error).match(message)
    assert not (tmp_path / 'c').exists()


def _raise(message):
    raise UserError(message)


@pytest.mark.parametrize('name', UNSUPPORTED)
def test_an_operation_without_a_form_in_c_is_named(name, tmp_path, capsys):
    attributes = {attribute: least for attribute, (least, _) in OPERATIONS[name].attributes.items()}
    program = Program([Value(REAL_KIND, 4, 3, 3, False)], [Operation(name, (0,), attributes, {'eps': np.ones(1, 'f')})], [1])
    write_packed(tmp_path / 'packed', program)
    assert run(tmp_path / 'packed', tmp_path / 'c') == 2
    assert f'operations without a form in C: {name} (operation 0)' in capsys.readouterr().err
    assert not (tmp_path / 'c').exists()


def test_constants_that_are_nan_are_refused():
    program = make_program()
    program.operations.append(
        Operation('affine', (program.outputs[0],), {}, {'scale': np.full(40, np.nan, 'f'), 'shift': np.zeros(40, 'f')})
    )
    with pytest.raises(UserError, match=rf'the scale of affine \(operation {len(program.operations) - 1}\) contains NaN'):
        to_c(program, [0], 'net')
