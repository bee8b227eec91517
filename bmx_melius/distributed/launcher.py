"""Launcher of distributed jobs: ``python -m bmx_melius.distributed.launcher -n 2 -s 1 --launcher local COMMAND``.

This runs ``mxnet/tools/launch.py`` and accepts its flags. It works around three defects of MXNet 1.9.1: the tool calls `Thread.isAlive`,
which Python 3.9 removed; it passes the command to a shell without quoting; and its exit status is always 0.
"""

import importlib.util
import pathlib
import runpy
import shlex
import sys
import threading


def main():
    """Run the launcher; return 0 when all processes succeeded."""
    failed = []
    threading.Thread.isAlive = threading.Thread.is_alive
    threading.excepthook = lambda arguments: failed.append(
        arguments.exc_value
    )  # one thread per process waits for it and raises if it failed
    sys.argv[1:] = map(shlex.quote, sys.argv[1:])
    try:
        runpy.run_path(str(pathlib.Path(importlib.util.find_spec('mxnet').origin).parent / 'tools' / 'launch.py'), run_name='__main__')
    except SystemExit as ended:  # a wrong flag, or Ctrl-C, which the processes also receive
        if ended.code:
            return ended.code
    except RuntimeError as error:  # raised for ssh, the default launcher, when no hosts are given
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
