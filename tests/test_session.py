"""Packed networks without MXNet: what a session computes, and what it refuses."""

import concurrent.futures
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import cv2
import numpy as np
import pytest
from packed import geometry, make_image, make_program, write_packed

import bmx_melius as bmx
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Operation, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = [(['gcc', '-std=c99'], 'examples/c/run_packed.c'), (['g++', '-std=c++17'], 'examples/cpp/run_packed.cc')]


@pytest.fixture()
def prefix(tmp_path):
    write_packed(tmp_path / 'net', make_program())
    return tmp_path / 'net'


def assert_same(outputs, expected):
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected):
        assert output.dtype == np.float32 and output.shape == wanted.shape
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


def test_session_computes_what_the_reference_does_at_any_batch_and_size(prefix):
    session = bmx.Session(prefix)
    assert session.input_names == ['data0'] and session.input_shapes == [(None, 5, 8, 6)]
    for x in (make_image(), make_image(1), make_image(7, height=3, width=11)):
        assert_same(session(x), reference.run(make_program(), [x]))


@pytest.mark.parametrize('make', [str, lambda prefix: f'{prefix}-symbol.json', lambda prefix: make_program()])
def test_session_takes_a_prefix_a_symbol_file_or_a_program(prefix, make):
    assert_same(bmx.Session(make(prefix))(make_image()), reference.run(make_program(), [make_image()]))


@pytest.mark.parametrize('outputs', [[0], [1], [1, 0], [0, 0, 1]])
def test_outputs_are_those_of_the_symbol_and_a_single_one_is_not_in_a_list(tmp_path, outputs):
    write_packed(tmp_path / 'net', make_program(), outputs)
    result = bmx.Session(tmp_path / 'net')(make_image())
    expected = reference.run(make_program(), [make_image()])
    assert isinstance(result, list) == (len(outputs) > 1)
    assert_same(result if len(outputs) > 1 else [result], [expected[output] for output in outputs])


def test_several_inputs_are_given_in_order(tmp_path):
    value = Value(REAL_KIND, 3, 4, 4, False)
    write_packed(tmp_path / 'net', Program([value, value, Value(REAL_KIND, 2, 1, 1, True)], [Operation('add', (0, 1))], [3, 2]))
    a, b = np.random.randn(2, 5, 3, 7, 1).astype(np.float32)
    c = np.random.randn(5, 2).astype(np.float32)
    assert_same(bmx.Session(tmp_path / 'net')(a, b, c), [a + b, c])


def test_arrays_that_are_not_contiguous_and_lists_of_floats_are_taken(prefix):
    x = make_image()
    assert_same(bmx.Session(prefix)(np.asfortranarray(x)), bmx.Session(prefix)(x))
    assert_same(bmx.Session(prefix)(x[:, :, ::-1]), bmx.Session(prefix)(x[:, :, ::-1].copy()))


@pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')
def test_the_fingerprint_is_the_hash_of_the_outputs_for_the_documented_input(prefix):
    session = bmx.Session(prefix)
    x = (np.random.RandomState(0).randint(-(2**23), 2**23, (1, 5, 8, 6)) / 2**22).astype(np.float32)
    expected = hashlib.sha256(b''.join(array.tobytes() for array in session(x))).hexdigest()
    assert session.fingerprint() == expected == bmx.Session(prefix, threads=3).fingerprint()


@pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')
def test_the_inputs_of_a_fingerprint_are_generated_in_order(tmp_path):
    value = Value(REAL_KIND, 3, 4, 4, False)
    write_packed(tmp_path / 'net', Program([value, value], [Operation('add', (0, 1))], [2]))
    random = np.random.RandomState(0)
    a, b = ((random.randint(-(2**23), 2**23, (1, 3, 4, 4)) / 2**22).astype(np.float32) for _ in range(2))
    assert bmx.Session(tmp_path / 'net').fingerprint() == hashlib.sha256((a + b).tobytes()).hexdigest()


@pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')
def test_sessions_are_opened_and_closed_in_several_threads(prefix):
    expected = bmx.Session(prefix)(make_image())[0].tobytes()

    def open_and_run(_):
        return bmx.Session(prefix, threads=1)(make_image())[0].tobytes() == expected

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(open_and_run, range(800)))


