"""Batches of requests, without any package of bmx-melius[serve]: the queue, the batcher and the admission of requests."""

import asyncio
import doctest
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import Clock, some_turns

from bmx_melius.errors import UserError
from bmx_melius.serving import batch_queue
from bmx_melius.serving.batch_queue import BatchQueue
from bmx_melius.serving.batcher import Batcher
from bmx_melius.serving.limits import Admission, Refusal

# --- the queue ------------------------------------------------------------------------------------------------------------------------


def test_a_full_batch_is_ready_at_once_and_the_rest_after_the_delay():
    queue = BatchQueue(max_batch=3, max_delay=2)
    for number in range(4):
        queue.put('net', number, images=1, now=number / 10)
    assert queue.images() == 4
    assert queue.take(now=0.3) == [0, 1, 2]
    assert queue.take(now=2.2) == [] and queue.ready_at() == 2.3
    assert queue.take(now=2.3) == [3]
    assert queue.ready_at() is None and queue.images() == 0


def test_requests_of_several_images_are_not_divided():
    queue = BatchQueue(max_batch=4, max_delay=0)
    for name, images in (('a', 3), ('b', 2), ('c', 2)):
        queue.put('net', name, images, now=0)
    assert [queue.take(now=0) for _ in range(3)] == [['a'], ['b', 'c'], []]
    for images in (0, 5):
        with pytest.raises(ValueError, match='1 to 4'):
            queue.put('net', 'd', images, now=0)


def test_the_group_with_the_oldest_request_is_taken_first():
    queue = BatchQueue(max_batch=2, max_delay=5)
    queue.put('slow', 1, images=1, now=0)
    queue.put('full', 2, images=2, now=1)
    assert queue.take(now=1) == [2]  # the other one is not ready yet
    queue.put('full', 3, images=2, now=2)
    assert [queue.take(now=5) for _ in range(3)] == [[1], [3], []]


@given(st.lists(st.tuples(st.sampled_from('ab'), st.integers(0, 4), st.floats(0, 3)), max_size=40), st.integers(4, 6), st.floats(0, 2))
def test_every_request_leaves_the_queue_once_in_the_order_of_its_group(events, max_batch, max_delay):
    """Events are requests of some images, or with none of them an attempt to take a batch, after some time."""
    queue, now, put, taken, sizes = BatchQueue(max_batch, max_delay), 0.0, [], [], {}
    for number, (group, images, seconds) in enumerate(events):
        now += seconds
        if images:
            queue.put(group, (group, number), images, now)
            put.append((group, number))
            sizes[group, number] = images
        else:
            taken.append(queue.take(now))
    while queue.ready_at() is not None:
        now = max(now, queue.ready_at())
        taken.append(queue.take(now))
        assert taken[-1], 'take gives a batch at the time that ready_at names'
    for batch in taken:
        assert len({group for group, _ in batch}) <= 1 and sum(map(sizes.get, batch)) <= max_batch
    flat = [request for batch in taken for request in batch]
    for group in 'ab':
        assert [request for request in flat if request[0] == group] == [request for request in put if request[0] == group]


def test_a_removed_request_is_not_taken_and_fills_no_batch():
    queue, requests = BatchQueue(max_batch=3, max_delay=2), [np.zeros(2) for _ in range(4)]  # arrays, which cannot be compared by ==
    for number, request in enumerate(requests):
        queue.put('net', request, images=1, now=number)
    queue.remove('net', requests[0])
    queue.remove('net', requests[2])
    assert queue.images() == 2 and queue.ready_at() == 3
    assert list(map(id, queue.take(now=3))) == [id(requests[1]), id(requests[3])]
    queue.remove('net', requests[1])  # has been taken
    queue.put('net', requests[0], images=1, now=5)
    queue.remove('net', requests[0])
    assert queue.images() == 0 and queue.ready_at() is None and queue.take(now=9) == []


def test_the_example_of_the_queue_holds():
    failed, tried = doctest.testmod(batch_queue)
    assert (failed, tried) == (0, 7)


