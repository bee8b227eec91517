"""Clients that try to exhaust the service, and one beside them that must get right answers in time; `serving_load.py` runs both.

Run: ``python benchmarks/hostile_clients.py URL KIND``, until it is killed; KIND is the number of an entry of `KINDS`. Never against others'
services.
"""

import contextlib
import dataclasses
import functools
import http.client
import json
import pathlib
import socket
import sys
import threading
import time
import urllib.parse
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

import numpy as np  # noqa: E402
from support.hostile_images import large_webp, with_scans  # noqa: E402

from bmx_melius.serving.limits import Limits  # noqa: E402
from bmx_melius.serving.readers import Readers  # noqa: E402

LIMITS = Limits(queue=16, read_seconds=5.0, decode_seconds=5.0)  # of the service that is attacked
OPTIONS = ['--queue', str(LIMITS.queue), '--read-seconds', str(LIMITS.read_seconds), '--decode-seconds', str(LIMITS.decode_seconds)]
_MAX_REQUESTS = LIMITS.queue - 1  # requests in progress, so that there is room for the good client: there is no limit per client
_MANY = 100  # connections without a request in progress
_START = 1.0  # seconds to start another process after one whose time is over
_HEALTH = b'GET /healthz HTTP/1.1\r\nHost: x\r\n'
_CLASSIFY, _INFER = '/v1/classify', '/v2/models/meliusnet22/infer'


def byte_by_byte(beginning):
    """Return a client that sends a part of a request, and what follows slowly."""

    def attack(address):
        with socket.create_connection(address) as connection:
            connection.sendall(beginning)
            while True:
                time.sleep(0.5)
                connection.sendall(b'x')

    return attack


def posting(path, make_body, kind='application/octet-stream'):
    """Return a client that sends a request and waits for its answer."""
    body = make_body()

    def attack(address):
        with contextlib.closing(http.client.HTTPConnection(*address)) as connection:
            connection.request('POST', path, body, {'Content-Type': kind})
            connection.getresponse().read()

    return attack


def staying():
    """Return a client that asks once, and keeps the connection."""

    def attack(address):
        with socket.create_connection(address) as connection:
            connection.sendall(_HEALTH + b'\r\n')
            while connection.recv(1000):
                pass

    return attack


def logged_form():
    """Return a form with a header of 1 MB, which its parser quotes with four characters for each byte."""
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="x"\r\nContent-Transfer-Encoding: '
    return head + b'\xff' * 1_000_000 + b'\r\n\r\nx\r\n--x--\r\n'


def never_reading():
    """Return a client that sends images without pause, and never reads the answers, of 1000 classes each."""
    body = with_scans(10)
    request = b'POST %s?top=1000 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % (_CLASSIFY.encode(), len(body)) + body

    def attack(address):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(address)
            while True:
                connection.sendall(request)

    return attack


def amplified():
    """Return a request for one output under 20,000 names."""
    data = {'name': 'data', 'datatype': 'FP32', 'shape': [1, 3, 8, 8], 'data': [0] * 192}
    return json.dumps({'inputs': [data], 'outputs': [{'name': 'output0'}] * 20_000}).encode()


