"""Values of inputs and parameters that depend on their names only, so that stored data need not contain them. Imports NumPy only."""

import zlib

import numpy as np

STEP = 2.0**-10


def generator(name):
    return np.random.RandomState(zlib.crc32(name.encode()))


def normal(name, shape):
    """Return float64 numbers of float32 precision with a normal distribution."""
    return generator(name).randn(*shape).astype(np.float32).astype(np.float64)


def drawn(name, shape):
    """Return values for a parameter: for vectors normal numbers with mean and deviation 1/2, otherwise magnitudes below 1.5 of both signs.

    The magnitudes of two successive weights add up to 1.5. Their mean over a filter is thus 3/4, with which sums of scaled signs are exact:
    rounding does not decide whether such a sum is zero. About a third of them exceeds 1, beyond which straight-through estimators are cut.
    """
    size = int(np.prod(shape))
    if size == max(shape, default=1) and len(shape) != 2:
        return normal(name, shape) / 2 + 0.5
    random = generator(name)
    first = (random.randint(round(1.5 / STEP), size=(size + 1) // 2) + 0.5) * STEP
    magnitudes = np.stack([first, 1.5 - first], axis=1).ravel()[:size]
    return (magnitudes * random.choice([-1, 1], size)).reshape(shape)
