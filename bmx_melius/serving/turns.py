"""Turns of requests that are read: cheap requests first, and a process that expensive requests cannot have, so that others wait less."""

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
from typing import Any

LARGE = 16 << 20  # pixels, more than phones take; for more of them all processes but one are used
_SECONDS_PER_PIXEL = 2.5e-6  # for which cheaper requests go first: 30 s for a photo of 12 megapixels, 100 times as long as it takes


@dataclasses.dataclass(order=True)
class _Waiting:
    due: float
    number: int
    turn: Any = dataclasses.field(compare=False)  # a future


class Turns:
    """A number of turns at the same time. Used in one event loop.

    Next is the waiting request whose arrival plus a time in proportion to its cost is earliest. So cheap requests do not
    wait for expensive requests that came shortly before them, which do not wait forever.

    Parameters
    ----------
    number : int
        Turns at the same time, 2 or more. One of them is not for requests with a cost of more than `LARGE`.
    """

    def __init__(self, number):
        self._free, self._free_for_large = number, number - 1
        self._small, self._large, self._numbers = [], [], itertools.count()

    @contextlib.asynccontextmanager
    async def turn(self, cost):
        """Wait for a turn, and have it within the block.

        Parameters
        ----------
        cost : int
            Pixels that are decoded, or as many as take as long as what is read.
        """
        loop, is_large = asyncio.get_running_loop(), cost > LARGE
        turn = loop.create_future()
        waiting = _Waiting(loop.time() + cost * _SECONDS_PER_PIXEL, next(self._numbers), turn)
        heapq.heappush(self._large if is_large else self._small, waiting)
        self._begin()
        try:
            await turn
            yield
        finally:
            if not turn.cancel() and not turn.cancelled():  # it has begun
                self._free += 1
                self._free_for_large += is_large
                self._begin()

    def _begin(self):
        """Begin as many turns as possible."""
        self._forget_cancelled()
        while self._free:
            possible = [queue for queue in (self._small, self._free_for_large and self._large) if queue]
            if not possible:
                return
            queue = min(possible, key=lambda queue: queue[0])
            self._free -= 1
            self._free_for_large -= queue is self._large
            heapq.heappop(queue).turn.set_result(None)
            self._forget_cancelled()

    def _forget_cancelled(self):
        for queue in (self._small, self._large):
            while queue and queue[0].turn.cancelled():
                heapq.heappop(queue)
