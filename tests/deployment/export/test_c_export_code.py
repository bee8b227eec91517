"""The C of exported programs: its rounding, the functions that it calls, its memory, and with which compilers and flags it is used."""

import itertools
import re
import shutil
import subprocess

import mxnet as mx
import numpy as np
import pytest
from support.exported_c import FREESTANDING, exported, needs_gcc
from support.long_runs import mostly_long
from support.packed import binary_conv, binary_layers, chain, make_program, operation, window

from bmx_melius import InputSpec, UserError
from bmx_melius.deployment.c_export import kernel_sources
from bmx_melius.deployment.c_export.c_files import to_c
from bmx_melius.deployment.program.operations import REAL_KIND, Value

pytestmark = needs_gcc

STRUCTURES = ('bmx_span', 'bmx_window', 'bmx_conv', 'bmx_levels', 'bmx_binary_conv', 'bmx_taps', 'bmx_rescaling', 'bmx_int8_conv')


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
    """Among the numbers are denormal numbers, zeros, sums that cancel, and results that overflow."""
    (tmp_path / 'main.c').write_text(_ROUNDING)
    flags = ['-std=c99', '-O2', '-mno-fma', '-Wno-unused-function', f'-I{kernel_sources.FOLDER.parent}']
    build = ['gcc', *(flag for flag in flags if flag != '-mno-fma' or _is_x86()), tmp_path / 'main.c', '-o', tmp_path / 'main', '-lm']
    subprocess.run(build, check=True)
    done = subprocess.run([tmp_path / 'main'], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, '')


def _is_x86():
    return subprocess.run(['gcc', '-dumpmachine'], stdout=subprocess.PIPE, text=True).stdout.startswith('x86_64')


@pytest.mark.parametrize('level', mostly_long(['-Os', '-O2', '-O3'], '-Os'))
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
    compare = operation('threshold', 3, arrays={'threshold': np.arange(40, dtype='f'), 'flip': np.zeros(40, bool)})
    program.operations[3:] = [compare, binary_conv(np.random.RandomState(0).rand(40, 3, 3, 40) < 0.5, 4, **window(3, pad=1))]
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
    shape, random = (32, 8, 8), np.random.RandomState(0)
    scaling = operation('affine', arrays={'scale': random.randn(32).astype('f'), 'shift': random.randn(32).astype('f')})
    network = to_c(chain(shape, *binary_layers(), operation('add', 2, 3), scaling, operation('max_pool', **window(2, 2))), [0], 'net')
    size = int(np.prod(shape))
    # the map of the sums, 16 bits; its bits and a window; at the beginning the input in the order of pixels
    assert network.arena <= max(4 * size + size // 8, 2 * size + size // 8 + 9 * 4 + 6 * size // 4)


def test_memory_that_is_printed_is_that_of_the_object(tmp_path):
    network = exported(make_program(), 'net')
    write_files(tmp_path, network)
    subprocess.run(['gcc', *FREESTANDING, '-O1', '-c', 'net.c'], check=True, cwd=tmp_path)
    rows = subprocess.run(['size', '-A', 'net.o'], stdout=subprocess.PIPE, text=True, check=True, cwd=tmp_path).stdout.splitlines()
    sections = {row.split()[0]: int(row.split()[1]) for row in rows if row.startswith('.')}
    assert sections['.bss'] == network.arena and sections['.data'] == 0
    assert sum(layer.weights for layer in network.layers) == network.weights
    assert network.arguments == 4 * (
        5 * 8 * 6 + sum(int(np.prod(make_program().values()[number].shape)) for number in make_program().outputs)
    )
    defined = dict(re.findall(r'^#define NET_(\w+)_BYTES (\d+)', network.files['net.h'], re.MULTILINE))
    assert defined == {'ARENA': str(network.arena), 'STACK': str(network.stack)}


def test_the_stack_does_not_grow_with_the_number_of_layers(tmp_path):
    """On a 32-bit processor, where structures are passed in memory."""
    if not _is_x86():
        pytest.skip('gcc compiles for no 32-bit processor')
    processor = ['-m32', '-msse2', '-mfpmath=sse']
    frames = {}
    for count in (3, 60):
        slices = [operation('slice', 0, begin=0, end=channels + 1) for channels in range(count)]
        program = chain((64, 5, 6), *slices, *(operation('abs', 1 + number) for number in range(count)))
        write_files(tmp_path, to_c(program, [0], 'net'))
        subprocess.run(['gcc', *FREESTANDING, *processor, '-Os', '-fstack-usage', '-c', 'net.c'], check=True, cwd=tmp_path)
        rows = [row.split('\t') for row in (tmp_path / 'net.su').read_text().splitlines()]
        (frames[count],) = [int(size) for name, size, _ in rows if name.endswith(':net_run')]
    assert frames[60] <= frames[3] + 64  # registers that are saved


def test_the_estimate_of_the_code_knows_every_function():
    inlined = {'bmx_at_f32', 'bmx_products_of'}  # wherever they are called
    functions = set(kernel_sources.names()) - set(STRUCTURES) - inlined
    assert [name for name in functions if not kernel_sources.function_bytes(name)] == []


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


def test_constants_that_are_nan_are_refused():
    program = make_program()
    program.operations.append(
        operation('affine', program.outputs[0], arrays={'scale': np.full(40, np.nan, 'f'), 'shift': np.zeros(40, 'f')})
    )
    with pytest.raises(UserError, match=rf'the scale of affine \(operation {len(program.operations) - 1}\) contains NaN'):
        to_c(program, [0], 'net')
