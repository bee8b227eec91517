"""Worker process that runs one row of a comparison.

``python worker.py`` reads requests from standard input and writes answers to standard output, one JSON object per line. It runs as a
file and imports nothing of this package, so that only the peer's library is loaded in its process. The first request names the file
and the arguments of the peer, each further request a number of timed runs. Each request gets one answer.
"""

import importlib.util
import json
import os
import sys
import time
import traceback


def main():
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    try:
        request = json.loads(sys.stdin.readline())
        run, facts = load(request)
        answer(answers, {'facts': facts})
        for line in sys.stdin:
            answer(answers, {'seconds': time_runs(run, **json.loads(line))})
    except Exception as error:  # of any type, from the library: the parent reports it in the row
        traceback.print_exc()
        answer(answers, {'error': last_line(error)})


def load(request):
    """Load the peer and return the result of its `prepare`: the function to time, and a dict of facts."""
    import numpy as np

    specification = importlib.util.spec_from_file_location('peer', request['file'])
    peer = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(peer)
    return peer.prepare(request['arguments'], np.load(request['input']), request['threads'])


def time_runs(run, repetitions, warm_up, clock=time.perf_counter):
    """Return the seconds by `clock` of each of `repetitions` runs, after `warm_up` untimed runs."""
    for _ in range(warm_up):
        run()
    seconds = []
    for _ in range(repetitions):
        start = clock()
        run()
        seconds.append(clock() - start)
    return seconds


def last_line(error):
    """Return type and last line of the message, without the traceback that some libraries put before it."""
    return f'{type(error).__name__}: {(str(error).strip() or "no message").splitlines()[-1]}'


def answer(stream, content):
    """Write one JSON object as a line."""
    print(json.dumps(content), file=stream, flush=True)


if __name__ == '__main__':
    sys.path.pop(0)  # the folder of this file, whose files must not shadow other modules
    main()
