"""The operator in MXNet: every way to run it gives what the reference gives, and what it cannot do it says."""

import concurrent.futures
import importlib
import multiprocessing
import re
import shutil

import mxnet as mx
import numpy as np
import pytest
from support.engines import needs_operator
from support.packed import chain, conv, make_image, make_program, operation, window, write_packed
from support.paths import ROOT
from support.python_programs import run_python

import bmx_melius as bmx
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Value
from bmx_melius.deployment.program.packed_operator import operator_attributes
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import mxnet_operator

HYBRIDIZED = pytest.mark.parametrize(
    'options',
    [None, {}, {'static_alloc': True}, {'static_alloc': True, 'static_shape': True}],
    ids=['imperative', 'hybrid', 'static_alloc', 'static_shape'],
)


def assert_same(outputs, expected):
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected):
        assert output.dtype == np.float32 and output.shape == wanted.shape
        # sums of some forty products of up to a hundred each, in another order
        np.testing.assert_allclose(output.asnumpy(), wanted, rtol=1e-5, atol=1e-4)


def call(program, *arrays, words=None, attributes=None):
    """Run the operator imperatively."""
    words = mx.nd.array(program.to_words(), dtype='int32') if words is None else words
    return mx.nd.bmx_melius_packed(*arrays, words, **(operator_attributes(program) if attributes is None else attributes))


def load(tmp_path, program, name='net'):
    write_packed(tmp_path / name, program)
    inputs = [f'data{number}' for number in range(len(program.inputs))]
    return mx.gluon.SymbolBlock.imports(f'{tmp_path}/{name}-symbol.json', inputs, f'{tmp_path}/{name}-0000.params')


@HYBRIDIZED
def test_imported_block_runs_at_any_batch_and_size(tmp_path, options):
    block = load(tmp_path, make_program())
    if options is not None:
        block.hybridize(**options)
    for x in (make_image(), make_image(1), make_image(3, height=3, width=11), make_image(seed=1)):
        for _ in range(2):
            assert_same(block(mx.nd.array(x)), reference.run(make_program(), [x]))


def test_module_and_simple_bind_infer_what_the_program_needs(tmp_path):
    write_packed(tmp_path / 'net', make_program())
    x, expected = make_image(), reference.run(make_program(), [make_image()])
    symbol, arguments, _ = mx.model.load_checkpoint(str(tmp_path / 'net'), 0)
    module = mx.mod.Module(symbol, data_names=['data0'], label_names=None)
    module.bind([('data0', x.shape)], for_training=False)
    module.set_params(arguments, {})
    module.forward(mx.io.DataBatch([mx.nd.array(x)]))
    assert_same(module.get_outputs(), expected)
    executor = symbol.simple_bind(mx.cpu(), data0=x.shape, grad_req='null')
    assert executor.arg_dict['net_program'].dtype == np.int32
    executor.arg_dict['net_program'][:] = arguments['net_program']
    assert_same(executor.forward(data0=mx.nd.array(x)), expected)


def test_several_inputs_with_and_without_spatial_axes_are_supported():
    value = Value(REAL_KIND, 3, 4, 4, False)
    program = Program([value, value, Value(REAL_KIND, 2, 1, 1, True)], [operation('add', 0, 1), operation('relu', 2)], [3, 4])
    a, b = np.random.randn(2, 5, 3, 7, 1).astype(np.float32)
    c = np.random.randn(5, 2).astype(np.float32)
    assert_same(call(program, *map(mx.nd.array, (a, b, c))), reference.run(program, [a, b, c]))


def structure_text(program):
    return operator_attributes(program)['structure']


def pooled_otherwise():
    """A program of as many words as `make_program()` whose second output has another size."""
    program = make_program()
    program.operations[2].attributes.update(stride_h=1)
    return program


