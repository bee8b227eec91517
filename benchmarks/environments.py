"""Environments of libraries that benchmarks compare with."""

import pathlib
import subprocess
import sys
import tempfile


def python_with(peer, packages):
    """Return the Python of the environment of a library, among the temporary files, which is made of packages if it is not there."""
    folder = pathlib.Path(tempfile.gettempdir(), f'bmx-melius-{peer}')
    python = folder / 'bin' / 'python'
    if not (folder / 'complete').exists():
        subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', *packages], check=True, stdout=sys.stderr)
        (folder / 'complete').touch()
    return python