def test_a_precision_is_exact_fast_or_bf16(prefix):
    for precision in 'exact', 'fast', 'bf16':  # the dense layer has few rows, for which all of them use float32
        assert_same(bmx.Session(prefix, precision=precision)(make_image()), reference.run(make_program(), [make_image()]))
    with pytest.raises(bmx.UserError, match="precision must be 'exact', 'fast' or 'bf16', not 'half'"):
        bmx.Session(prefix, precision='half')


@pytest.mark.parametrize('kernel, groups', [(3, 4), (1, 1)], ids=['stem', 'pixels'])
def test_bf16_rounds_inputs_and_weights_to_8_bits_and_adds_in_float32(kernel, groups):
    random = np.random.RandomState(0)
    channels, filters = 32, 64
    shape = (filters, channels // groups, kernel, kernel)
    attributes = {'out_channels': filters, **geometry(kernel, pad=kernel // 2), 'dilation_h': 1, 'dilation_w': 1, 'groups': groups}
    pooling = [Operation('max_pool', (0,), {**geometry(), 'ceil': 0})] if kernel == 1 else []  # convolutions of the input are the stem's

    def run(weight, x, precision):
        convolution = Operation('conv', (len(pooling),), {**attributes, 'has_bias': 0, 'half': 0}, {'weight': weight})
        program = Program([Value(REAL_KIND, channels, 20, 70, False)], [*pooling, convolution], [len(pooling) + 1])
        return np.asarray(bmx.Session(program, precision=precision)(x))

    integers = random.randint(-8, 9, shape).astype('f'), random.randint(-255, 256, (2, channels, 20, 70)).astype('f')
    assert run(*integers, 'bf16').tobytes() == run(*integers, 'exact').tobytes()

    numbers = random.randn(*shape).astype('f'), random.randn(2, channels, 20, 70).astype('f')
    for number in numbers:  # halfway between two numbers of 8 bits, which are rounded to even, and numbers of 8 bits
        number.flat[::5] = (number.flat[::5].view('u4') & 0xFFFF0000 | 0x8000).view('f')
        number.flat[1::5] = bfloat16(number.flat[1::5])
    found, exact = run(*numbers, 'bf16'), run(*numbers, 'exact')
    expected = run(*map(bfloat16, numbers), 'exact')
    tolerance = 1e-5 * run(*map(np.abs, numbers), 'exact')
    without_bf16 = found.tobytes() == exact.tobytes()  # a processor without AVX512_BF16
    assert without_bf16 or (np.abs(found - expected) <= tolerance).all()
    assert (np.abs(expected - exact) > tolerance).mean() > 0.9


def bfloat16(numbers):
    """Return float32 numbers rounded to the nearest ones of 8 bits, halfway to the even one."""
    bits = np.ascontiguousarray(numbers).view('u4').astype('u8')
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype('u4').view('f')


@pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')
def test_outputs_of_more_bytes_than_the_limit_are_refused(monkeypatch):
    program = Program([Value(REAL_KIND, 4, 8, 8, False)], [Operation('relu', (0,))], [1] * 1000)
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '1023999')
    with pytest.raises(bmx.UserError, match='needs 1024000 bytes of memory for its outputs; at most 1023999 are allowed'):
        bmx.Session(program)(np.zeros((1, 4, 8, 8), np.float32))
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '1024000')
    assert len(bmx.Session(program)(np.zeros((1, 4, 8, 8), np.float32))) == 1000


@pytest.mark.parametrize('threads', [1, 2, 7, np.int64(2)])
def test_threads_of_a_run_can_be_chosen(prefix, threads):
    assert_same(bmx.Session(prefix, threads=threads)(make_image()), bmx.Session(prefix)(make_image()))


def test_threads_that_share_a_session_get_separate_results(prefix):
    session, images = bmx.Session(prefix), [make_image(seed=seed) for seed in range(8)]
    results = [[] for _ in images]

    def run(number):
        for _ in range(20):
            results[number].append(session(images[number]))

    workers = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for image, outputs in zip(images, results):
        expected = session(image)
        assert len(outputs) == 20
        assert all(np.array_equal(one, wanted) for output in outputs for one, wanted in zip(output, expected))


@pytest.mark.parametrize(
    'inputs,message',
    [
        ([], 'has 1 inputs, 0 are given'),
        ([np.zeros((1, 5, 8, 6))], 'input 0 must be float32, not float64'),
        ([np.zeros((1, 4, 8, 6), np.float32)], r'input 0 must have the shape \(batch, 5, height, width\), not \(1, 4, 8, 6\)'),
        ([np.zeros((5, 8, 6), np.float32)], r'not \(5, 8, 6\)'),
        ([np.zeros((0, 5, 8, 6), np.float32)], 'input 0 has the batch 0; it must be 1 or more'),
        ([np.float32(1)], r'must have the shape \(batch, 5, height, width\), not \(\)'),
        ([np.ma.masked_less(make_image(), 0)], r'input 0 is a masked array.*filled'),
        ([[[1.0, 2.0], [3.0]]], 'input 0 is not an array of numbers'),
        (['pixels'], 'input 0 is not an array of numbers'),
    ],
)
def test_an_input_that_does_not_fit_is_named(prefix, inputs, message):
    session = bmx.Session(prefix)
    for method in (session, *((session.profile, session.working_memory) if not engine.missing() else ())):
        with pytest.raises(bmx.UserError, match=message):
            method(*inputs)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_session_that_checks_inputs_names_the_first_value_that_is_not_finite(tmp_path, value):
    maps = Value(REAL_KIND, 3, 4, 4, False)
    write_packed(tmp_path / 'net', Program([maps, maps], [Operation('add', (0, 1))], [2]))
    session = bmx.Session(tmp_path / 'net', check_finite=True)
    x, y = np.random.randn(2, 2, 3, 4, 4).astype(np.float32)
    np.testing.assert_array_equal(session(x, y), x + y)
    y[1, 2, 0, 1:] = value
    with pytest.raises(bmx.UserError, match=rf'input 1 \(data1\) has 3 values .*not finite, .* {value} at \(1, 2, 0, 1\)'):
        session(x, y)
    with pytest.raises(bmx.UserError, match='must be float32'):
        session(x, np.full(y.shape, None))
    assert not np.isfinite(bmx.Session(tmp_path / 'net')(x, y)).all(), 'not checked by default'


def test_functions_that_need_the_engine_report_that_it_is_missing(monkeypatch):
    monkeypatch.setattr(engine, 'load', lambda: None)
    monkeypatch.setattr(engine, 'missing', lambda: 'no engine')
    session = bmx.Session(make_program())
    for method in (session.profile, session.working_memory):
        with pytest.raises(bmx.UserError, match='no engine'):
            method(make_image())


@pytest.mark.parametrize('threads', [-1, 1.5, '2', True, None, 1025, 2**31, 2**64 + 1])
def test_a_number_of_threads_that_is_none_is_named(prefix, threads):
    with pytest.raises(bmx.UserError, match='threads must be'):
        bmx.Session(prefix, threads=threads)


def change_symbol(prefix, change):
    path = pathlib.Path(f'{prefix}-symbol.json')
    graph = json.loads(path.read_text())
    change(graph)
    path.write_text(json.dumps(graph))


def add_foreign(graph):
    graph['nodes'].append({'op': 'softmax', 'name': 'softmax', 'inputs': [graph['heads'][0]]})
    graph['heads'] = [[len(graph['nodes']) - 1, 0, 0]]


def remove_packed(graph):
    graph['nodes'][-1] = {'op': 'relu', 'name': 'relu', 'inputs': [[0, 0, 0]]}


def leave_an_input(graph):
    graph.update(nodes=graph['nodes'][:1], heads=[[0, 0, 0]])


def read_itself(graph):
    graph['nodes'][-1]['inputs'][0] = [2, 0, 0]


@pytest.mark.parametrize(
    'change,message',
    [
        (add_foreign, r'beside a packed one \(softmax\): load it with MXNet'),
        (remove_packed, r'operators of MXNet \(relu\): load it with MXNet, or convert it first'),
        (lambda graph: graph.pop('heads'), 'no symbol of MXNet, or a damaged one'),
        (lambda graph: graph['nodes'].pop(), 'damaged one .an output is not a node'),
        (lambda graph: graph['nodes'][-1]['inputs'].append([3, 0, 0]), 'node net reads a node that does not exist'),
        (leave_an_input, 'has 0 packed operators'),
        (read_itself, 'node net reads its own result'),
        (lambda graph: graph['nodes'][0].update(name='net_program'), '2 variables of the symbol are called net_program'),
        (lambda graph: graph.update(heads=[[0, 0, 0]]), 'outputs that its packed operator does not compute'),
        (lambda graph: graph.update(heads=[[2, 5, 0]]), 'not from the same conversion'),
        (lambda graph: graph['nodes'][1].update(name='other'), 'has no array arg:other'),
        (lambda graph: graph['nodes'][2]['attrs'].update(structure='100'), 'not from the same conversion'),
    ],
)
def test_a_symbol_that_a_session_cannot_run_is_named(prefix, change, message):
    change_symbol(prefix, change)
    with pytest.raises(bmx.UserError, match=message):
        bmx.Session(prefix)


def test_damaged_files_are_named(prefix):
    path = pathlib.Path(f'{prefix}-0000.params')
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(bmx.UserError, match='net-0000.params: .*damaged'):
        bmx.Session(prefix)
    pathlib.Path(f'{prefix}-symbol.json').write_bytes(b'\xff')
    with pytest.raises(bmx.UserError, match='net-symbol.json holds no symbol'):
        bmx.Session(prefix)


def test_a_name_of_no_network_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(bmx.UserError, match='nothing-symbol.json: No such file or directory') as caught:
        bmx.Session(tmp_path / 'nothing')
    assert isinstance(caught.value, OSError) and caught.value.filename == str(tmp_path / 'nothing-symbol.json')
    (tmp_path / 'folder-symbol.json').mkdir()
    with pytest.raises(bmx.UserError, match='folder-symbol.json: Is a directory'):
        bmx.Session(tmp_path / 'folder')


@pytest.mark.parametrize('name, message', [(b'n\xff', r"'n.udcff' is not valid UTF-8"), ('n\udcff', 'UTF-8'), ('n\0', 'null character')])
def test_a_prefix_that_cannot_name_files_is_refused(name, message):
    with pytest.raises(bmx.UserError, match=message):
        bmx.Session(name)


def test_a_prefix_may_be_of_bytes(prefix):
    assert_same(bmx.Session(bytes(prefix))(make_image()), reference.run(make_program(), [make_image()]))


def test_damaged_packed_files_cause_nothing_but_an_error(prefix, long_run):
    random, x = np.random.RandomState(0), make_image()
    for suffix in ('-symbol.json', '-0000.params'):
        path = pathlib.Path(f'{prefix}{suffix}')
        content = path.read_bytes()
        for _ in range(5000 if long_run else 500):
            damaged = bytearray(content)
            begin = random.randint(len(content))
            damaged[begin : begin + random.randint(1, 4)] = random.choice([b'9', b'-', b'"', b'[', b'\xff', b'\0']) * random.randint(0, 4)
            path.write_bytes(damaged)
            try:
                bmx.Session(prefix)(x)
            except bmx.UserError as error:
                assert len(str(error).splitlines()) == 1
        path.write_bytes(content)
    assert_same(bmx.Session(prefix)(x), reference.run(make_program(), [x]))


def run_light(program, *arguments, **environment):
    """Run Python code in a process that is to do without MXNet, though it is installed; return what it printed."""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'BMX_MELIUS_WITHOUT_MXNET': '1', **environment}
    command = [sys.executable, '-W', 'ignore', '-c', 'import sys\n' + program, *map(str, arguments)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_can_run_sessions_without_importing_an_installed_mxnet(prefix):
    printed = run_light(
        'import numpy as np, bmx_melius as bmx\n'
        'print([output.shape for output in bmx.Session(sys.argv[1])(np.zeros((2, 5, 8, 6), np.float32))])\n'
        'try:\n    bmx.QConv2D\nexcept ImportError as error:\n    print(error)\n'
        "assert not hasattr(bmx, 'layers') and 'mxnet' not in sys.modules\n"
        'from bmx_melius import marks, quantizers\n',
        prefix,
    )
    shapes, error = printed.splitlines()
    assert shapes == '[(2, 7), (2, 40, 4, 3)]'
    assert error.startswith('bmx_melius.QConv2D needs MXNet') and 'unset' in error


@pytest.mark.parametrize(
    'imports,light',
    [('import mxnet as mx, bmx_melius', ''), ('import bmx_melius, mxnet as mx', ''), ('import mxnet as mx, bmx_melius', '1')],
)
def test_mxnet_reads_packed_files_and_knows_radam_whichever_is_imported_first(prefix, imports, light):
    printed = run_light(
        f'{imports}\n'
        "block = mx.gluon.SymbolBlock.imports(sys.argv[1] + '-symbol.json', ['data0'], sys.argv[1] + '-0000.params')\n"
        "print(type(mx.optimizer.create('radam')).__name__, block(mx.nd.zeros((2, 5, 8, 6)))[0].shape)\n",
        prefix,
        BMX_MELIUS_WITHOUT_MXNET=light,
    )
    assert printed == 'RAdam (2, 7)\n'


@pytest.mark.parametrize('arguments', [['--help'], ['--version'], ['convert', '--help'], ['bench', 'net', '--threads', '0']])
def test_the_console_script_does_not_import_mxnet_for_help_or_a_wrong_argument(arguments):
    run_light(
        "sys.argv[0] = '/usr/bin/bmx-melius'\n"
        'from bmx_melius.__main__ import main\n'
        'try:\n    main()\nexcept SystemExit:\n    pass\n'
        "assert 'bmx_melius' in sys.modules and 'mxnet' not in sys.modules\n",
        *arguments,
        BMX_MELIUS_WITHOUT_MXNET='',
    )


def test_a_package_that_python_runs_as_a_module_may_import_this_one(tmp_path):
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / '__init__.py').write_text('import bmx_melius as bmx\nlayer = bmx.QActivation()\n')
    (tmp_path / 'other' / '__main__.py').write_text("print('it runs')\n")
    path = os.pathsep.join([str(tmp_path), os.path.dirname(os.path.dirname(bmx.__file__))])
    command = [sys.executable, '-W', 'ignore', '-m', 'other']
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, 'PYTHONPATH': path}, capture_output=True, text=True)
    assert done.stdout == 'it runs\n', done.stderr


