"""Limits of the service over HTTP: of time and of requests in progress, clients that disconnect, and the end of the service."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from support.paths import ROOT
from support.services import Client, HeldNetwork, expected, form, infer, running, shown

from bmx_melius import Session
from bmx_melius.serving import server
from bmx_melius.serving.network import ServedNetwork
from bmx_melius.serving.readers import Readers

pytest_plugins = ['support.services']  # its fixtures
TIME = 1.0  # seconds for headers and bodies; tests that send them at once need a small part of it

# --- time -----------------------------------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_arrive_is_refused(folder):
    with running([ServedNetwork('colour', f'{folder}/colour')], read_seconds=TIME) as client:
        connection = client.connect()
        connection.putrequest('POST', '/v1/classify')
        connection.putheader('Content-Length', '1000')
        connection.endheaders(b'the first bytes')
        response = connection.getresponse()
        assert response.getheader('Connection') == 'close'  # what follows would be the rest of the body
        assert response.status == 408 and f'within {TIME:g} seconds' in json.loads(response.read())['error']
        connection.close()


@pytest.mark.parametrize('start', [b'', b'POST /v1/classify HTTP/1.1\r\n', b'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he'])
def test_a_connection_is_closed_when_the_headers_of_a_request_do_not_arrive(folder, start):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(running([ServedNetwork('colour', f'{folder}/colour')], read_seconds=TIME))
        connection = stack.enter_context(socket.create_connection(('127.0.0.1', client.port), timeout=60))
        begin = time.monotonic()
        with contextlib.suppress(ConnectionError):
            connection.sendall(start[:-3])
            for number in range(2):  # that something arrives does not suffice
                time.sleep(TIME / 4)
                connection.sendall(start[len(start) - 3 + number : len(start) - 2 + number])
            while connection.recv(1000):
                pass
        assert time.monotonic() - begin > 0.9 * TIME


def test_a_connection_without_requests_stays_open_longer_than_headers_may_take(folder):
    with running([ServedNetwork('colour', f'{folder}/colour')], read_seconds=TIME) as client:
        connection = client.connect()
        connection.connect()
        first = connection.sock
        for pause in (1.2 * TIME, 0):
            connection.request('GET', '/healthz')
            response = connection.getresponse()
            assert response.status == 200 and response.read()
            time.sleep(pause)
        assert connection.sock is first
        connection.close()


def test_past_the_limit_requests_are_refused_and_the_accepted_ones_answered(folder, uploads, held):
    """Requests for another network and for metrics are not affected."""
    session = Session(folder / 'colour')
    with running([held, ServedNetwork('free', f'{folder}/gray')], workers=3, queue=2) as client:
        accepted = []
        for path in uploads[:2]:
            accepted.append(client.start('/v1/classify?model=held', path.read_bytes()))
            client.wait_for(len(accepted), 'bmx_melius_requests_in_progress', model='held')
        for path in ('/v1/classify?model=held', '/v2/models/held/infer'):
            status, content, headers = client.post(path, uploads[2].read_bytes())
            assert status == 429 and 'try again later' in content['error'] and int(headers['Retry-After']) >= 1
        assert client.metric('bmx_melius_refused_total', model='held', reason='busy') == 2
        assert client.post('/v1/classify?model=free', uploads[0].read_bytes())[0] == 200
        held.go.set()
        for path, finish in zip(uploads, accepted):
            status, answer, _ = finish()
            assert status == 200 and shown(answer) == expected(session, path)
        assert client.post('/v1/classify?model=held', uploads[2].read_bytes())[0] == 200
        assert client.metric('bmx_melius_requests_in_progress', model='held') == 0


@pytest.mark.parametrize('options', [{}, {'encode_chunked': True}])
def test_a_body_and_a_batch_of_the_largest_size_are_accepted_and_larger_ones_are_not(folder, options):
    body = infer([2, 3, 8, 8]).encode()
    with running([ServedNetwork('colour', f'{folder}/colour')], upload_bytes=len(body), max_batch=2) as client:
        for content, status in ((body, 200), (body + b' ', 413), (infer([3, 3, 1, 1]).encode(), 400)):
            connection = client.connect()
            headers = {'Transfer-Encoding': 'chunked'} if options else {}
            connection.request('POST', '/v2/models/colour/infer', iter([content]) if options else content, headers, **options)
            assert connection.getresponse().status == status
            connection.close()


def test_requests_whose_clients_disconnect_leave_the_queue_and_are_counted(folder, uploads, held, monkeypatch):
    monkeypatch.setattr(server, '_HALF_CLOSE_SECONDS', 0)  # after it a client that closes its sending half has disconnected
    session = Session(folder / 'colour')
    with running([held], queue=4) as client:
        computed = client.start('/v1/classify', uploads[0].read_bytes())
        assert held.began.acquire(timeout=60)
        gone = [client.send('/v1/classify', uploads[1].read_bytes()), client.send('/v2/models/held/infer', infer([1, 3, 8, 8]))]
        client.wait_for(2, 'bmx_melius_images_waiting')
        last = client.start('/v1/classify', uploads[2].read_bytes())
        client.wait_for(3, 'bmx_melius_images_waiting')
        for connection in gone:
            connection.close()
        client.wait_for(1, 'bmx_melius_images_waiting')
        client.wait_for(2, 'bmx_melius_requests_in_progress', model='held')  # others are admitted instead
        for endpoint in ('classify', 'infer'):
            client.wait_for(1, 'bmx_melius_requests_total', endpoint=endpoint, model='held', status='499')
        held.go.set()
        for path, finish in ((uploads[0], computed), (uploads[2], last)):
            status, answer, _ = finish()
            assert status == 200 and shown(answer) == expected(session, path)
        assert client.metric('bmx_melius_batch_images_sum', model='held') == 2


def test_the_answer_to_a_client_that_disconnects_while_it_is_computed_is_dropped(folder, uploads, held, capsys, monkeypatch):
    monkeypatch.setattr(server, '_HALF_CLOSE_SECONDS', 0)
    session = Session(folder / 'colour')
    with running([held]) as client:
        gone = client.send('/v1/classify', uploads[0].read_bytes())
        assert held.began.acquire(timeout=60)
        gone.close()
        client.wait_for(1, 'bmx_melius_requests_total', endpoint='classify', model='held', status='499')
        held.go.set()
        assert shown(client.post('/v1/classify', uploads[1].read_bytes())[1]) == expected(session, uploads[1])
        assert client.metric('bmx_melius_batch_images_sum', model='held') == 2
    assert capsys.readouterr().err == ''


def test_bodies_are_not_kept_while_requests_wait(folder, uploads, monkeypatch):
    def recording(self, spec, kind, content):
        contents.append(content)
        return image(self, spec, kind, content)

    image, contents, network = Readers.image, [], HeldNetwork('recording', f'{folder}/colour')
    monkeypatch.setattr(Readers, 'image', recording)
    for body, headers in ((uploads[0].read_bytes(), {}), form(uploads[0].read_bytes())):
        with running([network]) as client:
            network.go.clear()
            finish = client.start('/v1/classify', body, headers)
            assert network.began.acquire(timeout=60)
            end = time.monotonic() + 10
            while sys.getrefcount(contents[0]) > 2:  # the list and the argument
                assert time.monotonic() < end
            contents.clear()
            network.go.set()
            assert finish()[0] == 200


# --- the end --------------------------------------------------------------------------------------------------------------------------


def test_a_stopping_service_finishes_accepted_requests_and_refuses_others(folder, uploads, held):
    session = Session(folder / 'colour')
    with running([held]) as client:
        accepted = client.start('/v1/classify', uploads[0].read_bytes())
        assert held.began.acquire(timeout=60)
        client.server.handle_exit(signal.SIGTERM, None)
        for path in ('/readyz', '/v2/health/ready', '/v2/models/held/ready'):
            assert client.get(path)[:2][0] == 503
        assert client.get('/healthz')[0] == 200
        status, content, headers = client.post('/v1/classify', uploads[1].read_bytes())
        assert status == 503 and 'stopping' in content['error'] and 'Retry-After' in headers
        held.go.set()
        status, answer, _ = accepted()
        assert status == 200 and shown(answer) == expected(session, uploads[0])


def test_requests_that_cannot_be_finished_in_time_are_answered(folder, uploads, held, capsys):
    with running([held], stop_seconds=0) as client:
        incomplete = client.connect()
        incomplete.putrequest('POST', '/v1/classify')
        incomplete.putheader('Content-Length', '1000')
        incomplete.endheaders(b'the first bytes')
        client.wait_for(1, 'bmx_melius_requests_in_progress')
        accepted = [client.start('/v1/classify', uploads[0].read_bytes()) for _ in range(2)]
        client.wait_for(1, 'bmx_melius_images_waiting')  # the other one is computed
        client.server.handle_exit(signal.SIGTERM, None)
        for finish in accepted:
            status, content, _ = finish()
            assert status == 503 and 'stopped before it could answer' in content['error']
        assert incomplete.getresponse().status == 503
        held.go.set()
    assert capsys.readouterr().err == ''


def test_a_second_signal_answers_accepted_requests_at_once(folder, uploads, held, capsys):
    with running([held], stop_seconds=1e6) as client:
        accepted = client.start('/v1/classify', uploads[0].read_bytes())
        assert held.began.acquire(timeout=60)
        for _ in range(2):
            client.server.handle_exit(signal.SIGTERM, None)
        status, content, headers = accepted()
        assert status == 503 and 'stopped before it could answer' in content['error'] and headers['Connection'] == 'close'
        held.go.set()
    assert capsys.readouterr().err == ''


SERVE = """\
import sys
sys.argv[0] = '/usr/bin/bmx-melius'
sys.modules['mxnet'] = None  # importing it fails
from bmx_melius.__main__ import main
status = main(['serve', *sys.argv[1:]])
print('ended', status)
sys.exit(status)
"""


@pytest.mark.parametrize('asked', [True, False])  # False: the signal comes as soon as the service is ready
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_without_mxnet_until_a_signal(folder, uploads, number, asked):
    command = [sys.executable, '-W', 'ignore', '-c', SERVE, f'{folder}/colour', f'second={folder}/gray', '--port', '0']
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path[1:]])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout.readline().startswith('colour: Session(colour, 8x6, ')
        assert process.stdout.readline().startswith('second: Session(gray, 8x6, ')
        address = re.fullmatch(r'listening on http://127\.0\.0\.1:(\d+)/\n', process.stdout.readline())
        if asked:
            answer = Client(int(address[1])).post('/v1/classify?model=second', uploads[0].read_bytes())[1]
            assert shown(answer) == expected(Session(folder / 'gray'), uploads[0])
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, 'ended 0\n', '')
    finally:
        process.kill()
        process.communicate()