@pytest.mark.parametrize(
    'x,attributes,message',
    [
        (mx.nd.zeros((1, 4, 8, 6)), None, r'input 0 must have the shape \(batch, 5, height, width\), not \(1, 4, 8, 6\)'),
        (mx.nd.zeros((5, 8)), None, r'input 0 must have the shape \(batch, 5, height, width\), not \(5, 8\)'),
        (mx.nd.zeros((1, 5, 8, 6), dtype='float64'), None, 'input 0 must be float32'),
        (mx.nd.zeros((1, 5, 8, 6), dtype='float16'), None, 'input 0 must be float32'),
        (
            mx.nd.zeros((1, 5, 8, (1 << 16) + 1)),
            None,
            r'input 0, size: real \(5, 8, 65537\) is not possible; the network was converted with inputs of \(5, 8, 6\)',
        ),
        (mx.nd.zeros((1, 5, 8, 6)), {}, 'the attribute structure is damaged: it is not a list of numbers of 32 bits'),
        (mx.nd.zeros((1, 5, 8, 6)), {'structure': '1 2 3'}, 'the attribute structure is damaged: header: 3 words'),
        (mx.nd.zeros((1, 5, 8, 6)), {'structure': 'BMXP'}, 'the attribute structure is damaged: it is not a list of numbers of 32 bits'),
        (
            mx.nd.zeros((1, 5, 8, 6)),
            {'structure': structure_text(make_program()) + ' 1'},
            'structure is damaged: word 3, checksum: the file is damaged',
        ),
        (mx.nd.zeros((1, 5, 8, 6)), {'structure': structure_text(pooled_otherwise())}, 'do not belong together'),
    ],
)
@needs_operator
def test_arguments_that_do_not_fit_are_refused_with_the_reason(x, attributes, message):
    for _ in range(2):  # the second message must not repeat the first one
        with pytest.raises(mx.MXNetError, match=f'bmx_melius_packed: .*{message}') as caught:
            for output in call(make_program(), x, attributes=attributes):
                output.wait_to_read()
        assert str(caught.value).count('bmx_melius_packed: ') == 1


@needs_operator
def test_a_window_that_does_not_fit_is_named_with_the_size_at_conversion():
    program = chain((3, 9, 8), operation('max_pool', **window(4, 3)))
    with pytest.raises(mx.MXNetError, match=r'operation 0 \(max_pool\): not possible for real \(3, 5, 3\): .* with inputs of \(3, 9, 8\)'):
        call(program, mx.nd.zeros((2, 3, 5, 3)))


@needs_operator
def test_inputs_of_different_batches_are_named():
    value = Value(REAL_KIND, 3, 4, 4, False)
    program = Program([value, value], [operation('add', 0, 1)], [2])
    with pytest.raises(mx.MXNetError, match='input 1 has the batch 1, input 0 has 2'):
        call(program, mx.nd.zeros((2, 3, 4, 4)), mx.nd.zeros((1, 3, 4, 4)))


@HYBRIDIZED
@pytest.mark.parametrize('shape', [(), (0, 5, 8, 6), (1, 5, 0, 6)])
def test_arrays_without_axes_or_elements_are_refused(tmp_path, options, shape):
    block = sequence = load(tmp_path, make_program())
    if options is not None:
        sequence = mx.gluon.nn.HybridSequential()
        sequence.add(block)
        sequence.hybridize(**options)
    with pytest.raises(bmx.UserError, match=f'bmx_melius_packed: an input has the shape {re.escape(str(shape))}; .* batch of 1 or more'):
        sequence(mx.nd.array(np.zeros(shape, np.float32)))
    assert_same(sequence(mx.nd.array(make_image())), reference.run(make_program(), [make_image()]))


@needs_operator
def test_sizes_that_are_not_known_yet_stay_unknown(tmp_path):
    write_packed(tmp_path / 'net', make_program())
    symbol = mx.sym.load(str(tmp_path / 'net-symbol.json'))
    for shape in ((0, 5, 8, 6), (2, 5, 0, 0)):
        assert symbol.infer_shape_partial(data0=shape)[1] == [(), ()]
    with pytest.raises(mx.MXNetError, match='input 0 has the batch 0; it must be 1 or more'):
        call(make_program(), mx.nd.array(np.zeros((0, 5, 8, 6))))[0].wait_to_read()


@needs_operator
def test_words_that_are_no_program_are_refused():
    # of a program that has not run: at the address of one that has, a damaged copy with its header replaces the program itself
    program, x = make_program(seed=1234), mx.nd.array(make_image())
    words = program.to_words()
    damaged = words.copy()
    damaged[60] ^= 1
    for wrong, message in ((words * 0, 'magic'), (damaged, 'checksum')):
        with pytest.raises(mx.MXNetError, match=f'bmx_melius_packed: .*{message}'):
            call(program, x, words=mx.nd.array(wrong, dtype='int32'))[0].wait_to_read()
    with pytest.raises(mx.MXNetError, match='the program must be int32'):
        call(program, x, words=mx.nd.array(words, dtype='int64'))
    assert_same(call(program, x), reference.run(program, [make_image()]))


