"""README and guides: their Python and commands run.

The table of the README is checked by test_tables.py; test_docs.py checks links, files and the documentation site.
"""

import dataclasses
import gzip
import importlib.util
import json
import re
import shlex
import shutil
import unittest.mock
from pathlib import Path

import cv2
import mxnet as mx
import numpy as np
import pytest
from support.paths import ROOT

import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.data import small_images
from bmx_melius.deployment.runtime import engine
from bmx_melius.nn.quantizers import QUANTIZERS
from model_zoo import get_model

# Documents that name the size of the packed MeliusNet22 for ImageNet, and the forms in which they do.
WITH_PACKED_SIZE = ('docs/deploying.md', 'docs/onnx.md', 'docs/internals/conversion.md')
PACKED_SIZE = r'([\d.]+) MB of the packed file of MeliusNet22|([\d.]+) MB as a packed file|packed file of MeliusNet22 has ([\d.]+) MB, its'


def one_line(name):
    return ' '.join((ROOT / name).read_text(encoding='utf-8').split())


@pytest.fixture()
def trained(tmp_path, monkeypatch):
    """Change to a folder with the files of an exported network, images and folders of classes."""
    monkeypatch.chdir(tmp_path)
    net = get_model('meliusnet22', classes=10)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(mx.nd.zeros((1, 3, 64, 64)))
    Path('params').mkdir()
    net.export('params/meliusnet22')
    Path('params/meliusnet22-summary.json').write_text(json.dumps({'input': bmx.InputSpec(size=64, resize=64).to_json()}))
    assert cv2.imwrite('digit.png', np.zeros((70, 70, 3), np.uint8))
    for label in range(10):
        folder = Path('photos') / f'class{label}'
        folder.mkdir(parents=True)
        assert cv2.imwrite(str(folder / 'photo.jpg'), np.full((70, 80, 3), 20 * label, np.uint8))


def runs_here(command):
    """Return whether a command is quick and its requirements are met: Graphviz, the engine, ImageNet, PyArrow. `serve` does not end."""
    available = {
        'serve': False,
        'import-torch': False,
        'import-onnx': importlib.util.find_spec('onnxruntime'),
        'score': importlib.util.find_spec('pyarrow'),
        'pack-images': False,
        '--plot': shutil.which('dot'),
        'bench': not engine.missing() and '--compare' not in command,
    }
    return all(available.get(word, True) for word in command)


def run_document(path, images=None, training_flags=()):
    """Run the Python and the commands of a document from top to bottom; return the names that the Python defines, and the commands.

    The Python of guides uses `images`. Trainings get `training_flags` in addition.
    """
    names = {} if images is None else {'images': images}
    run = []
    for language, text in re.findall(r'^```(.*)\n((?:.*\n)*?)```$', (ROOT / path).read_text(), re.MULTILINE):
        if language == 'python':
            exec(text, names)
        lines = [shlex.split(line, comments=True) for line in text.replace('\\\n', '').splitlines() if language == '']
        for program, *command in filter(None, lines):
            if program == 'bmx-melius' and runs_here(command):
                assert main([*command, *(training_flags if command[0] == 'train' else ())]) == 0
                run.append(command[0])
    return names, run


@pytest.fixture()
def little_training(monkeypatch):
    """Replace the amount of training: one epoch of 64 digits instead of ten of 1071; and of the test digits, 364."""
    splits = small_images.open_digits()
    few = dataclasses.replace(splits, **{part: getattr(splits, part).take(64) for part in ('train', 'validation', 'test')})
    monkeypatch.setattr(small_images, 'open_digits', lambda: few)
    return ['--num-epochs', '1']


