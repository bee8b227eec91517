"""Connections of the service: their time limits, clients that send nothing more, and which are closed when there are too many.

The network is a stand-in whose buffers the test fills, and the time is set by the test.
"""

import asyncio
import functools

import pytest
import uvicorn
from support.clock import Clock, some_turns
from uvicorn.server import ServerState

from bmx_melius.serving import server

SECONDS = 30.0
REQUEST = b'GET / HTTP/1.1\r\nHost: x\r\n\r\n'
POST = b'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n'
ANSWER = b'answer of the application'


class Transport(asyncio.Transport):
    """What a client sees of a connection: `sent`, and how it ended; there is room for `room` further parts of answers.

    If not `receives`, the client receives nothing, and a connection that is closed does not end.
    """

    def __init__(self, connection):
        super().__init__()
        self._connection, self.sent, self.room, self.ended = connection, b'', 1000, None
        self.receives, self._closing = True, False
        connection.connection_made(self)

    def write(self, data):
        self.sent += data
        self.room -= data.count(ANSWER)
        if self.room <= 0:
            self._connection.pause_writing()

    def is_closing(self):
        return self._closing

    def pause_reading(self):
        pass

    resume_reading = pause_reading

    def close(self):
        self._end('closed')

    def abort(self):
        self._end('aborted')

    def _end(self, how):
        self._closing = True
        if self.ended is None and (self.receives or how == 'aborted'):
            self.ended = how
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    # --- what a client does

    async def send(self, data):
        self._connection.data_received(data)
        await some_turns()

    async def send_nothing_more(self):
        if not self._connection.eof_received():
            self.close()
        await some_turns()

    async def receive(self, room=1000):
        self.room = room
        self._connection.resume_writing()
        await some_turns()


class Service:
    """An application whose answers to POST wait for `go`, have `parts` parts and are counted, and connections to it."""

    def __init__(self, max_connections=1000):
        self.go, self.parts, self.disconnected = asyncio.Event(), 1, 0
        options = {'interface': 'asgi3', 'log_config': None, 'lifespan': 'off', 'proxy_headers': False}
        config = uvicorn.Config(self._answer, timeout_keep_alive=server._KEEP_ALIVE_SECONDS, **options)
        common = {'config': config, 'server_state': ServerState(), 'app_state': {}}
        self._new = functools.partial(server._Connection, SECONDS, max_connections, {}, **common)

    async def _answer(self, scope, receive, send):
        if scope['method'] == 'POST':
            while True:
                message = await receive()
                if message['type'] == 'http.disconnect':
                    self.disconnected += 1
                    return
                if not message['more_body']:
                    break
            await self.go.wait()
        await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'%d' % (self.parts * len(ANSWER)))]})
        for part in range(self.parts):
            await send({'type': 'http.response.body', 'body': ANSWER, 'more_body': part < self.parts - 1})

    def connect(self):
        return Transport(self._new(_loop=asyncio.get_running_loop()))


def scenario(coroutine):
    """Make a test of a coroutine: run it in an event loop with a set time."""

    def run():
        loop = Clock()
        asyncio.set_event_loop(loop)  # for events of Python 3.8 and 3.9
        loop.run_until_complete(coroutine())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(some_turns())
        asyncio.set_event_loop(None)
        loop.close()

    return run


# --- answers that are not received ----------------------------------------------------------------------------------------------------


@scenario
async def test_a_connection_ends_if_the_last_part_of_an_answer_is_not_received_in_time():
    client = Service().connect()
    client.room = 1
    await client.send(REQUEST)
    assert client.sent.endswith(ANSWER)  # complete, and in the buffer
    await asyncio.sleep(SECONDS - 1)
    assert client.ended is None
    await asyncio.sleep(2)
    assert client.ended == 'aborted'


@scenario
async def test_a_connection_that_is_closed_ends_if_its_client_does_not_receive_the_rest_in_time():
    client = Service().connect()
    client.receives = False
    await client.send(REQUEST.replace(b'Host', b'Connection: close\r\nHost'))
    assert client.is_closing()
    await asyncio.sleep(SECONDS - 1)
    assert client.ended is None
    await asyncio.sleep(2)
    assert client.ended == 'aborted'


