"""Comparisons of several networks on the same images: their times in turns, and the test of their hits. Needs NumPy only.

``trained_in_litert.py`` uses it in an environment that has neither MXNet nor SciPy.
"""

import math
import time

import numpy as np

TURNS, PER_TURN = 30, 20  # of the timing


def timed(sessions):
    """Return the smallest processor time of an image in milliseconds of each, and the time divided by that of the first.

    `sessions` are pairs of a function of a batch and the images that it is timed with, which all have as many.
    """
    times = {name: [] for name in sessions}
    for _ in range(TURNS):
        for name, (session, images) in sessions.items():
            session(images[:1])
            started = time.process_time()
            for image in images:
                session(image[None])
            times[name].append(time.process_time() - started)
    reference = np.array(next(iter(times.values())))
    return {name: (1e3 * min(each) / len(images), float(np.median(np.array(each) / reference))) for name, each in times.items()}


def changed_hits(before, after):
    """Return how many images only the first network classifies correctly, how many only the second one, and p of `mcnemar`."""
    lost, won = int((before & ~after).sum()), int((~before & after).sum())
    return lost, won, mcnemar(lost, won)


def mcnemar(lost, won):
    """Return p of the exact test: that one of both numbers is as small as this, if both are equally probable."""
    smaller = sum(math.comb(lost + won, each) for each in range(min(lost, won) + 1))
    return min(1.0, 2 * smaller / 2 ** (lost + won))
