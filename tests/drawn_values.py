"""Values of parameters that depend on their names only, so that stored data need not contain them. Imports NumPy only."""

import zlib

import numpy as np


def drawn(name, shape):
    """Return float64 numbers of float32 precision: normal, for vectors with mean and deviation 1/2, otherwise 0 and 0.8.

    Some weights exceed 1 in magnitude, beyond which straight-through estimators are cut.
    """
    values = np.random.RandomState(zlib.crc32(name.encode())).randn(*shape)
    scaled = values / 2 + 0.5 if np.prod(shape) == max(shape, default=1) and len(shape) != 2 else values * 0.8
    return scaled.astype(np.float32).astype(np.float64)
