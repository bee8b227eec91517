"""Source of batches from datasets of single images, loaded by Gluon's `DataLoader`."""

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..arithmetic import seed_for
from ..errors import DataError, last_line
from .source import Source


class ImageSource(Source):
    """Training and validation batches from two datasets of single images.

    The augmentation of each image has a separate seed, so batches do not depend on the number of threads.

    Parameters
    ----------
    train, validation : gluon.data.Dataset
        Datasets of pairs (image, label): NDArray (height, width, channels) uint8, and int.
    class_names : list of str
    origin, spec, batch_size, part, parts
        See `Source`.
    augmentation : Augmentation
    threads : int
        Number of threads that read and augment images; 0 uses the main thread. Threads replace the worker processes of `DataLoader` because
        decoding and resizing release the global interpreter lock, and because a signal to the process group could kill some worker
        processes, for which the program would then wait forever.
    seed : int
        Seed of shuffling and augmentation.
    """

    def __init__(self, train, validation, class_names, origin, spec, augmentation, batch_size, part, parts, threads, seed):
        super().__init__(origin, spec, len(class_names), class_names, len(train), len(validation), batch_size, part, parts)
        self._order = _ShuffledBatches(len(train), batch_size, part, parts, seed)
        self._train = gluon.data.DataLoader(
            _Augmented(train, augmentation, spec), batch_sampler=self._order, num_workers=threads, thread_pool=True, batchify_fn=_stack
        )
        self._validation = _in_order(validation, spec, batch_size, threads, self.validation_share)

    def decode_training_images(self):
        pass  # the images are arrays already

    def train(self, epoch, first=0):
        self._order.begin(epoch, first)
        yield from _normalized(self._train, self.spec)

    def validation(self):
        yield from _normalized(self._validation, self.spec)


def validation_batches(images, spec, batch_size, threads):
    """Yield the batches of a dataset in order, preprocessed like those of `ImageSource.validation`."""
    yield from _normalized(_in_order(images, spec, batch_size, threads, range(len(images))), spec)


def _in_order(images, spec, batch_size, threads, numbers):
    """Return a loader of the images with the indices `numbers`, cropped as in validation."""
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
    """Sampler of the batches of one epoch; items are pairs (seed, index), where seed is that of the image's augmentation in this epoch."""

    def __init__(self, images, batch_size, part, parts, seed):
        self._images, self._batch_size, self._part, self._parts, self._seed = images, batch_size, part, parts, seed
        self.begin(0, 0)

    def begin(self, epoch, first):
        """Set the epoch and the first batch of the next iteration."""
        self._epoch, self._first = epoch, first

    def __len__(self):
        return self._images // (self._batch_size * self._parts)

    def __iter__(self):
        order = np.random.RandomState(seed_for(self._seed, self._epoch)).permutation(self._images)
        for number in range(self._first, len(self)):
            begin = (number * self._parts + self._part) * self._batch_size  # the batches of all parts together equal a batch on one machine
            batch = order[begin : begin + self._batch_size]
            yield [(seed_for(self._seed, self._epoch, index), int(index)) for index in batch]


class _Augmented(gluon.data.Dataset):
    """Dataset of augmented images, indexed by the pairs (seed, index) of `_ShuffledBatches`."""

    def __init__(self, images, augmentation, spec):
        self._images, self._augmentation, self._spec = images, augmentation, spec

    def __len__(self):
        return len(self._images)

    def __getitem__(self, key):
        seed, index = key
        image, label = _read(self._images, index)
        return self._augmentation(image.asnumpy(), self._spec, np.random.default_rng(seed)), label


class _Cropped(gluon.data.Dataset):
    """Dataset of images resized and cropped as in validation."""

    def __init__(self, images, spec):
        self._images, self._spec = images, spec

    def __len__(self):
        return len(self._images)

    def __getitem__(self, index):
        image, label = _read(self._images, index)
        return self._spec.crop(image).asnumpy(), label


def _read(images, index):
    """Return the image and label at `index`. Raises `DataError` when the image cannot be read."""
    try:
        return images[index]
    except (OSError, ValueError, mx.MXNetError) as error:
        raise DataError(last_line(error)) from error
