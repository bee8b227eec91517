"""The machine a program runs on."""

import os
import platform


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
