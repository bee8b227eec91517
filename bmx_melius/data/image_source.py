"""Source of batches from datasets of single images, loaded by Gluon's `DataLoader`."""

import dataclasses
import itertools
from typing import List

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..arithmetic import seed_for
from ..errors import DataError, last_line
from .bootstrap import open_bootstrap
from .source import Source


@dataclasses.dataclass(frozen=True)
class TrainingImages:
    """Training and validation images as datasets of single images.

    Attributes
    ----------
    train, validation : gluon.data.Dataset
        Datasets of pairs (image, label): NDArray or NumPy array (height, width, channels) uint8, and int.
    class_names : list of str
    origin : str
        Description of where the images come from, for messages.
    """

    train: gluon.data.Dataset
    validation: gluon.data.Dataset
    class_names: List[str]
    origin: str


class ImageSource(Source):
    """Training and validation batches from two datasets of single images.

    The augmentation of each image has a separate seed, so batches do not depend on the number of threads.

    Parameters
    ----------
    images : TrainingImages
    spec, batching
        See `Source`.
    augmentation : Augmentation
    bootstrap : bool or str
        See `open_bootstrap`.
    threads : int
        Number of threads that read and augment images; 0 uses the main thread. Threads replace the worker processes of `DataLoader` because
        decoding and resizing release the global interpreter lock, and because a signal to the process group could kill some worker
        processes, for which the program would then wait forever.
    """

    def __init__(self, images, spec, augmentation, batching, threads, bootstrap=False):
        classes = len(images.class_names)
        super().__init__(images.origin, spec, classes, images.class_names, len(images.train), len(images.validation), batching)
        self._images, self._threads = images, threads
        drawn = open_bootstrap(bootstrap, len(images.train), batching.seed)
        augmented, self._order = _Augmented(images.train, augmentation, spec), _ShuffledBatches(len(images.train), batching, drawn)
        self._train = gluon.data.DataLoader(
            augmented, batch_sampler=self._order, num_workers=threads, thread_pool=True, batchify_fn=_batch_of(spec)
        )
        self._validation = _in_order(images.validation, spec, batching.size, threads, self.validation_share)

    def training_labels(self):
        images = self._images.train
        labels = getattr(images, 'labels', None)  # of datasets that know them without decoding
        return np.array([images[index][1] for index in range(len(images))] if labels is None else labels, np.int64)

    def train(self, epoch, first=0):
        self._order.begin(epoch, first)
        yield from self._train

    def train_in_order(self):
        """Yield all training images in order, once each, preprocessed as in `validation`."""
        yield from validation_batches(self._images.train, self.spec, self.batching.size, self._threads)

    def validation(self):
        yield from itertools.islice(self._validation, self.batching.limit)


def validation_batches(images, spec, batch_size, threads):
    """Yield the batches of a dataset in order, preprocessed as by `ImageSource.validation`."""
    yield from _in_order(images, spec, batch_size, threads, range(len(images)))


def _in_order(images, spec, batch_size, threads, numbers):
    """Return a loader of the images with the indices `numbers`, cropped as in validation."""
    return gluon.data.DataLoader(
        _Cropped(images, spec), batch_size=batch_size, sampler=numbers, num_workers=threads, thread_pool=True, batchify_fn=_batch_of(spec)
    )


def _batch_of(spec):
    """Return the function that makes a batch of pairs (pixels, label); the threads of the loader call it."""

    def batch(samples):
        images, labels = zip(*samples)
        inputs = np.empty((len(images), *spec.shape), np.float32)
        for row, image in zip(inputs, images):  # one by one, because the first caches hold an image, not a batch
            spec.normalize_into(row, image.transpose(2, 0, 1))
        return mx.nd.array(inputs), mx.nd.array(labels)

    return batch


class _ShuffledBatches(gluon.data.Sampler):
    """Sampler of the batches of one epoch; items are pairs (seed of the image's augmentation in this epoch, index).

    With a `Bootstrap`, copies of an image have different augmentations.
    """

    def __init__(self, images, batching, bootstrap=None):
        self._images, self._batching, self._bootstrap = images, batching, bootstrap
        self.begin(0, 0)

    def begin(self, epoch, first):
        """Set the epoch and the first batch of the next iteration."""
        self._epoch, self._first = epoch, first

    def __len__(self):
        return self._batching.updates(self._images)

    def __iter__(self):
        batching = self._batching
        order = np.random.RandomState(seed_for(batching.seed, self._epoch)).permutation(self._images)
        indices = self._bootstrap.indices(self._epoch) if self._bootstrap else np.arange(self._images)
        for number in range(self._first, len(self)):
            begin = (number * batching.parts + batching.part) * batching.size  # the batches of all parts equal one batch of one machine
            batch = order[begin : begin + batching.size]
            yield [(seed_for(batching.seed, self._epoch, place), int(indices[place])) for place in batch]


class _Augmented(gluon.data.Dataset):
    """Dataset of augmented images, indexed by the pairs (seed, index) of `_ShuffledBatches`."""

    def __init__(self, images, augmentation, spec):
        self._images, self._augmentation, self._spec = images, augmentation, spec

    def __len__(self):
        return len(self._images)

    def __getitem__(self, key):
        seed, index = key
        image, label = _read(self._images, index)
        return self._augmentation(image, self._spec, np.random.default_rng(seed)), label


class _Cropped(gluon.data.Dataset):
    """Dataset of images resized and cropped as in validation."""

    def __init__(self, images, spec):
        self._images, self._spec = images, spec

    def __len__(self):
        return len(self._images)

    def __getitem__(self, index):
        image, label = _read(self._images, index)
        return self._spec.crop_pixels(image), label


def _read(images, index):
    """Return the image at `index` as NumPy array, and its label. Raises `DataError` when it cannot be read."""
    try:
        image, label = images[index]
        return image.asnumpy() if isinstance(image, mx.nd.NDArray) else image, label
    except (OSError, ValueError, mx.MXNetError) as error:
        raise DataError(last_line(error)) from error
