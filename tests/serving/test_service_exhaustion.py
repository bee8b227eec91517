"""The service against clients that try to exhaust it: time and memory of reading, connections, and answers that nobody receives."""

import asyncio.subprocess
import contextlib
import functools
import io
import json
import logging
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

import numpy as np
import PIL.Image
import pytest
from support.hostile_images import with_scans
from support.paths import ROOT
from support.services import Client, expected, form, infer, running, shown

from bmx_melius import Session
from bmx_melius.limited_process import LOG_BYTES
from bmx_melius.process import usable_cores
from bmx_melius.serving import readers, server, tensors, turns
from bmx_melius.serving.hosts import allowed_hosts
from bmx_melius.serving.network import ServedNetwork
from bmx_melius.serving.server import possible_connections
from bmx_melius.serving.uploads import check_image

pytest_plugins = ['support.services']  # its fixtures
TIME = 1.0  # seconds for each part of a request
CLASSIFY, INFER = '/v1/classify', '/v2/models/colour/infer'


def environment():
    """Return the environment of a program that imports the project."""
    return {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path[1:]])}


@pytest.fixture
def colour(folder):
    return ServedNetwork('colour', f'{folder}/colour')


# --- reading ------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stuck(monkeypatch):
    """Let the first process that reads requests, the only one at a time, never answer; return a list with it after its start."""
    started, start = [], readers._start

    async def start_stuck(memory):
        if started:
            return await start(memory)
        program = 'import sys, time; sys.stdin.buffer.read(8); time.sleep(1000)'
        pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
        started.append(await asyncio.create_subprocess_exec(sys.executable, '-c', program, **pipes))
        return started[0]

    monkeypatch.setattr(readers, '_start', start_stuck)
    monkeypatch.setattr(readers, 'usable_cores', lambda: 0)  # beside which there is one more
    return started


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_request_that_takes_too_long_to_read_is_refused_and_the_next_one_answered(colour, folder, uploads, stuck):
    with running([colour], decode_seconds=4) as client:  # in which a process must also start
        status, content, _ = client.post(CLASSIFY, uploads[0].read_bytes())
        assert status == 422 and 'not read within 4 seconds' in content['error']
        wait_until(lambda: stuck[0].returncode == -signal.SIGKILL)
        assert client.metric('bmx_melius_refused_total', model='colour', reason='slow') == 1
        assert shown(client.post(CLASSIFY, uploads[0].read_bytes())[1]) == expected(Session(folder / 'colour'), uploads[0])


def test_reading_ends_when_the_client_disconnects_and_others_do_not_wait_for_it(colour, folder, uploads, stuck, monkeypatch):
    monkeypatch.setattr(server, '_HALF_CLOSE_SECONDS', 0)
    with running([colour], decode_seconds=1000) as client:
        gone = client.send(CLASSIFY, uploads[0].read_bytes())
        wait_until(lambda: stuck)
        other = client.start(CLASSIFY, uploads[1].read_bytes())
        gone.close()
        assert shown(other()[1]) == expected(Session(folder / 'colour'), uploads[1])
        assert stuck[0].returncode == -signal.SIGKILL


def test_reading_does_not_delay_the_end_of_the_service(colour, uploads, stuck, capsys):
    with running([colour], decode_seconds=1000, stop_seconds=TIME) as client:
        finish = client.start(CLASSIFY, uploads[0].read_bytes())
        wait_until(lambda: stuck)
        begin = time.monotonic()
        client.server.handle_exit(signal.SIGTERM, None)
        assert finish()[0] == 503
    assert time.monotonic() - begin < TIME + 5
    assert stuck[0].returncode == -signal.SIGKILL and capsys.readouterr().err == ''


