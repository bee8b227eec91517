"""Tests of the engine on aarch64 under emulation: ``make test-arm``.

Everything is cross-compiled, by GCC and by Clang, which is the compiler of Android, run by qemu, and compared with this machine
(`other_machine`). Any difference ends it with an error.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from other_machine import ROOT, Machine, check_kernels, check_networks, install_tools

from bmx_melius.errors import UserError

ARM = Machine(
    name='aarch64',
    compilers={'gcc': ['aarch64-linux-gnu-g++'], 'clang': ['clang++', '--target=aarch64-linux-gnu']},  # Clang needs the libraries of GCC
    flags=['-static'],
    launcher=['qemu-aarch64'],
    instruction_sets=('reference', 'neon', 'dotprod'),
)

# Processors in the emulator -> their instruction sets.
AVAILABLE = {'cortex-a53': 'reference neon', 'cortex-a76': 'reference neon dotprod', 'max': 'reference neon dotprod'}


def check_choice(program, *arguments):
    """Require that a processor gets the instruction sets it has: an unknown one is refused with their names."""
    for processor, sets in AVAILABLE.items():
        command = ['qemu-aarch64', '-cpu', processor, program, *arguments]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env={**os.environ, 'BMX_MELIUS_ISA': 'none'})
        if not done.stderr.strip().endswith(f'this build and this CPU have {sets}'):
            raise UserError(f'{processor} should have {sets}: {done.stderr.strip()}')
    print('choice of the instruction set: ok', flush=True)


def main():
    """Run all checks. Raises `UserError` at the first difference."""
    install_tools({'aarch64-linux-gnu-g++': 'g++-aarch64-linux-gnu', 'clang++': 'clang', 'qemu-aarch64': 'qemu-user'})
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_kernels(ARM, folder)
        flag = f'-I{ROOT / "bmx_melius" / "csrc" / "api"}'
        programs = {one: ARM.build(folder, 'examples/cpp/run_packed.cc', None, flag, compiler=one) for one in ARM.compilers}

        def run(params, image):
            for compiler, program in programs.items():
                for instruction_set in ARM.instruction_sets:
                    yield f'{instruction_set} by {compiler}', ARM.run(program, params, image, instruction_set=instruction_set)

        check_networks(folder, run)
        check_choice(programs['gcc'], folder / 'packed-0000.params', folder / 'image')
    print('aarch64: all results have the bits of this machine')


if __name__ == '__main__':
    try:
        main()
    except UserError as error:
        sys.exit(f'error: {error}')
