"""Batches from single images, through Gluon's `DataLoader`."""

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..errors import DataError, last_line
from ..seeding import seed_for
from .source import Source


class ImageSource(Source):
    """Training and validation images of two datasets.

    Every image's augmentation has a seed of its own, so batches do not depend on the number of threads.

    Parameters
    ----------
    train, validation : gluon.data.Dataset
        Of pairs (image, label): (height, width, channels) uint8, NDArray, and int.
    class_names : list of str
    origin, spec, batch_size, part, parts
        As of `Source`.
    augmentation : Augmentation
    threads : int
        That read and augment; 0 does it between the updates. Threads, not processes as is the `DataLoader`'s habit: decoding and resizing
        release Python's lock, and a signal to the whole group leaves no half-dead workers that the program would wait for.
    seed : int
    """

    def __init__(self, train, validation, class_names, origin, spec, augmentation, batch_size, part, parts, threads, seed):
        super().__init__(origin, spec, len(class_names), class_names, len(train), len(validation), batch_size, part, parts)
        self._order = _ShuffledBatches(len(train), batch_size, part, parts, seed)
        self._train = gluon.data.DataLoader(
            _Augmented(train, augmentation, spec), batch_sampler=self._order, num_workers=threads, thread_pool=True, batchify_fn=_stack
        )
        self._validation = _in_order(validation, spec, batch_size, threads, self.validation_share)

    def decode_training_images(self):
        pass  # they are arrays

    def train(self, epoch, first=0):
        self._order.begin(epoch, first)
        yield from _normalized(self._train, self.spec)

    def validation(self):
        yield from _normalized(self._validation, self.spec)


def validation_batches(images, spec, batch_size, threads):
    """What `ImageSource.validation` yields, for a dataset `images` of which nothing is to be learnt."""
    yield from _normalized(_in_order(images, spec, batch_size, threads, range(len(images))), spec)


def _in_order(images, spec, batch_size, threads, numbers):
    return gluon.data.DataLoader(
        _Cropped(images, spec), batch_size=batch_size, sampler=numbers, num_workers=threads, thread_pool=True, batchify_fn=_stack
    )


def _normalized(batches, spec):
    for images, labels in batches:
        yield spec.normalize(images), labels


def _stack(samples):
    images, labels = zip(*samples)
    return mx.nd.array(np.stack(images)), mx.nd.array(labels)


class _ShuffledBatches(gluon.data.Sampler):
    """Batches of keys (seed, index) of one epoch at a time: the seed is that of this image's augmentation in this epoch."""

    def __init__(self, images, batch_size, part, parts, seed):
        self._images, self._batch_size, self._part, self._parts, self._seed = images, batch_size, part, parts, seed
        self.begin(0, 0)

    def begin(self, epoch, first):
        """Let the next iteration yield the batches of `epoch` from number `first` on."""
        self._epoch, self._first = epoch, first

    def __len__(self):
        return self._images // (self._batch_size * self._parts)

    def __iter__(self):
        order = np.random.RandomState(seed_for(self._seed, self._epoch)).permutation(self._images)
        for number in range(self._first, len(self)):
            begin = (number * self._parts + self._part) * self._batch_size  # all parts' batches make one batch of a machine alone
            batch = order[begin : begin + self._batch_size]
            yield [(seed_for(self._seed, self._epoch, index), int(index)) for index in batch]


class _Augmented(gluon.data.Dataset):
    """Images by the keys of `_ShuffledBatches`, augmented."""

    def __init__(self, images, augmentation, spec):
        self._images, self._augmentation, self._spec = images, augmentation, spec

    def __len__(self):
        return len(self._images)

    def __getitem__(self, key):
        seed, index = key
        image, label = _read(self._images, index)
        return self._augmentation(image.asnumpy(), self._spec, np.random.default_rng(seed)), label


class _Cropped(gluon.data.Dataset):
    """Images as in validation."""

    def __init__(self, images, spec):
        self._images, self._spec = images, spec

    def __len__(self):
        return len(self._images)

    def __getitem__(self, index):
        image, label = _read(self._images, index)
        return self._spec.crop(image).asnumpy(), label


def _read(images, index):
    """The image and label at `index`; `DataError` where it cannot be read."""
    try:
        return images[index]
    except (OSError, ValueError, mx.MXNetError) as error:
        raise DataError(last_line(error)) from error