def test_a_process_that_reads_may_be_killed(colour, folder, uploads, monkeypatch):
    """By the system, if memory is short: also while it waits for requests."""
    started, start = [], readers._start

    async def start_recorded(memory):
        started.append(await start(memory))
        return started[-1]

    monkeypatch.setattr(readers, '_start', start_recorded)
    with running([colour]) as client:
        for number in range(1, 3):
            assert shown(client.post(CLASSIFY, uploads[0].read_bytes())[1]) == expected(Session(folder / 'colour'), uploads[0])
            assert len(started) == number
            os.kill(started[-1].pid, signal.SIGKILL)
            wait_until(lambda: started[-1].returncode is not None)
    assert all(process.returncode is not None for process in started)


def test_no_more_processes_read_than_there_are_cores_and_one_more(colour, folder, uploads, monkeypatch):
    started, start = [], readers._start

    async def start_counted(memory):
        started.append(memory)
        return await start(memory)

    monkeypatch.setattr(readers, '_start', start_counted)
    monkeypatch.setattr(readers, 'usable_cores', lambda: 1)
    with running([colour]) as client:
        finishes = [client.start(CLASSIFY, uploads[0].read_bytes()) for _ in range(6)]  # all at once
        for finish in finishes:
            assert shown(finish()[1]) == expected(Session(folder / 'colour'), uploads[0])
    assert 1 <= len(started) <= 2


def test_images_with_many_scans_are_refused(colour):
    with running([colour]) as client:
        begin = time.monotonic()
        status, content, _ = client.post(CLASSIFY, with_scans(20_000, side=1000))
        assert status == 422 and 'it has 20000 scans; at most 32' in content['error'] and time.monotonic() - begin < 10


def test_json_is_parsed_by_processes_whose_memory_is_limited(colour, monkeypatch):
    """The loop of events would wait for the parser, and lists take 30 times the memory of their brackets."""
    monkeypatch.setattr(tensors, 'parse_request', None)
    with running([colour]) as client:
        body = infer([1, 3, 200, 200])
        assert len(body) > 1 << 16 and client.post(INFER, body)[0] == 200
        assert client.post(INFER, infer([1, 3, 8, 8]))[0] == 500  # small bodies are parsed at once: this test would notice
    monkeypatch.setattr(readers, '_BYTES_PER_CHARACTER', 1)
    monkeypatch.setattr(readers, '_BASE_BYTES', 128 << 20)
    with running([colour], pixels=1000) as client:
        status, content, _ = client.post(INFER, b'{"a": [' + b'[[]],' * (2 << 20) + b'[]]}')
        assert status == 413 and 'needs too much memory' in content['error']
        assert client.post(INFER, infer([1, 3, 200, 200]))[0] == 200


def test_a_large_form_needs_no_space_on_the_disk(colour, tmp_path, monkeypatch):
    noise = np.random.RandomState(0).randint(0, 256, (800, 800, 3)).astype(np.uint8)
    PIL.Image.fromarray(noise).save(tmp_path / 'x.png')
    assert os.path.getsize(tmp_path / 'x.png') > 1 << 20
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'none'))
    with running([colour]) as client:
        body, headers = form((tmp_path / 'x.png').read_bytes())
        assert client.post(CLASSIFY, body, headers)[0] == 200


@pytest.fixture
def held_decoding(monkeypatch):
    """Let processes decode images whose size has been read before only when `go` is set; their pixels count as large from 10,000 on.

    There are two processes. Returns an object with `go` and `number`, the number of images that are being decoded so.
    """
    ask, held = readers._ask, types.SimpleNamespace(go=threading.Event(), number=0)

    async def ask_held(process, head, body):
        if 'spec' in head and 'max_cost' not in head and body in held.bodies:
            held.number += 1
            while not held.go.is_set():
                await asyncio.sleep(0.01)
        return await ask(process, head, body)

    monkeypatch.setattr(readers, '_ask', ask_held)
    monkeypatch.setattr(readers, 'usable_cores', lambda: 1)
    monkeypatch.setattr(readers, '_AT_ONCE', 1000)
    monkeypatch.setattr(turns, 'LARGE', 10_000)
    return held


