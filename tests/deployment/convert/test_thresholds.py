"""Tests of thresholds (`thresholds_cases.py`) in a process of their own.

MXNet 1.9.1 crashes with AVX-512 in `MKLDNNBatchNormForwardImpl` when they follow the tests of the converter in one process.
"""

import os
import pathlib
import subprocess
import sys


def test_thresholds_are_those_of_the_batch_normalization_of_mxnet():
    cases = pathlib.Path(__file__).with_name('thresholds_cases.py')
    command = [sys.executable, '-W', 'ignore', '-m', 'pytest', '-q', '-p', 'no:xdist', '-p', 'no:cacheprovider', '-o', 'addopts=', cases]
    done = subprocess.run(command, text=True, capture_output=True, env={**os.environ, 'PYTEST_ADDOPTS': ''})
    assert done.returncode == 0 and ' passed' in done.stdout, done.stdout + done.stderr
