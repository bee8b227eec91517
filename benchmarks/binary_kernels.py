"""Build and run binary_kernels.cc: the speed of each instruction set's binary kernels, in one thread, beside the machine's peak.

Run: ``python benchmarks/binary_kernels.py [ROUNDS [INSTRUCTION_SET]]``
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'tests'))
from native_program import build_program  # noqa: E402

if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        program = build_program(folder, 'benchmarks/binary_kernels.cc', ['binary', 'peak'], ['-O3'])
        sys.exit(subprocess.run([program, *sys.argv[1:]]).returncode)
