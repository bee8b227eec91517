"""Tests of the extras of the package: ``make test-extras``.

The project is compiled once, to a wheel. Each extra is installed by ``pip install WHEEL[EXTRA]`` into a new virtual environment, with the
versions that pip selects today, and is then used once by the commands in `USES`. A failure names the extra and the command.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / 'tests'
TRAIN = (
    'bmx-melius train --model meliusnet_flex --initial-layers thumbnail --num-epochs 1 --save-dir run '
    '--model-options {"block_numbers":[1],"transitions":[],"growth_rate":16}'
)
SERVE = """
import subprocess, sys, urllib.request
server = subprocess.Popen(['bmx-melius', 'serve', 'packed', '--port', '0'], stdout=subprocess.PIPE, text=True)
address = next(line.split()[-1] for line in server.stdout if line.startswith('listening on'))
image = open('photos/a/0.png', 'rb').read()
print(urllib.request.urlopen(f'{address}v1/classify', image, timeout=60).read().decode())
server.terminate()
sys.exit(server.wait(60))
"""

# What the commands find in their folder: an exported and a packed network of 62 classes, and images in folders of two classes.
FILES = """
import json
import mxnet as mx
import numpy as np
import pathlib
import PIL.Image
import bmx_melius as bmx
from model_zoo import get_model

net = get_model('meliusnet_flex', classes=62, initial_layers='thumbnail', block_numbers=(1,), transitions=(), growth_rate=16)
net.initialize(mx.init.Xavier())
net.hybridize()
net(mx.nd.zeros((1, 3, 32, 32)))
net.export('net')
bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 3, 32, 32))
for prefix in ('net', 'packed'):
    pathlib.Path(f'{prefix}-summary.json').write_text(json.dumps({'input': bmx.InputSpec(size=32, resize=32).to_json()}))
for label in 'ab':
    folder = pathlib.Path('photos') / label
    folder.mkdir(parents=True)
    for number in range(3):
        PIL.Image.fromarray(np.random.RandomState(number).randint(0, 255, (40, 40, 3), np.uint8)).save(folder / f'{number}.png')
"""

TORCH = """
import torch
from torch import nn
import bmx_melius as bmx

class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

class BinaryConv(nn.Conv2d):
    def forward(self, x):
        return nn.functional.conv2d(Sign.apply(x), Sign.apply(self.weight), None, 1, 1)

