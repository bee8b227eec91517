"""The machine a benchmark runs on: its processor, the instruction set the engine has chosen, and the peaks of that."""

import os
import platform

from ..deploy import native
from ..errors import UserError

_PEAK_SECONDS = 0.3


def describe():
    """A dict: processor, cores, instruction set, and peaks in multiply-accumulates a second of one thread.

    Raises
    ------
    UserError
        Without the compiled engine, which is what a benchmark measures.
    """
    if native.missing():
        raise UserError(native.missing())
    library = native.load()
    isa, available = native.instruction_sets()
    return {
        'processor': processor(),
        'usable_cores': usable_cores(),
        'instruction_set': isa,
        'instruction_sets': available,
        'peak_binary_macs_per_second': library.bmx_peak_binary(_PEAK_SECONDS),
        'peak_float_macs_per_second': library.bmx_peak_float(_PEAK_SECONDS),
    }


def processor():
    """The processor's name; Python itself knows it on few systems."""
    if os.path.exists('/proc/cpuinfo'):
        with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
            for line in file:
                if line.startswith('model name'):
                    return line.partition(':')[2].strip()
    return platform.processor() or 'unknown'


def usable_cores():
    """Cores that this process may run on: fewer than there are inside a container or under taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
