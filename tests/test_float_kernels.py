"""The float kernels of every instruction set against double-precision loops, and what they touch in memory."""

import subprocess

import pytest
from native_program import BuildError, build_program

NOT_HERE = 77  # exit status for an instruction set that the build or the CPU lacks
SANITIZERS = ['-fsanitize=address,undefined', '-fno-sanitize-recover=all', '-fno-sanitize=null,alignment,pointer-overflow']
BUILDS = {
    'optimized': ['-O2'],
    'sanitized': ['-O1', *SANITIZERS],  # those left out see less than the address sanitizer does and take half of the build's time
}


@pytest.fixture(scope='module', params=BUILDS)
def program(request, tmp_path_factory):
    try:
        return build_program(tmp_path_factory.mktemp('build'), 'tests/csrc/float_kernels_test.cc', ['float'], BUILDS[request.param])
    except BuildError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize('table', ['reference', 'avx2', 'avx512', 'amx'])
def test_kernels_compute_what_plain_loops_compute_and_touch_nothing_else(program, table, long_run):
    done = subprocess.run([program, table, '20000' if long_run else '300'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == NOT_HERE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
