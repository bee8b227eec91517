"""Limits of the service, and refusals of requests: every request is answered, and none takes unlimited memory or time."""

import contextlib
import dataclasses

_SLOW, _BUSY, _STOPPING = 408, 429, 503
_RETRY = {'Retry-After': '1'}  # seconds
_CLOSE = {'Connection': 'close'}
_HEADERS = {_SLOW: _CLOSE, _BUSY: _RETRY, _STOPPING: {**_RETRY, **_CLOSE}}
MAX_MEGAPIXELS = 89  # of `Limits.pixels`: from there on Pillow warns of every image


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a service.

    Parameters
    ----------
    max_batch : int
        Images of a run, and of a request.
    max_delay : float
        Seconds for which the first image of a batch may wait for others while a worker is idle.
    queue : int
        Requests for one network that may be in progress: being read, waiting or computed.
    upload_bytes : int
        Size of the body of a request.
    pixels : int
        Height times width of an uploaded image, at most `MAX_MEGAPIXELS` millions.
    read_seconds : float
        Time in which the headers of a request must arrive, then its body; and in which an answer must be received.
    decode_seconds : float
        Time in which an image must be decoded, or arrays in JSON be parsed.
    connections : int
        Connections that may be open at the same time.
    """

    max_batch: int = 8
    max_delay: float = 0.0
    queue: int = 64
    upload_bytes: int = 16 << 20
    pixels: int = 50_000_000
    read_seconds: float = 30.0
    decode_seconds: float = 10.0
    connections: int = 1000


class Refusal(Exception):
    """A request that is answered with an HTTP error.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        One line that names what is wrong and what to do.
    reason : str
        A short name of the reason for metrics.

    Attributes
    ----------
    status, reason
        The parameters.
    headers : dict of str to str
        Headers of the response.
    """

    def __init__(self, status: int, message: str, reason: str = 'invalid') -> None:
        super().__init__(message)
        self.status, self.reason = status, reason
        self.headers = _HEADERS.get(status, {})


class Admission:
    """Number of requests in progress, which is bounded. Used only by the thread of the event loop.

    Parameters
    ----------
    limit : int
        Requests that may be in progress at the same time.

    Attributes
    ----------
    in_progress : int
    """

    def __init__(self, limit):
        self._limit, self._closed = limit, False
        self.in_progress = 0

    def close(self):
        """Refuse all further requests, because the service ends."""
        self._closed = True

    @contextlib.contextmanager
    def admitted(self):
        """Count a request within the block.

        Raises
        ------
        Refusal
            With status 429 if too many requests are in progress, and with 503 after `close`.
        """
        if self._closed:
            raise Refusal(_STOPPING, 'the service is stopping and accepts no further requests', 'stopping')
        if self.in_progress >= self._limit:
            raise Refusal(_BUSY, f'{self.in_progress} requests are in progress, as many as allowed: try again later', 'busy')
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1
