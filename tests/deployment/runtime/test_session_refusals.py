"""What a session refuses: inputs and arguments that do not fit, symbols that it cannot run, damaged and missing files."""

import json
import pathlib

import numpy as np
import pytest
from support.engines import needs_engine
from support.packed import make_image, make_program, write_packed

import bmx_melius as bmx
from bmx_melius.deployment.program.operations import REAL_KIND, Operation, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

pytest_plugins = ['support.packed_networks']  # its fixtures


@needs_engine
def test_outputs_of_more_bytes_than_the_limit_are_refused(monkeypatch):
    program = Program([Value(REAL_KIND, 4, 8, 8, False)], [Operation('relu', (0,))], [1] * 1000)
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '1023999')
    with pytest.raises(bmx.UserError, match='needs 1024000 bytes of memory for its outputs; at most 1023999 are allowed'):
        bmx.Session(program)(np.zeros((1, 4, 8, 8), np.float32))
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '1024000')
    assert len(bmx.Session(program)(np.zeros((1, 4, 8, 8), np.float32))) == 1000


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


@pytest.mark.parametrize(
    'change,message',
    [
        (add_foreign, r'beside a packed operator \(softmax\): load it with MXNet'),
        (remove_packed, r'operators of MXNet \(relu\): load it with MXNet, or convert it first: bmx-melius convert .*-packed'),
        (lambda graph: graph.pop('heads'), 'no symbol of MXNet, or a damaged one'),
        (leave_an_input, 'has 0 packed operators'),
        (lambda graph: graph.update(heads=[[0, 0, 0]]), 'outputs that its packed operator does not compute'),
        (lambda graph: graph.update(heads=[[2, 5, 0]]), 'not from the same conversion'),
        (lambda graph: graph['nodes'][1].update(name='other'), 'has no array arg:other'),
        (lambda graph: graph['nodes'][2]['attrs'].update(structure='100'), 'not from the same conversion'),
    ],
)
def test_a_symbol_that_a_session_cannot_run_is_named(prefix, change, message):
    """Symbols that are damaged in other ways are refused by their reader: tests/files/test_symbol_json.py."""
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
