"""Tests of the engine on aarch64 under emulation: ``make test-arm``.

Everything is cross-compiled, by GCC and by Clang, which is the compiler of Android, run by qemu, and compared with this machine
(`other_machine`). Any difference ends it with an error.
"""

import pathlib
import sys
import tempfile

from other_machine import ROOT, Machine, check_kernels, check_networks, install_tools

from bmx_melius.errors import UserError

ARM = Machine(
    name='aarch64',
    compilers={'gcc': ['aarch64-linux-gnu-g++'], 'clang': ['clang++', '--target=aarch64-linux-gnu']},  # Clang needs the libraries of GCC
    flags=['-static'],
    launcher=['qemu-aarch64'],
    instruction_sets=('reference', 'neon'),
)


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
    print('aarch64: all results have the bits of this machine')


if __name__ == '__main__':
    try:
        main()
    except UserError as error:
        sys.exit(f'error: {error}')
