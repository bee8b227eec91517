"""The HTTP server of the service, and its graceful shutdown.

At SIGTERM or SIGINT the service refuses further requests for inference with status 503, reports that it is not ready, finishes the requests
that it has accepted, and ends. At a second signal it answers them with 503 too, and ends at once.
"""

import asyncio
import contextlib
import functools
import logging
import resource
import socket
import time

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UserError

_KEEP_ALIVE_SECONDS = 75
_SILENT_SECONDS = 1  # after which a connection without a request can be closed for another one
_HALF_CLOSE_SECONDS = 1  # after the end of a request, in which a client that closes its sending half waits for the answer
_REFUSAL_SECONDS = 1  # beyond the time in which a body must arrive, so that the service can say that it has not
_LAST_BYTES_SECONDS = 1  # to send the last answers
_BACKLOG = 100  # connections that wait to be accepted
_ACCEPTED_AT_ONCE = 16  # in one turn of asyncio's event loop
_BEING_REFUSED = 100  # open connections past the limit: asyncio takes three turns to close what it has accepted, and accepts others in each
_OTHER_FILES = 100  # of this process, beside connections
_LOG_CHARACTERS = 10_000  # of a message
_FULL = b'HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n'


class _Formatter(logging.Formatter):
    """Formatter of the log that cuts what is longer than a traceback: an error may quote what a client has sent."""

    def format(self, record):
        text = super().format(record)
        return text if len(text) <= _LOG_CHARACTERS else f'{text[:_LOG_CHARACTERS]}...'


_HANDLER = {'class': 'logging.StreamHandler', 'formatter': 'bounded', 'level': 'ERROR'}
_LOGGERS = ('uvicorn', 'asyncio')  # the second one warns of each write to a connection that its client has closed
_LOGGING = {
    'version': 1,
    'disable_existing_loggers': False,
    'formatters': {'bounded': {'()': _Formatter}},
    'handlers': {'log': _HANDLER},
    'loggers': {name: {'handlers': ['log'], 'propagate': False} for name in _LOGGERS},
}


class WebServer(uvicorn.Server):
    """A server that ends after the last accepted request, or some time after the signal.

    Parameters
    ----------
    service : bmx_melius.serving.endpoints.Service
    limits : Limits
    stop_seconds : float
        Time in which accepted requests are finished after the signal.
    on_start : callable
        Called without arguments when requests are answered, and signals have their effect.
    """

    def __init__(self, service, limits, stop_seconds, on_start=lambda: None):
        super().__init__(
            uvicorn.Config(
                service,
                http=functools.partial(_Connection, limits.read_seconds, possible_connections(limits.connections), {}),
                lifespan='off',
                ws='none',
                log_config=_LOGGING,
                log_level='error',  # a client can cause any number of warnings
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=2 * _LAST_BYTES_SECONDS,  # not reached
                backlog=_ACCEPTED_AT_ONCE,  # for asyncio it is both: the length of the system's queue, and how many it accepts in a turn
            )
        )
        self._service, self._stop_seconds, self._stopped_at, self._on_start = service, stop_seconds, None, on_start

    async def startup(self, sockets):
        """Begin to accept connections."""
        await super().startup(sockets)
        for listener in sockets:
            listener.listen(_BACKLOG)
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

    async def shutdown(self, sockets=None):
        """Close all connections, also where answers are not received in time."""
        end = asyncio.get_running_loop().call_later(_LAST_BYTES_SECONDS, self._abort_connections)
        await super().shutdown(sockets)
        end.cancel()
        self._abort_connections()  # at a second signal uvicorn does not wait
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=_LAST_BYTES_SECONDS)
        await self._service.end_readers()

    def _abort_connections(self):
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def run(self, listener):
        """Answer the requests that a socket accepts until a signal ends the service, or `handle_exit` if this is not the main thread."""
        try:
            super().run(sockets=[listener])
        finally:
            self._service.close()


