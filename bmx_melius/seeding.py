"""Every random number of a training run follows from the run's seed and the place where it is drawn."""

import random

import mxnet as mx
import numpy as np


def seed_for(seed, *place):
    """A seed for one place of a run, for example (epoch, batch): 31 bits, and other places give unrelated seeds.

    A place is the same with zeros behind it: (epoch,) and (epoch, 0). What is drawn at both must come from generators of different kinds.

    Because nothing is drawn from a generator that lives through the run, a resumed run draws what the uninterrupted one would.
    """
    return int(np.random.SeedSequence((seed, *place)).generate_state(1)[0] >> 1)


def seed_all(value):
    """Set the generators of MXNet, NumPy and Python."""
    mx.random.seed(value)
    random.seed(value)
    np.random.seed(value)