@scenario
async def test_a_connection_ends_if_a_part_of_an_answer_is_not_received_in_time():
    service = Service()
    service.parts = 3
    client = service.connect()
    client.room = 1
    await client.send(REQUEST)
    assert client.sent.count(ANSWER) == 1
    await asyncio.sleep(SECONDS + 1)
    assert client.ended == 'aborted'


@scenario
async def test_the_time_of_an_answer_begins_with_the_first_part_that_is_not_received():
    service = Service()
    service.parts = 3
    client = service.connect()
    client.room = 1
    await client.send(REQUEST)
    await asyncio.sleep(SECONDS - 1)
    await client.receive(1)
    assert client.ended is None and client.sent.count(ANSWER) == 2
    await asyncio.sleep(2)
    assert client.ended == 'aborted' and client.sent.count(ANSWER) == 2


@scenario
async def test_a_connection_stays_open_if_an_answer_is_received_in_time():
    service = Service()
    for parts in (1, 3):
        service.parts = parts
        client = service.connect()
        for number in (1, 2):
            client.room = 1
            await client.send(REQUEST)
            await asyncio.sleep(SECONDS - 1)
            await client.receive()
            await asyncio.sleep(2)
            assert client.ended is None and client.sent.count(ANSWER) == parts * number


@scenario
async def test_no_time_of_an_answer_goes_on_for_the_next_one():
    client = Service().connect()
    await client.send(REQUEST)
    client.room = 1
    await client.send(REQUEST)
    await asyncio.sleep(SECONDS / 2)
    await client.receive(1)
    await client.send(REQUEST)
    await asyncio.sleep(SECONDS / 2 + 1)
    assert client.ended is None
    await asyncio.sleep(SECONDS / 2)
    assert client.ended == 'aborted'


# --- parts of requests that do not arrive ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'beginning, seconds',
    [
        (b'', SECONDS),
        (REQUEST[:-2], SECONDS),
        (POST + b'four', SECONDS + server._REFUSAL_SECONDS),
        (REQUEST, server._KEEP_ALIVE_SECONDS),
        (REQUEST + REQUEST[:-2], SECONDS),
    ],
)
def test_a_connection_ends_when_a_part_has_not_arrived_in_its_time(beginning, seconds):
    @scenario
    async def run():
        client = Service().connect()
        if beginning:
            await client.send(beginning)
        await asyncio.sleep(seconds - 0.5)
        assert client.ended is None
        await asyncio.sleep(1)
        assert client.ended

    run()


@scenario
async def test_a_request_has_no_time_limit_while_it_is_computed():
    service = Service()
    client = service.connect()
    await client.send(POST + b'12345')
    await asyncio.sleep(10 * server._KEEP_ALIVE_SECONDS)
    service.go.set()
    await some_turns()
    assert client.ended is None and client.sent.endswith(ANSWER)


# --- clients that send nothing more ---------------------------------------------------------------------------------------------------


@scenario
async def test_a_client_that_closes_its_sending_half_after_a_request_gets_the_answer():
    service = Service()
    client = service.connect()
    await client.send(POST + b'12345')
    await client.send_nothing_more()
    await asyncio.sleep(2 * SECONDS)
    assert client.ended is None and not client.sent
    service.go.set()
    await some_turns()
    assert client.sent.endswith(ANSWER) and client.ended == 'closed' and not service.disconnected


@scenario
async def test_a_client_that_closes_its_sending_half_gets_the_answers_to_all_complete_requests():
    service = Service()
    client = service.connect()
    await client.send(POST + b'12345' + REQUEST + POST + b'12345' + POST + b'123')
    await client.send_nothing_more()
    service.go.set()
    await some_turns()
    assert client.sent.count(ANSWER) == 3 and client.ended == 'closed'


@scenario
async def test_a_client_that_closes_its_sending_half_while_it_receives_gets_the_whole_answer():
    service = Service()
    service.parts = 3
    client = service.connect()
    client.room = 1
    await client.send(REQUEST)
    await asyncio.sleep(SECONDS / 2)
    await client.send_nothing_more()
    await client.receive()
    assert client.sent.count(ANSWER) == 3 and client.ended == 'closed'


