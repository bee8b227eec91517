"""An event loop for tests of timers."""

import asyncio


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is set, and which never waits for a timer: it sets its time to the timer's."""

    def __init__(self):
        super().__init__()
        self.now, select = 100.0, self._selector.select

        def at_once(timeout):
            events = select(None if timeout is None else 0)
            if not events and timeout:
                self.now += timeout
            return events

        self._selector.select = at_once

    def time(self):
        return self.now


async def some_turns():
    """Let the event loop run everything that is ready, without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)
