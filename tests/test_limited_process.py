"""Processes with limited memory: they answer, are given up, and are not shared with the children of a fork."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from bmx_melius.limited_process import LOG_BYTES, LimitedProcesses, answer_messages, child_environment, command_of, is_limited, message


def respond(head, body):
    if head.get('bytes'):
        bytearray(head['bytes'])
    if head.get('wait'):
        threading.Event().wait(head['wait'])
    return message({'process': os.getpid(), 'limited': is_limited(1 << 28)}, body[::-1])


def main(memory):
    answer_messages(respond, memory)


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    made = LimitedProcesses('test_limited_process', 1 << 28, 10)
    yield made
    made.close()


def test_a_process_answers_one_message_after_the_other(processes):
    content = os.urandom(1 << 20)
    first, body = processes.ask({}, content)
    assert body == content[::-1] and first['limited'] and first['process'] != os.getpid()
    assert processes.ask({}, b'')[0]['process'] == first['process'] and not is_limited(1 << 28)


def test_memory_and_time_are_limited_and_another_process_answers_then(processes):
    with pytest.raises(ChildProcessError, match='too much memory'):
        processes.ask({'bytes': 1 << 29}, b'')
    assert processes.ask({'bytes': 1 << 20}, b'a')[1] == b'a'
    processes._seconds = 1
    with pytest.raises(ChildProcessError, match='longer than 1 s'):
        processes.ask({'wait': 100}, b'')
    processes._seconds = 10
    assert processes.ask({}, b'a')[1] == b'a'


def test_a_process_that_was_killed_while_it_was_idle_is_replaced(processes):
    os.kill(processes.ask({}, b'')[0]['process'], signal.SIGKILL)
    os.waitid(os.P_PID, processes._idle[0].pid, os.WEXITED | os.WNOWAIT)
    assert processes.ask({}, b'ab')[1] == b'ba'


def test_threads_ask_at_the_same_time(processes):
    found = []
    threads = [threading.Thread(target=lambda: found.append(processes.ask({'wait': 1}, b'')[0]['process'])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2


def test_a_child_of_a_fork_starts_its_own(processes):
    mine = processes.ask({}, b'')[0]['process']
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(processes.ask({}, b'')[0]['process']).encode())
            processes.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 100)) != mine and processes.ask({}, b'')[0]['process'] == mine


def test_a_file_in_the_working_directory_is_not_imported(tmp_path):
    (tmp_path / 'json.py').write_text('raise SystemExit("imported")')
    command, environment = command_of('test_limited_process', 1 << 28), child_environment()
    environment['PYTHONPATH'] += os.pathsep + os.path.dirname(__file__)
    done = subprocess.run(command, env=environment, cwd=tmp_path, input=b'', capture_output=True)
    assert done.returncode == 0, done.stderr
    assert command[0] == sys.executable


WRITING = """\
import os, sys
from bmx_melius.limited_process import answer_messages, message
def respond(head, body):
    if body == b'defect':
        raise ValueError(100_000 * 'x')
    os.write(2, body)  # as a library in C
    print(100_000 * 'y', file=sys.stderr)
    print('to standard output')
    return message({}, b'')
answer_messages(respond, 1 << 30)
"""


def test_all_that_a_process_writes_about_a_message_is_cut_and_a_short_line_is_not():
    bodies = [b'short line\n', b'z' * 3_000_000, b'defect']
    messages = b''.join(b''.join(message({}, body)) for body in bodies)
    done = subprocess.run([sys.executable, '-c', WRITING], env=child_environment(), input=messages, capture_output=True, timeout=60)
    assert done.stdout == 2 * b''.join(message({}, b'')) and done.returncode == 1
    errors = done.stderr
    assert errors.startswith(b'short line\nyyy') and b'zzz' in errors and b'Traceback' in errors and len(errors) <= 3 * LOG_BYTES