def png(side):
    """Return a PNG file of few bytes."""
    file = io.BytesIO()
    PIL.Image.new('RGB', (side, side)).save(file, 'PNG')
    return file.getvalue()


def test_small_images_do_not_wait_for_many_large_ones_however_few_bytes_these_have(colour, held_decoding):
    large = png(200)
    assert len(large) < 1000
    held_decoding.bodies = [large]
    with running([colour], decode_seconds=1000) as client:
        finishes = [client.start(CLASSIFY, large) for _ in range(6)]
        wait_until(lambda: held_decoding.number)
        finishes.append(client.start(INFER, infer([1, 3, 200, 200])))  # as large
        for side in (8, 90):  # decoded when its size is read, and afterwards
            assert client.post(CLASSIFY, png(side))[0] == 200
        body, headers = form(png(90))
        assert client.post(CLASSIFY, body, headers)[0] == 200
        assert held_decoding.number == 1 and client.metric('bmx_melius_requests_in_progress', model='colour') == 7
        held_decoding.go.set()
        assert [finish()[0] for finish in finishes] == [200] * 7


def test_the_cost_of_an_image_is_that_of_its_pixels_and_scans():
    assert check_image(png(200), 40_000) == 40_000
    lossless = io.BytesIO()
    PIL.Image.new('RGB', (300, 100)).save(lossless, 'WEBP', lossless=True)
    assert len(lossless.getvalue()) < 100 and check_image(lossless.getvalue(), 30_000) == 30_000
    assert check_image(with_scans(10, side=100), 40_000) == 20_000


# --- the log ------------------------------------------------------------------------------------------------------------------------------


def test_what_libraries_write_about_a_request_is_cut(colour, uploads, capfd):
    """The parser of forms quotes a header with four characters for each byte."""
    head = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\nContent-Transfer-Encoding: '
    body = head + b'\xff' * 1_000_000 + b'\r\n\r\nx\r\n--b--\r\n'
    with running([colour]) as client:
        for _ in range(3):
            assert client.post(CLASSIFY, body, {'Content-Type': 'multipart/form-data; boundary=b'})[0] in (400, 415)
        assert client.post(CLASSIFY, uploads[0].read_bytes())[0] == 200
    assert len(capfd.readouterr().err) <= 3 * LOG_BYTES


def test_an_error_in_the_log_is_cut(folder, capsys):
    class Defective(ServedNetwork):
        def run(self, *arrays):
            if len(arrays[0]) == 2:
                raise ZeroDivisionError(1_000_000 * 'x')
            return super().run(*arrays)

    with running([Defective('colour', f'{folder}/colour')]) as client:
        assert client.post(INFER, infer([2, 3, 8, 8]))[0] == 500
        logging.getLogger('asyncio').warning('a warning, of which a client can cause any number')
    log = capsys.readouterr().err
    assert 'warning' not in log and 'Traceback' in log and len(log) <= 10_100


# --- connections --------------------------------------------------------------------------------------------------------------------------

HEALTH = b'GET /healthz HTTP/1.1\r\nHost: x\r\n'
BEGINNINGS = {  # of requests whose rest arrives byte by byte
    'headers': HEALTH + b'X: ',
    'body of an answered request': HEALTH + b'Content-Length: 100000\r\n\r\n',
    'body of a refused request': b'POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n',
    'body that is too large': b'POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n',
    'chunks of an answered request': HEALTH + b'Transfer-Encoding: chunked\r\n\r\nFFFF\r\n',
    'headers of a second request': HEALTH + b'\r\n' + HEALTH + b'X: ',
    'body of a second request': HEALTH + b'\r\n' + HEALTH + b'Content-Length: 100000\r\n\r\n',
    'a second request after a body': HEALTH + b'Content-Length: 1\r\n\r\nx' + HEALTH + b'X: ',
}


