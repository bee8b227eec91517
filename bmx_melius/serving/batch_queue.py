"""Queue that forms batches: which of the waiting requests run together, and when. It neither measures time nor starts threads."""

import collections


class BatchQueue:
    """Requests that wait for a run, in groups that can run together.

    A group is *ready* if its images fill a batch, or if its oldest request has waited for `max_delay`. All times are arguments, in seconds
    of any clock.

    Parameters
    ----------
    max_batch : int
        Images of a batch.
    max_delay : float
        Seconds.

    Examples
    --------
    >>> from bmx_melius.serving.batch_queue import BatchQueue
    >>> queue = BatchQueue(max_batch=4, max_delay=0.5)
    >>> queue.put('net', 'a', images=1, now=10.0)
    >>> queue.take(now=10.0)  # another request may come
    []
    >>> queue.ready_at()
    10.5
    >>> queue.put('net', 'b', images=2, now=10.2)
    >>> queue.take(now=10.5)
    ['a', 'b']
    """

    def __init__(self, max_batch, max_delay):
        self._max_batch, self._max_delay = max_batch, max_delay
        self._groups = {}  # group -> deque of (time of arrival, images, request)

    def put(self, group, request, images, now):
        """Add a request.

        Parameters
        ----------
        group : hashable
            Requests of equal groups can run together.
        request : object
        images : int
            Images of the request, at most `max_batch`.
        now : float
        """
        if not 1 <= images <= self._max_batch:
            raise ValueError(f'a request must have 1 to {self._max_batch} images, not {images}')
        self._groups.setdefault(group, collections.deque()).append((now, images, request))

    def remove(self, group, request):
        """Remove a request that nobody waits for any longer. Do nothing if it has been taken."""
        waiting = self._groups.get(group, ())
        for position, (_, _, other) in enumerate(waiting):
            if other is request:
                del waiting[position]
                break
        if group in self._groups and not waiting:
            del self._groups[group]

    def take(self, now):
        """Remove and return the next batch, a list of requests in their order of arrival; empty if no group is ready.

        Of several ready groups, the one with the oldest request is taken.
        """
        ready = [group for group in self._groups if self._ready_at(group) <= now]
        if not ready:
            return []
        group = min(ready, key=self._arrived)
        waiting, batch, left = self._groups[group], [], self._max_batch
        while waiting and waiting[0][1] <= left:
            _, images, request = waiting.popleft()
            batch.append(request)
            left -= images
        if not waiting:
            del self._groups[group]
        return batch

    def ready_at(self):
        """Return the time from which `take` returns a batch, or None if nothing waits."""
        return min(map(self._ready_at, self._groups), default=None)

    def images(self):
        """Return the number of waiting images."""
        return sum(map(self._images, self._groups))

    def _arrived(self, group):
        return self._groups[group][0][0]

    def _images(self, group):
        return sum(images for _, images, _ in self._groups[group])

    def _ready_at(self, group):
        arrived = self._arrived(group)
        return arrived if self._images(group) >= self._max_batch else arrived + self._max_delay
