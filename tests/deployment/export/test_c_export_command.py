"""The command that exports programs as C: its files, the memory that it prints, and what it refuses."""

import json
import re

import numpy as np
import pytest
from support.exported_c import compile_networks, exported, needs_gcc
from support.packed import chain, make_image, make_program, operation, write_packed

from bmx_melius.__main__ import main
from bmx_melius.deployment.c_export import layer_calls
from bmx_melius.deployment.c_export.c_files import to_c
from bmx_melius.deployment.program import reference

pytestmark = needs_gcc


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
    arguments = [(one['name'], one['type'], one['elements']) for one in (*facts['inputs'], *facts['outputs'])]
    assert arguments == [('input', 'float', 5 * 8 * 6), ('output0', 'float', 40 * 4 * 3), ('output1', 'float', 7)]
    program = make_program()
    networks = {'small': exported(program, 'small', outputs=[1, 0])}
    assert networks['small'].files == {path.name: path.read_text() for path in (tmp_path / 'c').iterdir()}
    image = make_image()
    for found, expected in zip(compile_networks(tmp_path, networks).run('small', [image]), reference.run(program, [image])[::-1]):
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
    assert re.search(message, error)
    assert not (tmp_path / 'c').exists()


def test_an_operation_without_a_form_in_c_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(layer_calls, 'UNSUPPORTED', ('softmax',))
    write_packed(tmp_path / 'packed', chain((4, 3, 3), operation('softmax')))
    assert run(tmp_path / 'packed', tmp_path / 'c') == 2
    assert 'operations without a form in C: softmax (operation 0)' in capsys.readouterr().err
    assert not (tmp_path / 'c').exists()
