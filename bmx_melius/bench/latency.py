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
from ..deployment.runtime.engine import MAC_KINDS
from ..deployment.runtime.session import Session
from ..files.exported import Exported
from ..process import processor, usable_cores
from . import figures, first_result
from .comparison import make_input
from .rounds import process_environment, spread

_PEAK_SECONDS = 0.3  # for each rate
_PROCESSES = 3  # for the time to the first result


@dataclasses.dataclass(frozen=True)
class StepTime:
    """One step of the engine: its operations, its median time in seconds, and the number of multiply-accumulates and their kind.

    Kinds as in `engine.MAC_KINDS`.
    """

    name: str
    seconds: float
    macs: int
    kind: str

    def to_json(self):
        """Return a dict, in which ``binary`` says whether the kind is binary."""
        return {**dataclasses.asdict(self), 'binary': self.kind == 'binary'}


def measure_machine():
    """Return a dict with processor, cores, instruction sets, and the peak multiply-accumulates per second of one thread.

    The peak of each kind is reached by its fastest method in registers, 0 if there is none; ``peaks`` lists all methods.

    Raises
    ------
    UserError
        If the engine is not compiled.
    """
    engine.require_engine()
    isa, available = engine.instruction_sets()
    peaks = [
        {'method': method, 'kind': MAC_KINDS[kind], 'binary': MAC_KINDS[kind] == 'binary', 'in_registers': registers, 'in_cache': cache}
        for method, kind, registers, cache in engine.measure_peaks(_PEAK_SECONDS)
    ]
    best = {kind: max((peak['in_registers'] for peak in peaks if peak['kind'] == kind), default=0) for kind in MAC_KINDS}
    return {
        'processor': processor(),
        'usable_cores': usable_cores(),
        'instruction_set': isa,
        'instruction_sets': available,
        'peaks': peaks,
        **{f'peak_{kind}_macs_per_second': rate for kind, rate in best.items()},
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
        ``latency``, ``file_bytes``, ``working_memory_bytes``, ``steps``, and ``figures``: those computed from the steps, and
        the values of `measure_first_result`.
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
        'file_bytes': Exported(prefix).file_bytes(),
        'working_memory_bytes': session.working_memory(array),
        'steps': [step.to_json() for step in steps],
        'figures': {
            **figures.from_steps(steps, median, {kind: threads * machine[f'peak_{kind}_macs_per_second'] for kind in MAC_KINDS}),
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
        Medians: ``import_ms``, of ``from bmx_melius import Session`` after the import of NumPy; ``first_result_ms``, of opening the files
        and the first run; and ``resident_bytes``, the memory that these two add to the process: weights, working memory and
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
        StepTime(f'{number:02} {name}', statistics.median(run[number][1] for run in runs), macs, MAC_KINDS[kind])
        for number, (name, _, macs, kind) in enumerate(runs[0])
    ]