def test_words_that_change_in_place_are_noticed():
    x, words = make_image(), None
    for seed in (0, 1, 0, 2):
        program = make_program(seed)
        if words is None:
            words = mx.nd.array(program.to_words(), dtype='int32')
        else:
            words[:] = mx.nd.array(program.to_words(), dtype='int32')
        assert_same(call(program, mx.nd.array(x), words=words), reference.run(program, [x]))


def test_a_program_of_more_than_a_million_words_runs():
    weight = np.random.default_rng(0).standard_normal((1024, 1025, 1, 1), dtype=np.float32)
    program, x = chain((1025,), conv(weight)), np.ones((1, 1025), np.float32)
    np.testing.assert_allclose(call(program, mx.nd.array(x)).asnumpy(), weight.sum(axis=(1, 2, 3))[np.newaxis], rtol=1e-3, atol=1e-3)


def test_many_networks_in_turn_keep_apart(tmp_path):
    x = make_image()
    blocks = [load(tmp_path, make_program(seed), f'net{seed}') for seed in range(40)]
    expected = [reference.run(make_program(seed), [x]) for seed in range(40)]
    for block in blocks:
        block.hybridize(static_alloc=True)
    for _ in range(2):
        for block, wanted in zip(blocks, expected):
            assert_same(block(mx.nd.array(x)), wanted)


def gradient(run):
    x = mx.nd.array(make_image())
    x.attach_grad()
    with mx.autograd.record():
        y = run(x)[0]
    y.backward()
    x.grad.wait_to_read()


@needs_operator
@HYBRIDIZED
def test_a_gradient_is_refused(tmp_path, options):
    block = load(tmp_path, make_program())
    if options is not None:
        block.hybridize(**options)
    with pytest.raises(mx.MXNetError, match='inference and has no gradient: train the network that it was converted from'):
        gradient(block)


@needs_operator
def test_threads_that_share_a_block_get_identical_results(tmp_path):
    block = load(tmp_path, make_program())
    block.hybridize(static_alloc=True, static_shape=True)
    words = mx.nd.array(make_program().to_words(), dtype='int32')
    images = [make_image(seed=seed) for seed in range(8)]
    expected = [reference.run(make_program(), [image]) for image in images]
    block(mx.nd.array(images[0]))[0].wait_to_read()

    def run(image):
        return [[output.asnumpy() for output in call(make_program(), mx.nd.array(image), words=words)] for _ in range(20)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, images))
    for outputs, wanted in zip(results, expected):
        for output in outputs:
            for one, first, right in zip(output, outputs[0], wanted):
                np.testing.assert_array_equal(one, first)
                np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-5)


def run_in_child(connection, program, x, words):
    output = call(program, mx.nd.array(x), words=words)[0].asnumpy()
    session = bmx.Session(program)(x)[0]
    connection.send((output, session))
    connection.close()


@needs_operator
def test_a_child_after_fork_runs_what_its_parent_ran():
    program, x = make_program(), make_image()
    words = mx.nd.array(program.to_words(), dtype='int32')
    before = call(program, mx.nd.array(x), words=words)[0].asnumpy()
    context = multiprocessing.get_context('fork')
    for _ in range(2):
        ours, theirs = context.Pipe()
        child = context.Process(target=run_in_child, args=(theirs, program, x, words))
        child.start()
        assert ours.poll(60), 'the child hangs'
        for output in ours.recv():
            np.testing.assert_allclose(output, before, rtol=1e-5, atol=1e-5)
        child.join(60)
        assert child.exitcode == 0
        np.testing.assert_array_equal(call(program, mx.nd.array(x), words=words)[0].asnumpy(), before)


def test_importing_again_changes_nothing():
    for _ in range(2):
        importlib.reload(mxnet_operator)
        importlib.reload(bmx).deployment.runtime.mxnet_operator.register()
    assert_same(call(make_program(), mx.nd.array(make_image())), reference.run(make_program(), [make_image()]))


def test_import_prints_nothing_the_second_time_neither():
    done = run_python(
        'import sys, mxnet as mx, bmx_melius\n'
        "names = [name for name in list(sys.modules) if name.startswith('bmx_melius')]\n"
        'for name in names: del sys.modules[name]\n'
        'import bmx_melius\n'
        'assert callable(mx.nd.bmx_melius_packed) and callable(mx.sym.bmx_melius_packed)\n'
    )
    assert (done.stdout, done.stderr) == ('', '')


