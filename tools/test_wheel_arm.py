"""Tests of the wheel for aarch64, run by an emulated Python: ``make wheel-arm``.

    python tools/test_wheel_arm.py --install-tools    # cross compiler and emulator
    python tools/test_wheel_arm.py DIST               # test the wheel in the folder DIST

The Python is Debian's for arm64, unpacked into ``build/aarch64`` without changing the system; NumPy, Pillow and MXNet are wheels of
PyPI. Outputs and fingerprints of packed networks must be the same as on this machine, in a session and in MXNet. The wheel of MXNet for
aarch64 needs the Arm Performance Libraries, for which OpenBLAS is substituted (docs/internals/releasing.md).
"""

import functools
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import zipfile

from commands import install_tools, output_of, run_main
from debian_packages import unpack
from other_machine import ROOT, network_parts

import bmx_melius as bmx
from bmx_melius.errors import UserError

TOOLS = {'aarch64-linux-gnu-g++': 'g++-aarch64-linux-gnu', 'qemu-aarch64': 'qemu-user'}
FOLDER = ROOT / 'build' / 'aarch64'
DEBIAN = ['python3-minimal', 'libpython3-stdlib', 'libstdc++6', 'libgomp1', 'libopenblas0-pthread', 'liblapacke']  # and what they depend on
PYPI = {  # folder -> packages and options; MXNet's have the versions of requirements/tests.txt
    'site': ['numpy', 'pillow'],
    'site-mxnet': [
        *('--no-deps', '--constraint=requirements/tests.txt'),
        *('mxnet', 'numpy', 'requests', 'graphviz', 'certifi', 'charset-normalizer'),
    ]
    + ['idna', 'urllib3'],
}
INSTRUCTION_SETS = ['reference', 'neon', 'dotprod', 'i8mm']

RUN = """
import json, sys
import numpy as np
import bmx_melius as bmx
from bmx_melius.deployment.runtime import engine

prefix, image = sys.argv[1:]
session = bmx.Session(prefix, threads=2)
x = np.fromfile(image, np.float32).reshape(1, *session.input_shapes[0][1:])
scores = ' '.join('%.9g' % number for number in session(x).ravel())
print(json.dumps({'isa': engine.instruction_sets()[0], 'fingerprint': session.fingerprint(), 'scores': scores}))
"""


RUN_IN_MXNET = """
import sys
import mxnet as mx
import numpy as np
import bmx_melius
from bmx_melius.deployment.runtime import mxnet_operator

prefix, image, shape = sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3:]))
assert mxnet_operator.compiled()
net = mx.gluon.SymbolBlock.imports(prefix + '-symbol.json', ['data'], prefix + '-0000.params')
x = mx.nd.array(np.fromfile(image, np.float32).reshape(shape))
print(' '.join('%.9g' % number for number in net(x).asnumpy().ravel()))
"""


def main(argument):
    """Install the tools, and unless that is all, run the wheel in a folder. Raises `UserError` if it differs from this machine."""
    install_tools(TOOLS)
    if argument == '--install-tools':
        return
    dist = pathlib.Path(argument)
    wheels = list(dist.glob('*manylinux*_aarch64.whl'))
    if len(wheels) != 1:
        raise UserError(f'there must be one wheel for aarch64 in {dist}, not {len(wheels)}: make wheel-arm')
    python = unpack_python()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_wheel(wheels[0], folder / 'site')
        for name, check in network_parts(folder, functools.partial(run_session, python, folder / 'site')).items():
            check()
            print(f'{name}: ok', flush=True)
    print(f'{wheels[0].name}: all results have the bits of this machine')


def unpack_python():
    """Unpack Python for arm64 with its packages, unless that was done before; return the command that runs it."""
    root, ready = FOLDER / 'root', FOLDER / 'ready'
    command = ['qemu-aarch64', '-L', root, root / 'usr' / 'bin' / 'python3', '-W', 'ignore']
    wanted = f'{DEBIAN} {PYPI}\n{(ROOT / "requirements" / "tests.txt").read_text()}'
    if not ready.exists() or ready.read_text() != wanted:
        shutil.rmtree(FOLDER, ignore_errors=True)
        unpack(DEBIAN, 'arm64', FOLDER)
        version = output_of([*command, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])']).strip()
        options = ['--quiet', '--only-binary=:all:', '--platform=manylinux2014_aarch64', '--platform=manylinux_2_28_aarch64']
        pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check', 'install', *options, f'--python-version={version}']
        for folder, packages in PYPI.items():
            output_of([*pip, '--upgrade', f'--target={FOLDER / folder}', *packages])
        substitute_libraries(root / 'usr' / 'lib' / 'aarch64-linux-gnu')
        ready.write_text(wanted)
    return command


def substitute_libraries(libraries):
    """Make libraries with the names of the Arm Performance Libraries, which MXNet needs; OpenBLAS has the functions."""
    for path in (libraries / 'openblas-pthread').iterdir():  # where `update-alternatives` makes links
        (libraries / path.name).symlink_to(path.relative_to(libraries))
    for name, with_openblas in (('armpl_lp64_mp', True), ('amath', False), ('astring', False)):
        compiler = [
            'aarch64-linux-gnu-g++',
            '-shared',
            '-x',
            'c',
            os.devnull,
            f'-Wl,-soname,lib{name}.so',
            '-o',
            libraries / f'lib{name}.so',
        ]
        needed = [libraries / 'liblapacke.so.3', libraries / 'libopenblas.so.0'] if with_openblas else []
        output_of([*compiler, '-x', 'none', '-Wl,--no-as-needed,--allow-shlib-undefined', *needed])


def check_wheel(wheel, site):
    """Unpack a wheel into a folder; raise `UserError` unless its name and libraries are those that the documentation names."""
    from support.wheel_libraries import library_problems  # needs pyelftools, which only `make wheel-arm` installs

    platforms = set(re.findall(r'manylinux_\w+_aarch64', (ROOT / 'docs' / 'internals' / 'releasing.md').read_text()))
    problems = library_problems(wheel, 'aarch64')
    if platforms != {wheel.stem.split('-')[-1]}:
        problems.append(f'docs/internals/releasing.md names {" and ".join(platforms)}')
    if problems:
        raise UserError(f'{wheel.name}: {"; ".join(problems)}')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def run_session(python, site, params, image):
    """Run a packed network with each instruction set, and in MXNet; yield how, and the scores. Raises `UserError` if wrong."""
    prefix = str(params)[: -len('-0000.params')]
    expected = bmx.Session(prefix).fingerprint()
    program = site / 'run_session.py'  # Python imports from the folder of its program first
    program.write_text(RUN)
    for instruction_set in INSTRUCTION_SETS:
        environment = {**os.environ, 'PYTHONPATH': str(FOLDER / 'site'), 'BMX_MELIUS_ISA': instruction_set}
        found = json.loads(output_of([*python, program, prefix, image], environment))
        if (found['isa'], found['fingerprint']) != (instruction_set, expected):
            raise UserError(f'the wheel for aarch64 gives {found["isa"]}, {found["fingerprint"]}; expected {instruction_set}, {expected}')
        yield instruction_set, found['scores']
    program.write_text(RUN_IN_MXNET)
    environment = {**os.environ, 'PYTHONPATH': str(FOLDER / 'site-mxnet')}
    yield 'MXNet', output_of([*python, program, prefix, image, 1, *bmx.Session(prefix).input_shapes[0][1:]], environment)


if __name__ == '__main__':
    run_main(main, sys.argv[1])
