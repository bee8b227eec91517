"""Timing of a packed network in this process: the peaks of the machine, the whole network, and each of its steps."""

import dataclasses
import statistics
import time

from ..deployment.runtime import engine
from ..deployment.runtime.session import Session
from ..errors import UserError
from ..process import processor, usable_cores
from . import figures
from .comparison import make_input
from .rounds import spread

_PEAK_SECONDS = 0.3


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the engine: its operations, its median time in seconds, and the number of multiply-accumulates and their kind."""

    name: str
    seconds: float
    macs: int
    binary: bool


def measure_machine():
    """Return a dict with processor, cores, instruction sets, and the peak multiply-accumulates per second of one thread.

    Raises
    ------
    UserError
        If the engine is not compiled.
    """
    if engine.missing():
        raise UserError(engine.missing())
    library = engine.load()
    isa, available = engine.instruction_sets()
    return {
        'processor': processor(),
        'usable_cores': usable_cores(),
        'instruction_set': isa,
        'instruction_sets': available,
        'peak_binary_macs_per_second': library.bmx_peak_binary(_PEAK_SECONDS),
        'peak_float_macs_per_second': library.bmx_peak_float(_PEAK_SECONDS),
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
        ``latency``, ``working_memory_bytes``, ``steps``, and the ``figures`` computed from the steps.
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
        'figures': figures.from_steps(
            steps, threads * machine['peak_binary_macs_per_second'], threads * machine['peak_float_macs_per_second']
        ),
    }


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
