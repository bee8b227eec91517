"""The engine against the NumPy interpreter: random programs, damaged programs, damaged files, threads, every instruction set."""

import collections
import ctypes
import json
import os
import random as randoms
import re
import struct
import subprocess
import sys
import threading
import zlib

import mxnet as mx
import numpy as np
import pytest
from engines import INSTRUCTION_SETS, Engine, create, require_instruction_set, sizes_of
from fuzz.mutators import damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from large_programs import chain, concatenations, record, sums, words_of
from random_programs import Maker, describe, other_sizes
from reference_network import read_reference_network

from bmx_melius import __version__, load_reference_parameters
from bmx_melius.container import read_parameters, write_parameters
from bmx_melius.deployment.convert.conversion import convert
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.limits import MAX_OPERATIONS
from bmx_melius.deployment.program.operations import OPERATIONS, PADDING, REAL_KIND, Operation, ProgramError, Value, result_of
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine
from model_zoo import get_model

pytestmark = pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')


@pytest.fixture(scope='session', params=INSTRUCTION_SETS)
def library(request, open_engine):
    """The engine with each instruction set."""
    require_instruction_set(request.param)
    return open_engine(request.param)


@pytest.fixture(scope='session')
def reference_library(open_engine):
    """The engine with its reference kernels."""
    return open_engine('reference')


def test_the_library_returns_its_version():
    assert engine.open_library(engine.ENGINE_LIBRARY).bmx_version().decode() == __version__


# --- random programs ------------------------------------------------------------------------------------------------------------------


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples * 5, suppress_health_check=list(HealthCheck))
def test_an_instruction_set_equals_the_interpreter_in_every_bit(library, random):
    maker = Maker(random, exact=True)
    program = maker.program(random.randint(1, 12))
    inputs = maker.data(other_sizes(random, program), random.randint(1, 4))
    expected = reference.run(program, inputs)
    engine = Engine.of(library, program)
    for threads in (1, 2, 3):
        for number, (y, wanted) in enumerate(zip(engine.run(inputs, threads), expected)):
            np.testing.assert_array_equal(y, wanted, f'{threads} threads, output {number} of\n{describe(program)}')


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples * 3, suppress_health_check=list(HealthCheck))
def test_float_results_differ_only_by_rounding_and_not_by_threads(library, random):
    maker = Maker(random, exact=False)
    program = maker.program(random.randint(1, 8))
    inputs = maker.data(other_sizes(random, program), random.randint(1, 3))
    expected = reference.run(program, inputs)
    engine = Engine.of(library, program)
    single = engine.run(inputs)
    for number, (y, wanted) in enumerate(zip(single, expected)):
        tolerance = 1e-5 * max(1, np.abs(wanted).max())
        np.testing.assert_allclose(y, wanted, 1e-5, tolerance, err_msg=f'output {number} of\n{describe(program)}')
    for threads in (2, 3):
        for y, one in zip(engine.run(inputs, threads), single):
            np.testing.assert_array_equal(y, one, f'{threads} threads')
    for image in range(len(inputs[0])):
        for y, one in zip(engine.run([array[image : image + 1] for array in inputs]), single):
            np.testing.assert_array_equal(y[0], one[image], f'image {image} alone')