def test_a_part_of_a_request_that_arrives_byte_by_byte_ends_the_connection_in_time(colour):
    """The time begins with the part, and not again with each byte."""
    lasted = {}
    with running([colour], read_seconds=TIME) as client:
        open_ones = {name: socket.create_connection(('127.0.0.1', client.port), timeout=60) for name in BEGINNINGS}
        begin = time.monotonic()
        for name, connection in open_ones.items():
            connection.sendall(BEGINNINGS[name])
        while open_ones and time.monotonic() - begin < 20 * TIME:
            time.sleep(TIME / 10)
            for name, connection in list(open_ones.items()):
                try:
                    connection.sendall(b'x')
                except ConnectionError:
                    open_ones.pop(name).close()
                    lasted[name] = time.monotonic() - begin
    assert set(lasted) == set(BEGINNINGS) and min(lasted.values()) > 0.9 * TIME, lasted


def test_a_connection_is_closed_when_nothing_follows_a_body_after_its_answer(folder, monkeypatch):
    monkeypatch.setattr('bmx_melius.serving.server._KEEP_ALIVE_SECONDS', TIME)
    with running([ServedNetwork('colour', f'{folder}/colour')]) as client:
        connection = socket.create_connection(('127.0.0.1', client.port), timeout=20)
        connection.sendall(HEALTH + b'Content-Length: 1\r\n\r\n')
        while not connection.recv(1000).endswith(b'{"live":true}'):
            pass
        connection.sendall(b'x')
        assert connection.recv(1000) == b''
        connection.close()


