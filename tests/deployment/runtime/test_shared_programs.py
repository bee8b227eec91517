"""Programs shared by several users: each is made once while it is in use, and destroyed after its last use."""

import concurrent.futures
import os
import random
import threading

import pytest

from bmx_melius.deployment.runtime.shared_programs import SharedPrograms


class Handles:
    """Makes numbers, and notes which of them exist."""

    def __init__(self):
        self.made, self.alive = 0, set()

    def create(self):
        self.made += 1
        self.alive.add(self.made)
        return self.made

    def destroy(self, handle):
        self.alive.remove(handle)


def test_a_program_is_made_once_and_destroyed_after_its_last_use():
    handles = Handles()
    shared = SharedPrograms(handles.destroy)
    first, again, other = (shared.acquire(key, handles.create) for key in 'aab')
    assert first == again != other
    shared.release('a')
    assert handles.alive == {first, other}
    shared.release('a')
    assert handles.alive == {other}
    assert shared.acquire('a', handles.create) not in (first, other)


def test_of_two_programs_made_at_the_same_time_one_is_used_by_both_and_the_other_destroyed():
    handles = Handles()
    shared = SharedPrograms(handles.destroy)
    faster = []

    def create():  # while it makes a program, another user makes one
        faster.append(shared.acquire('a', handles.create))
        return handles.create()

    assert shared.acquire('a', create) == faster[0]
    assert handles.made == 2 and handles.alive == {faster[0]}
    shared.release('a')
    assert handles.alive == {faster[0]}
    shared.release('a')
    assert not handles.alive


def test_no_thread_gets_a_destroyed_program():
    handles, lock = Handles(), threading.Lock()

    def create():
        with lock:
            return handles.create()

    def destroy(handle):
        with lock:
            handles.destroy(handle)

    shared = SharedPrograms(destroy)

    def use(number):
        key = random.Random(number).choice('abc')
        handle = shared.acquire(key, create)
        with lock:
            exists = handle in handles.alive
        shared.release(key)
        return exists

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(5000)))
    assert not handles.alive


class Key:
    """A key during whose comparison, which is made with the lock, something else happens, as when the garbage collector runs then."""

    def __init__(self, happens=lambda: None):
        self.happens = happens

    def __hash__(self):
        return 0

    def __eq__(self, other):
        self.happens()
        return self is other


def test_a_release_while_the_same_thread_acquires_is_processed_afterwards():
    handles = Handles()
    shared = SharedPrograms(handles.destroy)
    releases = []
    old = Key(lambda: releases and shared.release(releases.pop()))
    handle = shared.acquire(old, handles.create)
    releases.append(old)
    assert shared.acquire(Key(), handles.create) != handle
    assert not releases and handle not in handles.alive


def test_a_failure_to_make_a_program_leaves_no_trace():
    handles = Handles()
    shared = SharedPrograms(handles.destroy)
    with pytest.raises(ZeroDivisionError):
        shared.acquire('a', lambda: 1 / 0)
    shared.acquire('a', handles.create)
    shared.release('a')
    assert handles.made == 1 and not handles.alive


def test_a_child_can_use_programs_if_another_thread_was_using_them_at_the_fork():
    handles = Handles()
    shared = SharedPrograms(handles.destroy)
    inside, go_on = threading.Event(), threading.Event()

    def wait():
        inside.set()
        go_on.wait(30)

    shared.acquire(Key(wait), handles.create)
    thread = threading.Thread(target=shared.acquire, args=(Key(), handles.create))
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if not child:
        worker = threading.Thread(target=shared.acquire, args=('a', handles.create), daemon=True)
        worker.start()
        worker.join(10)
        os._exit(worker.is_alive())
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


class SlowKey:
    """A key whose comparison with others takes until `go` is set."""

    def __init__(self):
        self.compared, self.go = threading.Event(), threading.Event()

    def __hash__(self):
        return hash('first')  # so that it is compared with that key

    def __eq__(self, other):
        self.compared.set()
        assert self.go.wait(60)
        return False


def test_threads_look_for_programs_one_after_the_other():
    programs, slow, found = SharedPrograms(lambda handle: None), SlowKey(), threading.Event()
    programs.acquire('first', lambda: 1)
    threads = [
        threading.Thread(target=lambda: programs.acquire(slow, lambda: 2)),
        threading.Thread(target=lambda: found.set() if programs.acquire('first', lambda: 3) == 1 else None),
    ]
    threads[0].start()
    assert slow.compared.wait(60)
    threads[1].start()
    waits = not found.wait(0.3)
    slow.go.set()
    for thread in threads:
        thread.join(60)
    assert waits and found.is_set()
