"""Sessions use a bounded amount of memory, however often they run and are opened."""

import json
import os
import subprocess
import sys

from support.engines import needs_engine
from support.paths import ROOT

SCRIPT = ROOT / 'benchmarks' / 'session_memory.py'


def measure(*arguments):
    command = [sys.executable, str(SCRIPT), '--json', *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS': '2'})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_engine
def test_memory_does_not_grow_with_runs_and_sessions(long_run):
    runs, openings, sessions = (100_000, 10_000, 100) if long_run else (2000, 400, 5)
    measured = measure('--runs', runs, '--openings', openings, '--sessions', sessions)
    assert (measured['runs']['calls'], measured['sessions']['calls'], measured['openings']['calls']) == (runs, runs, openings)
    for phase in ('runs', 'sessions', 'openings'):
        grown = measured[phase]['megabytes_at_the_end'] - measured[phase]['megabytes_after_warm_up']
        assert grown < 4, (phase, measured)
    assert measured['open']['bytes_per_call'] < 1 << 20, measured  # the prepared weights of each would be 36 MB