def answers_after_half_close(port, request):
    """Send a request, and nothing more; return what comes until the service closes the connection."""
    with socket.create_connection(('127.0.0.1', port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b''.join(iter(lambda: connection.recv(1 << 16), b''))


def test_a_client_that_closes_its_sending_half_after_a_request_gets_its_answer(colour, folder, uploads):
    image = uploads[0].read_bytes()
    post = b'POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % len(image) + image
    with running([colour]) as client:
        for number in (1, 3):
            answers = answers_after_half_close(client.port, number * post)
            assert answers.count(b'HTTP/1.1 200 OK') == number
            answer = json.loads(answers[answers.rindex(b'{"model"') :])
            assert shown(answer) == expected(Session(folder / 'colour'), uploads[0])
        assert answers_after_half_close(client.port, HEALTH + b'\r\n').endswith(b'{"live":true}')
        assert answers_after_half_close(client.port, post[:-1]) == b''


def test_connections_that_stay_open_after_an_answer_do_not_shut_others_out(colour):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(running([colour], connections=3))
        for _ in range(10):
            connection = stack.enter_context(contextlib.closing(client.connect()))
            connection.request('GET', '/healthz')
            response = connection.getresponse()
            assert response.status == 200 and response.read()


@pytest.mark.parametrize('threads, kilobytes', [(1, 50_000), (1, 80_000), (1, 90_000), (2, 100_000), (2, 135_000)])
def test_the_command_ends_with_one_line_if_its_memory_does_not_suffice(folder, threads, kilobytes):
    """Libraries fail in different ways, and the threads of some would never end. With one thread the service runs with 100,000 kB.

    At some limits between these the interpreter itself aborts: it has no memory left for the exception.
    """
    if threads > usable_cores():
        pytest.skip('libraries start no more threads than there are cores')
    command = [sys.executable, '-W', 'ignore', '-m', 'bmx_melius', 'serve', f'{folder}/colour', '--port', '0']
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_AS, (kilobytes << 10, kilobytes << 10))
    variables = {**environment(), 'OMP_NUM_THREADS': str(threads)}
    done = subprocess.run(command, preexec_fn=limit, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and re.fullmatch('error: .*memory.*\n', done.stderr), done.stderr


BROKEN = {
    'chunk': HEALTH + b'Transfer-Encoding: chunked\r\n\r\nno length\r\n',
    'chunk that is read': b'POST /v1/classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n',
    'chunk after the answer': (HEALTH + b'Transfer-Encoding: chunked\r\n\r\n', b'no length\r\n'),
    'request': b'\x16\x03\x01\r\n\r\n',
    'upgrade': HEALTH + b'Connection: upgrade\r\nUpgrade: websocket\r\n\r\n',
    'second request': HEALTH + b'\r\n\x16\x03\x01\r\n\r\n',
    'headers': HEALTH + b'X: ' + bytes(70_000),
    'method': b'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nabc',
    'version': b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
}


@pytest.mark.parametrize('parts', BROKEN.values(), ids=list(BROKEN))
def test_what_is_not_http_is_refused_without_a_line_in_the_log(folder, parts, capsys):
    with running([ServedNetwork('colour', f'{folder}/colour')], read_seconds=TIME) as client:
        with socket.create_connection(('127.0.0.1', client.port), timeout=60) as connection, contextlib.suppress(ConnectionError):
            first, *others = [parts] if isinstance(parts, bytes) else parts
            connection.sendall(first)
            for part in others:
                time.sleep(TIME / 4)
                connection.sendall(part)
            assert connection.recv(1000).startswith(b'HTTP/1.1 ')
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1000):
                pass
        assert client.get('/healthz')[0] == 200
    assert capsys.readouterr().err == ''


def connect_at_once(number, port):
    connections = [socket.socket() for _ in range(number)]
    for connection in connections:  # the system accepts some of them only after seconds
        connection.setblocking(False)
        connection.connect_ex(('127.0.0.1', port))
    return connections


def connect_repeatedly(number, port):
    """Open and close connections while the service accepts others'."""
    for _ in range(10):
        connections = connect_at_once(number, port)
        time.sleep(TIME / 5)
        for connection in connections:
            connection.close()


def test_connections_past_the_limit_are_refused_and_the_service_goes_on(folder):
    """Also if the process may open few files: their number is the limit then, and the log stays empty."""
    files = 260
    options = ['--port', '0', '--read-seconds', str(3 * TIME)]
    command = [sys.executable, '-W', 'ignore', '-m', 'bmx_melius', 'serve', f'{folder}/colour', *options]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    process = subprocess.Popen(
        command, text=True, env=environment(), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)), **pipes
    )
    try:
        process.stdout.readline()
        client = Client(int(process.stdout.readline().rpartition(':')[2].strip('/\n')))
        floods = [threading.Thread(target=connect_repeatedly, args=(files + 40, client.port)) for _ in range(3)]
        for flood in floods:
            flood.start()
        for flood in floods:
            flood.join()
        connections = connect_at_once(files + 40, client.port)
        readable, _, _ = select.select(connections, [], [], 60)
        assert readable[0].recv(1000).startswith(b'HTTP/1.1 503 ')
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(b'x')
        end = time.monotonic() + 10 * TIME
        while client.get('/healthz')[0] != 200:
            assert time.monotonic() < end
            time.sleep(TIME / 10)
        for connection in connections:
            connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ('', '') and process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_the_number_of_connections_follows_the_limit_of_open_files(monkeypatch):
    monkeypatch.setattr(resource, 'setrlimit', lambda *arguments: set_limits.append(arguments[1]))
    for limits, wanted, possible, raised in [((1024, 1024), 1000, 824, (1024, 1024)), ((256, 4096), 500, 500, (700, 4096))]:
        set_limits = []
        monkeypatch.setattr(resource, 'getrlimit', lambda kind, limits=limits: limits)
        assert possible_connections(wanted) == possible and set_limits == [raised]


# --- answers ------------------------------------------------------------------------------------------------------------------------------


class LargeNetwork(ServedNetwork):
    """A network with outputs that do not fit into the buffers of a connection."""

    def run(self, *arrays):
        return [np.zeros((len(arrays[0]), 5_000_000), np.float32)]


