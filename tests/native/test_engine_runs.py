"""Runs of the engine: a whole network, several threads, a forked child, inputs that do not fit, and the limit of working memory."""

import collections
import concurrent.futures
import ctypes
import re

import numpy as np
import pytest
from support.conversions import programs
from support.engines import Engine, create, needs_engine, sizes_of
from support.large_programs import sums
from support.random_programs import some_program
from support.reference_network import read_reference_network

from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Operation, ProgramError, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

pytest_plugins = ['support.conversions', 'support.engines']  # its fixtures
pytestmark = needs_engine


# --- networks -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def meliusnet22(packed_reference):
    """MeliusNet22 with parameters whose logits are known, packed: program, parameters file, input, logits."""
    network, (program,) = read_reference_network(), programs(packed_reference)
    return program, packed_reference.with_name('packed-0000.params'), network['x'].asnumpy(), network['logits']


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


# --- threads -------------------------------------------------------------------------------------------------------------------------


def test_several_threads_may_run_one_program_at_once(library):
    maker, program, sizes = some_program(3)
    engine = Engine.of(library, program)
    cases = [maker.data(sizes, batch) for batch in (1, 2, 3, 4, 1, 2, 3, 4)]
    expected = [reference.run(program, inputs) for inputs in cases]

    def work(number, engine=engine):
        for _ in range(20):
            for y, wanted in zip(engine.run(cases[number], threads=1 + number % 2), expected[number]):
                np.testing.assert_array_equal(y, wanted)

    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(work, range(len(cases))))


@pytest.mark.parametrize('pad_value', [-1, 0])
def test_a_binary_layer_of_many_pixels_equals_the_interpreter_with_any_number_of_threads(library, pad_value):
    channels, filters, random = 70, 48, np.random.RandomState(0)
    signs = {'threshold': random.randn(channels).astype(np.float32), 'flip': random.rand(channels) < 0.5}
    same = {f'{name}_{side}': 1 for name in ('kernel', 'stride', 'dilation') for side in 'hw'}
    same.update(kernel_h=3, kernel_w=3, pad_top=1, pad_bottom=1, pad_left=1, pad_right=1)
    shape = {**same, 'out_channels': filters, 'groups': 1, 'pad_value': pad_value, 'offset': 0, 'planes': 1}
    convolution = Operation('binary_conv', (1,), shape, {'weight': random.rand(filters, 3, 3, channels) < 0.5})
    program = Program([Value(REAL_KIND, channels, 61, 59, False)], [Operation('threshold', (0,), {}, signs), convolution], [2])
    x = random.randn(2, channels, 61, 59).astype(np.float32)
    expected, runner = reference.run(program, [x])[0], Engine.of(library, program)
    for threads in (1, 2, 3, 7):
        np.testing.assert_array_equal(runner.run([x], threads)[0], expected, f'{threads} threads')


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
