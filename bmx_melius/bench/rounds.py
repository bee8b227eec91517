"""Timing of rows in interleaved rounds, so that other load on the machine affects all rows alike and ratios are meaningful."""

import contextlib
import json
import os
import statistics
import subprocess
import sys

from ..arithmetic import ceil_div
from ..process import usable_cores
from . import worker

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # for PYTHONPATH: this package may not be installed
_BUSY = 'import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(10000))'  # ends with its parent, also if that is killed
_WARM_UP = 2  # runs before the first round; before each later turn one run refills the caches


def process_environment():
    """Return the environment variables of a new Python process that can import this package and shows no warnings."""
    path = os.pathsep.join([_ROOT, *filter(None, [os.environ.get('PYTHONPATH')])])
    return {**os.environ, 'PYTHONPATH': path, 'PYTHONWARNINGS': 'ignore'}


class Worker:
    """A running process for one `Row`.

    Parameters
    ----------
    row : rows.Row
    input_file : str
        A ``.npy`` file of a float32 array.

    Attributes
    ----------
    error : str or None
        Why it failed; None as long as it works.
    seconds : list of float
        Times of all timed runs.
    facts : dict
        Facts that the peer reported.
    """

    def __init__(self, row, input_file):
        self.row, self.error, self.facts, self.seconds = row, None, {}, []
        environment = {
            **process_environment(),
            'OMP_NUM_THREADS': str(row.threads),
            **row.environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        request = {'file': row.peer.__file__, 'arguments': row.arguments, 'input': input_file, 'threads': row.threads}
        self.facts = self._ask(request).get('facts', {})

    def run(self, repetitions, warm_up):
        """Time `repetitions` runs, unless the worker has failed before."""
        if self.error is None:
            self.seconds += self._ask({'repetitions': repetitions, 'warm_up': warm_up}).get('seconds', [])

    def close(self):
        """Stop the process."""
        with contextlib.suppress(BrokenPipeError):  # the process has exited before it read the last request
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def _ask(self, request):
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ''
        answer = json.loads(line) if line else {'error': f'the process ended with status {self.process.wait()}'}
        self.error = answer.get('error')
        return answer


@contextlib.contextmanager
def busy_cores(programs=None):
    """Keep cores busy with this number of programs, by default one for each usable core."""
    with contextlib.ExitStack() as stack:
        for _ in range(usable_cores() if programs is None else programs):
            process = subprocess.Popen([sys.executable, '-c', _BUSY, str(os.getpid())])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def measure(rows, input_files, repetitions, rounds, progress):
    """Time `rows` in turns.

    Parameters
    ----------
    rows : list of rows.Row
    input_files : dict of shape to path
        ``.npy`` file with the input of the rows with that input shape.
    repetitions : int
        Number of timed runs of each row.
    rounds : int
        Number of turns into which these are divided.
    progress : callable (iterable, description) -> iterable
        Progress bar.

    Returns
    -------
    dict of row key to dict
        ``seconds`` (median), ``spread`` (interquartile range), ``least`` (minimum) and ``facts``; or ``error``.
    """
    workers = []
    try:
        for row in progress(rows, 'loading'):
            workers.append(Worker(row, input_files[row.input_shape]))
        for each in workers:
            each.run(0, _WARM_UP)
        share = ceil_div(repetitions, rounds)
        for _, each in progress([(number, each) for number in range(rounds) for each in workers], 'timing'):
            each.run(share, 1)
    finally:
        for each in workers:
            each.close()
    return {each.row.key: _result(each) for each in workers}


def _result(worker):
    if worker.error is not None:
        return {'error': worker.error}
    return {
        'seconds': statistics.median(worker.seconds),
        'spread': spread(worker.seconds),
        'least': min(worker.seconds),
        'facts': worker.facts,
    }


def spread(seconds):
    """Return the interquartile range; 0 for a single run."""
    if len(seconds) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(seconds, n=4, method='inclusive')
    return upper - lower