def network():
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), BinaryConv(8, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    torch.manual_seed(0)
    return nn.Sequential(*layers)
"""

TESTED = [TESTS / name for name in ('test_arithmetic.py', 'deployment/runtime/test_session.py', 'deployment/export/test_onnx.py')]

# Extra -> commands that use what it installs; '' is the package without extras. `python -c` takes its program from the table below.
USES = {
    '': ['bmx-melius info', 'bmx-melius summary meliusnet22', 'bmx-melius predict packed photos/a/0.png'],
    'demo': [f'{TRAIN} --dataset digits', 'bmx-melius evaluate run/meliusnet_flex digits'],
    'tensorboard': [f'{TRAIN} --dataset dummy --input-size 32 --batch-size 4 --tensorboard'],
    'onnx': ['bmx-melius export-onnx net net.onnx --input-shape 1,3,32,32', 'python -c ONNX'],
    'torch': [
        'python -c TORCH_FILE',
        'bmx-melius import-torch net_of_torch:network packed2 --weights net.pth --input-shape 1,3,16,16 --zero-is-positive',
        *(
            f'bmx-melius import-torch net_of_torch:network packed2 --input-shape 1,3,16,16 --zero-is-positive --exporter {name}'
            for name in (('torchscript', 'dynamo') if sys.version_info >= (3, 9) else ('torchscript',))
        ),
        f'python -m pytest -q -p no:cacheprovider {TESTS}/deployment/pytorch',
    ],
    'larq': ['python -c LARQ'],
    'score': ['bmx-melius score packed photos --output scores', 'python -c PARQUET'],
    'ray': ['bmx-melius score packed photos --output scores --engine ray', 'python -c PARQUET'],
    'serve': ['python -c SERVE'],
    'test': [f'python -m pytest -q -p no:cacheprovider {" ".join(map(str, TESTED))}'],
    'bench': ['bmx-melius bench meliusnet22 --compare --repetitions 2 --json'],
    'docs': [f'mkdocs build --quiet --config-file {ROOT}/mkdocs.yml --site-dir SITE'],
}
# Extras that pip cannot install by itself -> the reason.
NOT_TESTED = {'horovod': 'is compiled against an installed MXNet, by the commands in docs/distributed.md'}
BESIDE = {'torch': 'test'}  # extra -> one that is installed with it, for its commands
PROGRAMS = {
    'SERVE': SERVE,
    'TORCH_FILE': (
        f'open("net_of_torch.py", "w").write({TORCH!r}); import net_of_torch, torch; '
        'torch.save({"state_dict": torch.nn.DataParallel(net_of_torch.network()).state_dict()}, "net.pth")'
    ),
    'ONNX': 'import numpy as n, onnxruntime as o; o.InferenceSession("net.onnx").run(None, {"data": n.zeros((1, 3, 32, 32), "f")})',
    'LARQ': 'import h5py, model_zoo; h5py.File("x.h5", "w").close(); print(model_zoo.load_larq_parameters)',
    'PARQUET': 'import pyarrow.parquet as p; assert p.read_table("scores").num_rows == 6',
}


def main():
    """Test the extras that are named as arguments, without arguments all of them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('extras', nargs='*', metavar='EXTRA', help=f'{", ".join(filter(None, USES))}, or none: without extras')
    names = ['' if name == 'none' else name for name in parser.parse_args().extras] or list(USES)
    unknown = [name for name in names if name not in USES]
    if unknown:
        parser.error(f'unknown extras {", ".join(unknown)}; known: none, {", ".join(filter(None, USES))}')
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = make_wheel(pathlib.Path(folder) / 'source')
        for name in names:
            failure = failure_of(name, wheel, pathlib.Path(folder) / (name or 'none'))
            print(f'{name or "without extras"}: {failure or "works"}', flush=True)
            failures += [failure] if failure else []
    for name, reason in NOT_TESTED.items():
        print(f'{name}: not tested; it {reason}')
    return 1 if failures else 0


def make_wheel(folder):
    """Compile a copy of the files that git tracks, so that nothing is built in the project; return the path of the wheel."""
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
    for name in filter(None, listed.split('\0')):
        if (ROOT / name).is_file() and not name.startswith('tests/'):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--wheel-dir', folder, folder], check=True)
    (wheel,) = folder.glob('*.whl')
    return wheel


def failure_of(extra, wheel, folder):
    """Install an extra into a new environment and run its commands there; return what failed, or None."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(('PYTHON', 'VIRTUAL_ENV', 'BMX_MELIUS'))}
    environment['PATH'] = f'{folder / "venv" / "bin"}:{environment["PATH"]}'
    work = folder / 'work'
    work.mkdir(parents=True)
    extras = ','.join(filter(None, [extra, BESIDE.get(extra)]))
    install = ['python', '-m', 'pip', '--disable-pip-version-check', 'install', '--quiet', f'{wheel}[{extras}]' if extras else str(wheel)]
    steps = [[sys.executable, '-m', 'venv', str(folder / 'venv')], install, ['python', '-c', FILES]]
    for command in USES[extra]:
        words = [str(work / 'site') if word == 'SITE' else word for word in command.split()]
        steps.append([PROGRAMS.get(word, word) if words[:2] == ['python', '-c'] else word for word in words])
    try:
        for step in steps:
            done = subprocess.run(step, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                print(done.stdout[-4000:])
                shown = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), '')
                return f'{" ".join(step)[:120]} ended with status {done.returncode}: {shown}'
        return None
    finally:
        shutil.rmtree(folder)  # gigabytes


if __name__ == '__main__':
    sys.exit(main())
