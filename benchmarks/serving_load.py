"""Load test of the service, `bmx-melius serve`, on this machine: latency at rising load, and refusals past the limit.

Serves packed networks with random weights, one after the other, in a separate process, and sends JPEG photos of 500 x 375 with Locust
(`serving_user.py`). First a few users without pauses measure the capacity; then requests arrive at random times at given fractions of
it. Each load begins before the measured interval: rates count the requests that are sent, answered and refused within it, latencies the
requests that are sent within it. Every answer is compared with `Session`, and the numbers of answered and refused requests with those that
the service has counted. The service gets all cores but the last one, Locust the last one. Finally hostile clients attack the service of
MeliusNet22 (`hostile_clients.py`).

Run: ``make load-test``, which writes docs/serving-load.md. ``make load-test ARGS='--seconds 3 --networks meliusnet22 --output -'`` is a
short form that prints.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import hostile_clients  # noqa: E402
import numpy as np  # noqa: E402
import PIL.Image  # noqa: E402

from bmx_melius.deployment.runtime.engine import instruction_sets  # noqa: E402
from bmx_melius.files.io import replacing  # noqa: E402
from bmx_melius.process import processor  # noqa: E402

NETWORKS = {  # name -> what it is
    'meliusnet22': 'MeliusNet22, binary',
    'meliusnet22-float': 'the same network in float32 (`bits=32`)',
    'mobilenet1.0': "GluonCV's MobileNet 1.0, float32",
}
FRACTIONS = (0.25, 0.5, 0.75, 0.9, 1.5, 3)  # of the capacity
USERS, QUEUE = 128, 32  # users of the load; --queue of the service
WARM_UP = 2  # seconds of a load before the measured interval
PHOTOS = 12
TOP = 5
_QUIET = 0.3  # load average up to which nothing else is running


def make_network(name, prefix):
    """Write the packed files of a network with random weights."""
    import gluoncv

    import bmx_melius as bmx
    from bmx_melius.bench.networks import export
    from model_zoo import get_model

    norm = {'norm_kwargs': {'momentum': 0.0}}
    if name == 'mobilenet1.0':
        net = gluoncv.model_zoo.get_model(name, **norm)
    else:
        net = get_model('meliusnet22', bits=32 if name.endswith('float') else 1, **norm)
    spec = bmx.InputSpec()
    export(net, f'{prefix}-exported', (1, *spec.shape))
    files = f'{prefix}-exported-symbol.json', f'{prefix}-exported-0000.params'
    bmx.convert(*files, prefix, (1, *spec.shape), input_spec=spec, verify=False)


def make_photos(folder):
    """Write JPEG files of 500 x 375 with details of several sizes, as photos have."""
    random = np.random.default_rng(0)
    for number in range(PHOTOS):
        scales = (random.integers(0, 256, (375 // scale + 1, 500 // scale + 1, 3), dtype=np.uint8) for scale in (2, 8, 40, 150))
        resized = [np.asarray(PIL.Image.fromarray(scale).resize((500, 375), PIL.Image.BICUBIC), np.float32) for scale in scales]
        PIL.Image.fromarray(np.mean(resized, axis=0).astype(np.uint8)).save(folder / f'{number}.jpg', quality=90)


def write_answers(folder, prefix):
    """Write the answers that the service must give, computed by `Session`."""
    from bmx_melius import Session

    session = Session(prefix)
    names, answers = session.class_names, {}
    for path in sorted(folder.glob('*.jpg')):
        answers[path.name] = [
            {
                'class': names.index(name) if names else int(name),
                'name': name if names else None,
                'probability': probability,
            }
            for name, probability in session.classify(path, TOP)
        ]
    (folder / 'expected.json').write_text(json.dumps(answers))


@contextlib.contextmanager
def serving(prefix, cores, options):
    """Run the service on some cores; yield its URL and the number of its process."""
    command = [sys.executable, '-W', 'ignore', '-m', 'bmx_melius', 'serve', prefix, '--port', '0', '--queue', str(QUEUE), *options]
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    try:
        while True:
            line = process.stdout.readline()
            if not line:
                raise SystemExit('the service has not started')
            found = re.match(r'listening on (\S+)/\n', line)
            if found:
                break
        yield found[1], process.pid
        process.terminate()
        if process.wait():
            raise SystemExit(f'the service ended with status {process.returncode}')
    finally:
        process.kill()
        process.wait()


def load(url, folder, cores, users, pause, seconds):
    """Run Locust; return the requests: tuples of a name, ``answered`` or ``refused``, and the seconds from the start to begin and end."""
    command = [sys.executable, '-m', 'locust', '-f', str(ROOT / 'benchmarks' / 'serving_user.py'), '--headless', '--json']
    command += ['--host', url, '-u', str(users), '-r', str(users), '--stop-timeout', '60', '--skip-log-setup']
    settings = {'FOLDER': folder, 'PAUSE': pause, 'SECONDS': seconds}
    environment = {**os.environ, **{f'BMX_MELIUS_LOAD_{name}': str(value) for name, value in settings.items()}}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        failures = sum(row['num_failures'] for row in json.loads(done.stdout))
    except ValueError:
        raise SystemExit(f'Locust failed:\n{done.stderr}') from None
    if failures:
        raise SystemExit(f'{failures} requests were lost or answered wrongly:\n{done.stderr}{done.stdout}')
    return json.loads((folder / 'requests.json').read_text())


def counts(url):
    """Return the numbers that the service has counted: answered and refused requests, runs and their images."""
    with urllib.request.urlopen(f'{url}/metrics') as response:
        text = response.read().decode()

    def value(pattern):
        found = re.search(rf'^bmx_melius_{pattern} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    requests = r'requests_total\{endpoint="classify",model="[^"]*",status="%d"\}'
    names = (requests % 200, requests % 429, r'batch_images_count\{.*\}', r'batch_images_sum\{.*\}')
    return np.array([value(name) for name in names])


def rates_and_latencies(requests, begin, end):
    """Return the requests per second of an interval that were sent (offered), answered and refused, and percentiles of the latency in ms.

    The interval must lie within the load: from its begin or end on, fewer requests would be on the way than in between.
    """
    seconds = end - begin
    latencies = [1000 * (last - first) for name, first, last in requests if name == 'answered' and begin <= first < end]
    if not latencies:
        raise SystemExit('no request of the measured interval was answered: use more --seconds')
    ended = [name for name, _, last in requests if begin <= last < end]
    return {
        'offered': sum(begin <= first < end for _, first, _ in requests) / seconds,
        **{name: ended.count(name) / seconds for name in ('answered', 'refused')},
        **{f'p{part}': float(np.percentile(latencies, part)) for part in (50, 95, 99)},
    }


def measured(url, folder, cores, users, pause, seconds):
    """Apply a load; return `rates_and_latencies` and the images of a run, a dict. Users and service must have counted the same requests."""
    before = counts(url)
    requests = load(url, folder, cores, users, pause, WARM_UP + seconds)
    names = [name for name, _, _ in requests]
    sent, found = [names.count('answered'), names.count('refused')], counts(url) - before
    if list(found[:2]) != sent:
        raise SystemExit(f'requests were lost: Locust has counted {sent} answered and refused requests, the service {found[:2].tolist()}')
    return {**rates_and_latencies(requests, WARM_UP, WARM_UP + seconds), 'images': found[3] / max(found[2], 1)}


def measure(name, folder, seconds, options=()):
    """Measure a network; return its capacity and a row for each load."""
    service, client = shared_cores()
    prefix = str(folder / name)
    write_answers(folder, prefix)
    with serving(prefix, service, options) as (url, _):
        load(url, folder, client, 4, 0, 1)  # fills caches
        capacity = measured(url, folder, client, 2 * len(service) + 2, 0, seconds)['answered']
        rows = []
        for fraction in FRACTIONS:
            rate = fraction * capacity
            rows.append(measured(url, folder, client, USERS, USERS / rate, seconds))
            print(name, json.dumps(rows[-1]), file=sys.stderr)
    return capacity, rows


def shared_cores():
    """Return the cores of the service, and the core of its clients."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[:-1] or cores, cores[-1:]


