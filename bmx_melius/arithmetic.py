"""Division rounded up, a choice of numbers, fused multiply-adds, and seeds derived from the position in a training run."""

import numpy as np


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up, for integers of any size or arrays of integers; `b` must be positive."""
    return -(-a // b)


def evenly_spaced(count, limit):
    """Return at most `limit` of the numbers 0 to count - 1, at equal distances, an int array."""
    return np.linspace(0, count - 1, min(count, limit)).round().astype(int)


def multiply_add(a, b, c):
    """Return a b + c of float32 arrays, computed exactly and then rounded, like the fused multiply-add of a processor.

    The product is exact in float64. The sum is rounded to odd there, that is, an inexact sum to the neighbour whose last bit is 1, so that
    the second rounding, to float32, acts as if it were the only one (Boldo and Melquiond, Emulation of FMA and correctly rounded sums,
    2008).
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    midpoints = np.flatnonzero(total.view(np.int64) & ((1 << 28) - 1) == 0)  # of float32 numbers, and some others: only these may change
    product, c, of_midpoints = product.reshape(-1)[midpoints], np.broadcast_to(c, total.shape).flat[midpoints], total.reshape(-1)[midpoints]
    with np.errstate(invalid='ignore'):  # infinity - infinity
        rest = of_midpoints - product
        error = (product - (of_midpoints - rest)) + (c - rest)  # of the sum, exact (TwoSum); NaN if the sum is not finite
    away = np.where((error > 0) == (of_midpoints > 0), 1, -1)
    of_midpoints.view(np.int64)[:] += np.where((error > 0) | (error < 0), away, 0)
    total.reshape(-1)[midpoints] = of_midpoints
    return total.astype(np.float32)


def seed_for(seed, *place):
    """Return a 31-bit seed for one position in a run, for example (epoch, batch). Different positions give independent seeds.

    A resumed run draws the same numbers as an uninterrupted one, because no generator keeps its state between positions.

    Trailing zeros do not matter: (epoch,) and (epoch, 0) give the same seed, so use them for different kinds of generators only.
    """
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0] >> 1)
