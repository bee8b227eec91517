"""Build and installation of the library for C and C++ and of bmx-classify by CMake, for the tests of `make test-c`."""

import os
import shlex
import subprocess

import pytest

from support.paths import ROOT

BUILD = ROOT / 'build' / 'c'  # as in docs/deploying.md; kept, so that only what has changed is compiled

only_test_c = pytest.mark.skipif(not os.environ.get('BMX_MELIUS_TEST_C'), reason='`make test-c` runs it')


def call(*command, **environment):
    """Run a command, which must succeed; return what it printed."""
    command = list(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, f'{shlex.join(command)}\n{done.stdout}{done.stderr}'
    return done.stdout


def cmake(source, build, *options):
    """Configure and build a project."""
    call('cmake', '-S', source, '-B', build, *options)
    call('cmake', '--build', build, '--parallel', len(os.sched_getaffinity(0)))


def install(folder):
    """Build everything, install it below a folder, and move it once. Returns the folder of the installation."""
    cmake(ROOT, BUILD, '-DBMX_CLASSIFY=ON', '-DCMAKE_EXPORT_COMPILE_COMMANDS=ON')
    call('cmake', '--install', BUILD, '--prefix', folder / 'first')
    (folder / 'first').rename(folder / 'installed')
    return folder / 'installed'
