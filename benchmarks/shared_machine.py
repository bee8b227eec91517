"""Benchmark of `Session` on an idle machine, and on a machine with programs that keep every core busy.

Each row is a process with a number of threads, with or without MXNet imported; with ``--processes N`` it is N such processes, which run at
the same time. The rows run alternately, so that other load affects all of them alike. Printed are the median, the 90th percentile and the
mean of all runs of a row, and their ratios to those of one thread. Where more threads want to run than there are cores, the mean shows what
the processes achieve together. ``--beside FOLDER`` also times the engine of another, compiled checkout of this project, to compare before
and after a change. Results: docs/internals/runtime.md. Run: ``python benchmarks/shared_machine.py``.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bmx_melius.bench.rounds import busy_cores  # noqa: E402

SHAPE = (1, 3, 224, 224)
ROWS = {  # threads, and whether MXNet is imported
    'threads=1': (1, False),
    'threads=2': (2, False),
    'default': (0, False),
    'default, MXNet imported': (0, True),
}
WORKER = """
import json, sys, time
prefix, threads, with_mxnet = sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'True'
sys.modules.update({} if with_mxnet else {'mxnet': None})
import numpy as np
import bmx_melius
session = bmx_melius.Session(prefix, threads=threads)
x = np.random.default_rng(1).standard_normal([int(size) for size in sys.argv[4].split('x')], dtype=np.float32)
for line in sys.stdin:
    seconds = []
    for number in range(int(line) + 1):
        begin = time.perf_counter()
        session(x)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds[1:]), flush=True)  # without the first run, which has cold caches
"""


def start_worker(checkout, prefix, threads, with_mxnet):
    command = [sys.executable, '-W', 'ignore', '-c', WORKER, prefix, str(threads), str(with_mxnet), 'x'.join(map(str, SHAPE))]
    environment = {**os.environ, 'PYTHONPATH': str(checkout)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout)


@contextlib.contextmanager
def ending(processes):
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def pack_network(name, folder):
    from bmx_melius.bench.networks import pack
    from model_zoo import get_model

    return pack(get_model(name, norm_kwargs={'momentum': 0.0}), f'{folder}/network', SHAPE)


def time_rows(rows, busy, rounds, runs):
    """Return the times in seconds of all runs of each row, a dict of lists, while `busy` programs keep cores busy.

    The processes of a row, `rows` is a dict of lists, run at the same time.
    """
    seconds = {row: [] for row in rows}
    with busy_cores(busy):
        for number in range(rounds + 1):
            for row, workers in rows.items():
                for worker in workers:
                    print(runs, file=worker.stdin, flush=True)
                answers = [json.loads(worker.stdout.readline()) for worker in workers]
                if number:  # the first round is warm-up
                    seconds[row] += [run for answer in answers for run in answer]
    return seconds


def show(seconds, busy):
    print(f'\n{busy} busy programs' if busy else '\nno busy program')
    statistic = {
        'median': statistics.median,
        '90 %': lambda times: statistics.quantiles(times, n=10)[-1],
        'mean': statistics.mean,
    }
    print(f'{"milliseconds, ratios to the first row":<40}' + ''.join(f'{name:>10}{"":>8}' for name in statistic))
    base = [of(next(iter(seconds.values()))) for of in statistic.values()]
    for row, times in seconds.items():
        values = [of(times) for of in statistic.values()]
        print(f'{row:<40}' + ''.join(f'{value * 1e3:10.2f}{value / one:8.2f}' for value, one in zip(values, base)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--network', default='meliusnet22', help='name in the zoo (default: %(default)s)')
    parser.add_argument('--beside', metavar='FOLDER', help='another compiled checkout to compare with')
    parser.add_argument('--busy', type=int, nargs='+', metavar='N', help='numbers of busy programs (default: 0, then one per core)')
    parser.add_argument(
        '--processes', type=int, default=1, metavar='N', help='processes of a row, run at the same time (default: %(default)s)'
    )
    parser.add_argument('--rounds', type=int, default=20, help='rounds, in each of which all rows run (default: %(default)s)')
    parser.add_argument('--runs', type=int, default=20, help='runs of a row in a round (default: %(default)s)')
    arguments = parser.parse_args()

    checkouts = {'': ROOT, **({'the other: ': pathlib.Path(arguments.beside).resolve()} if arguments.beside else {})}
    with tempfile.TemporaryDirectory() as folder:
        prefix = pack_network(arguments.network, folder)
        rows = {
            label + title: [start_worker(path, prefix, *row) for _ in range(arguments.processes)]
            for label, path in checkouts.items()
            for title, row in ROWS.items()
        }
        with ending([worker for workers in rows.values() for worker in workers]):
            for busy in arguments.busy or (0, len(os.sched_getaffinity(0))):
                show(time_rows(rows, busy, arguments.rounds, arguments.runs), busy)


if __name__ == '__main__':
    main()
