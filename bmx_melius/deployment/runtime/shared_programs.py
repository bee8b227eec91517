"""Programs that the engine has prepared, shared by everything in the process that uses the same one."""

import collections
import os
import threading


class SharedPrograms:
    """Handles of prepared programs by key, with the number of their users. Thread-safe, and usable in a child after a fork.

    Programs are released by finalizers, which the garbage collector may run at any time, also in a thread that is changing the numbers. So
    `release` only notes the key if the lock is taken, and whoever has the lock processes the note.

    Parameters
    ----------
    destroy : callable (handle)
        Called for a handle after its last release, without the lock.
    """

    def __init__(self, destroy):
        self._destroy, self._entries, self._released = destroy, {}, collections.deque()
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # a thread that does not exist in the child may have it

    def _renew_lock(self):
        self._lock = threading.Lock()

    def acquire(self, key, create):
        """Return the handle for `key`, which `create` makes if nothing uses one. Each call needs a later `release`."""
        handle = self._use(key, None)
        if handle is None:
            made = create()  # without the lock: it takes long, and other threads may prepare other programs
            handle = self._use(key, made)
            if handle is not made:  # another thread was faster
                self._destroy(made)
        return handle

    def release(self, key):
        """Give up one use of the handle for `key`."""
        self._released.append(key)
        self._process_releases()

    def _use(self, key, made):
        """Count a use of the handle for `key`, or of `made` if there is none and `made` is a handle. Return the handle or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None and made is not None:
                entry = self._entries[key] = [made, 0]
            if entry is not None:
                entry[1] += 1
        self._process_releases()
        return entry and entry[0]

    def _process_releases(self):
        # Whoever does not get the lock leaves its note to the thread that has it, which looks again after it has unlocked.
        while self._released and self._lock.acquire(blocking=False):
            unused = []
            try:
                while self._released:
                    key = self._released.popleft()
                    entry = self._entries[key]
                    entry[1] -= 1
                    if not entry[1]:
                        del self._entries[key]
                        unused.append(entry[0])
            finally:
                self._lock.release()
            for handle in unused:
                self._destroy(handle)