@given(
    random=st.randoms(use_true_random=False),
    channels=st.sampled_from((3, 32, 64, 80)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.sampled_from((1, 3)),
    stride=st.integers(1, 2),
    pad_value=st.integers(-1, 1),
    chain=st.lists(
        st.sampled_from(('affine', 'relu', 'prelu', 'clip', 'abs', 'add', 'maximum', 'gate', 'map', 'multiply', 'scale_map', 'shift_map'))
    ),
)
@settings(max_examples=settings().max_examples * 2, suppress_health_check=list(HealthCheck))
def test_elementwise_operations_after_a_binary_convolution_equal_the_interpreter(
    library, random, channels, size, kernel, stride, pad_value, chain
):
    maker = Maker(random, exact=True)
    maker.inputs = [Value(REAL_KIND, channels, *size, False)]
    result = ((size[0] - 1) // stride + 1, (size[1] - 1) // stride + 1)
    maker.inputs += [
        Value(REAL_KIND, channels, *result, False),
        Value(REAL_KIND, channels, 1, 1, False),
        Value(REAL_KIND, 1, *result, False),
    ]
    maker.values, maker.bounds = list(maker.inputs), [(8.0, 0.5)] * 4

    def add(name, *inputs, **attributes):
        operation = Operation(name, inputs, attributes)
        maker.arrays(operation)
        maker.operations.append(operation)
        maker.values.append(result_of(operation, [maker.values[number] for number in inputs]))
        return len(maker.values) - 1

    pads = dict.fromkeys(PADDING, kernel // 2)
    window = dict(kernel_h=kernel, kernel_w=kernel, stride_h=stride, stride_w=stride, **pads)
    x = add('binary_conv', add('threshold', 0), **attributes_of('binary_conv', out_channels=channels, pad_value=pad_value, **window))
    others = {'add': 1, 'maximum': 1, 'multiply': 1, 'gate': 2, 'map': 3}
    for name in chain[:5]:
        operands = (x, others[name]) if name in others else (x,)
        heights, widths = ((1, extent) for extent in result)
        positions = {'by_channel': random.randint(0, 1), 'height': random.choice(heights), 'width': random.choice(widths)}
        name = 'multiply' if name in ('gate', 'map') else name
        x = add(name, *operands, **positions if name in ('scale_map', 'shift_map') else {})
    program = Program(maker.inputs, maker.operations, [x])
    inputs = [maker.numpy.randint(-2, 3, (2, *value.shape)).astype(np.float32) for value in maker.inputs]
    (expected,) = reference.run(program, inputs)
    engine = Engine.of(library, program)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(engine.run(inputs, threads)[0], expected, f'{threads} threads\n{describe(program)}')


@given(
    random=st.randoms(use_true_random=False),
    channels=st.sampled_from((1, 2, 3, 8, 20, 33)),
    filters=st.sampled_from(('depthwise', 1, 5, 16, 70)),
    groups=st.sampled_from((1, 1, 2)),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.sampled_from((1, 2, 3, 3, 5)), st.sampled_from((1, 2, 3, 3, 7))),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 4)] * 4),
    in_parts=st.booleans(),
    chain=st.lists(st.sampled_from(('affine', 'relu', 'prelu', 'clip', 'add', 'gate', 'threshold')), max_size=4),
)
@settings(max_examples=settings().max_examples * 2, suppress_health_check=list(HealthCheck))
def test_float_convolutions_of_any_window_equal_the_interpreter(
    library, random, channels, filters, groups, size, kernel, strides, dilation, pads, in_parts, chain
):
    if filters == 'depthwise':
        filters = groups = channels
    else:
        channels, filters = channels * groups, filters * groups
    window = dict(zip(('kernel_h', 'kernel_w', 'stride_h', 'stride_w', 'dilation_h', 'dilation_w'), (*kernel, *strides, *dilation)))
    extents = [(count - 1) * distance + 1 for count, distance in zip(kernel, dilation)]
    size = [max(length, extent - before - after) for length, extent, before, after in zip(size, extents, pads[:2], pads[2:])]
    conv = attributes_of('conv', out_channels=filters, groups=groups, **window, **dict(zip(PADDING, pads)))
    maker = Maker(random, exact=True)
    maker.inputs = [Value(REAL_KIND, channels, *size, False)]
    result = result_of(Operation('conv', (0,), conv), maker.inputs)
    maker.inputs += [result, Value(REAL_KIND, filters, 1, 1, False)]
    maker.values, maker.bounds = list(maker.inputs), [(8.0, 0.5)] * 3

    def add(name, *inputs, **attributes):
        operation = Operation(name, inputs, attributes)
        maker.arrays(operation)
        maker.operations.append(operation)
        maker.values.append(result_of(operation, [maker.values[number] for number in inputs]))
        return len(maker.values) - 1

    x = add('relu', 0)  # not the first layer
    if in_parts:
        x = add('concat', x, add('expand', add('threshold', x), low=-1))
        x = add('slice', x, begin=0, end=channels) if random.randint(0, 1) else add('slice', x, begin=1, end=channels + 1)
    x = add('conv', x, **conv)
    outputs = []
    for name in chain:
        if name == 'threshold':
            outputs.append(add('binary_conv', add('threshold', x), **attributes_of('binary_conv', out_channels=3)))
        else:
            x = add('multiply' if name == 'gate' else name, *{'add': (x, 1), 'gate': (x, 2)}.get(name, (x,)))
    program = Program(maker.inputs, maker.operations, [x, *outputs])
    inputs = [maker.numpy.randint(-2, 3, (2, *value.shape)).astype(np.float32) for value in maker.inputs]
    expected = reference.run(program, inputs)
    engine = Engine.of(library, program)
    for threads in (1, 2, 5):
        for y, wanted in zip(engine.run(inputs, threads), expected):
            np.testing.assert_array_equal(y, wanted, f'{threads} threads\n{describe(program)}')


