"""A running service for tests, and a client of the standard library. Tests name this module in `pytest_plugins` to get its fixtures."""

import contextlib
import http.client
import json
import pathlib
import signal
import threading
import time

import numpy as np
import PIL.Image
import pytest

from bmx_melius.serving.endpoints import Service
from bmx_melius.serving.limits import Limits
from bmx_melius.serving.network import ServedNetwork, load_networks
from bmx_melius.serving.server import WebServer, listen
from bmx_melius.vision.preprocessing import InputSpec
from support.packed import make_program, write_packed

_SECONDS = 60  # to wait for the service, which takes longer only if it fails
NAMES = [f'class {letter}' for letter in 'abcdefg']


def write_networks(folder):
    """Write packed networks: `colour` and `gray` classify images of 8 x 8; `arrays` has two outputs and no description."""
    for name, channels in (('colour', 3), ('gray', 1)):
        write_packed(folder / name, make_program(channels=channels), [0])
        spec = InputSpec(size=8, resize=9, channels=channels, mean=(120,) * channels, std=(900,) * channels)
        pathlib.Path(f'{folder / name}-summary.json').write_text(json.dumps({'input': spec.to_json(), 'class_names': NAMES}))
    write_packed(folder / 'arrays', make_program(), [1, 0])


def write_images(folder, number):
    """Write JPEG and PNG files of different sizes; return their paths."""
    random, paths = np.random.RandomState(0), []
    for index in range(number):
        pixels = random.randint(0, 256, (20 + index, 31, 3)).astype(np.uint8)
        paths.append(folder / f'{index}.{"png" if index % 2 else "jpg"}')
        PIL.Image.fromarray(pixels[..., 0] if index % 5 == 0 else pixels).save(paths[-1])
    return paths


class HeldNetwork(ServedNetwork):
    """A network whose runs, after the first one when it is loaded, wait for the event `go`; `began` counts them."""

    def __init__(self, *arguments):
        self.go, self.began = threading.Event(), threading.Semaphore(0)
        self.go.set()
        super().__init__(*arguments)
        self.go.clear()
        self.began = threading.Semaphore(0)

    def run(self, *arrays):
        self.began.release()
        self.go.wait()
        return super().run(*arrays)


@contextlib.contextmanager
def running(networks, workers=1, stop_seconds=60, hosts=None, **limits):
    """Run a service of networks, a list, in a thread; yield a `Client` of it."""
    limits = Limits(**limits)
    service = Service({network.name: network for network in networks}, limits, workers, hosts)
    server, listener = WebServer(service, limits, stop_seconds), listen('127.0.0.1', 0)
    thread = threading.Thread(target=server.run, args=(listener,))
    port = listener.getsockname()[1]
    thread.start()
    try:
        yield Client(port, server)
    finally:
        for network in networks:
            if isinstance(network, HeldNetwork):
                network.go.set()  # also if the test failed
        server.handle_exit(signal.SIGTERM, None)
        thread.join()


@pytest.fixture(scope='module')
def folder(make_once):
    """A folder with the packed networks of `write_networks`."""
    return make_once('served-networks', write_networks)


@pytest.fixture(scope='module')
def uploads(tmp_path_factory):
    """Paths of twelve images."""
    return write_images(tmp_path_factory.mktemp('uploads'), 12)


@pytest.fixture(scope='module')
def client(folder):
    """A client of a service with the three networks."""
    networks = load_networks([f'{folder}/colour', f'second={folder}/gray', f'{folder}/arrays'])
    with running(networks.values(), max_batch=4, upload_bytes=50_000, pixels=10_000) as client:
        yield client


@pytest.fixture
def held(folder):
    """A network whose runs the test allows."""
    return HeldNetwork('held', f'{folder}/colour')


class Client:
    """A client of a service. `server` is the `WebServer` if it runs in this process."""

    def __init__(self, port, server=None):
        self.port, self.server = port, server

    def connect(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=_SECONDS)

    def request(self, method, path, body=None, headers=None):
        """Return the status, the body (parsed if it is JSON) and the headers of the answer."""
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            return answer_of(connection)
        finally:
            connection.close()

    def get(self, path):
        return self.request('GET', path)

    def post(self, path, body, headers=None):
        return self.request('POST', path, body, headers)

    def send(self, path, body, headers=None):
        """Send a request; return its connection."""
        connection = self.connect()
        connection.request('POST', path, body, headers or {})
        return connection

    def start(self, path, body, headers=None):
        """Send a request; return a function that waits for its answer."""
        connection = self.send(path, body, headers)

        def finish():
            with contextlib.closing(connection):
                return answer_of(connection)

        return finish

    def metric(self, name, **labels):
        """Return the value of a metric with all these labels, or None."""
        for line in self.get('/metrics')[1].decode().splitlines():
            if line.startswith(name) and line[len(name)] in '{ ' and all(f'{key}="{value}"' in line for key, value in labels.items()):
                return float(line.rpartition(' ')[2])
        return None

    def wait_for(self, value, name, **labels):
        """Wait until a metric has a value."""
        end = time.monotonic() + _SECONDS
        while self.metric(name, **labels) != value:
            assert time.monotonic() < end, self.get('/metrics')[1].decode()


def answer_of(connection):
    response = connection.getresponse()
    content = response.read()
    if response.getheader('Content-Type') == 'application/json':
        content = json.loads(content)
    return response.status, content, response.headers


def form(content, field='image', name='photo.jpg'):
    """Return the body of a form with a file, and its headers."""
    boundary = b'boundary-of-the-form'
    head = f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: image/jpeg\r\n\r\n'.encode()
    body = b'--' + boundary + b'\r\n' + head + content + b'\r\n--' + boundary + b'--\r\n'
    return body, {'Content-Type': f'multipart/form-data; boundary={boundary.decode()}'}


def infer(shape, count=None, **fields):
    """Return the body of a request for the outputs for an array of zeros."""
    data = [0] * (int(np.prod(shape)) if count is None else count)
    return json.dumps({'inputs': [{'name': 'data0', 'datatype': 'FP32', 'shape': shape, 'data': data, **fields}]})


def expected(session, path, top=5):
    """Return the names and probabilities of classes that the answer to an image must have."""
    return [(name, probability) for name, probability in session.classify(path, top)]


def shown(content):
    """Return the names and probabilities of classes in an answer."""
    return [(row['name'], row['probability']) for row in content['top']]
