"""Start a distributed job with MXNet's launcher: ``python -m bmx_melius.distributed.launcher -n 2 -s 1 --launcher local COMMAND``.

The flags are those of ``mxnet/tools/launch.py``, which this runs. The one in MXNet 1.9.1 needs help: it calls `Thread.isAlive`, which
Python 3.9 removed; it gives the command to a shell without quoting it; and its exit status is 0 whatever happens.
"""

import importlib.util
import pathlib
import runpy
import shlex
import sys
import threading


def main():
    """Run the launcher; return 0 when all processes ended well."""
    failed = []
    threading.Thread.isAlive = threading.Thread.is_alive
    threading.excepthook = lambda arguments: failed.append(arguments.exc_value)  # a thread waits for each process, and raises if it failed
    sys.argv[1:] = map(shlex.quote, sys.argv[1:])
    try:
        runpy.run_path(str(pathlib.Path(importlib.util.find_spec('mxnet').origin).parent / 'tools' / 'launch.py'), run_name='__main__')
    except SystemExit as ended:  # a wrong flag, or Ctrl-C, which the processes get, too
        if ended.code:
            return ended.code
    except RuntimeError as error:  # what MXNet's launcher says of ssh, its default, without the hosts
        print(f'launch: {error}: on one machine give --launcher local, on several -H FILE with the names of the hosts', file=sys.stderr)
        return 2
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()
    for error in failed:
        print('launch:', str(error).partition(' on [')[0], file=sys.stderr)  # without the command and the environment
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
