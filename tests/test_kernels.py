"""The binary kernels of every instruction set against plain loops, bit for bit, and what they touch in memory."""

import subprocess

import pytest
from native_program import BuildError, build_program

BUILDS = {
    'optimized': ['-O2'],
    'sanitized': ['-O1', '-g1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all'],
}


@pytest.mark.parametrize('build', BUILDS)
def test_binary_kernels_compute_what_plain_loops_compute_and_touch_nothing_else(build, tmp_path, long_run):
    try:
        program = build_program(tmp_path, 'tests/csrc/binary_kernels_test.cc', ['binary'], BUILDS[build])
    except BuildError as error:
        pytest.skip(str(error))
    cases = '10000' if long_run else '400'
    done = subprocess.run([program, cases], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