@scenario
async def test_a_client_that_closes_its_connection_later_waits_no_longer():
    service = Service()
    client = service.connect()
    await client.send(POST + b'12345')
    await asyncio.sleep(server._HALF_CLOSE_SECONDS + 0.1)
    await client.send_nothing_more()
    assert client.ended == 'closed' and not client.sent


@pytest.mark.parametrize('beginning', [b'', REQUEST[:-2], POST + b'four', REQUEST, REQUEST + POST + b'four'])
def test_a_connection_is_closed_when_its_client_sends_nothing_more_and_no_request_waits(beginning):
    @scenario
    async def run():
        client = Service().connect()
        if beginning:
            await client.send(beginning)
        await client.send_nothing_more()
        assert client.ended == 'closed' and client.sent.count(ANSWER) == beginning.count(REQUEST)

    run()


# --- too many connections -------------------------------------------------------------------------------------------------------------


@scenario
async def test_the_connection_that_has_been_idle_for_longest_is_closed_for_a_new_one():
    service = Service(max_connections=3)
    clients = [service.connect() for _ in range(3)]
    for number in (1, 0, 2, 0):  # 0 again, so that 1 is the one
        await clients[number].send(REQUEST)
        await asyncio.sleep(1)
    sent = clients[1].sent
    new = service.connect()
    await some_turns()
    assert [client.ended for client in [*clients, new]] == [None, 'closed', None, None] and clients[1].sent == sent
    await new.send(REQUEST)
    assert new.sent.endswith(ANSWER)
    newest = service.connect()
    await some_turns()
    assert [client.ended for client in (clients[0], clients[2], new, newest)] == [None, 'closed', None, None]


@scenario
async def test_each_of_many_new_connections_closes_one_that_is_idle_and_the_others_are_refused():
    service = Service(max_connections=3)
    old = [service.connect() for _ in range(3)]
    for client in old:
        await client.send(REQUEST)
    new = [service.connect() for _ in range(5)]  # in one turn of the event loop
    await some_turns()
    assert [client.ended for client in old] == ['closed'] * 3
    assert [client.ended for client in new] == [None] * 3 + ['closed'] * 2
    assert [client.sent[:12] for client in new] == [b''] * 3 + [b'HTTP/1.1 503'] * 2


@scenario
async def test_connections_with_a_request_are_not_closed_for_new_ones():
    service = Service(max_connections=3)
    clients = [service.connect() for _ in range(3)]
    for client, beginning in zip(clients, (POST + b'12345', POST + b'four', REQUEST[:-2])):
        await client.send(beginning)
    await asyncio.sleep(SECONDS / 2)
    new = service.connect()
    await some_turns()
    assert [client.ended for client in clients] == [None] * 3 and new.ended == 'closed' and new.sent.startswith(b'HTTP/1.1 503')


@scenario
async def test_connections_without_any_request_are_refused_for_new_ones_after_a_second():
    service = Service(max_connections=2)
    silent = [service.connect() for _ in range(2)]
    refused = service.connect()
    await some_turns()
    assert refused.ended == 'closed' and refused.sent.startswith(b'HTTP/1.1 503') and silent[0].ended is None
    await asyncio.sleep(server._SILENT_SECONDS + 0.1)
    new = service.connect()
    await some_turns()
    assert new.ended is None and silent[0].ended == 'closed' and silent[0].sent.startswith(b'HTTP/1.1 503') and silent[1].ended is None


@scenario
async def test_connections_that_were_lost_are_not_closed_again_in_place_of_refusing_a_new_one():
    service = Service(max_connections=1)
    lost = service.connect()
    await lost.send(REQUEST)
    lost.abort()
    await some_turns()
    busy = service.connect()
    await busy.send(POST + b'12345')
    refused = service.connect()
    await some_turns()
    assert refused.ended == 'closed' and busy.ended is None


@scenario
async def test_connections_that_have_ended_leave_room():
    service = Service(max_connections=1)
    for _ in range(3):
        client = service.connect()
        await client.send(REQUEST)
        await client.send_nothing_more()
        assert client.sent.endswith(ANSWER) and client.ended == 'closed'
