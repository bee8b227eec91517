"""Facts about the machine: processor and usable cores."""

import os
import platform


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
