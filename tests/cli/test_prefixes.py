"""What is given in place of a PREFIX, or in another layout, is explained by all commands that take one."""

import gzip

import numpy as np
import pytest
from support.tiny_onnx import binary_network

import bmx_melius as bmx
from bmx_melius.__main__ import main

MEANING = 'a PREFIX is what the names of both files of a network begin with'
COMMANDS = {
    'predict': ['predict', '{}', 'photo.jpg'],
    'bench': ['bench', '{}'],
    'serve': ['serve', '{}'],
    'convert': ['convert', '{}', 'out'],
    'export-c': ['export-c', '{}', 'out'],
    'export-onnx': ['export-onnx', '{}', 'out.onnx'],
    'evaluate': ['evaluate', '{}', 'digits'],
    'summary': ['summary', '{}'],
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with demo/packed-symbol.json and demo/packed-0000.params."""
    folder = tmp_path_factory.mktemp('prefixes')
    (folder / 'demo').mkdir()
    (folder / 'empty').mkdir()
    (folder / 'net.onnx').write_bytes(binary_network().SerializeToString())
    bmx.import_onnx(folder / 'net.onnx', folder / 'demo' / 'packed')
    return folder


@pytest.fixture
def message(folder, capsys, monkeypatch):
    """Run a command that fails; return the only line that it prints."""
    monkeypatch.chdir(folder)

    def run(*arguments):
        assert main([*arguments]) == 2
        printed = capsys.readouterr()
        assert printed.out == '' and printed.err.count('\n') == 1 and printed.err.startswith('error: ')
        return printed.err

    return run


@pytest.mark.parametrize('given', ['demo', 'demo/', 'demo/packed-0000.params', 'demo/packed.params', 'demo/pakced'])
@pytest.mark.parametrize('command', COMMANDS)
def test_a_folder_a_file_and_a_misspelt_prefix_are_explained_with_what_is_there(command, given, message):
    text = message(*(argument.format(given) for argument in COMMANDS[command]))
    assert MEANING in text and ('demo/packed\n' in text)
    assert ('is a folder' in text) == (given.rstrip('/') == 'demo')


def test_an_onnx_model_and_a_folder_without_networks_are_explained(message):
    assert '`bmx-melius import-onnx net.onnx PREFIX` makes a packed network of it' in message('predict', 'net.onnx', 'photo.jpg')
    assert 'empty is a folder' in message('serve', 'empty') and 'there are no such files in it' in message('serve', 'empty')
    assert 'here demo/other: there is no demo/other-symbol.json' in message('serve', 'demo/other-0003.params')


@pytest.mark.parametrize('name,words', [('net.pth', 'a checkpoint of PyTorch'), ('net.onnx.gz', 'compressed by gzip: gunzip it first')])
@pytest.mark.parametrize('command', COMMANDS)
def test_files_of_other_programs_get_the_hint_what_to_do(command, name, words, message, folder):
    (folder / name).write_bytes(b'PK\x03\x04' + bytes(26) + b'net/data.pkl' if name.endswith('h') else gzip.compress(b'net'))
    text = message(*(argument.format(name) for argument in COMMANDS[command]))
    assert f'{name} is {words}' in text and '`bmx-melius import-onnx NET.onnx PREFIX`' in text


@pytest.mark.parametrize('command', ['bench', 'evaluate', 'summary'])
def test_names_of_neither_files_nor_networks_get_those_of_both(command, message, folder, monkeypatch):
    monkeypatch.chdir(folder / 'demo')
    text = message(*(argument.format('meliusnet2') for argument in COMMANDS[command]))
    assert "unknown network 'meliusnet2'; did you mean meliusnet" in text and text.endswith('; of files there is packed\n')


@pytest.mark.parametrize('arguments', [['serve', 'net=my net'], ['bench', 'my net']])
def test_a_network_that_is_not_packed_gets_the_command_that_packs_it(arguments, message, folder):
    mx = pytest.importorskip('mxnet')
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((1, 3)))
    net.export(str(folder / 'my net'))
    assert "convert it first: bmx-melius convert 'my net' 'my net-packed'" in message(*arguments)


@pytest.mark.parametrize(
    'arguments',
    [['import-onnx', 'net.onnx', 'out'], ['bench', 'net.onnx'], ['convert', 'float', 'out'], ['export-onnx', 'float', 'out.onnx']],
)
def test_a_shape_with_the_channels_last_is_recognized(arguments, message, folder):
    if 'float' in arguments:
        mx = pytest.importorskip('mxnet')
        net = mx.gluon.nn.Conv2D(2, 3, in_channels=4)
        net.initialize()
        net.hybridize()
        net(mx.nd.ones((1, 4, 6, 6)))
        net.export(str(folder / 'float'))
    text = message(*arguments, '--input-shape', '1,6,6,4')
    assert 'the shape 1,6,6,4 looks like N,H,W,C; this network may take N,C,H,W: --input-shape 1,4,6,6' in text


def test_threads_of_0_are_one_for_each_core(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(['bench', 'demo/packed', '--threads', '0', '--repetitions', '1', '--json']) == 0
    assert '"threads"' in capsys.readouterr().out


def test_without_arguments_the_program_shows_its_help(capsys):
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith('usage: bmx-melius') and 'import-onnx' in printed.out and printed.err == ''


def test_sessions_explain_prefixes_as_the_commands_do(folder):
    with pytest.raises(bmx.UserError, match=f'is a folder, and {MEANING}.*: give .*demo/packed'):
        bmx.Session(folder / 'demo')(np.ones((1, 4, 6, 6), np.float32))
