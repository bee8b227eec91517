"""Timing of a packed network in this process: the peaks of the machine, the whole network, and each of its steps."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from ..deployment.runtime import engine
from ..deployment.runtime.session import Session
from ..process import processor, usable_cores
from . import figures, first_result
from .comparison import make_input
from .rounds import process_environment, spread

_PEAK_SECONDS = 0.3  # for each rate
_PROCESSES = 3  # for the time to the first result


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the engine: its operations, its median time in seconds, and the number of multiply-accumulates and their kind."""

    name: str
    seconds: float
    macs: int
    binary: bool


def measure_machine():
    """Return a dict with processor, cores, instruction sets, and the peak multiply-accumulates per second of one thread.

    The peaks are those of the fastest binary and the fastest float method in registers; ``peaks`` lists all methods.

    Raises
    ------
    UserError
        If the engine is not compiled.
    """
    engine.require_engine()
    isa, available = engine.instruction_sets()
    peaks = engine.measure_peaks(_PEAK_SECONDS)
    return {
        'processor': processor(),
        'usable_cores': usable_cores(),
        'instruction_set': isa,
        'instruction_sets': available,
        'peaks': [dict(zip(('method', 'binary', 'in_registers', 'in_cache'), peak)) for peak in peaks],
        'peak_binary_macs_per_second': max(rate for _, binary, rate, _ in peaks if binary),
        'peak_float_macs_per_second': max(rate for _, binary, rate, _ in peaks if not binary),
    }


def measure(prefix, input_shape, threads, repetitions, machine):
    """Time a packed network.

    Parameters
    ----------
    prefix : str
    input_shape : tuple of int
    threads, repetitions : int
    machine : dict
        The result of `measure_machine`.

    Returns
    -------
    dict
        ``latency``, ``working_memory_bytes``, ``steps``, and ``figures``: those computed from the steps, and those of
        `measure_first_result`.
    """
    session = Session(prefix, threads=threads)
    array = make_input(input_shape)
    session(array)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        session(array)
        seconds.append(time.perf_counter() - start)
    steps = measure_steps(session, array, repetitions)
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
        'figures': {
            **figures.from_steps(steps, median, *(threads * machine[f'peak_{kind}_macs_per_second'] for kind in ('binary', 'float'))),
            **measure_first_result(prefix, array, threads),
        },
    }


def measure_first_result(prefix, array, threads):
    """Open a packed network in new processes without MXNet, and run it once in each.

    Parameters
    ----------
    prefix : str
    array : numpy.ndarray, float32
    threads : int

    Returns
    -------
    dict
        Medians: ``import_ms``, of ``from bmx_melius import Session`` after that of NumPy; ``first_result_ms``, of opening the files and the
        first run; and ``resident_bytes``, the memory that these two add to the process: weights, working memory and
        output, but not the input.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, 'input.npy')
        np.save(file, array)
        command = [sys.executable, first_result.__file__, prefix, file, str(threads)]
        printed = [subprocess.run(command, env=process_environment(), check=True, stdout=subprocess.PIPE).stdout for _ in range(_PROCESSES)]
    runs = [json.loads(text) for text in printed]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def measure_steps(session, array, repetitions):
    """Return the steps of a packed network, with the median times of `repetitions` runs.

    Parameters
    ----------
    session : bmx_melius.Session
    array : numpy.ndarray, float32
    repetitions : int
    """
    runs = [session.profile(array) for _ in range(repetitions + 1)][1:]  # the first run warms up the caches
    return [
        Step(f'{number:02} {name}', statistics.median(run[number][1] for run in runs), macs, binary)
        for number, (name, _, macs, binary) in enumerate(runs[0])
    ]
