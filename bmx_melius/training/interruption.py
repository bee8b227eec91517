"""Ctrl-C, and the signal that batch systems send before they kill: stop at the next good place."""

import contextlib
import os
import signal

STDERR = 2  # its file descriptor


class Interruption:
    """Turns the first SIGINT or SIGTERM within ``with Interruption() as interruption`` into `interruption.signal`, no more.

    Another one does what it always does.

    Attributes
    ----------
    signal : int or None
        The number of the signal that came.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self.signal = None
        self._handlers = {}

    def __enter__(self):
        self._handlers = {number: signal.signal(number, self._remember) for number in self.SIGNALS}
        return self

    def __exit__(self, *_):
        self._restore()

    def _remember(self, number, _):
        self.signal = number
        self._restore()
        with contextlib.suppress(OSError):  # the terminal may be gone; and print must not be called within a print
            os.write(STDERR, b'\nstopping after this batch (once more: at once)\n')

    def _restore(self):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
