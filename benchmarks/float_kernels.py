"""Benchmark of the float kernels on shapes of MeliusNet22, ResNet18 and MobileNet 1.0, in one thread.

Run: ``python benchmarks/float_kernels.py [reference|avx2|avx512|amx]``.
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'tests'))

from support.native_program import KERNEL_PARTS, build_program  # noqa: E402

if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        program = build_program(folder, 'benchmarks/float_kernels.cc', [*KERNEL_PARTS, 'peak'], ['-O3'])
        sys.exit(subprocess.run([program, *sys.argv[1:]]).returncode)
