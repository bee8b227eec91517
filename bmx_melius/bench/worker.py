"""A process that runs one row of a comparison: ``python worker.py`` with one JSON object a line on standard input and output.

It is run as a file and imports nothing of this package, so that each library is alone in its process. The first line it reads names the
peer's file and its arguments; each further one asks for a number of timed runs. It answers each line with one.
"""

import importlib.util
import json
import os
import sys
import time
import traceback


def main():
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    try:
        request = json.loads(sys.stdin.readline())
        run, facts = load(request)
        answer(answers, {'facts': facts})
        for line in sys.stdin:
            answer(answers, {'seconds': time_runs(run, **json.loads(line))})
    except Exception as error:  # whatever a library raises: the parent names it beside the row
        traceback.print_exc()
        answer(answers, {'error': last_line(error)})


def load(request):
    """The peer's `prepare(arguments, input)`: a function without arguments to be timed, and facts about it."""
    import numpy as np

    specification = importlib.util.spec_from_file_location('peer', request['file'])
    peer = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(peer)
    return peer.prepare(request['arguments'], np.load(request['input']), request['threads'])


def time_runs(run, repetitions, warm_up):
    """Seconds of each of `repetitions` runs, after `warm_up` that do not count."""
    for _ in range(warm_up):
        run()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def last_line(error):
    """The last line of the message: libraries put tracebacks of their own before it."""
    return f'{type(error).__name__}: {(str(error).strip() or "no message").splitlines()[-1]}'


def answer(stream, content):
    """Write one line."""
    print(json.dumps(content), file=stream, flush=True)


if __name__ == '__main__':
    sys.path.pop(0)  # the folder of this file: its names are not modules
    main()
