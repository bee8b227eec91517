"""Handling of SIGINT and SIGTERM: stop after the current batch at the first signal, and immediately at the second."""

import contextlib
import os
import signal
import threading

STOPPED_AT_ONCE = 'stopped at once; --resume continues from the last checkpoint'
STDERR = 2  # file descriptor
_END = 0  # ends the thread; no signal has this number


class Interruption:
    """Context manager in which the first SIGINT or SIGTERM sets the attribute `signal` and the second ends the process.

    Python runs signal handlers between two bytecodes of the main thread, so not while MXNet computes, which may take seconds, and only once
    for several signals received meanwhile. A separate thread therefore counts signals, by reading the pipe into which Python writes each
    signal on arrival (`signal.set_wakeup_fd`). The second signal ends the process without cleanup, which checkpoints allow at any time.

    Attributes
    ----------
    signal : int or None
        Number of the signal received.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self.signal = None

    def __enter__(self):
        self._output, self._input = os.pipe()
        os.set_blocking(self._input, False)  # required by `set_wakeup_fd`
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._input, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _leave_to_thread) for number in self.SIGNALS}
        return self

    def __exit__(self, *_):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.write(self._input, bytes([_END]))
        self._thread.join()
        os.close(self._input)
        os.close(self._output)

    def _count(self):
        """Read signal numbers from the pipe until `_END` and act on them."""
        for number in iter(lambda: os.read(self._output, 1)[0], _END):
            if number not in self.SIGNALS:
                continue
            if self.signal:
                _print(STOPPED_AT_ONCE)
                os._exit(128 + number)
            self.signal = number
            _print('stopping after this batch (once more: at once)')


def _leave_to_thread(*_):
    """Do nothing. Python writes a signal into the pipe only if it has a handler."""


def _print(message):
    """Write a line to standard error, unbuffered because the process may end right afterwards."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(STDERR, f'\n{message}\n'.encode())