class _Connection(H11Protocol):
    """A connection that is closed unless each part of a request arrives, and each answer is received, in time.

    The times begin with the part, not with its latest byte. uvicorn has a time limit only for connections that are idle after an answer,
    which every byte stops, and one for the length of headers only with h11. Connections without a request are in `unused`, the oldest one
    first: that one is closed when there are too many. uvicorn closes a connection whose client sends nothing more, without its answer.
    """

    def __init__(self, seconds, max_connections, unused, **arguments):
        super().__init__(**arguments)
        self._unused, self._ends = unused, False
        self._seconds = {'headers': seconds, 'body': seconds + _REFUSAL_SECONDS, 'idle': _KEEP_ALIVE_SECONDS, 'closing': seconds}
        self._answer_seconds, self._max_connections = seconds, max_connections
        self._awaited = self._part_timer = self._answer_timer = None

    def connection_made(self, transport):
        super().connection_made(transport)
        if len(self.connections) > self._max_connections and not self._close_unused():
            transport.write(_FULL)
            transport.close()
        self._follow()

    def _close_unused(self):
        """Close the connection that has been without a request for longest, and return whether there is one."""
        connection, since = next(iter(self._unused.items()), (None, 0))
        if connection is None or connection.cycle is None and self.loop.time() - since < _SILENT_SECONDS:
            return False  # its first request may be under way
        if connection.cycle is None:
            connection.transport.write(_FULL)
        connection.transport.close()
        connection._follow()
        return True

    def data_received(self, data):
        super().data_received(data)
        self._follow()

    def on_response_complete(self):
        super().on_response_complete()
        if not self.flow.write_paused:
            self._stop_answer_timer()
        if self._ends and (self.cycle.response_complete or self.cycle.more_body):  # no further request is complete
            self.transport.close()
        self._follow()

    def eof_received(self):
        """Return whether to keep the connection, for answers, although the client sends nothing more.

        A client that has closed the connection, because it waits no longer, looks the same. It usually does so later.
        """
        if self._awaited[0] == 'answer':
            self._ends = self.cycle.response_started or self.loop.time() - self._awaited_since < _HALF_CLOSE_SECONDS
        return self._ends

    def pause_writing(self):
        super().pause_writing()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self._answer_seconds, self.transport.abort)

    def resume_writing(self):
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self._stop_answer_timer()

    def connection_lost(self, exc):
        self._unused.pop(self, None)
        self._stop_part_timer()
        self._stop_answer_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg):
        """Refuse what is not HTTP. uvicorn would also try it after the start of an answer, and let the request go on."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _awaited_part(self):
        """Return what must come next, and the latest request: together they change when a part begins."""
        state = self.conn.their_state
        if self.transport.is_closing():
            return 'closing', None
        if state is h11.SEND_BODY:
            return 'body', self.cycle
        if state is not h11.IDLE:
            return 'answer', self.cycle
        begun = self.cycle is None or self.conn.trailing_data[0]
        return 'headers' if begun else 'idle', self.cycle

    def _follow(self):
        """Set the timer of a part that begins, and note whether the connection has no request."""
        awaited = self._awaited_part()
        if awaited[0] not in ('headers', 'idle') or self.conn.trailing_data[0]:
            self._unused.pop(self, None)
        else:
            self._unused.setdefault(self, self.loop.time())
        if awaited != self._awaited:
            self._awaited, self._awaited_since = awaited, self.loop.time()
            self._stop_part_timer()
            if awaited[0] in self._seconds:
                self._part_timer = self.loop.call_later(self._seconds[awaited[0]], self.transport.abort)

    def _stop_part_timer(self):
        if self._part_timer is not None:
            self._part_timer.cancel()
            self._part_timer = None

    def _stop_answer_timer(self):
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None


def possible_connections(wanted):
    """Return how many connections this process can keep open, at most `wanted`; its limit of open files is raised as far as it may be."""
    needed = wanted + _BEING_REFUSED + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - _BEING_REFUSED - _OTHER_FILES))


def listen(host, port):
    """Return a socket that accepts connections; `port` 0 means any free one. Raises `UserError` if the address cannot be used."""
    try:
        family = socket.AF_INET6 if ':' in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: a name that cannot be looked up
        raise UserError(f'cannot listen on {host}, port {port}: {getattr(error, "strerror", None) or error}') from error


def url_of(listener):
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f'http://{f"[{host}]" if ":" in host else host}:{port}/'
