"""The README says what is true: its Python and its commands run; documents name files that exist. Its table is for test_tables.py."""

import json
import re
import shlex
import shutil
from pathlib import Path

import cv2
import mxnet as mx
import numpy as np
import pytest

import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.deployment.runtime import engine
from model_zoo import get_model

ROOT = Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()


@pytest.fixture()
def trained(tmp_path, monkeypatch):
    """The current folder is one in which a network has been trained, as far as the files tell."""
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
    """Whether a command is quick and has what it needs: Graphviz to draw, the engine to be timed, ImageNet to be packed."""
    available = {'--compare': False, 'pack-images': False, '--plot': shutil.which('dot'), 'bench': not engine.missing()}
    return all(available.get(word, True) for word in command)


def test_python_and_commands_of_the_readme_run_from_top_to_bottom(trained):
    names = {'images': mx.nd.random.normal(shape=(2, 3, 64, 64))}
    run = []
    for language, text in re.findall(r'^```(.*)\n((?:.*\n)*?)```$', README, re.MULTILINE):
        if language == 'python':
            exec(text, names)
            continue
        for command in (shlex.split(line, comments=True) for line in text.splitlines() if line.startswith('bmx-melius ')):
            if runs_here(command):
                assert main(command[1:]) == 0
                run.append(command[1])
    assert {'predict', 'evaluate', 'summary', 'info', 'convert'} <= set(run)
    assert Path('meliusnet22-symbol.json').exists()
    assert names['block'](mx.nd.ones((1, 8, 4, 4))).shape == (1, 64, 4, 4)
    np.testing.assert_allclose(names['net'](names['images']).asnumpy(), names['logits'], rtol=1e-4, atol=1e-4)
    signs = mx.nd.sign(mx.nd.random.normal(shape=(1, 32, 56, 56)))
    assert np.array_equal(names['packed'](signs).asnumpy(), names['conv'](signs).asnumpy())


DOCUMENTS = sorted(path.relative_to(ROOT) for pattern in ('*.md', 'docs/*.md', 'benchmarks/*.md') for path in ROOT.glob(pattern))
FOLDERS = ('bmx_melius', 'csrc', 'deploy', 'model_zoo', 'examples', 'benchmarks', 'experiments', 'tests', 'tools')

MADE = ('model_zoo/plainnet.py', 'experiments/thresholds.yaml')  # by recipes of CONTRIBUTING.md, which test_contributing.py follows


@pytest.mark.parametrize('document', DOCUMENTS, ids=str)
def test_files_that_documents_name_exist(document):
    text = (ROOT / document).read_text()
    links = [ROOT / document.parent / path for path in re.findall(r'\]\(([\w./-]+)\)', text)]
    assert [path for path in links if not path.exists()] == []
    named = [path for path in re.findall(rf'`((?:{"|".join(FOLDERS)})/[\w./]+)`', text) if 'NAME' not in path and path not in MADE]
    assert [path for path in named if not any((ROOT / folder / path).exists() for folder in ('', 'bmx_melius'))] == []
