"""Seeds of random generators, derived from the seed of a training run and the position in the run."""

import random

import mxnet as mx
import numpy as np


def seed_for(seed, *place):
    """Return a 31-bit seed for one position in a run, for example (epoch, batch). Different positions give independent seeds.

    A resumed run draws the same numbers as an uninterrupted one, because no generator keeps its state between positions.

    Trailing zeros do not matter: (epoch,) and (epoch, 0) give the same seed, so use them for different kinds of generators only.
    """
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0] >> 1)


def seed_all(value):
    """Seed the random generators of MXNet, NumPy and Python."""
    mx.random.seed(value)
    random.seed(value)
    np.random.seed(value)