def test_sigmoids_are_within_4e_7_of_their_value(library):
    x = np.concatenate([np.linspace(-87, 90, 5000), [0, -0.0, 1e-40, -1e4, 1e4, -3e38, 3e38, 1e-3]]).astype(np.float32)[None]
    program = Program([Value(REAL_KIND, x.shape[1], 1, 1, True)], [Operation('sigmoid', (0,))], [1])
    with np.errstate(over='ignore'):
        expected = 1 / (1 + np.exp(-x.astype(np.longdouble)))
    np.testing.assert_allclose(Engine.of(library, program).run([x])[0], expected, rtol=4e-7, atol=2e-38)


def attributes_of(name, **others):
    """Those of a convolution with kernel 1 that does nothing special, except for `others`."""
    plain = {attribute: max(least, 0) for attribute, (least, _) in OPERATIONS[name].attributes.items()}
    return {**plain, **others}


def test_a_sum_with_a_convolution_padded_with_0_is_rounded_once(library):
    random, channels = np.random.RandomState(0), 64
    signs = Operation('threshold', (0,), {}, {'threshold': np.zeros(channels, np.float32), 'flip': np.zeros(channels, bool)})
    attributes = attributes_of('binary_conv', out_channels=channels, kernel_h=3, kernel_w=3, pad_value=0, **dict.fromkeys(PADDING, 1))
    convolution = Operation('binary_conv', (1,), attributes, {'weight': random.rand(channels, 3, 3, channels) < 0.5})
    program = Program([Value(REAL_KIND, channels, 7, 7, False)], [signs, convolution, Operation('add', (0, 2))], [3])
    inputs = [random.randn(1, channels, 7, 7).astype(np.float32)]
    (expected,) = reference.run(program, inputs)
    for threads in (1, 2):
        np.testing.assert_array_equal(Engine.of(library, program).run(inputs, threads)[0], expected)


