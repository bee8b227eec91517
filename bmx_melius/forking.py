"""State of the process that a child of fork() finds complete.

A child has only the thread that called fork(). It would wait forever for a lock that another thread held at that time, and find half done
what that thread was doing. So fork() waits for the two locks of this module: what other threads do with one of them is complete in the
child, and the child can take both.
"""

import logging  # noqa: F401  its own wait for forks must be registered first, so that it begins last: imports use loggers
import os
import threading


class lazy_attribute:  # noqa: N801  a decorator
    """An attribute that a method computes when it is first read; as `functools.cached_property`, but without a lock.

    Up to Python 3.11, `cached_property` holds a lock for all objects of a class. Threads that read an attribute at the same time may all
    compute it here.
    """

    def __init__(self, compute):
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.__dict__.setdefault(self._name, self._compute(instance))  # which is read before this descriptor from now on


importing = threading.RLock()  # for imports at the first use of a name or function
changing = threading.RLock()  # for short changes of what belongs to the process; no other lock is taken with it, and nothing imported


def _before():
    importing.acquire()
    changing.acquire()


def _after():
    changing.release()
    importing.release()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
