"""Random images made once, in memory: to time the training loop without reading data."""

import mxnet as mx
import numpy as np

from ..seeding import seed_for
from .source import Source

CLASSES = 1000
UPDATES = 100  # of an epoch


class DummySource(Source):
    """The same batch of normally distributed numbers in every update, and for validation.

    Parameters
    ----------
    spec, batch_size, part, parts
        As of `Source`.
    seed : int
    """

    def __init__(self, spec, batch_size, part, parts, seed):
        images = batch_size * parts
        super().__init__('random numbers', spec, CLASSES, None, UPDATES * images, images, batch_size, part, parts)
        random = np.random.RandomState(seed_for(seed, part))
        self._images = mx.nd.array(random.standard_normal((batch_size, *spec.shape)), dtype='float32')
        self._labels = mx.nd.array(random.randint(0, CLASSES, batch_size), dtype='float32')

    def decode_training_images(self):
        pass  # they are arrays

    def train(self, epoch, first=0):
        for _ in range(first, self.updates_per_epoch):
            yield self._images, self._labels

    def validation(self):
        yield self._images, self._labels
