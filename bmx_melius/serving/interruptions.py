"""Ends requests before their answer, because the client has disconnected or the service has no more time."""

import asyncio
import contextlib

from starlette.requests import ClientDisconnect


class Interruptions:
    """Blocks of code that can be ended from outside with an exception. Used in one event loop."""

    def __init__(self):
        self._errors = {}  # task that runs a block -> what ends it, None if nothing does

    @contextlib.contextmanager
    def interruptible(self):
        """Run the block, of which a task can have one, until its end or until it is interrupted; then the exception is raised."""
        task = asyncio.current_task()
        self._errors[task] = None
        try:
            yield
        except asyncio.CancelledError as cancelled:
            if self._errors[task] is None:  # not cancelled here
                raise
            raise self._errors[task] from cancelled
        finally:
            del self._errors[task]

    @contextlib.asynccontextmanager
    async def while_connected(self, receive):
        """Run a block within an interruptible one. `ClientDisconnect` ends both when the client disconnects.

        Parameters
        ----------
        receive : callable
            ASGI's, for a request whose body has been read.
        """
        watch = asyncio.ensure_future(self._watch(receive, asyncio.current_task()))
        try:
            yield
        finally:
            watch.cancel()

    def interrupt_all(self, make_error):
        """End all blocks, each with an exception that a function returns."""
        for task in list(self._errors):
            self._interrupt(task, make_error())

    async def _watch(self, receive, task):
        while (await receive())['type'] != 'http.disconnect':
            pass
        self._interrupt(task, ClientDisconnect())

    def _interrupt(self, task, error):
        if self._errors.get(task, error) is None:  # it runs a block that nothing has ended yet
            self._errors[task] = error
            task.cancel()
