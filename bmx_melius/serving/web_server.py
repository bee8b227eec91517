"""The HTTP server of the service, and its orderly end.

At SIGTERM or SIGINT the service refuses further requests for inference with status 503, reports that it is not ready, finishes the requests
that it has accepted, and ends. At a second signal it answers those with 503 too, and ends at once.
"""

import functools
import socket
import time

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UserError

_KEEP_ALIVE_SECONDS = 75
_LAST_BYTES_SECONDS = 5  # to send the last answers


class WebServer(uvicorn.Server):
    """A server that ends after the last accepted request, or some time after the signal.

    Parameters
    ----------
    service : bmx_melius.serving.endpoints.Service
    header_seconds : float
        Time in which the headers of a request must arrive.
    stop_seconds : float
        Time in which accepted requests are finished after the signal.
    on_start : callable
        Called without arguments when requests are answered, and signals have their effect.
    """

    def __init__(self, service, header_seconds, stop_seconds, on_start=lambda: None):
        super().__init__(
            uvicorn.Config(
                service,
                http=functools.partial(_Connection, header_seconds),
                lifespan='off',
                ws='none',
                log_level='warning',
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_LAST_BYTES_SECONDS,
            )
        )
        self._service, self._stop_seconds, self._stopped_at, self._on_start = service, stop_seconds, None, on_start

    async def startup(self, sockets=None):
        """Begin to accept connections."""
        await super().startup(sockets)
        self._on_start()

    def handle_exit(self, sig, frame):
        """Begin to stop; called by Python's signal handler in the thread of the event loop."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._service.stop()
        else:
            self.force_exit = True

    async def on_tick(self, counter):
        """Decide, every tenth of a second, whether the server ends."""
        if self._stopped_at is not None and not self.should_exit:
            overdue = self.force_exit or time.monotonic() - self._stopped_at > self._stop_seconds
            if overdue:
                self._service.abandon()
            self.should_exit = overdue or not self._service.in_progress()
        return await super().on_tick(counter)

    def run(self, listener):
        """Answer the requests that a socket accepts until a signal ends the service, or `handle_exit` if this is not the main thread."""
        try:
            super().run(sockets=[listener])
        finally:
            self._service.close()


class _Connection(H11Protocol):
    """A connection that is closed unless the headers of a request arrive in time.

    uvicorn has a time limit only for connections that are idle after an answer, and one for the length of headers only with h11.
    """

    def __init__(self, header_seconds, **arguments):
        super().__init__(**arguments)
        self._header_seconds, self._timer = header_seconds, None

    def connection_made(self, transport):
        super().connection_made(transport)
        self._set_timer()

    def data_received(self, data):
        super().data_received(data)
        self._set_timer()

    def connection_lost(self, exc):
        self._cancel_timer()
        super().connection_lost(exc)

    def _set_timer(self):
        if self.conn.their_state is not h11.IDLE:  # the headers have arrived
            self._cancel_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._header_seconds, self.transport.close)

    def _cancel_timer(self):
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def listen(host, port):
    """Return a socket that accepts connections; `port` 0 means any free one. Raises `UserError` if the address cannot be used."""
    try:
        family = socket.AF_INET6 if ':' in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: a name that cannot be looked up
        raise UserError(f'cannot listen on {host}, port {port}: {getattr(error, "strerror", None) or error}') from error


def url_of(listener):
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f'http://{f"[{host}]" if ":" in host else host}:{port}/'
