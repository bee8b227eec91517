"""Environment of a run: versions of packages, git revision, and machine."""

import os
import platform
import socket
import subprocess

import mxnet as mx
import numpy as np

from ..._version import __version__
from ...deployment.runtime import engine
from ...gluon_cv import gluoncv
from ...process import processor, usable_cores


def environment_fields():
    """Return a description of the environment, a dict that `json` can write."""
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
        'processor': processor(),
        'usable_cores': usable_cores(),
        'threads': os.environ.get('OMP_NUM_THREADS'),
        'instruction_set': isa,
    }


def checkout(file):
    """Return the git state of the checkout that contains `file`: its `revision`, and whether tracked files are `changed`.

    None if git is not installed or does not track the file, for example for an installed package.
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
