"""Estimates of the code and the stack of an exported network: what GCC 12.2 makes of the kernels for a Cortex-M3 with -Os."""

from .kernel_sources import function_bytes

_CALL_BYTES = 30  # of a call with its arguments
_NORMALIZE_BYTES = 60

# Of GCC's library for processors without floating-point unit: comparisons, the rest of single and of double precision.
_COMPARISON_BYTES, _SINGLE_BYTES, _DOUBLE_BYTES = 130, 1300, 1900
_WITH_SINGLE = ('bmx_multiply_add', 'bmx_mean', 'bmx_avg_pool', 'bmx_prelu', 'bmx_multiply', 'bmx_shift', 'bmx_integer_f32')
_WITH_DOUBLE = ('bmx_long_mean', 'bmx_channel_mean', 'bmx_normalize', 'bmx_sum_of')

_LONG_DIVISION_BYTES = 700  # of integers of 64 bits

STACK_BYTES = 512  # limit for a run: `make test-mcu` measures 408 at most, with -Os and -O2


def code_bytes(functions, calls, normalizes):
    """Return the estimated bytes of code.

    Parameters
    ----------
    functions : dict of str to str
        Each function that a network uses, and the template it is made of.
    calls : int
        Number of calls in the function that runs the network.
    normalizes : bool
        Whether there is a function that normalizes images.
    """
    total = sum(map(function_bytes, functions.values())) + _CALL_BYTES * calls
    total += _NORMALIZE_BYTES if normalizes else 0
    adds = any(name.startswith('bmx_add_') and 'f32' in name for name in functions)
    if normalizes or adds or any(name.startswith(_WITH_SINGLE + _WITH_DOUBLE) for name in functions):
        total += _SINGLE_BYTES
    elif any('f32' in name for name in functions):
        total += _COMPARISON_BYTES
    total += _LONG_DIVISION_BYTES if any(name.endswith('_i64') for name in functions) else 0
    return total + (_DOUBLE_BYTES if any(name.startswith(_WITH_DOUBLE) for name in functions) else 0)
