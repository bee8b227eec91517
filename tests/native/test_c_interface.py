"""Misuse of the C interface, csrc/api/bmx_melius.h: wrong arguments are errors with a reason, never a crash."""

import subprocess


def test_wrong_arguments_are_errors_and_the_program_can_be_run_again(build_native):
    program = build_native('tests/csrc/c_interface_test.cc', None, 'sanitized')
    done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[:5000]
