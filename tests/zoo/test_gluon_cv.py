"""GluonCV refuses to be imported beside PyTorch 2; `bmx_melius.gluon_cv` imports it nevertheless."""

import pathlib
import subprocess
import sys

import pytest

# A package with the name and version of PyTorch 2: its installation is 600 MB, and GluonCV looks at nothing else.
TORCH = "__version__ = '2.13.0'\n"


def run(program, folder):
    (folder / 'torch.py').write_text(TORCH)
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {'PYTHONPATH': f'{folder}:{root}', 'PATH': ''}
    return subprocess.run([sys.executable, '-W', 'ignore', '-c', program], env=environment, capture_output=True, text=True, timeout=120)


def test_gluoncv_alone_refuses_pytorch_2(tmp_path):
    assert 'Legacy torch' in run('import gluoncv', tmp_path).stderr


@pytest.mark.parametrize('before', ['', 'import torch; '], ids=['torch is installed', 'torch is imported'])
def test_networks_of_both_zoos_are_made_beside_pytorch_2(before, tmp_path):
    program = f"{before}import model_zoo; model_zoo.get_model('cifar_resnet20_v1'); import torch; print(torch.__version__)"
    result = run(program, tmp_path)
    assert (result.stdout, result.stderr) == ('2.13.0\n', '')