def measure_hostile(folder, seconds, kinds=hostile_clients.KINDS):
    """Attack the service of MeliusNet22 in several ways, one after the other; return a row for each."""
    service, client = shared_cores()
    prefix, rows = str(folder / 'meliusnet22'), []
    write_answers(folder, prefix)

    def start(arguments):
        return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, client))

    for kind in kinds:
        with serving(prefix, service, hostile_clients.OPTIONS) as (url, process):
            rows.append(hostile_clients.measure(kind, url, process, folder, seconds, len(service), start))
        print(kind.title, json.dumps(rows[-1]), file=sys.stderr)
    return rows


def _shown(number):
    return f'{number:.0f}' if number >= 10 or number == 0 else f'{number:.1f}'


def table(rows):
    """Return a table in Markdown."""
    lines = [
        '| offered, requests per second | answered | refused | median, ms | 95 % | 99 % | images of a run |',
        '|-|-|-|-|-|-|-|',
    ]
    for row in rows:
        numbers = (_shown(row[key]) for key in ('offered', 'answered', 'refused', 'p50', 'p95', 'p99'))
        lines.append(f'| {" | ".join(numbers)} | {row["images"]:.1f} |')
    return '\n'.join(lines)


def summary(results):
    """Return a table of all networks in Markdown: the capacity, and the median latency at the lowest load."""
    lines = ['| network | capacity, requests per second | median latency at a quarter of it, ms |', '|-|-|-|']
    lines += [f'| {NETWORKS[name]} | {_shown(capacity)} | {_shown(rows[0]["p50"])} |' for name, (capacity, rows) in results.items()]
    return '\n'.join(lines)


