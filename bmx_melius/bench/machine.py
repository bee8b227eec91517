"""The machine a benchmark runs on: its processor, the instruction set the engine has chosen, and the peaks of that."""

from ..deployment.runtime import engine
from ..errors import UserError
from ..machine import processor, usable_cores

_PEAK_SECONDS = 0.3


def describe():
    """A dict: processor, cores, instruction set, and peaks in multiply-accumulates a second of one thread.

    Raises
    ------
    UserError
        Without the compiled engine, which is what a benchmark measures.
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
