"""The wheel in dist, installed into new environments: `make test-wheel` names it in BMX_MELIUS_WHEEL. Other test runs skip these tests.

Packages are installed from the index of pip. No environment has a compiler.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import numpy as np
import PIL.Image
import pytest
from support.classifiers import write_classifier
from support.paths import ROOT

import bmx_melius as bmx
from bmx_melius.deployment.runtime import engine

WHEEL = os.environ.get('BMX_MELIUS_WHEEL') and os.path.abspath(os.environ['BMX_MELIUS_WHEEL'])
SPEC = bmx.InputSpec(size=16, resize=18)
PACKED = ('3.8', '3.9', '3.10', '3.11', '3.12', '3.13')  # Pythons that run packed networks
WITHOUT_MXNET = ('3.12', '3.13')
MXNET = ('1.9.0', '1.9.1')  # all of 1.9 on PyPI
PLATFORM = 'manylinux_2_27_x86_64'

pytestmark = pytest.mark.skipif(not WHEEL, reason='needs a wheel: make wheel')

USE = """
import importlib.util, json, sys
import numpy as np
import bmx_melius as bmx
from bmx_melius.deployment.runtime import engine

session = bmx.Session('packed', threads=1)
print(json.dumps({
    'python': '{}.{}'.format(*sys.version_info),
    'numpy': np.__version__,
    'mxnet': importlib.util.find_spec('mxnet') is not None,
    'imported': 'mxnet' in sys.modules,
    'engine': str(engine.ENGINE_LIBRARY),
    'isa': engine.instruction_sets()[0],
    'fingerprint': session.fingerprint(),
    'classes': session.classify('image.png'),
}))
"""


def python_of(version):
    """Return the path of a working interpreter of this version; skip the test if there is none."""
    candidates = [sys.executable] if version == '{}.{}'.format(*sys.version_info) else []
    for candidate in (*candidates, shutil.which(f'python{version}')):
        if candidate and subprocess.run([candidate, '-c', 'import ensurepip'], capture_output=True).returncode == 0:
            return candidate
    pytest.skip(f'python{version} is not in PATH')


class Environment:
    """A new virtual environment. Its programs find no compiler, and neither this project nor its packages."""

    def __init__(self, folder, version):
        self.bin, self.folder = folder / 'bin', folder
        subprocess.run([python_of(version), '-m', 'venv', str(folder)], check=True)

    def run(self, program, *arguments, cwd=None, **environment):
        """Run a program of the environment; return what it prints."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(('BMX_', 'PYTHON', 'VIRTUAL_ENV', 'CXX'))}
        variables = {**kept, 'PATH': str(self.bin), 'OMP_NUM_THREADS': '1', **environment}
        done = subprocess.run([str(self.bin / program), *arguments], cwd=cwd, env=variables, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *arguments):
        self.run('python', '-m', 'pip', '--disable-pip-version-check', 'install', '--quiet', *arguments, cwd=self.folder)


@pytest.fixture(scope='module')
def network(tmp_path_factory):
    """A folder with a packed classifier and an image."""
    folder = tmp_path_factory.mktemp('network')
    write_classifier(folder, SPEC, list('abcd'))
    pixels = np.random.RandomState(0).randint(0, 256, (24, 32, 3)).astype(np.uint8)
    PIL.Image.fromarray(pixels).save(folder / 'image.png')
    return folder


def check_packed_network(environment, network, python, with_mxnet=False):
    """Run the packed network in an environment by `Session`, `predict` and `info`, and compare with the engine of this project."""
    session = bmx.Session(network / 'packed', threads=1)
    expected = session.classify(network / 'image.png')
    for isa in ({}, {'BMX_MELIUS_ISA': 'reference'}):
        # warnings are errors: of names that a version of NumPy or Pillow will remove
        found = json.loads(environment.run('python', *([] if with_mxnet else ['-W', 'error']), '-c', USE, cwd=network, **isa))
        assert (found['python'], found['mxnet'], found['imported']) == (python, with_mxnet, False)
        assert environment.folder.resolve() in pathlib.Path(found['engine']).parents
        assert found['isa'] == isa.get('BMX_MELIUS_ISA', engine.instruction_sets()[0])
        assert found['fingerprint'] == session.fingerprint()
        assert [name for name, _ in found['classes']] == [name for name, _ in expected]
        np.testing.assert_allclose([p for _, p in found['classes']], [p for _, p in expected], rtol=1e-6)
    predicted = json.loads(environment.run('bmx-melius', 'predict', 'packed', 'image.png', '--json', cwd=network))
    assert predicted['predictions'][0]['top'][0]['name'] == expected[0][0]
    facts = json.loads(environment.run('bmx-melius', 'info', '--json', cwd=network))
    assert facts['versions']['bmx-melius'] == bmx.__version__
    assert facts['engine']['problem'] is None and facts['engine']['mxnet_operator'] == with_mxnet
    return found['numpy']


