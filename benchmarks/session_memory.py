"""Test for growth of memory in sessions: resident memory over 100,000 runs, and over 10,000 openings of a session.

The network is small, so that memory lost by each run would show: 16 bytes per run are 1.6 MB. The phases, each in one process after the
other:

- ``runs``: several threads call one session, with different batches and image sizes.
- ``sessions``: as many sessions as threads, of the same files, so that they share their weights; each thread calls its session.
- ``openings``: a thread opens a session, runs it once, and closes it, while another session of the same files exists; then without it.
- ``open``: many sessions of a network with 36 MB of weights are open at the same time.

Memory is compared with that after the first 1,000 runs or 500 openings, when every thread has run every size; in the last phase with that
of one session. Requires NumPy and the
compiled engine, not MXNet.

Run: ``python benchmarks/session_memory.py``. docs/internals/fuzzing.md has figures.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import sys
import tempfile
import threading

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / part) for part in ('', 'tests')]

import numpy as np  # noqa: E402
from support.packed import make_program, write_packed  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.bench.first_result import resident_bytes  # noqa: E402
from bmx_melius.deployment.program.operations import PADDING, REAL_KIND, Operation, Value  # noqa: E402
from bmx_melius.deployment.program.program import Program  # noqa: E402
from bmx_melius.process import processor  # noqa: E402

LARGE_SIDE = 3000  # channels of the network of the phase `open`
CHANNELS = 5  # of the inputs of `make_program`
SHAPES = [(batch, CHANNELS, side, side) for batch in (1, 2, 5) for side in (8, 12, 16)]


class Growth:
    """Resident memory after a share of the calls and after all of them."""

    def __init__(self, calls, warm_up):
        self.calls, self.warm_up, self.before = calls, warm_up, None
        self._lock, self._done = threading.Lock(), 0

    def count(self):
        """Count a call; at the end of the warm-up note the memory."""
        with self._lock:
            self._done += 1
            if self._done == self.warm_up:
                self.before = resident_bytes()

    def result(self):
        after = resident_bytes()
        return {
            'calls': self._done,
            'warm_up': self.warm_up,
            'megabytes_after_warm_up': self.before / 2**20,
            'megabytes_at_the_end': after / 2**20,
            'bytes_per_call': (after - self.before) / (self._done - self.warm_up),
        }


def run_all(sessions, growth):
    """Run each session in its thread until all calls are made. Every result must equal the first run on its input."""
    inputs = [np.random.RandomState(number).randn(*shape).astype(np.float32) for number, shape in enumerate(SHAPES)]
    expected = [sessions[0](x) for x in inputs]

    def call(thread):
        for number in range(growth.calls // len(sessions)):
            which = (number + thread) % len(inputs)
            for found, wanted in zip(sessions[thread](inputs[which]), expected[which]):
                assert (found == wanted).all(), 'a concurrent run gives another result'
            growth.count()

    with concurrent.futures.ThreadPoolExecutor(len(sessions)) as pool:
        for future in [pool.submit(call, thread) for thread in range(len(sessions))]:
            future.result()
    return growth.result()


def open_all(prefix, growth):
    """Open, run and close a session again and again; in the first half another one keeps the prepared weights."""
    x = np.zeros(SHAPES[0], np.float32)
    kept = bmx.Session(prefix, threads=2)
    for number in range(growth.calls):
        if number == growth.calls // 2:
            kept = None
        bmx.Session(prefix, threads=2)(x)
        growth.count()
    assert kept is None
    return growth.result()


def write_large(prefix):
    """Write a network with 36 MB of float weights, a dense layer."""
    size = LARGE_SIDE
    window = {f'{name}_{axis}': 1 for name in ('kernel', 'stride', 'dilation') for axis in 'hw'}
    attributes = {'out_channels': size, **window, **dict.fromkeys(PADDING, 0), 'groups': 1, 'has_bias': 0, 'half': 0}
    weight = np.random.RandomState(0).randn(size, size, 1, 1).astype(np.float32)
    write_packed(prefix, Program([Value(REAL_KIND, size, 1, 1, True)], [Operation('conv', (0,), attributes, {'weight': weight})], [1]))


def open_many(prefix, number):
    """Return the resident memory with one session and with `number` sessions of the same network, each of which has run."""
    write_large(prefix)
    x = np.zeros((1, LARGE_SIDE), np.float32)
    sessions, before = [], None
    for _ in range(number):
        sessions.append(bmx.Session(prefix, threads=1))
        sessions[-1](x)
        before = before or resident_bytes()
    after = resident_bytes()
    return {
        'calls': number,
        'warm_up': 1,
        'megabytes_after_warm_up': before / 2**20,
        'megabytes_at_the_end': after / 2**20,
        'bytes_per_call': (after - before) / (number - 1),
    }


def measure(threads, runs, openings, sessions):
    """Return phase -> figures."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, 'net')
        write_packed(prefix, make_program(channels=CHANNELS))
        shared = bmx.Session(prefix, threads=2)
        results = {'runs': run_all([shared] * threads, Growth(runs, min(1000, runs // 2)))}
        results['sessions'] = run_all([bmx.Session(prefix, threads=1) for _ in range(threads)], Growth(runs, min(1000, runs // 2)))
        del shared
        results['openings'] = open_all(prefix, Growth(openings, min(500, openings // 2)))
        results['open'] = open_many(prefix, sessions)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--threads', type=int, default=4, help='threads that call sessions (default: %(default)s)')
    parser.add_argument('--runs', type=int, default=100_000, help='runs of the first two phases (default: %(default)s)')
    parser.add_argument('--openings', type=int, default=10_000, help='sessions opened in the last phase (default: %(default)s)')
    parser.add_argument('--sessions', type=int, default=100, help='sessions that are open at the same time (default: %(default)s)')
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    arguments = parser.parse_args()
    results = measure(arguments.threads, arguments.runs, arguments.openings, arguments.sessions)
    if arguments.json:
        print(json.dumps({'processor': processor(), 'threads': arguments.threads, **results}))
        return
    print(f'{processor()}, {arguments.threads} threads')
    for phase, figures in results.items():
        print(
            '{phase:10} {calls:7,} calls: {megabytes_after_warm_up:.2f} MB after {warm_up:,}, {megabytes_at_the_end:.2f} MB at the end, '
            '{bytes_per_call:.1f} bytes per call'.format(phase=phase, **figures)
        )


if __name__ == '__main__':
    main()
