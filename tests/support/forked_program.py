"""Processes that run train_imagenet.py, forked from one that has imported its libraries, which takes a new interpreter two seconds.

A forked process has its own threads of MXNet, random states and signal handlers, and executes the script from its first line, so a run
gives the same result as `python train_imagenet.py` with one thread for each operator.
"""

import multiprocessing
import os
import runpy
import sys
import unittest.mock

from support.paths import ROOT

SCRIPT = str(ROOT / 'train_imagenet.py')
CONTEXT = multiprocessing.get_context('forkserver')
CONTEXT.set_forkserver_preload(['train_imagenet', 'matplotlib.figure', 'matplotlib.backends.backend_agg', 'sklearn.datasets'])


class ForkedProgram:
    """A running train_imagenet.py with the attributes of `subprocess.Popen` that tests use; `stdout` has its errors too.

    Parameters
    ----------
    arguments : str or os.PathLike or int
    environment : dict, optional
        Environment variables; by default as in this process.
    """

    def __init__(self, *arguments, environment=None):
        receiving, sending = CONTEXT.Pipe(duplex=False)
        with receiving, sending:
            self._process = CONTEXT.Process(target=_run, args=(list(map(str, arguments)), dict(environment or os.environ), sending))
            paths = [os.path.dirname(SCRIPT), *filter(None, [os.environ.get('PYTHONPATH')])]
            # For the libraries of the process that is forked: it imports them, and they read the number of threads, when it starts.
            with unittest.mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS='1'):
                self._process.start()
            self.stdout = os.fdopen(os.dup(receiving.fileno()))
        self.pid = self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self.stdout.close()

    @property
    def returncode(self):
        """The exit status, or minus the number of the signal that ended the process; None while it runs."""
        return self._process.exitcode

    def poll(self):
        """Return `returncode`."""
        return self.returncode

    def wait(self):
        """Wait for the end of the process, which must have closed its output or write less than a pipe holds; return `returncode`."""
        self._process.join()
        return self.returncode

    def send_signal(self, number):
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self):
        """End the process at once."""
        self._process.kill()


def _run(arguments, environment, output):
    """Become `python train_imagenet.py` with these arguments; its output goes to a connection."""
    os.environ.clear()
    os.environ.update(environment)
    for number in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(output.fileno(), number)
    output.close()
    sys.argv = [SCRIPT, *arguments]
    runpy.run_path(SCRIPT, run_name='__main__')