@pytest.mark.parametrize('kernel', [1, 3])
def test_sums_of_up_to_3e38_are_as_exact_as_others(library, kernel):
    random = np.random.RandomState(0)
    attributes = attributes_of('conv', out_channels=64, kernel_h=kernel, kernel_w=kernel, **dict.fromkeys(PADDING, kernel // 2))
    weight = random.randn(64, 64, kernel, kernel)
    weight *= 3e38 / 3.3e38 / np.abs(weight).sum(axis=(1, 2, 3), keepdims=True)
    program = Program([Value(REAL_KIND, 64, 9, 9, False)], [Operation('conv', (0,), attributes, {'weight': weight.astype('f')})], [1])
    x = np.where(random.rand(1, 64, 9, 9) < 0.5, -3.3e38, 3.3e38).astype(np.float32)
    (expected,) = reference.run(program, [x])
    np.testing.assert_allclose(Engine.of(library, program).run([x])[0], expected, atol=1e-6 * 3e38)


def test_any_number_of_first_layers_fits_on_the_stack(library):
    layers = 5000
    middle_and_1 = {'weight': np.array([0, 1, 0], np.float32).reshape(1, 1, 1, 3), 'bias': np.ones(1, np.float32)}
    attributes = attributes_of('conv', out_channels=1, kernel_w=3, pad_left=1, pad_right=1, has_bias=1)
    operations = [Operation('conv', (number,), attributes, middle_and_1) for number in range(layers)]
    program = Program([Value(REAL_KIND, 1, 3, 5, False)], operations, [layers])
    x = np.arange(15, dtype=np.float32).reshape(1, 1, 3, 5)
    np.testing.assert_array_equal(Engine.of(library, program).run([x])[0], x + layers)


# --- networks -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def meliusnet22(make_once):
    """MeliusNet22 with parameters whose logits are known, packed: program, parameters file, input, logits."""
    network = read_reference_network()

    def make(folder):
        net = get_model('meliusnet22', classes=40)
        mx.nd.save(str(folder / 'reference.params'), network['exported'])
        load_reference_parameters(net, str(folder / 'reference.params'))
        net.hybridize()
        net(network['x'])
        net.export(str(folder / 'net'))
        convert(str(folder / 'net-symbol.json'), str(folder / 'net-0000.params'), str(folder / 'packed'), (1, 3, 224, 224), verify=False)

    parameters = make_once('packed-meliusnet22', make) / 'packed-0000.params'
    (words,) = (array for name, array in read_parameters(parameters).items() if name.endswith('_program'))
    return Program.from_words(words), parameters, network['x'].asnumpy(), network['logits']


def test_a_whole_network_gives_the_known_logits(library, meliusnet22):
    program, _, x, logits = meliusnet22
    engine = Engine.of(library, program)
    (single,) = engine.run([x])
    np.testing.assert_allclose(single, logits, atol=1e-4)
    for threads in (2, 3, 4):
        np.testing.assert_array_equal(engine.run([x], threads)[0], single, f'{threads} threads')


def test_a_whole_network_works_in_less_than_8_mib(library, meliusnet22):
    program, _, x, _ = meliusnet22
    for threads in (1, 2):
        assert 0 < Engine.of(library, program).memory([x[:1]], threads) < 8 << 20


def test_profiling_times_each_layer_once_and_counts_all_multiplications(library, meliusnet22):
    program, _, x, logits = meliusnet22
    (y,), steps = Engine.of(library, program).profile([x], 2)
    np.testing.assert_allclose(y, logits, atol=1e-4)
    assert all(seconds >= 0 for _, seconds, _, _ in steps)
    assert sum(macs for *_, macs, binary in steps if binary) == len(x) * 4624220160
    timed = collections.Counter(word for name, *_ in steps for word in re.findall(r'\w+', name))
    computed = collections.Counter(operation.name for operation in program.operations)
    assert all(timed[name] == computed[name] > 0 for name in ('threshold', 'binary_conv', 'conv', 'max_pool', 'global_avg_pool'))


def test_the_engine_reads_parameter_files_itself(reference_library, meliusnet22):
    program, path, x, logits = meliusnet22
    library = reference_library
    content = path.read_bytes()
    from_path, from_memory = library.bmx_program_load(str(path).encode(), 0), library.bmx_program_load_memory(content, len(content), 0)
    assert from_path and from_memory, library.bmx_last_error()
    for handle in (from_path, from_memory):
        np.testing.assert_allclose(Engine(library, handle, program).run([x[:1]], 2)[0], logits[:1], atol=1e-4)


# --- threads and processes ------------------------------------------------------------------------------------------------------------


def some_program(seed=0, operations=12):
    maker = Maker(randoms.Random(seed), exact=True)
    program = maker.program(operations)
    return maker, program, [(value.height, value.width) for value in program.inputs]


def test_several_threads_may_run_one_program_at_once(library):
    maker, program, sizes = some_program(3)
    engine = Engine.of(library, program)
    cases = [maker.data(sizes, batch) for batch in (1, 2, 3, 4, 1, 2, 3, 4)]
    expected = [reference.run(program, inputs) for inputs in cases]
    failures = []

    def work(number, engine=engine, cases=cases, expected=expected, failures=failures):
        for _ in range(20):
            for y, wanted in zip(engine.run(cases[number], threads=1 + number % 2), expected[number]):
                if not np.array_equal(y, wanted):
                    failures.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(cases))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


FORK = """
import ctypes, os, sys
import numpy as np
library = ctypes.CDLL(sys.argv[1])
library.bmx_program_create.restype = ctypes.c_void_p
library.bmx_program_create.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
library.bmx_program_run.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
words, x = np.load(sys.argv[2]), np.load(sys.argv[3])
program = library.bmx_program_create(words.ctypes.data, len(words), 0)
sizes = (ctypes.c_int64 * 4)(*x.shape)
def run():
    y = np.zeros(4096, np.float32)
    assert library.bmx_program_run(program, sizes, (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data), 2) == 0
    return y
y = run()
child = os.fork()
if not child:
    os._exit(0 if (run() == y).all() else 1)
_, status = os.waitpid(child, 0)
assert status == 0 and (run() == y).all()
"""


def test_a_forked_child_computes_with_one_thread(tmp_path):
    attributes = {name: 1 for name in OPERATIONS['conv'].attributes}
    attributes.update(out_channels=8, has_bias=0, half=0, **dict.fromkeys(PADDING, 0))
    weight = np.random.randn(8, 4, 1, 1).astype(np.float32)
    program = Program([Value(REAL_KIND, 4, 16, 16, False)], [Operation('conv', (0,), attributes, {'weight': weight})], [1])
    np.save(tmp_path / 'words.npy', program.to_words())
    np.save(tmp_path / 'x.npy', np.random.randn(1, 4, 16, 16).astype(np.float32))
    command = [sys.executable, '-c', FORK, str(engine.ENGINE_LIBRARY), str(tmp_path / 'words.npy'), str(tmp_path / 'x.npy')]
    subprocess.run(command, check=True, timeout=60)


# --- errors ---------------------------------------------------------------------------------------------------------------------------


def test_an_instruction_set_that_is_not_there_is_an_error_that_lists_those_that_are(open_engine):
    library, words = open_engine('vax'), some_program()[1].to_words()
    assert library.bmx_isa() is None
    assert not create(library, words)
    message = library.bmx_last_error().decode()
    assert 'vax' in message and all(name in message for name in engine.instruction_sets()[1])


def test_inputs_that_do_not_fit_are_refused(reference_library):
    maker, program, sizes = some_program(5)
    library = reference_library
    engine = Engine.of(library, program)
    inputs = maker.data(sizes, 2)
    for shape in ([0, *inputs[0].shape[1:]], [2, inputs[0].shape[1] + 1, *inputs[0].shape[2:]], [2, inputs[0].shape[1], 1 << 20, 1 << 20]):
        if len(shape) == 4:
            numbers = (ctypes.c_int64 * (4 * len(inputs)))(*sizes_of(inputs))
            numbers[:4] = shape
            shapes, ranks = (ctypes.c_int64 * 64)(), (ctypes.c_int * 16)()
            assert library.bmx_program_infer(engine.handle, numbers, shapes, ranks)
            assert 'input 0' in library.bmx_last_error().decode()
            assert library.bmx_program_working_memory(engine.handle, numbers, 1) == -1


def refusal(words):
    """What Python says of the words of a program; an empty string if they are valid."""
    try:
        Program.from_words(words)
    except ProgramError as error:
        return str(error)
    return ''


@pytest.fixture(scope='session')
def damaged_files(make_once, long_run):
    """Parameter files of damaged programs, and for each file 1 if Python accepts the program, 0 if not, ? if the file is damaged, too."""

    def make(folder):
        random, expected, paths = randoms.Random(1), '', []
        with np.errstate(over='ignore'):
            for number in range(10000 if long_run else 1000):
                if number % 10 == 0:
                    words = some_program(number, 6)[1].to_words()
                changed = damaged(random, words)
                if not len(changed):
                    continue
                path = folder / f'{number}.params'
                write_parameters(path, {'arg:network_program': changed})
                if number % 5 == 0:  # also damage the file around it
                    octets = bytearray(path.read_bytes())
                    octets[random.choice((random.randrange(60), len(octets) - 1 - random.randrange(40)))] = random.randrange(256)
                    path.write_bytes(octets)
                    expected += '?'
                else:
                    expected += '0' if refusal(changed) else '1'
                paths.append(str(path))
        (folder / 'expected.json').write_text(json.dumps([paths, expected]))

    return json.loads((make_once('damaged-files', make) / 'expected.json').read_text())


@pytest.mark.parametrize('instruction_set', INSTRUCTION_SETS)
def test_damaged_programs_make_no_forbidden_access_under_sanitizers(instruction_set, damaged_files, build_native):
    require_instruction_set(instruction_set, emulated=True)
    paths, expected = damaged_files
    done = subprocess.run(
        [build_native('tests/csrc/damaged_files_test.cc', None, 'sanitized')],
        input='\n'.join(paths) + '\n',
        env={**os.environ, 'BMX_MELIUS_ISA': instruction_set},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-3000:])
    assert len(done.stdout) == len(expected)
    assert all(wanted in ('?', found) for wanted, found in zip(expected, done.stdout))


