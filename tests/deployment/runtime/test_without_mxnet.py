"""The package where MXNet or other packages are not installed: packed networks run, and everything else says what it needs."""

import json
import pathlib

import numpy as np
import PIL.Image
import pytest
from support.packed import make_image, make_program, write_packed
from support.paths import ROOT
from support.python_programs import run_python

import bmx_melius as bmx
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.runtime import engine
from bmx_melius.files.exported import Exported
from bmx_melius.files.parameters import read_arrays

WITH_MXNET = ('mxnet', 'gluoncv', 'graphviz', 'matplotlib', 'cv2', 'tqdm')
OPTIONAL = ('h5py', 'sklearn', 'onnx', 'onnxruntime', 'tensorboardX', 'torch')
BLOCKED = """\
import json, sys
missing, arguments = json.loads(sys.argv[1]), json.loads(sys.argv[2])
class Blocked:
    def find_spec(self, name, *_):
        if name.partition('.')[0] in missing:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Blocked())
import importlib.util; found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in missing else found(name, *a)
"""
COMMANDS = """\
sys.argv[0] = '/usr/bin/bmx-melius'
from bmx_melius.__main__ import main
for command in arguments:
    print('>', main(command), file=sys.stderr)
"""


def run_without(missing, program, arguments=(), cwd=ROOT):
    """Run Python code in a process in which packages cannot be imported and are not found; `arguments` is a list there."""
    return run_python(BLOCKED + program, json.dumps(missing), json.dumps(arguments), cwd=cwd)


def run_commands(missing, commands, cwd):
    """Run commands in one process; return (exit status, lines on standard error) of each, and all that they printed."""
    done = run_without(missing, COMMANDS, [command.split() for command in commands], cwd)
    results, lines = [], []
    for line in done.stderr.splitlines():
        if line.startswith('> '):
            results.append((int(line[2:]), lines))
            lines = []
        else:
            lines.append(line)
    assert len(results) == len(commands), done.stderr
    return dict(zip(commands, results)), done.stdout


@pytest.fixture()
def folder(tmp_path):
    """A folder with a packed classifier, a symbol that is not packed, and an image."""
    write_packed(tmp_path / 'packed', make_program(channels=3), [0])
    files = Exported(tmp_path / 'packed')
    fields = {'input': bmx.InputSpec(size=8, resize=9).to_json(), 'class_names': [f'class {name}' for name in 'abcdefg']}
    content = pathlib.Path(files.symbol_file).read_text()
    files.write_symbol(content, {f'arg:{name}': array for name, array in read_arrays(files.parameter_file(0)).items()}, fields)
    node = {'op': 'null', 'name': 'data', 'inputs': []}
    relu = {'op': 'relu', 'name': 'relu', 'inputs': [[0, 0, 0]]}
    (tmp_path / 'float-symbol.json').write_text(json.dumps({'nodes': [node, relu], 'arg_nodes': [0], 'heads': [[1, 0, 0]]}))
    (tmp_path / 'float-0000.params').write_bytes(pathlib.Path(files.parameter_file(0)).read_bytes())
    pixels = np.random.RandomState(0).randint(0, 256, (20, 30, 3)).astype(np.uint8)
    PIL.Image.fromarray(pixels).save(tmp_path / 'image.jpg')
    return tmp_path


@pytest.mark.parametrize('with_engine', [True, False])
def test_session_runs_where_mxnet_is_not_installed(tmp_path, with_engine):
    write_packed(tmp_path / 'net', make_program())
    np.save(tmp_path / 'x.npy', make_image())
    hidden = (
        'import pathlib; from bmx_melius.deployment.runtime import engine\nengine.ENGINE_LIBRARY = pathlib.Path("/nowhere/_engine.so")\n'
    )
    done = run_without(
        WITH_MXNET + OPTIONAL + ('PIL',),
        f'import numpy as np, bmx_melius as bmx\n{"" if with_engine else hidden}'
        "session = bmx.Session('net')\n"
        "a, b = session(np.load('x.npy'))\n"
        "np.savez('y.npz', a=a, b=b)\n"
        'print(session)\n',
        cwd=tmp_path,
    )
    with np.load(tmp_path / 'y.npz') as outputs:
        for name, expected in zip('ab', reference.run(make_program(), [make_image()])):
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-5)
    if not with_engine:
        assert done.stdout == 'Session(net, 8x6, NumPy)\n'


def test_classify_and_predict_need_only_numpy_and_pillow(folder):
    session = bmx.Session(folder / 'packed')
    expected = session.classify(folder / 'image.jpg', top=2)
    done = run_without(
        WITH_MXNET + OPTIONAL,
        'import bmx_melius as bmx\n'
        "print(json.dumps(bmx.Session('packed').classify('image.jpg', top=2)))\n"
        'from bmx_melius.__main__ import main\n'
        "assert main(['predict', 'packed', 'image.jpg', '--top', '2', '--json']) == 0\n",
        cwd=folder,
    )
    classified, _, predicted = done.stdout.partition('\n')
    top = [(row['name'], row['probability']) for row in json.loads(predicted)['predictions'][0]['top']]
    assert [tuple(pair) for pair in json.loads(classified)] == expected == top