def test_blocks_of_the_readme_run_one_after_the_other_in_an_empty_folder(tmp_path, monkeypatch, little_training):
    """Everything but the installation (git, make, pip), `serve`, which does not end, and what needs a package that is absent."""
    monkeypatch.chdir(tmp_path)
    Path('net.onnx').write_bytes(gzip.decompress((ROOT / 'tests/data/onnx/birealnet18.onnx.gz').read_bytes()))
    Path('examples').symlink_to(ROOT / 'examples')
    names, run = run_document('README.md', training_flags=little_training)
    assert {'train', 'predict', 'evaluate', 'summary', 'info', 'convert', 'export-c'} <= set(run)
    assert Path('meliusnet22-symbol.json').exists() and Path('params/meliusnet22-summary.json').exists()
    assert names['session'](names['images']).shape == (2, 10)
    # every document gives the sizes of these files
    packed, exported = (f'{Path(f"{name}-0000.params").stat().st_size / 2**20:.1f}' for name in ('meliusnet22-packed', 'meliusnet22'))
    assert f'has {packed} MB, because normalization is folded, and the exported one {exported} MB' in one_line('README.md')
    shown = {name: [''.join(found) for found in re.findall(PACKED_SIZE, one_line(name))] for name in WITH_PACKED_SIZE}
    assert shown == {name: [packed] for name in WITH_PACKED_SIZE}


def test_python_and_commands_of_the_guide_to_deployment_run_from_top_to_bottom(trained):
    names, run = run_document('docs/deploying.md', mx.nd.random.normal(shape=(2, 3, 64, 64)))
    assert {'predict', 'evaluate', 'convert'} <= set(run)
    np.testing.assert_allclose(names['net'](names['images']).asnumpy(), names['logits'], rtol=1e-4, atol=1e-4)
    signs = mx.nd.sign(mx.nd.random.normal(shape=(1, 32, 56, 56)))
    assert np.array_equal(names['packed'](signs).asnumpy(), names['conv'](signs).asnumpy())


def test_python_and_commands_of_the_guide_to_onnx_run_from_top_to_bottom(trained):
    pytest.importorskip('onnxruntime')
    assert main(['convert', 'params/meliusnet22', 'packed']) == 0
    names, run = run_document('docs/onnx.md', mx.nd.random.normal(shape=(2, 3, 64, 64)))
    assert run == ['export-onnx'] * 2 and names['logits'].shape == (2, 10)


def test_python_and_commands_of_the_guide_to_pytorch_run_from_the_onnx_file_on(tmp_path, monkeypatch, capsys):
    """The lines that need PyTorch are not run. The report is the shown one, except for rounding errors and the instruction set."""
    pytest.importorskip('onnxruntime')
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / 'docs/coming-from-pytorch.md').read_text()
    (name,) = re.findall(r'^gunzip -c tests/data/onnx/(\S+) > net.onnx$', guide, re.MULTILINE)
    Path('net.onnx').write_bytes(gzip.decompress((ROOT / 'tests/data/onnx' / name).read_bytes()))
    assert cv2.imwrite('photo.jpg', np.full((70, 80, 3), 90, np.uint8))
    with np.load(ROOT / 'tests/data/onnx' / name.replace('.onnx.gz', '.npz')) as recorded:
        images, expected = recorded['input.input'], recorded['graph.output']
    names, run = run_document('docs/coming-from-pytorch.md', images)
    assert run == ['import-onnx', 'import-onnx', 'predict', 'export-c']  # the first belongs to the introduction
    np.testing.assert_allclose(names['logits'], expected, rtol=1e-4, atol=1e-4)
    (shown,) = re.findall(r'^```text\n(.*?)^```$', guide, re.MULTILINE | re.DOTALL)
    measured = re.compile(r'within \S+ of the largest one( \(most at \S+\))?|\(\w+\) on the same sample')
    assert measured.sub('', shown) in measured.sub('', capsys.readouterr().out)
    assert main(['predict', 'packed', 'photo.jpg']) == 0 and '%' in capsys.readouterr().out


def test_python_of_the_guide_to_networks_runs_and_gives_the_tables_that_it_shows(capsys):
    with unittest.mock.patch.dict(QUANTIZERS):  # the guide registers one
        names, _ = run_document('docs/networks.md')
    assert names['block'](mx.nd.ones((1, 8, 4, 4))).shape == (1, 64, 4, 4)
    counts, checked = re.findall(r'^```text\n(.*?)^```$', (ROOT / 'docs/networks.md').read_text(), re.MULTILINE | re.DOTALL)
    printed = capsys.readouterr().out
    assert counts in printed
    assert len(bmx.check(names['net'], names['digits']).problems) == 0
    vanished = '100.0%       100.0%             100.0%'  # the row of the activation whose gradient is cancelled
    assert vanished in checked and vanished in printed