def lists_of(element):
    """Return a function that makes JSON of 16 MiB, the most that is read, with many times the same element."""

    def make():
        beginning, end = b'{"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": [', element + b']}]}'
        return beginning + (element + b',') * ((LIMITS.upload_bytes - len(beginning) - len(end)) // (len(element) + 1)) + end

    return make


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of hostile clients: what they do, how many there are at the same time, and what returns a function of the address."""

    title: str
    clients: int
    make: Callable


KINDS = [
    Kind('none', 0, lambda: None),
    Kind('headers, a byte in half a second', _MANY, functools.partial(byte_by_byte, _HEALTH + b'X: ')),
    Kind(
        'a body after its answer, a byte in half a second',
        _MANY,
        functools.partial(byte_by_byte, _HEALTH + b'Content-Length: 100000\r\n\r\n'),
    ),
    Kind('one request, and the connection stays open', LIMITS.connections + 5, staying),
    Kind(
        'forms with a header of 1 MB, of which the log gets little',
        _MAX_REQUESTS,
        functools.partial(posting, _CLASSIFY, logged_form, 'multipart/form-data; boundary=x'),
    ),
    Kind('WebP of 2 kB and 49 megapixels', _MAX_REQUESTS, functools.partial(posting, _CLASSIFY, lambda: large_webp(7000))),
    Kind('images without end, no answer is read', _MAX_REQUESTS, never_reading),
    Kind('one output under 20,000 names', _MAX_REQUESTS, functools.partial(posting, _INFER, amplified)),
    Kind('JPEG of 20,000 scans', _MAX_REQUESTS, functools.partial(posting, _CLASSIFY, lambda: with_scans(20_000, side=1000))),
    Kind('JPEG of 32 scans and 49 megapixels', _MAX_REQUESTS, functools.partial(posting, _CLASSIFY, lambda: with_scans(32, side=7000))),
    Kind('JSON of 16 MiB, numbers', _MAX_REQUESTS, functools.partial(posting, _INFER, lists_of(b'1'))),
    Kind('JSON of 16 MiB, lists of one number', _MAX_REQUESTS, functools.partial(posting, _INFER, lists_of(b'[1]'))),
    Kind('JSON of 16 MiB, nested lists', _MAX_REQUESTS, functools.partial(posting, _INFER, lists_of(b'[[]]'))),
]


def longest(cores):
    """Return the seconds in which an accepted request is answered: those before it are read in turns, and then computed."""
    return LIMITS.queue * (LIMITS.decode_seconds + _START) / cores + LIMITS.read_seconds


def classify(url, folder, expected, seconds, timeout):
    """Send photos one after the other, refused photos again; return the seconds until each right answer.

    Raises SystemExit at a wrong answer, and after `timeout` seconds without an answer.
    """
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        name = list(expected)[len(found) % len(expected)]
        begin, status = time.monotonic(), None
        while status != 200:
            try:
                with contextlib.closing(http.client.HTTPConnection(*_address(url), timeout=timeout)) as connection:
                    connection.request('POST', _CLASSIFY, (folder / name).read_bytes())
                    response = connection.getresponse()
                    status, content = response.status, response.read()
            except TimeoutError as error:
                raise SystemExit(f'a client beside attackers has no answer after {timeout} s') from error
            if status not in (200, 429, 503) or time.monotonic() - begin > timeout:
                raise SystemExit(f'a client beside attackers has waited {time.monotonic() - begin:.1f} s for status {status}: {content}')
        if json.loads(content)['top'] != expected[name]:
            raise SystemExit(f'a client beside attackers got the wrong answer {content}')
        found.append(time.monotonic() - begin)
    return found


class Memory(threading.Thread):
    """Follows the memory of a process, and of the largest of its children, until `stop`; both peaks in bytes."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self._process, self._end, self.own, self.child = process, threading.Event(), 0, 0

    def run(self):
        while not self._end.wait(0.05):
            children = ' '.join(path.read_text() for path in pathlib.Path(f'/proc/{self._process}/task').glob('*/children')).split()
            self.own = max(self.own, resident(self._process))
            self.child = max([self.child, *map(resident, children)])

    def stop(self):
        self._end.set()
        self.join()


def resident(process):
    """Return the bytes of memory that a process has for itself, 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f'/proc/{process}/smaps_rollup').read_text().splitlines():
            if line.startswith('Private_Dirty:'):
                return int(line.split()[1]) << 10
    return 0


def measure(kind, url, process, folder, seconds, cores, start):
    """Return a row of the table, a dict, for a kind of clients of a service with `OPTIONS` on a number of cores.

    `start` runs this program with arguments, and returns its process, whose standard output is a pipe. Raises SystemExit unless the
    promises of docs/serving.md hold.
    """
    expected = json.loads((folder / 'expected.json').read_text())
    classify(url, folder, expected, 0.1, longest(cores))  # starts processes and fills caches
    before, memory = resident(process), Memory(process)
    memory.start()
    program = start([__file__, url, str(KINDS.index(kind))])
    try:
        program.stdout.readline()  # they begin
        found = classify(url, folder, expected, seconds, longest(cores))
        if program.poll() is not None:
            raise SystemExit(f'the hostile clients ({kind.title}) have ended')
    finally:
        program.kill()
        program.wait()
        memory.stop()
    row = {
        'answers': len(found),
        'median': float(np.median(found)),
        'longest': max(found),
        'own': memory.own - before,
        'child': memory.child,
    }
    promised = {'longest': longest(cores), 'own': 2 * LIMITS.queue * LIMITS.upload_bytes, 'child': Readers(LIMITS).memory}
    for key, value in promised.items():
        if row[key] > value:
            raise SystemExit(f'{kind.title}: {key} is {row[key]:,}, more than the {value:,} that docs/serving.md promises')
    return row


def section(rows, cores):
    """Return a section of the page in Markdown, from the rows of all kinds."""
    lines = [
        '## Hostile clients',
        '',
        f'MeliusNet22, with `{" ".join(OPTIONS)}`. While hostile clients send without pause, or hold connections open, one other sends '
        'photos; each of its answers was equal to that of `Session`, and none took longer than the '
        f'{longest(cores):.0f} seconds that follow from these [limits](serving.md#limits-and-errors) and the cores. The memory that the '
        f'service needed in addition was never more than the {2 * LIMITS.queue * LIMITS.upload_bytes / 1e6:.0f} MB promised there, that of '
        f'each process that reads requests not more than {Readers(LIMITS).memory / 1e6:.0f} MB.',
        '',
        '| clients | what they send | answers to the other | median, s | longest, s | memory in addition, MB | of a reading process |',
        '|-|-|-|-|-|-|-|',
    ]
    for kind, row in zip(KINDS, rows):
        numbers = f'{row["answers"]} | {row["median"]:.2f} | {row["longest"]:.2f} | {row["own"] / 1e6:.0f} | {row["child"] / 1e6:.0f}'
        lines.append(f'| {kind.clients} | {kind.title} | {numbers} |')
    return '\n'.join(lines)


def _address(url):
    parts = urllib.parse.urlsplit(url)
    return parts.hostname, parts.port


def _forever(attack, address):
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            attack(address)


if __name__ == '__main__':
    chosen = KINDS[int(sys.argv[2])]
    client = chosen.make()
    for _ in range(chosen.clients):
        threading.Thread(target=_forever, args=(client, _address(sys.argv[1])), daemon=True).start()
    print('attacking', flush=True)
    threading.Event().wait()
