"""Arithmetic on integers: division rounded up, a choice of numbers, and seeds derived from the position in a training run."""

import numpy as np


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up, for integers of any size or arrays of integers; `b` must be positive."""
    return -(-a // b)


def evenly_spaced(count, limit):
    """Return at most `limit` of the numbers 0 to count - 1, at equal distances, an int array."""
    return np.linspace(0, count - 1, min(count, limit)).round().astype(int)


def seed_for(seed, *place):
    """Return a 31-bit seed for one position in a run, for example (epoch, batch). Different positions give independent seeds.

    A resumed run draws the same numbers as an uninterrupted one, because no generator keeps its state between positions.

    Trailing zeros do not matter: (epoch,) and (epoch, 0) give the same seed, so use them for different kinds of generators only.
    """
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0] >> 1)
