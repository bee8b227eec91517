"""A packed network timed in this process: the whole of it, and its steps."""

import dataclasses
import statistics
import time

from ..deployment.runtime.session import Session
from . import figures
from .comparison import make_input
from .rounds import spread
from .steps import profile


def measure(prefix, input_shape, threads, repetitions, machine):
    """Time a packed network.

    Parameters
    ----------
    prefix : str
    input_shape : tuple of int
    threads, repetitions : int
    machine : dict
        As `machine.describe` gives it.

    Returns
    -------
    dict: ``latency``, ``working_memory_bytes``, ``steps`` and those ``figures`` that follow from steps.
    """
    session = Session(prefix, threads=threads)
    array = make_input(input_shape)
    session(array)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        session(array)
        seconds.append(time.perf_counter() - start)
    steps = profile(session, array, repetitions)
    median = statistics.median(seconds)
    return {
        'latency': {
            'seconds': median,
            'spread': spread(seconds),
            'images': input_shape[0],
            'images_per_second': input_shape[0] / median,
            'threads': threads,
        },
        'working_memory_bytes': session.working_memory(array),
        'steps': [dataclasses.asdict(step) for step in steps],
        'figures': figures.from_steps(
            steps, threads * machine['peak_binary_macs_per_second'], threads * machine['peak_float_macs_per_second']
        ),
    }
