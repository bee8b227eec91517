"""Ctrl-C: the first one is remembered, the second ends the process whatever it is doing, and none of them ends in a traceback."""

import os
import signal
import subprocess
import sys
import time

import pytest

import train_imagenet
from bmx_melius.training.interruption import STOPPED_AT_ONCE, Interruption

# The main thread is in one call that does not return to Python, as MXNet's calls do not while it computes: signals do not interrupt it.
COMPUTING = """
import ctypes, signal, sys
from bmx_melius.training.interruption import Interruption
with Interruption() as interruption:
    signal.pthread_sigmask(signal.SIG_BLOCK, Interruption.SIGNALS)
    print('computing', flush=True)
    ctypes.CDLL(None).sleep(30)
    print('computed')
"""


@pytest.mark.parametrize('first, second', [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_the_process_even_while_its_main_thread_is_inside_mxnet(first, second):
    command = [sys.executable, '-c', COMPUTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout.readline() == 'computing\n'
        process.send_signal(first)
        process.stdout.readline()
        assert process.stdout.readline() == 'stopping after this batch (once more: at once)\n'
        process.send_signal(second)
        assert process.stdout.read().strip() == STOPPED_AT_ONCE
    assert process.returncode == 128 + second


@pytest.mark.parametrize('number', Interruption.SIGNALS)
def test_the_first_signal_is_recorded_and_the_previous_handlers_are_restored(number, capfd):
    before = [signal.getsignal(one) for one in Interruption.SIGNALS]
    with Interruption() as interruption:
        assert interruption.signal is None
        os.kill(os.getpid(), number)
        while interruption.signal is None:
            time.sleep(0.001)
        assert interruption.signal == number
    assert [signal.getsignal(one) for one in Interruption.SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert 'stopping after this batch' in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    'program',
    [[train_imagenet.__file__, '--help'], ['-m', 'bmx_melius', 'summary', 'meliusnet22'], ['-m', 'bmx_melius', 'train', '--help']],
)
def test_an_interrupt_while_the_libraries_are_imported_ends_the_program_without_a_traceback(program):
    command = [sys.executable, '-X', 'importtime', *program]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for imported in process.stderr:
            if imported.rstrip().endswith('mxnet.base'):  # much of MXNet is still to come
                break
        process.send_signal(signal.SIGINT)
        assert 'Traceback' not in process.stderr.read()
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize('handler', ['default_int_handler', 'SIG_DFL', 'SIG_IGN'])
def test_importing_changes_no_handler_of_another_program(handler):
    program = (
        'import signal\n'
        f'signal.signal(signal.SIGINT, signal.{handler})\n'
        'import train_imagenet\n'
        f'assert signal.getsignal(signal.SIGINT) is signal.{handler}\n'
    )
    subprocess.run([sys.executable, '-c', program], check=True)
