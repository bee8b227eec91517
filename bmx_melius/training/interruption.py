"""Ctrl-C, and the signal that batch systems send before they kill: stop at the next good place, and at once when it comes again."""

import contextlib
import os
import signal
import threading

STOPPED_AT_ONCE = 'stopped at once; --resume goes on from the last checkpoint'
STDERR = 2  # its file descriptor
_END = 0  # no signal has this number


class Interruption:
    """Within ``with Interruption() as interruption`` the first SIGINT or SIGTERM sets `interruption.signal`; the second ends the process.

    A signal handler in Python runs between two bytecodes of the main thread: not while MXNet computes, which may take seconds, and then
    once for all signals of a kind that came meanwhile. So a thread of its own counts them. It reads the pipe into which Python writes
    each signal when it comes (`signal.set_wakeup_fd`). Ending the process there is like killing it: checkpoints allow that at any time.

    Attributes
    ----------
    signal : int or None
        The number of the signal that came.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self.signal = None

    def __enter__(self):
        self._output, self._input = os.pipe()
        os.set_blocking(self._input, False)  # as `set_wakeup_fd` wants it
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
        for number in iter(lambda: os.read(self._output, 1)[0], _END):
            if number not in self.SIGNALS:
                continue
            if self.signal:
                _say(STOPPED_AT_ONCE)
                os._exit(128 + number)
            self.signal = number
            _say('stopping after this batch (once more: at once)')


def _leave_to_thread(*_):
    """Handle a signal by nothing else; Python writes it into the pipe only if it has a handler."""


def _say(message):
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(STDERR, f'\n{message}\n'.encode())
