"""What a run depends on beside its flags: versions of programs, the state of the sources, the machine."""

import os
import platform
import socket
import subprocess

import gluoncv
import mxnet as mx
import numpy as np

from ... import machine
from ..._version import __version__
from ...deployment.runtime import engine


def environment_fields():
    """A dict that `json` can write."""
    isa, _ = engine.instruction_sets()
    return {
        'versions': {
            'python': platform.python_version(),
            'bmx_melius': __version__,
            'mxnet': mx.__version__,
            'gluoncv': gluoncv.__version__,
            'numpy': np.__version__,
        },
        'git': checkout(__file__),
        'host': socket.gethostname(),
        'system': platform.platform(),
        'processor': machine.processor(),
        'usable_cores': machine.usable_cores(),
        'threads': os.environ.get('OMP_NUM_THREADS'),
        'instruction_set': isa,
    }


def checkout(file):
    """What git knows of the checkout that `file` belongs to: `revision`, and whether tracked files were `changed` since.

    None where git does not track the file (an installed package, perhaps inside another checkout) or is not installed.
    """
    try:
        _git(file, 'ls-files', '--error-unmatch', os.path.basename(file))
        return {
            'revision': _git(file, 'rev-parse', 'HEAD').strip(),
            'changed': bool(_git(file, 'status', '--porcelain', '--untracked-files=no')),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(file, *arguments):
    return subprocess.run(
        ['git', *arguments], cwd=os.path.dirname(file), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    ).stdout
