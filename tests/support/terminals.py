"""Programs that run in a terminal."""

import os
import pty
import subprocess
import sys
import threading

from support.paths import ROOT

START = 'import sys; from bmx_melius.reporting import ProgressLine; ProgressLine.DELAY = 0; ProgressLine._PAUSE = 0.01; '


def in_terminal(program, *arguments, streams=('stderr',), cwd=None, env=None):
    """Run a program of Python, in which progress appears at once, with streams that are a terminal, its controlling one.

    Returns
    -------
    shown : str
        What it has written to the terminal.
    done : subprocess.CompletedProcess
        With the other streams.
    """
    master, slave = pty.openpty()
    chunks = []

    def read():
        try:
            while True:
                chunk = os.read(master, 1 << 16)
                if not chunk:
                    return
                chunks.append(chunk)
        except OSError:  # the end: no process has the terminal open
            return

    reader = threading.Thread(target=read)
    reader.start()
    pipes = {name: slave if name in streams else subprocess.PIPE for name in ('stdout', 'stderr')}
    # a session of its own, whose first terminal is the controlling one
    control = f'import os; os.close(os.open({os.ttyname(slave)!r}, os.O_RDWR)); '
    try:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', control + START + program, *arguments],
            **pipes,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, 'PYTHONPATH': str(ROOT), 'TERM': 'xterm', 'COLUMNS': '120', **(env or {})},
        )
    finally:
        os.close(slave)
        reader.join(30)
        os.close(master)
    return b''.join(chunks).decode(), done