def test_both_validators_accept_the_same_programs_and_give_the_same_messages(reference_library, long_run):
    library, random, seen = reference_library, randoms.Random(0), set()
    with np.errstate(over='ignore'):
        for number in range(10000 if long_run else 1000):
            if number % 10 == 0:
                maker, program, _ = some_program(number, 6)
                words = program.to_words()
            changed = damaged(random, words)
            expected = refusal(changed)
            handle = create(library, changed)
            seen.add(bool(handle))
            assert ('' if handle else library.bmx_last_error().decode()) == expected, f'case {number}'
            if not handle:
                assert '\n' not in expected
                continue
            program = Program.from_words(changed)
            engine = Engine(library, handle, program)
            if sum(value.channels * value.height * value.width for value in program.values()) < 1 << 18:
                inputs = [np.ones((2, *value.shape), np.float32) for value in program.inputs]
                engine.run(inputs, 2)
    assert seen == {False, True}


def binary_dense(channels, count, out_channels=1, groups=1):
    """So many binary dense layers on the comparison of one input."""
    layer = record('binary_conv', [1], out_channels * -(-channels // groups // 32), out_channels=out_channels, groups=groups)
    return words_of([(2, channels, 1, 1)], [record('threshold', [0], channels + -(-channels // 32)), *[layer] * count], [2])


# A program just beyond each limit, and its error message.
BEYOND = {
    'inputs': (lambda: words_of([(2, 1, 1, 1)] * 4097, [record('relu', [0])], [0]), '4097 inputs; at most 4096 are possible'),
    'operations': (lambda: chain(65537), '65537 operations; at most 65536 are possible'),
    'outputs': (lambda: words_of([(2, 1, 1, 1)], [record('relu', [0])], [1] * 4097), '4097 outputs; at most 4096 are possible'),
    'operands': (
        lambda: words_of([(2, 1, 1, 1)], [record('concat', [0] * 4097)], [1]),
        'word 12: operation 0 (concat) has 4097 inputs; 1 to 4096 are possible',
    ),
    'all operands': (
        lambda: concatenations(4, 64, 4096),
        'operation 68 (concat): 262152 inputs of operations so far; at most 262144 are possible',
    ),
    'all groups': (
        lambda: binary_dense(1 << 17, 3, out_channels=1 << 17, groups=1 << 17),
        'operation 3 (binary_conv): 393216 groups of convolutions so far; at most 262144 are possible',
    ),
    'all weights': (
        lambda: binary_dense(1 << 20, 17),
        'operation 17 (binary_conv): 1140850688 weights of convolutions so far; at most 1073741824 are possible',
    ),
    'window': (
        lambda: words_of(
            [(4, 1 << 20, 1, 1)],
            [record('conv', [0], 1, kernel_h=64, kernel_w=32, pad_top=32, pad_left=16, pad_bottom=32, pad_right=16)],
            [1],
        ),
        'operation 0: conv has 2147483648 or more elements in a window',
    ),
    'no more than all weights': (  # the array is looked for
        lambda: words_of(
            [(4, 1 << 18, 1, 1)], [record('conv', [0], 1, kernel_h=16, kernel_w=4, pad_top=8, pad_left=2, pad_bottom=8, pad_right=2)], [1]
        ),
        'word 31: weight of operation 0 (conv) needs 16777216 words, 2 are left',
    ),
}


@pytest.mark.parametrize('limit', BEYOND)
def test_both_validators_know_the_same_limits(reference_library, limit):
    words, message = BEYOND[limit][0](), BEYOND[limit][1]
    assert refusal(words) == message
    assert not create(reference_library, words)
    assert reference_library.bmx_last_error().decode() == message


@pytest.mark.parametrize('array', ['threshold', 'low', 'high'])
def test_both_validators_refuse_bounds_that_are_no_numbers(reference_library, array):
    names = {'threshold': 'threshold', 'low': 'clip', 'high': 'clip'}
    arrays = {
        'clip': {'low': np.zeros(3, 'f'), 'high': np.ones(3, 'f')},
        'threshold': {'threshold': np.zeros(3, 'f'), 'flip': np.zeros(3, bool)},
    }
    operation = Operation(names[array], (0,), {}, arrays[names[array]])
    program = Program([Value(REAL_KIND, 3, 2, 2, False)], [operation], [0])
    words = program.to_words()
    words[-1 - {'threshold': 5, 'low': 7, 'high': 3}[array]] = np.float32(np.nan).view(np.int32)  # before the number of the output
    words[3] = np.array(zlib.crc32(words[4:].tobytes()), np.uint32).view(np.int32)
    assert refusal(words) == f'operation 0 ({operation.name}) has a {array} that is not a number'
    assert not create(reference_library, words)
    assert reference_library.bmx_last_error().decode() == refusal(words)


def test_a_program_of_as_many_operations_as_are_possible_is_read_planned_and_run(reference_library):
    words, library = chain(MAX_OPERATIONS), reference_library
    program = Program.from_words(words)
    handle = create(library, words)
    assert handle, library.bmx_last_error()
    x = np.random.randn(1, 1, 2, 2).astype(np.float32)
    (y,) = Engine(library, handle, program).run([x])
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(reference.run(program, [x])[0], y)


def test_a_run_that_needs_more_memory_than_the_limit_is_refused_and_one_that_needs_less_is_not(reference_library, monkeypatch):
    words, library = sums(4, 16), reference_library
    program, inputs = Program.from_words(words), [np.ones((1, 64, 16, 16), np.float32)]

    def engine():
        return Engine(library, create(library, words), program)

    needed = engine().memory(inputs)
    for limit, fits in ((needed - 1, False), (needed, True)):
        monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', str(limit))
        if fits:
            engine().run(inputs)
            continue
        with pytest.raises(ProgramError, match=f'needs {needed} bytes of working memory; at most {limit} are allowed: .*BMX_MELIUS_MEM'):
            engine().run(inputs)
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '4 GiB')
    assert not create(library, words)
    assert library.bmx_last_error().decode() == "BMX_MELIUS_MEMORY_LIMIT is '4 GiB': it must be a number of bytes"


def test_a_small_program_cannot_ask_for_gigabytes(reference_library):
    words, library = sums(100, 512), reference_library
    assert words.nbytes < 10000
    engine = Engine(library, create(library, words), Program.from_words(words))
    x = np.ones((1, 64, 512, 512), np.float32)
    assert engine.memory([x]) > 6 << 30
    with pytest.raises(ProgramError, match='bytes of working memory; at most 4294967296 are allowed'):
        engine.run([x])


def test_damaged_parameter_files_are_refused_with_the_name_of_the_file(reference_library, tmp_path, long_run):
    library, random = reference_library, randoms.Random(0)
    path = tmp_path / 'network.params'
    words = some_program(1)[1].to_words()
    write_parameters(path, {'arg:network_program': words, 'arg:other': np.zeros((2, 3), np.float32)})
    content = path.read_bytes()

    def result_of(handle):
        library.bmx_program_destroy(handle)
        return '' if handle else library.bmx_last_error().decode()

    def load(octets):
        path.write_bytes(octets)
        message = result_of(library.bmx_program_load(str(path).encode(), 0))
        in_memory = result_of(library.bmx_program_load_memory(octets, len(octets), 0))
        assert message.partition(f'{path}: ')[::2] == in_memory.partition('content: ')[::2] and '\n' not in message
        return not message

    assert load(content)
    assert not library.bmx_program_load(str(tmp_path / 'missing.params').encode(), 0)
    assert 'missing.params' in library.bmx_last_error().decode()
    assert not library.bmx_program_load(str(tmp_path).encode(), 0)
    assert f'{tmp_path}: cannot read it: it is a folder' == library.bmx_last_error().decode()
    for end in range(0, len(content), 1 if long_run else 37):
        assert not load(content[:end])
    for _ in range(10000 if long_run else 1000):
        octets = bytearray(content)
        for _ in range(random.randint(1, 3)):
            position = random.choice((random.randrange(len(octets)), random.randrange(60), len(octets) - 1 - random.randrange(60)))
            octets[position] = random.choice((0, 1, 255, random.randrange(256)))
        load(bytes(octets))
    sizes = struct.pack('<QQQ', 0x112, 0, 1 << 60)
    assert not load(sizes) and not load(sizes + content[24:])