# --- the batcher ----------------------------------------------------------------------------------------------------------------------


class Doubling:
    """A network that doubles its input. Its runs wait for the event `go`; `batches` are the numbers of images of those that began."""

    name = 'doubling'

    def __init__(self, go=True, max_images=100):
        self.go, self.began, self.batches, self.max_images = threading.Event(), threading.Event(), [], max_images
        if go:
            self.go.set()

    def run(self, x):
        self.batches.append(len(x))
        self.began.set()
        self.go.wait()
        if len(x) > self.max_images:
            raise UserError('too many images')
        return [2 * x, -x]


def images(number, value, size=3):
    return np.full((number, size), value, np.float32)


def check(answer, number, value, size=3):
    doubled, negative = answer
    np.testing.assert_array_equal(doubled, images(number, 2 * value, size))
    np.testing.assert_array_equal(negative, images(number, -value, size))


async def begun(network):
    """Wait until the first run of a network has begun."""
    await asyncio.get_running_loop().run_in_executor(None, network.began.wait)


def scenario(**options):
    """Make a test of a coroutine: run it in a new event loop, with a `Batcher` of these options."""

    def decorate(coroutine):
        async def run():
            batcher = Batcher(**options)
            await coroutine(batcher)
            batcher.close()

        return lambda: asyncio.run(run())

    return decorate


def test_requests_that_wait_run_together_and_each_gets_its_own_outputs():
    async def scenario():
        network, runs = Doubling(go=False), []
        batcher = Batcher(max_batch=8, observe=lambda *run: runs.append(run[:2]))
        first = asyncio.ensure_future(batcher.run(network, [images(1, 1)]))
        await begun(network)
        later = [asyncio.ensure_future(batcher.run(network, [images(number, value)])) for number, value in ((1, 2), (3, 3), (2, 4))]
        other = asyncio.ensure_future(batcher.run(network, [images(2, 5, size=4)]))  # another shape
        await some_turns()
        assert network.batches == [1] and batcher.images_waiting() == 8
        network.go.set()
        check(await first, 1, 1)
        for future, number, value in zip(later, (1, 3, 2), (2, 3, 4)):
            check(await future, number, value)
        check(await other, 2, 5, size=4)
        batcher.close()
        return network.batches, runs, network

    batches, runs, network = asyncio.run(scenario())
    assert batches == [1, 6, 2] and runs == [(network, 1), (network, 6), (network, 2)]


@scenario(max_batch=8, workers=2)
async def test_networks_do_not_share_batches_and_workers_run_at_the_same_time(batcher):
    one, other = Doubling(go=False), Doubling(go=False)
    answers = [asyncio.ensure_future(batcher.run(network, [images(1, 1)])) for network in (one, other)]
    await begun(one)
    await begun(other)  # although the first one still runs
    for network in (one, other):
        network.go.set()
    for answer in answers:
        check(await answer, 1, 1)
    assert one.batches == other.batches == [1]


@scenario(max_batch=2, max_delay=1e6)
async def test_a_request_waits_for_others_while_a_worker_is_idle(batcher):
    network = Doubling()
    first = asyncio.ensure_future(batcher.run(network, [images(1, 1)]))
    await some_turns()
    assert network.batches == []
    check(await batcher.run(network, [images(1, 2)]), 1, 2)  # fills the batch
    check(await first, 1, 1)
    assert network.batches == [2]


def test_the_delay_ends_by_a_timer():
    loop, network, ends = Clock(), Doubling(), []

    async def scenario():
        batcher = Batcher(max_batch=8, max_delay=3.0, observe=lambda *_: ends.append(loop.time()))
        first = asyncio.ensure_future(batcher.run(network, [images(1, 1)]))
        await asyncio.sleep(2)
        check(await batcher.run(network, [images(1, 2)]), 1, 2)
        check(await first, 1, 1)
        batcher.close()

    loop.run_until_complete(scenario())
    loop.close()
    assert network.batches == [2] and ends == [pytest.approx(103)]