def page(results, hostile, seconds, others):
    """Return the page of the documentation; `hostile` are the rows of hostile clients, `others` the load average before the measurement."""
    cores = len(os.sched_getaffinity(0))
    parts = [
        '# The service under load',
        'Written by `make load-test`; `benchmarks/serving_load.py` describes the measurement. Every answer was equal to that of `Session`, '
        'and none was lost: the numbers of answered and refused requests that the clients counted are those of the service.',
        f'Processor: {processor()}, instruction set {instruction_sets()[0]}. {cores} cores usable: {cores - 1 or 1} for the service, one '
        'for the clients. '
        f'{seconds} seconds for each row, {WARM_UP} seconds after the start of its load; JPEG photos of 500 x 375, `--queue {QUEUE}`, '
        'otherwise the defaults; random weights. '
        f'Load average of the minute before the measurement: {others:.1f}'
        + ('; if other programs went on, they slowed everything down: compare rows only with each other.' if others > _QUIET else '.'),
        'The capacity is the number of answers per second to a few clients without pauses. In the rows requests arrive at random times. '
        'Past the capacity the service refuses what it cannot compute, and the queue bounds the latency of what it accepts. '
        'Decoding, resizing and normalizing the photo is a part of each request.',
        summary(results),
    ]
    for name, (_, rows) in results.items():
        parts += [f'## {name}', table(rows)]
    if hostile:
        parts.append(hostile_clients.section(hostile, len(shared_cores()[0])))
    return '\n\n'.join(parts) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seconds', type=int, default=30, help='duration of each load (default: %(default)s)')
    parser.add_argument('--networks', default=','.join(NETWORKS), help='some of %(default)s')
    parser.add_argument('--options', default='', help='further options of bmx-melius serve, separated by spaces')
    parser.add_argument('--output', default=str(ROOT / 'docs' / 'serving-load.md'), help='file to write; -: print (default: %(default)s)')
    arguments = parser.parse_args()
    results, others = {}, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        make_photos(folder)
        for name in arguments.networks.split(','):
            make_network(name, str(folder / name))
            results[name] = measure(name, folder, arguments.seconds, arguments.options.split())
        hostile = measure_hostile(folder, arguments.seconds) if 'meliusnet22' in results else []
    text = page(results, hostile, arguments.seconds, others)
    if arguments.output == '-':
        print(text)
        return
    with replacing(arguments.output) as path:
        pathlib.Path(path).write_text(text)


if __name__ == '__main__':
    main()