def test_commands_that_need_mxnet_say_it_in_one_line(folder):
    commands = [
        'predict float image.jpg',
        'evaluate packed digits',
        'evaluate packed digits --compare packed',
        'summary meliusnet22',
        'summary float-symbol.json',
        'convert float other --input-shape 1,3,8,8',
        'export-onnx float other.onnx --input-shape 1,3,8,8',
        'export-c float other --name net --input-shape 1,3,8,8',
        'import-bmxnet float-0000.params other --model meliusnet22',
        'bench meliusnet22',
        'pack-images .',
        'tables',
    ]
    results, _ = run_commands(WITH_MXNET + OPTIONAL, commands, folder)
    for command, (status, lines) in results.items():
        assert status == 2 and len(lines) == 1, (command, lines)
        assert lines[0].startswith('error: this command needs the package mxnet') or 'gluoncv' in lines[0], (command, lines)
        assert 'which is not installed: pip install ' in lines[0]


def test_packed_networks_are_exported_as_c(folder):
    results, printed = run_commands(WITH_MXNET + OPTIONAL, ['export-c packed firmware --name net'], folder)
    assert [status for status, _ in results.values()] == [0] and 'bytes' in printed
    assert {path.name for path in (folder / 'firmware').iterdir()} == {'net.c', 'net.h', 'net_weights.h'}


def test_commands_on_packed_networks_say_what_else_they_need(folder):
    assert 'pip install onnx' in _error(run_commands(WITH_MXNET + OPTIONAL, ['export-onnx packed packed.onnx'], folder))
    without_pillow = (*WITH_MXNET, 'PIL')
    assert _error(run_commands(without_pillow, ['predict packed image.jpg'], folder)).endswith('pip install pillow')
    pixels = 'import numpy as np, bmx_melius as bmx\nprint(len(bmx.Session("packed").classify(np.zeros((9, 9, 3), np.uint8), top=3)))'
    assert run_without(without_pillow, pixels, cwd=folder).stdout == '3\n'


@pytest.mark.parametrize('missing', ['starlette', 'uvicorn', 'h11', 'prometheus_client', 'python_multipart'])
def test_serve_names_the_extra_that_it_needs(folder, missing):
    line = _error(run_commands((*WITH_MXNET, missing), ['serve packed --port 0'], folder))
    assert line.endswith(f"needs the package {missing}, which is not installed: pip install 'bmx-melius[serve]'")


def _error(outcome):
    (((status, (line,)),), _) = outcome[0].values(), outcome[1]
    assert status == 2
    return line


def test_with_mxnet_commands_name_only_the_missing_package_that_they_need(folder):
    commands = [
        'summary meliusnet22 --initial-layers thumbnail',
        'summary meliusnet22 --initial-layers thumbnail --plot plot.svg',
        'evaluate packed glyphs --confusion confusion.png',
        'evaluate packed glyphs',
        'evaluate packed digits',
        'export-onnx packed packed.onnx',
        'import-torch nets:net other --input-shape 1,3,8,8',
        'import-larq image.jpg other --model meliusnet22',
    ]
    results, printed = run_commands(('graphviz', 'matplotlib', 'cv2', *OPTIONAL), commands, folder)
    assert results[commands[0]][0] == 0 and 'OPs' in printed
    needed = ['graphviz', 'matplotlib', '', 'scikit-learn', 'onnx', 'torch', 'h5py']
    for command, package in zip(commands[1:], needed):
        status, lines = results[command]
        assert status == 2 and lines[-1].startswith('error: ') and 'mxnet' not in lines[-1], (command, lines)
        assert package in lines[-1], (command, lines)


WITHOUT_MXNET = ['InputSpec', 'Session', 'UserError', '__version__', 'import_onnx', 'import_torch']


def test_names_that_need_mxnet_say_it_and_others_are_listed():
    done = run_without(
        WITH_MXNET,
        'import bmx_melius\nprint(sorted(bmx_melius.__all__))\n'
        'for name in arguments:\n'
        '    try:\n        getattr(bmx_melius, name)\n'
        '    except ImportError as error:\n        print(name, error.name, error)\n'
        'exec("from bmx_melius import *")\n',
        sorted(set(bmx.__all__) - set(WITHOUT_MXNET)),
    )
    listed, *errors = done.stdout.splitlines()
    assert listed == str(WITHOUT_MXNET)
    assert len(errors) == len(bmx.__all__) - len(WITHOUT_MXNET)
    for line in errors:
        name, package, message = line.split(' ', 2)
        assert package == 'mxnet'
        assert message.startswith(f'bmx_melius.{name} needs MXNet, which is not installed (pip install mxnet==1.9.1)')


@pytest.mark.parametrize('name', ['model_zoo', 'bmx_melius.compat.bmxnet', 'bmx_melius.training:fit'])
def test_importing_what_needs_mxnet_says_so_first(name):
    module, _, member = name.partition(':')
    code = f'try:\n    from {module} import {member or "x"}\nexcept ImportError as error:\n    print(error.name, error)\n'
    (line,) = run_without(WITH_MXNET, code).stdout.splitlines()
    package = '.'.join(module.split('.')[:2])
    assert line == f'mxnet {package} needs MXNet, which is not installed (pip install mxnet==1.9.1)'


def test_info_tells_of_the_engine_where_mxnet_is_missing(tmp_path):
    _, printed = run_commands(WITH_MXNET, ['info', 'info --json'], tmp_path)
    table, facts = printed[: printed.index('{')], json.loads(printed[printed.index('{') :])
    assert facts['versions']['mxnet'] is None and facts['networks'] == [] and not facts['engine']['mxnet_operator']
    assert facts['engine']['isa'] == engine.instruction_sets()[0]
    assert 'not installed' in table and (engine.missing() or f'uses {facts["engine"]["isa"]}') in table