@scenario(max_batch=8)
async def test_a_request_does_not_fail_because_of_others(batcher):
    network = Doubling(go=False, max_images=2)
    first = asyncio.ensure_future(batcher.run(network, [images(1, 1)]))
    await begun(network)
    small, large = (asyncio.ensure_future(batcher.run(network, [images(number, 2)])) for number in (1, 3))
    await some_turns()
    network.go.set()
    check(await first, 1, 1)
    check(await small, 1, 2)
    with pytest.raises(UserError, match='too many images'):
        await large
    assert network.batches == [1, 4, 1, 3]


@scenario(max_batch=8)
async def test_defects_reach_all_requests_of_the_batch_and_the_batcher_goes_on(batcher):
    class Broken(Doubling):
        def run(self, x):
            super().run(x)
            raise ZeroDivisionError('a defect')

    broken, network = Broken(go=False), Doubling()
    answers = [asyncio.ensure_future(batcher.run(broken, [images(1, 1)])) for _ in range(3)]
    await begun(broken)
    broken.go.set()
    for answer in answers:
        with pytest.raises(ZeroDivisionError):
            await answer
    assert broken.batches == [1, 2]
    check(await batcher.run(network, [images(1, 4)]), 1, 4)


@scenario(max_batch=8)
async def test_cancelled_requests_leave_the_queue_and_do_not_disturb_others(batcher):
    network = Doubling(go=False)
    first = asyncio.ensure_future(batcher.run(network, [images(1, 1)]))
    await begun(network)
    gone, other, late = (asyncio.ensure_future(batcher.run(network, [images(number, number)])) for number in (2, 3, 4))
    await some_turns()
    assert batcher.images_waiting() == 9
    gone.cancel()
    first.cancel()  # is being computed
    await some_turns()
    assert batcher.images_waiting() == 7
    network.go.set()
    check(await other, 3, 3)
    check(await late, 4, 4)
    assert network.batches == [1, 7]


@scenario(max_batch=3, max_delay=1e6)
async def test_a_request_that_is_cancelled_at_the_moment_of_a_run_is_not_computed(batcher):
    network = Doubling()
    gone = asyncio.ensure_future(batcher.run(network, [images(1, 1)]))
    await some_turns()
    other = asyncio.ensure_future(batcher.run(network, [images(2, 2)]))  # fills the batch, before the cancelled call runs on
    gone.cancel()
    check(await other, 2, 2)
    assert gone.cancelled() and network.batches == [2]


@scenario(max_batch=4, max_delay=1e6)
async def test_a_batch_that_exhausts_the_memory_is_divided(batcher):
    class Exhausting(Doubling):
        def run(self, x):
            doubled = super().run(x)
            if len(x) > 2:
                raise MemoryError
            return doubled

    network = Exhausting()
    answers = [asyncio.ensure_future(batcher.run(network, [images(2, value)])) for value in (1, 2)]
    for value, answer in zip((1, 2), answers):
        check(await answer, 2, value)
    assert network.batches == [4, 2, 2]


# --- admission ------------------------------------------------------------------------------------------------------------------------


def test_admission_is_bounded_and_ends_when_it_is_closed():
    admission = Admission(limit=2)
    with admission.admitted(), admission.admitted():
        assert admission.in_progress == 2
        with pytest.raises(Refusal, match='try again later') as caught, admission.admitted():
            pass
        assert caught.value.status == 429 and int(caught.value.headers['Retry-After']) > 0 and admission.in_progress == 2
    with pytest.raises(ZeroDivisionError), admission.admitted():
        raise ZeroDivisionError
    with admission.admitted():  # accepted requests are finished
        admission.close()
        with pytest.raises(Refusal, match='stopping') as caught, admission.admitted():
            pass
        assert caught.value.status == 503 and 'Retry-After' in caught.value.headers
    assert admission.in_progress == 0
