"""Programs in Python that tests run in a new process."""

import os
import subprocess
import sys

from support.paths import ROOT


def run_python(program, *arguments, cwd=ROOT, path=ROOT, **environment):
    """Run Python code in a process that imports the project from `path`; it must succeed. Return the process, with its output as text.

    `environment` changes the variables of this process; None removes one.
    """
    variables = {**os.environ, 'PYTHONPATH': str(path), **environment}
    variables = {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, '-W', 'ignore', '-c', program, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=variables, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
