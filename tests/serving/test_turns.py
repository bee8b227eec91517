"""The order in which requests are read."""

import asyncio
import contextlib

import pytest
from support.clock import Clock, some_turns

from bmx_melius.serving.turns import LARGE, Turns

SMALL = 1000
PHOTO = 12_000_000


class Reading:
    """Requests that are read in turns; `begun` are the names of those whose turn has begun."""

    def __init__(self, number):
        self._turns, self._ends, self.begun, self.tasks = Turns(number), {}, [], {}

    async def _read(self, name, cost):
        async with self._turns.turn(cost):
            self.begun.append(name)
            await self._ends[name].wait()

    async def add(self, name, cost):
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._read(name, cost))
        await some_turns()

    async def end(self, *names):
        for name in names:
            self._ends[name].set()
            await some_turns()


def scenario(number):
    """Make a test of a coroutine: run it in an event loop with a set time, with `Reading` in this number of turns."""

    def decorate(coroutine):
        def run():
            loop = Clock()
            reading = Reading(number)
            loop.run_until_complete(coroutine(reading))
            loop.run_until_complete(reading.end(*reading.tasks))
            loop.close()

        return run

    return decorate


@scenario(3)
async def test_one_turn_is_not_for_large_images(reading):
    for number in range(4):
        await reading.add(number, LARGE + 1)
    assert reading.begun == [0, 1]
    await reading.add('not large', LARGE)
    assert reading.begun == [0, 1, 'not large']
    await reading.end('not large')
    assert reading.begun == [0, 1, 'not large']
    await reading.end(1)
    assert reading.begun == [0, 1, 'not large', 2]
    await reading.end(0)
    await reading.end(2, 3)
    assert reading.begun[-1] == 3


@scenario(2)
async def test_all_turns_are_used_for_others_and_a_large_image_has_one_of_them(reading):
    for name in 'abc':
        await reading.add(name, SMALL)
    assert reading.begun == ['a', 'b']
    await reading.end('a', 'b')
    await reading.add('large', LARGE + 1)
    assert reading.begun == ['a', 'b', 'c', 'large']


@scenario(2)
async def test_cheap_requests_go_before_expensive_ones_that_came_shortly_before(reading):
    for name in 'ab':
        await reading.add(name, SMALL)
    await reading.add('huge', 49_000_000)
    await reading.add('photo', PHOTO)
    await asyncio.sleep(5)
    await reading.add('later photo', PHOTO)
    await reading.add('small', SMALL)
    await reading.end('a', 'b', 'small', 'photo', 'later photo')
    assert reading.begun == ['a', 'b', 'small', 'photo', 'later photo', 'huge']


@scenario(2)
async def test_expensive_requests_do_not_wait_for_cheap_ones_that_come_much_later(reading):
    for name in 'ab':
        await reading.add(name, SMALL)
    await reading.add('huge', 49_000_000)
    await asyncio.sleep(1000)
    await reading.add('small', SMALL)
    await reading.end('a')
    assert reading.begun == ['a', 'b', 'huge']


@scenario(2)
async def test_requests_of_equal_cost_have_their_turns_in_the_order_of_arrival(reading):
    for number in range(5):
        await reading.add(number, PHOTO)
    await reading.end(*range(5))
    assert reading.begun == [0, 1, 2, 3, 4]


@scenario(2)
async def test_cancelled_requests_leave_the_turns_to_others(reading):
    for name in 'abcd':
        await reading.add(name, SMALL)
    reading.tasks['c'].cancel()  # waits
    await some_turns()
    reading.tasks['a'].cancel()  # has its turn
    await some_turns()
    assert reading.begun == ['a', 'b', 'd']
    await reading.add('e', SMALL)
    assert reading.begun == ['a', 'b', 'd']
    await reading.end('d')
    assert reading.begun == ['a', 'b', 'd', 'e']


@scenario(2)
async def test_a_request_that_is_cancelled_when_its_turn_begins_leaves_it_to_others(reading):
    for name in 'abcd':
        await reading.add(name, SMALL)
    reading.tasks['a'].cancel()
    await asyncio.sleep(0)  # the turn of c begins, but not its code
    reading.tasks['c'].cancel()
    await some_turns()
    assert reading.begun == ['a', 'b', 'd'] and reading.tasks['c'].cancelled()


@scenario(2)
async def test_cancelled_large_requests_do_not_reduce_the_turns_of_large_ones(reading):
    for name in 'ab':
        await reading.add(name, LARGE + 1)
        reading.tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading.tasks[name]
    await reading.add('c', LARGE + 1)
    assert reading.begun == ['a', 'b', 'c']


def test_an_error_ends_a_turn():
    async def scenario():
        turns = Turns(2)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with turns.turn(LARGE + 1):
                    raise ZeroDivisionError
        async with turns.turn(LARGE + 1):
            return 'done'

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == 'done'