@pytest.mark.parametrize('python', PACKED)
def test_packed_networks_run_with_only_numpy_and_pillow(tmp_path, network, python):
    environment = Environment(tmp_path / 'venv', python)
    if python in WITHOUT_MXNET:
        environment.install(WHEEL)
    else:
        environment.install('numpy', 'pillow')
        environment.install('--no-deps', WHEEL)
    numpy = check_packed_network(environment, network, python)
    assert python == '3.8' or numpy.startswith('2.')


@pytest.mark.parametrize('python,numpy', [('3.8', '1.21.*'), ('3.12', '1.26.*')])
def test_packed_networks_run_with_numpy_1(tmp_path, network, python, numpy):
    environment = Environment(tmp_path / 'venv', python)
    environment.install('pillow', f'numpy=={numpy}')
    environment.install('--no-deps', WHEEL)
    assert check_packed_network(environment, network, python).startswith('1.')


@pytest.mark.parametrize('version', MXNET)
def test_mxnet_runs_the_operator_of_the_wheel(tmp_path, network, version):
    """With the packages of this environment, which MXNet needs, but not with this project."""
    python = '{}.{}'.format(*sys.version_info)
    environment = Environment(tmp_path / 'venv', python)
    environment.install('--no-deps', WHEEL, f'mxnet=={version}')
    (site,) = (environment.folder / 'lib').glob('python*/site-packages')
    (site / 'packages.pth').write_text(sysconfig.get_path('purelib'))
    check_packed_network(environment, network, python, with_mxnet=True)
    program = (
        'import mxnet as mx, bmx_melius\n'
        f'assert mx.__version__ == {version!r}\n'
        'from bmx_melius.deployment.runtime import mxnet_operator\n'
        'assert mxnet_operator.compiled()\n'
        "load = lambda name: mx.gluon.SymbolBlock.imports(f'{name}-symbol.json', ['data'], f'{name}-0000.params')\n"
        "net, packed = load('net'), load('packed')\n"
        f'x = mx.nd.random.normal(shape=(2, *{SPEC.shape}))\n'
        'print((net(x) - packed(x)).abs().max().asscalar(), net(x).abs().max().asscalar())\n'
    )
    difference, largest = map(float, environment.run('python', '-W', 'ignore', '-c', program, cwd=network).split())
    assert difference <= 1e-5 * largest and largest > 0


def test_the_name_gives_every_python_3_and_the_platform_that_the_documentation_names():
    name = pathlib.Path(WHEEL).name
    assert name == f'bmx_melius-{bmx.__version__}-py3-none-{PLATFORM}.whl'
    for page in ('deploying.md', 'internals/releasing.md'):
        assert set(re.findall(r'manylinux_\w+_x86_64', (ROOT / 'docs' / page).read_text())) == {PLATFORM}
    with zipfile.ZipFile(WHEEL) as wheel:
        (tags,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith('.dist-info/WHEEL'))
    assert re.findall(r'^Tag: (.*)$', tags, re.MULTILINE) == [pathlib.Path(WHEEL).stem.split('-', 2)[2]]


def test_the_wheel_has_the_modules_that_git_tracks_and_both_libraries():
    tracked = subprocess.run(['git', 'ls-files', '*.py'], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    expected = {name for name in tracked if name.startswith(('bmx_melius/', 'model_zoo/'))} | {'train_imagenet.py'}
    with zipfile.ZipFile(WHEEL) as wheel:
        names = set(wheel.namelist())
        assert {name for name in names if name.endswith('.py')} == expected
        assert [name for name in expected if wheel.read(name) != (ROOT / name).read_bytes()] == []
    assert {name for name in names if '.so' in name} == {'bmx_melius/_engine.so', 'bmx_melius/_mxnet_op.so'}
    kernels = {path.relative_to(ROOT).as_posix() for path in (ROOT / 'bmx_melius' / 'deployment').rglob('*.c')}
    others = {
        'bmx_melius/csrc/api/bmx_melius.h',
        'bmx_melius/serving/page.html',
        'model_zoo/counts.json',
        'model_zoo/published.json',
        'model_zoo/times.json',
        'bmx_melius/py.typed',
    }
    assert kernels | others <= names


def test_the_libraries_need_only_what_every_system_of_the_platform_has():
    pytest.importorskip('elftools')
    from support.wheel_libraries import library_problems

    assert library_problems(WHEEL, 'x86_64') == []