def test_answers_that_nobody_receives_count_as_requests_in_progress_until_they_are_dropped(folder):
    with running([LargeNetwork('colour', f'{folder}/colour')], queue=2, read_seconds=2 * TIME) as client:
        body = json.dumps({**json.loads(infer([1, 3, 8, 8])), 'parameters': {'binary_data_output': True}})
        silent = [client.send(INFER, body) for _ in range(2)]
        client.wait_for(2, 'bmx_melius_requests_in_progress', model='colour')
        time.sleep(TIME)
        assert client.post(INFER, body)[0] == 429
        begin = time.monotonic()
        client.wait_for(0, 'bmx_melius_requests_in_progress', model='colour')
        assert time.monotonic() - begin < 10 * TIME
        status, content, headers = client.post(INFER, body)
        assert status == 200 and content[int(headers['Inference-Header-Content-Length']) :] == bytes(20_000_000)
        for connection in silent:
            connection.close()


def test_answers_that_nobody_receives_do_not_delay_the_end_of_the_service(folder, capsys):
    with running([LargeNetwork('colour', f'{folder}/colour')], stop_seconds=TIME) as client:
        body = json.dumps({**json.loads(infer([1, 3, 8, 8])), 'parameters': {'binary_data_output': True}})
        connection = client.send(INFER, body)
        client.wait_for(1, 'bmx_melius_run_seconds_count', model='colour')
        begin = time.monotonic()
        client.server.handle_exit(signal.SIGTERM, None)
    assert time.monotonic() - begin < TIME + 4
    connection.close()
    assert capsys.readouterr().err == ''


# --- names --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'address,names,host,allowed',
    [
        ('127.0.0.1', [], 'localhost:8000', True),
        ('127.0.0.1', [], '127.0.0.1', True),
        ('127.0.0.1', [], '[::1]:8000', True),
        ('127.0.0.1', [], 'evil.example:8000', False),
        ('127.0.0.1', [], '127.0.0.1.evil.example', False),
        ('127.0.0.1', ['photos.example'], 'Photos.Example.:80', True),
        ('localhost', [], 'evil.example', False),
        ('127.0.0.2', [], '127.0.0.2:80', True),
        ('::1', [], 'evil.example', False),
        ('0.0.0.0', [], 'any.example', True),
        ('0.0.0.0', ['photos.example'], 'photos.example', True),
        ('0.0.0.0', ['photos.example'], 'evil.example', False),
    ],
)
def test_a_service_of_this_machine_is_not_reached_by_the_names_of_others(colour, address, names, host, allowed):
    with running([colour], hosts=allowed_hosts(address, names)) as client:
        for path in ('/', '/v2/models'):
            status, content, _ = client.request('GET', path, headers={'Host': host})
            assert status == (200 if allowed else 421)
        status, content, _ = client.post(INFER, infer([1, 3, 8, 8]), {'Host': host})
        assert status == 200 if allowed else '--allow-host' in content['error']


def test_requests_without_a_name_are_answered_because_browsers_send_one(colour):
    with running([colour], hosts=allowed_hosts('127.0.0.1')) as client:
        connection = socket.create_connection(('127.0.0.1', client.port), timeout=60)
        connection.sendall(b'GET /healthz HTTP/1.0\r\n\r\n')
        assert connection.recv(1000).startswith(b'HTTP/1.1 200')
        connection.close()


def test_the_command_allows_names_of_this_machine_and_those_that_it_is_given(folder, monkeypatch):
    from bmx_melius.__main__ import main
    from bmx_melius.serving import endpoints, server

    found = []
    monkeypatch.setattr(endpoints, 'Service', lambda *arguments: found.append(arguments[-1]))
    monkeypatch.setattr(server, 'WebServer', lambda *arguments: NoServer())
    assert main(['serve', f'{folder}/colour', '--port', '0', '--allow-host', 'a.example', '--allow-host', 'b.example']) == 0
    assert found == [{'localhost', '127.0.0.1', '::1', 'a.example', 'b.example'}]


class NoServer:
    def run(self, listener):
        listener.close()