@pytest.fixture()
def run_without_libraries(tmp_path):
    """The function that runs Python code in a copy of the package without compiled libraries, and in its folder files of a network."""
    shutil.copytree(ROOT / 'bmx_melius', tmp_path / 'bmx_melius', ignore=shutil.ignore_patterns('*.so', '__pycache__'))
    write_packed(tmp_path / 'net', make_program())
    np.save(tmp_path / 'x.npy', make_image())

    def run(program):
        start = 'import mxnet as mx, numpy as np, bmx_melius, warnings\n'
        load = "block = mx.gluon.SymbolBlock.imports('net-symbol.json', ['data0'], 'net-0000.params')\nblock.hybridize()\n"
        return run_python(start + "warnings.simplefilter('always')\n" + load + program, cwd=tmp_path, path=tmp_path)

    return run


def test_without_compiled_libraries_mxnet_runs_the_network_in_numpy(run_without_libraries):
    done = run_without_libraries(
        "for _ in range(2): outputs = block(mx.nd.array(np.load('x.npy')))\nfor output in outputs: print(*output.asnumpy().ravel())\n"
    )
    assert done.stderr.count('has not been compiled') == 1
    printed = [np.array(line.split(), dtype=np.float32) for line in done.stdout.splitlines()]
    for output, wanted in zip(printed, reference.run(make_program(), [make_image()])):
        np.testing.assert_allclose(output, wanted.ravel(), rtol=1e-4, atol=1e-4)


def test_without_compiled_libraries_mxnet_shuts_down_after_the_network_has_run(run_without_libraries):
    done = run_without_libraries(
        'import time\n'
        'from bmx_melius.deployment.runtime.numpy_operator import Runner\n'
        'run, shut_down, finished = Runner.run, mx.base._LIB.MXNotifyShutdown, []\n'
        'def run_slowly(runner, inputs):\n'
        '    time.sleep(0.5)\n'
        '    outputs = run(runner, inputs)\n'
        '    finished.append(outputs)\n'
        '    return outputs\n'
        'Runner.run = run_slowly\n'
        'mx.base._LIB.MXNotifyShutdown = lambda: print(len(finished)) or shut_down()\n'
        "x = mx.nd.array(np.load('x.npy'))\n"
        'for _ in range(2): block(x)\n'
    )
    assert done.stdout == '2\n'


def test_without_compiled_libraries_what_does_not_fit_is_named(run_without_libraries):
    done = run_without_libraries(
        "text = open('net-symbol.json').read()\n"
        "for damaged in (text.replace('structure', 'program_words'), text.replace(' 40 ', ' 41 ')):\n"
        '    try: mx.sym.load_json(damaged)\n'
        '    except bmx_melius.UserError as error: print(error)\n'
        'try: block(mx.nd.zeros((2, 4, 8, 6)))\n'
        "except mx.MXNetError: print('MXNet has printed the reason')\n"
        "try: mx.nd.bmx_melius_packed(mx.nd.zeros((2, 5, 8, 6)), mx.nd.zeros((722,), dtype='int32'), structure='1 2 3')\n"
        "except mx.MXNetError: print('MXNet has printed the reason')\n"
    )
    missing, damaged, *printed = done.stdout.splitlines()
    assert missing.endswith('the attribute structure is damaged: it is not a list of numbers of 32 bits')
    assert damaged.endswith('the attribute structure is damaged: word 3, checksum: it does not match: the file is damaged')
    assert printed.count('MXNet has printed the reason') == 2
    reasons = [line.partition('ProgramError: ')[2] for line in printed]
    assert 'input 0 must have the shape (batch, 5, height, width), not (2, 4, 8, 6)' in reasons
    assert any(reason.startswith('bmx_melius_packed: the attribute structure is damaged: header: ') for reason in reasons)


def test_blocks_without_packed_operators_keep_the_graph_class_of_mxnet(tmp_path):
    classes, dense = [], mx.gluon.nn.Dense(2)
    dense.initialize()
    for block in (load(tmp_path, make_program()), dense):
        block.hybridize()
        block(mx.nd.array(make_image()))
        classes.append(type(block._cached_op))
    assert classes[1] is mx.nd._internal.CachedOp and issubclass(classes[0], classes[1]) and classes[0] is not classes[1]
