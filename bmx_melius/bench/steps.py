"""Where the time of a packed network goes: its steps, each timed alone."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the engine: the operations it covers, its median time, its multiply-accumulates and whether these are binary."""

    name: str
    seconds: float
    macs: int
    binary: bool


def profile(session, array, repetitions):
    """The steps of a packed network, each time the median of `repetitions` runs.

    Parameters
    ----------
    session : bmx_melius.Session
    array : numpy.ndarray, float32
    repetitions : int
    """
    runs = [session.profile(array) for _ in range(repetitions + 1)][1:]  # the first one warms up
    return [
        Step(f'{number:02} {name}', statistics.median(run[number][1] for run in runs), macs, binary)
        for number, (name, _, macs, binary) in enumerate(runs[0])
    ]