def test_the_console_script_reads_packed_files_and_knows_the_zoo(tmp_path):
    write_packed(tmp_path / 'net', make_program(channels=3), [0])
    cv2.imwrite(str(tmp_path / 'image.png'), np.zeros((9, 9, 3), np.uint8))
    printed = run_light(
        "sys.argv[0] = '/usr/bin/bmx-melius'\n"
        'from bmx_melius.__main__ import main\n'
        'for arguments in sys.argv[1:4], sys.argv[4:]:\n'
        "    assert main([*arguments, '--input-size', '32', '--json']) == 0\n",
        *('predict', tmp_path / 'net', tmp_path / 'image.png'),
        *('summary', 'meliusnet22', '--initial-layers=thumbnail'),
        BMX_MELIUS_WITHOUT_MXNET='',
    )
    assert '"predictions"' in printed and '"bops"' in printed


@pytest.mark.skipif(bool(engine.missing()) or not shutil.which('g++'), reason='no compiled engine, or no compiler')
@pytest.mark.parametrize('compiler,source', EXAMPLES, ids=['c', 'cpp'])
def test_the_examples_in_c_and_cpp_print_the_output_of_a_session(prefix, tmp_path, compiler, source):
    x = make_image(1)
    x.tofile(tmp_path / 'x.bin')
    package = pathlib.Path(importlib.util.find_spec('bmx_melius').origin).parent
    program = tmp_path / 'run_packed'
    library = ['-I', package / 'csrc' / 'api', package / '_engine.so', f'-Wl,-rpath,{package}']
    subprocess.run([*compiler, '-Wall', '-Wextra', '-Wpedantic', '-Werror', ROOT / source, *library, '-o', program], check=True)
    printed = subprocess.run([program, f'{prefix}-0000.params', tmp_path / 'x.bin'], check=True, stdout=subprocess.PIPE, text=True).stdout
    numbers = np.array(printed.split(), dtype=np.float32)
    expected = bmx.Session(prefix)(x)[0].ravel()
    np.testing.assert_allclose(numbers, expected, rtol=1e-5)
    failed = subprocess.run([program, tmp_path / 'x.bin', tmp_path / 'x.bin'], stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 1 and len(failed.stderr.splitlines()) == 1


RESIDENT = """
import os, sys
import bmx_melius

def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')

first = bmx_melius.Session(sys.argv[1])
before = resident()
others = [bmx_melius.Session(sys.argv[1]) for _ in range(10)]
print(resident() - before)
"""


@pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')
def test_sessions_of_one_network_share_its_weights(tmp_path):
    shape = {'out_channels': 512, **geometry(3, pad=1), 'dilation_h': 1, 'dilation_w': 1, 'groups': 1, 'has_bias': 0, 'half': 0}
    weight = np.random.randn(512, 512, 3, 3).astype(np.float32)
    program = Program([Value(REAL_KIND, 512, 4, 4, False)], [Operation('conv', (0,), shape, {'weight': weight})], [1])
    write_packed(tmp_path / 'net', program)
    environment = {**os.environ, 'BMX_MELIUS_WITHOUT_MXNET': '1', 'PYTHONPATH': str(ROOT)}
    command = [sys.executable, '-c', RESIDENT, tmp_path / 'net']
    grown = int(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    assert grown < weight.nbytes
