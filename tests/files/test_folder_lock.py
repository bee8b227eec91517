"""Lock on an output folder: one process holds it, others get an error that names this process, and it ends with the process."""

import errno
import fcntl
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from support.forked_program import ForkedProgram
from support.training_runs import TINY, assert_same_end, error_of, train, train_apart

import train_imagenet
from bmx_melius.errors import UserError
from bmx_melius.files.folder_lock import FILE, locked

HOLDER = """
import sys
from bmx_melius.files.folder_lock import locked
with locked(sys.argv[1]):
    print('locked', flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock on the folder `run`, until it receives a signal to end."""
    command = [sys.executable, '-c', HOLDER, str(tmp_path / 'run')]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == 'locked\n'
        yield process
        process.kill()


def test_a_second_process_gets_the_name_of_the_lock_owner_and_the_lock_once_the_owner_has_ended(tmp_path, holder):
    for _ in range(2):
        with pytest.raises(UserError) as refused, locked(tmp_path / 'run'):
            pass
        told = re.match(r'(.*) is in use: process (\d+) on (.*), since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d', str(refused.value))
        assert told.groups() == (str(tmp_path / 'run'), str(holder.pid), socket.gethostname())
    holder.communicate()
    assert not os.listdir(tmp_path / 'run')
    with locked(tmp_path / 'run'):
        assert os.listdir(tmp_path / 'run') == [FILE]
    assert not os.listdir(tmp_path / 'run')


def test_a_killed_process_leaves_no_lock(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert os.listdir(tmp_path / 'run') == [FILE]
    with locked(tmp_path / 'run'):
        pass
    assert not os.listdir(tmp_path / 'run')


def test_a_lock_without_the_name_of_its_owner_still_locks(tmp_path):
    with open(tmp_path / FILE, 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match='another process writes to it'), locked(tmp_path):
            pass


def test_a_lock_on_a_removed_file_does_not_count(tmp_path, monkeypatch):
    path, flock, calls = tmp_path / FILE, fcntl.flock, []

    def flock_after_the_owner_has_ended(file, operation):
        if not calls:
            path.unlink()
        calls.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, 'flock', flock_after_the_owner_has_ended)
    with locked(tmp_path), open(path) as other:
        assert len(calls) == 2
        with pytest.raises(BlockingIOError):
            flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_where_the_file_system_has_no_locks_the_run_starts_with_a_warning(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, 'flock', fail)
    with locked(tmp_path):
        pass
    assert f'{tmp_path} cannot be locked (No locks available)' in caplog.text


DIGITS = [*TINY, '--dataset', 'digits', '--num-epochs', '1', '--batch-size', '128']  # 11 updates


@pytest.fixture(scope='module')
def finished(make_once):
    return make_once('run-of-one-epoch', lambda folder: train_apart(*DIGITS, '--save-dir', folder / 'run')) / 'run'


def test_a_running_run_cannot_be_resumed_but_dry_run_reads_it_and_a_killed_run_can_be_resumed(finished, tmp_path, capsys):
    assert FILE not in os.listdir(finished)
    run = tmp_path / 'run'
    with ForkedProgram(*DIGITS, '--save-dir', run) as process:
        while not process.stdout.readline().startswith('epoch 1, update 1 '):
            assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        train('--resume', '--save-dir', run, status=2)
        assert f'{run} is in use: process {process.pid} on ' in error_of(capsys)
        train('--resume', '--dry-run', '--save-dir', run)
        assert before == {path.name: path.read_bytes() for path in run.iterdir()}
        process.kill()
    train_apart('--resume', '--save-dir', run)
    assert_same_end(run, finished)


def test_a_run_that_started_and_ended_while_this_one_read_its_data_is_not_overwritten(finished, tmp_path, monkeypatch, capsys):
    run = tmp_path / 'run'
    original = train_imagenet.open_source

    @functools.wraps(original)
    def open_source(*arguments, **options):
        shutil.copytree(finished, run)
        return original(*arguments, **options)

    monkeypatch.setattr(train_imagenet, 'open_source', open_source)
    train(*DIGITS, '--save-dir', run, status=2)
    assert 'holds a run already' in error_of(capsys)
    for name in ('checkpoint.json', 'epoch-0001.params', 'epoch-0001.states'):
        assert (run / name).read_bytes() == (finished / name).read_bytes()
