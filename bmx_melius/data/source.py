"""Interface of the sources of training and validation batches, and a source of random numbers."""

import abc
import dataclasses
import functools
from typing import Any, Optional

import mxnet as mx
import numpy as np

from ..arithmetic import ceil_div, seed_for
from ..errors import UserError
from ..vision.classifier import require_printable

DUMMY_CLASSES = 1000
DUMMY_UPDATES = 100  # per epoch


@dataclasses.dataclass(frozen=True)
class Splits:
    """Datasets of the splits of a collection of images: pairs of NDArray (height, width, channels) uint8, and int.

    Attributes
    ----------
    train, validation : gluon.data.Dataset
    test : gluon.data.Dataset or None
        Images on which a network is evaluated after training. None if the collection has none: validation images take their place, on
        which the best epoch was selected.
    """

    train: Any
    validation: Any
    test: Any = None

    @property
    def evaluation(self):
        """The dataset on which a network is evaluated."""
        return self.validation if self.test is None else self.test


@dataclasses.dataclass(frozen=True)
class Batching:
    """Division of the training images of each epoch into batches and among the processes that train together.

    Attributes
    ----------
    size : int
        Images in a batch, that is, in one update in this process.
    seed : int
        Seed of shuffling and augmentation.
    part, parts : int
        Rank of this process, and number of processes.
    limit : int or None
        Read no more than this many batches of training and of validation images in each epoch.
    """

    size: int
    seed: int = 0
    part: int = 0
    parts: int = 1
    limit: Optional[int] = None

    @property
    def images_per_update(self) -> int:
        """Number of images of an update over all processes."""
        return self.size * self.parts

    def updates(self, images: int) -> int:
        """Return the number of updates in an epoch of this many training images."""
        return min(images // self.images_per_update, self.limit or images)


class Source(abc.ABC):
    """Base class of sources of training and validation batches.

    Parameters
    ----------
    origin : str
        Description of where the images come from, for messages.
    spec : InputSpec
    classes : int
    class_names : list of str or None
    train_images, validation_images : int
        Number of images.
    batching : Batching
        Size of the batches. The training images of each epoch are distributed equally among the processes; for the validation images
        see `validation_share`.

    Attributes
    ----------
    split : Split or None
        Of a folder of images: on which of them the network is trained.

    Raises
    ------
    UserError
        When there are fewer than two classes, a name of a class has control characters, or there are too few images.
    """

    def __init__(self, origin, spec, classes, class_names, train_images, validation_images, batching):
        self.origin, self.spec, self.classes, self.class_names = origin, spec, classes, class_names
        self.train_images, self.validation_images, self.batching = train_images, validation_images, batching
        self._decode_training_images, self.split = lambda: None, None
        require_printable(class_names or [], origin)
        if classes < 2:
            raise UserError('all images are of one class: training needs at least two')
        self.images_per_update = batching.images_per_update
        self.updates_per_epoch = batching.updates(train_images)
        if not self.updates_per_epoch:
            raise UserError(
                f'{train_images} training images do not fill a batch of {self.images_per_update}: '
                'lower --batch-size (--preset photos is for few)'
            )
        if not validation_images:
            raise UserError('there are no validation images')

    @property
    def validation_share(self):
        """Return the `range` of validation images evaluated by this process. Shares are contiguous, and equal except at the end."""
        share, part = ceil_div(self.validation_images, self.batching.parts), self.batching.part
        return range(self.validation_images)[part * share : (part + 1) * share]

    def _check_encoded(self, train, validation, threads):
        """Check the first and last bytes of every image of two `EncodedImages` and decode all validation images, in several threads.

        Errors in these would otherwise appear only at the end of an epoch. Raises `UserError`.
        """
        self._decode_training_images = functools.partial(train.decode_all, max(1, threads))
        for images in (train, validation):
            images.check_ends(max(1, threads))
        validation.decode_all(max(1, threads))

    def decode_training_images(self):
        """Decode every training image, for ``--dry-run``, unless images are arrays already. This takes as long as reading an epoch.

        Raises
        ------
        UserError
            When images cannot be decoded; the message names them.
        """
        self._decode_training_images()

    @abc.abstractmethod
    def training_labels(self):
        """Return the class numbers of the training images, an int array (train_images,); decodes as few images as possible."""

    @abc.abstractmethod
    def train(self, epoch, first=0):
        """Yield the batches `first` to `updates_per_epoch - 1` of an epoch, shuffled and augmented.

        The result depends only on the seed and the epoch. Images that do not fill a batch are dropped, different images in each epoch.

        Yields
        ------
        images : NDArray of shape (batching.size, channels, size, size), float32
            Normalized images.
        labels : NDArray of shape (batching.size,), float32

        Raises
        ------
        DataError
            When an image cannot be read.
        """

    @abc.abstractmethod
    def validation(self):
        """Yield this process's share of the validation images in order, once each, preprocessed by `spec`.

        Batches are pairs (images, labels) as in `train`; the last one may be smaller. With few images some processes have none. Raises
        `DataError` when an image cannot be read.
        """


class DummySource(Source):
    """Source that repeats one batch of normally distributed numbers, for timing training without reading data.

    Parameters
    ----------
    spec, batching
        See `Source`.
    """

    def __init__(self, spec, batching):
        images = batching.images_per_update
        super().__init__('random numbers', spec, DUMMY_CLASSES, None, DUMMY_UPDATES * images, images, batching)
        random = np.random.RandomState(seed_for(batching.seed, batching.part))
        self._images = mx.nd.array(random.standard_normal((batching.size, *spec.shape)), dtype='float32')
        self._labels = mx.nd.array(random.randint(0, DUMMY_CLASSES, batching.size), dtype='float32')

    def training_labels(self):
        return np.resize(self._labels.asnumpy().astype(np.int64), self.train_images)

    def train(self, epoch, first=0):
        for _ in range(first, self.updates_per_epoch):
            yield self._images, self._labels

    def validation(self):
        yield self._images, self._labels
