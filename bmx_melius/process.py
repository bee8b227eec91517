"""Facts about this process: its processor, cores, Python and number of threads."""

import importlib.util
import os
import platform
import sys

_FIRST_WITHOUT_MXNET = (3, 12)  # setup.py says why


def processor():
    """Return the name of the processor. Reads /proc/cpuinfo, because `platform.processor` seldom knows it."""
    if os.path.exists('/proc/cpuinfo'):
        with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
            for line in file:
                if line.startswith('model name'):
                    return line.partition(':')[2].strip()
    return platform.processor() or 'unknown'


def usable_cores():
    """Return the number of cores that this process may run on, which a container or taskset may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


def how_to_install_mxnet():
    """Return what to do where MXNet is not installed: the command, or the Python versions that it supports if this is another one."""
    if sys.version_info < _FIRST_WITHOUT_MXNET:
        return 'pip install mxnet==1.9.1'
    return f'it requires Python 3.8 to 3.11, and this is Python {platform.python_version()}'


def require_mxnet(module):
    """Raise `ModuleNotFoundError`, whose message names a module that is imported and what to do, where MXNet is not installed."""
    if importlib.util.find_spec('mxnet') is None:
        raise ModuleNotFoundError(f'{module} needs MXNet, which is not installed ({how_to_install_mxnet()})', name='mxnet')


def ignore_invalid_thread_count():
    """Remove ``OMP_NUM_THREADS`` from the environment if it is not a positive whole number, with a warning.

    OpenMP ignores such a value; the import of MXNet would end the process.
    """
    value = os.environ.get('OMP_NUM_THREADS', '1')
    if not value.strip().isdigit() or int(value) == 0:
        print(f'warning: OMP_NUM_THREADS={value} is ignored: it is not a positive whole number', file=sys.stderr)
        del os.environ['OMP_NUM_THREADS']
