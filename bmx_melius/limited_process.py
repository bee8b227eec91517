"""Processes with limited memory, for inputs that announce nothing: only the end of a process limits for certain what a library takes.

`child_environment`, `command_of` and `limit` are for any process of this kind. One that lasts answers messages on its standard input, until
this ends: a message is the lengths of its two parts, a JSON object, and bytes. `LimitedProcesses` asks such processes; the service has its
own, which waits in an event loop (`serving.readers`).
"""

import atexit
import contextlib
import gc
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import traceback

LENGTHS = struct.Struct('<II')  # of the JSON object, and of the bytes after it
LOG_BYTES = 2000  # on standard error, about a message
_PIPE_BYTES = 1 << 20  # more than a pipe holds
_ENVIRONMENT = {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1', 'PYTHONWARNINGS': 'ignore'}


def message(head, *bodies):
    """Return a message as a list of bytes, from an object for JSON and the pieces of the second part."""
    text = json.dumps(head).encode()
    return [LENGTHS.pack(len(text), sum(map(len, bodies))), text, *bodies]


def child_environment():
    """Return the environment of a process of Python that computes with one thread and finds packages where this process does."""
    return {**os.environ, **_ENVIRONMENT, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}


def command_of(module, *arguments):
    """Return the command of a process that runs ``main`` of a module with arguments, numbers or texts.

    The working directory, in which a file could have the name of a module, is not searched.
    """
    program = f'import sys; sys.path[:] = filter(None, sys.path); from {module} import main; main(*{arguments!r})'
    return [sys.executable, '-c', program]


def limit(memory, kind=resource.RLIMIT_DATA):
    """Limit the memory of this process to `memory` bytes of data, or of another kind of `resource`; it leaves no core dump."""
    resource.setrlimit(kind, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def is_limited(memory):
    """Return whether this process may have at most `memory` bytes of data."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return 0 <= allowed <= memory


class MessageLog:
    """Within the block, standard error of this process: its first `LOG_BYTES` bytes about each message are written to the former one.

    What a library writes about a message can be several times as long as the message.
    """

    def __enter__(self):
        self._log = os.dup(2)
        self._source, sink = os.pipe()
        for end in (self._source, sink):
            os.set_blocking(end, False)  # what does not fit into the pipe is lost
        os.dup2(sink, 2)
        os.close(sink)
        return self

    def __exit__(self, *_):
        os.dup2(self._log, 2)
        os.close(self._log)
        os.close(self._source)

    def end_message(self):
        """Write the beginning of what has been written since the last call."""
        with contextlib.suppress(BlockingIOError):  # nothing
            text = os.read(self._source, _PIPE_BYTES)
            os.write(self._log, text if len(text) <= LOG_BYTES else text[: LOG_BYTES - 4] + b'...\n')


def answer_messages(respond, memory):
    """Answer the messages on standard input, until its end, in this process, which may have at most `memory` bytes of data from now on.

    Parameters
    ----------
    respond : callable
        Returns the answer, a list of bytes, to the two parts of a message.
    memory : int
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # whoever started this process ends it, after the messages that it has sent
    limit(memory)
    gc.freeze()
    gc.disable()  # it would look at all lists of a JSON text again and again while it is parsed
    with MessageLog() as log, open(os.dup(0), 'rb') as requests, open(os.dup(1), 'wb') as answers:
        os.dup2(2, 1)  # what libraries print must not mix with the answers
        while True:
            lengths = requests.read(LENGTHS.size)
            if len(lengths) < LENGTHS.size:
                return
            head, body = map(requests.read, LENGTHS.unpack(lengths))
            try:
                for part in respond(json.loads(head), body):
                    answers.write(part)
                answers.flush()
                del head, body
                gc.collect()
            except BrokenPipeError:  # the other process has been killed
                os._exit(1)
            except Exception:
                traceback.print_exc()
                log.end_message()
                os._exit(1)
            log.end_message()


class LimitedProcesses:
    """Processes that answer messages for the threads of this process: as many as wait at the same time, started when they are needed.

    A child of a fork has none of them.

    Parameters
    ----------
    module : str
        Its function `main` is what they run, see `command_of`.
    memory : int
        Bytes of data that each may have.
    seconds : float
        Time for an answer.
    """

    def __init__(self, module, memory, seconds):
        self._module, self._memory, self._seconds = module, memory, seconds
        self._idle = []
        os.register_at_fork(after_in_child=self._idle.clear)
        atexit.register(self.close)

    def ask(self, head, body):
        """Return the answer to a message: its head, and its body as a bytearray.

        Raises
        ------
        ChildProcessError
            If the process has ended, or has been given up, without an answer; the message says why.
        """
        process = self._taken() or self._start()
        late = threading.Event()

        def give_up():
            late.set()
            process.kill()

        timer = threading.Timer(self._seconds, give_up)
        timer.start()
        try:
            for part in message(head, body):
                _write(process.stdin, part)
            lengths = LENGTHS.unpack(_read(process.stdout, LENGTHS.size))
            text, answer = [_read(process.stdout, length) for length in lengths]
        except BaseException as error:  # also Ctrl-C: what the process still writes would be the answer to the next message
            reason = f'it takes longer than {self._seconds:g} s' if late.is_set() else 'it takes too much memory'
            _end(process)
            if isinstance(error, (OSError, EOFError)):
                raise ChildProcessError(reason) from error
            raise
        finally:
            timer.cancel()
        self._idle.append(process)
        return json.loads(text), answer

    def close(self):
        """End the processes that are idle."""
        while self._idle:
            _end(self._idle.pop())

    def _taken(self):
        """Return an idle process, or None; processes that the system has killed are dropped."""
        while True:
            try:
                process = self._idle.pop()  # another thread may have taken the last one
            except IndexError:
                return None
            if process.poll() is None:
                return process
            _end(process)

    def _start(self):
        return subprocess.Popen(
            command_of(self._module, self._memory),
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a child of a fork would write what is left in a buffer
            start_new_session=True,  # Ctrl-C in a terminal would reach it
        )


def _end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def _write(file, content):
    """Write all bytes to a pipe without a buffer."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _read(file, length):
    """Return this number of bytes of a pipe without a buffer, a bytearray. Raises `EOFError` if it ends before."""
    content = bytearray(length)
    rest = memoryview(content)
    while rest:
        received = file.readinto(rest)
        if not received:
            raise EOFError
        rest = rest[received:]
    return content
