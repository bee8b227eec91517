"""Tests of the engine on aarch64 under emulation: ``make test-arm``.

The kernels in plain C++ and with NEON are compared with plain loops (``tests/csrc``), and float kernels and packed networks with this
machine: all results must have the same bits. Everything is cross-compiled and run by qemu. Any difference ends it with an error.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from native_program import FLAGS, build_program  # noqa: E402
from networks import of_size  # noqa: E402
from small_networks import initialized  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.deployment.convert.conversion import convert  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from model_zoo import get_model  # noqa: E402

COMPILER, EMULATOR = 'aarch64-linux-gnu-g++', 'qemu-aarch64'
PACKAGES = ['g++-aarch64-linux-gnu', 'qemu-user']  # on Debian and Ubuntu
INSTRUCTION_SETS = ('reference', 'neon')
CASES = {'binary': 200, 'float': 100}
# Binary and float convolutions with what precedes and follows them: thresholds, transitions, PReLU, sigmoid, depthwise convolutions.
NETWORKS = {'meliusnet22': True, 'reactnet18': True, 'real_to_binary18': True, 'mobilenet0.25': False}  # whether it has binary layers
SIZE = 64


def main():
    """Run all checks. Raises `UserError` at the first difference."""
    install_tools()
    with tempfile.TemporaryDirectory() as folder:
        check_kernels(pathlib.Path(folder))
        check_networks(pathlib.Path(folder))
    print('aarch64: all results have the bits of this machine')


def install_tools():
    """Install the cross compiler and the emulator if they are missing. Raises `UserError` where that is not possible."""
    if shutil.which(COMPILER) and shutil.which(EMULATOR):
        return
    if os.geteuid() or not shutil.which('apt-get'):
        raise UserError(f'{COMPILER} and {EMULATOR} are needed (on Debian and Ubuntu: apt-get install {" ".join(PACKAGES)})')
    for command in (['update'], ['install', '--yes', '--no-install-recommends', *PACKAGES]):
        subprocess.run(['apt-get', '-qq', *command], stdout=subprocess.DEVNULL, check=True)


def build(folder, source, parts, *flags):
    """Return a program for aarch64, which needs no libraries of its own."""
    folder = folder / 'aarch64'
    folder.mkdir(exist_ok=True)
    return build_program(folder, source, parts, [*FLAGS, '-static', *flags], [COMPILER])


def run(program, *arguments, instruction_set=None):
    """Run a program for aarch64 in the emulator and return its output."""
    environment = {**os.environ, **({'BMX_MELIUS_ISA': instruction_set} if instruction_set else {})}
    return output_of([EMULATOR, program, *arguments], environment)


def output_of(command, environment=None):
    """Run a command and return its output. Raises `UserError` if it fails."""
    command = list(map(str, command))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if done.returncode:
        raise UserError(f'{" ".join(command)} failed (exit status {done.returncode}): {done.stdout.strip()}')
    return done.stdout


def check_kernels(folder):
    """Compare the kernels with plain loops, and float kernels with those of this machine."""
    parts = ['binary', 'float', 'dispatch']
    for kind, cases in CASES.items():
        source = f'tests/csrc/{kind}_kernels_test.cc'
        program = build(folder, source, parts)
        outputs = {name: run(program, name, cases) for name in INSTRUCTION_SETS}
        if kind == 'float':
            native = build_program(folder, source, parts, FLAGS)
            outputs['this machine'] = output_of([native, 'reference', cases])
            digests = {name: re.search('digest (.*)', output)[1] for name, output in outputs.items()}
            require_equal('float kernels', digests)
        print(f'{kind} kernels, {cases} random cases: ok', flush=True)


def check_networks(folder):
    """Compare the outputs of packed networks, run through the C interface, with those on this machine."""
    program = build(folder, 'examples/cpp/run_packed.cc', None, f'-I{ROOT / "bmx_melius" / "csrc" / "api"}')
    shape = (1, 3, SIZE, SIZE)
    for name, is_binary in NETWORKS.items():
        net = initialized(get_model(name, classes=10, **(of_size(name, SIZE) if is_binary else {})), shape, mx.init.Xavier())
        net.export(str(folder / 'net'))
        convert(folder / 'net-symbol.json', folder / 'net-0000.params', folder / 'packed', shape, verify=False)
        x = np.random.RandomState(0).randn(*shape).astype(np.float32)
        x.tofile(folder / 'image')
        digests = {'this machine': digest(bmx.Session(folder / 'packed')(x))}
        for instruction_set in INSTRUCTION_SETS:
            scores = run(program, folder / 'packed-0000.params', folder / 'image', instruction_set=instruction_set)
            digests[instruction_set] = digest(np.array(scores.split(), np.float32))
        require_equal(name, digests)
        print(f'{name}: {digests["neon"]}', flush=True)


def digest(numbers):
    """Return the first digits of the SHA-256 of float32 numbers."""
    return hashlib.sha256(numbers.astype('<f4').tobytes()).hexdigest()[:16]


def require_equal(what, digests):
    """Raise `UserError` unless all values of a dictionary are equal."""
    if len(set(digests.values())) > 1:
        raise UserError(f'the bits of the results differ: {what}, {", ".join(f"{name} {value}" for name, value in digests.items())}')


if __name__ == '__main__':
    try:
        main()
    except UserError as error:
        sys.exit(f'error: {error}')
