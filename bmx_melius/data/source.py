"""What a source of training data offers to the training loop, and the one that needs no data."""

import abc

import mxnet as mx
import numpy as np

from ..arithmetic import ceil_div
from ..errors import UserError
from ..seeding import seed_for

DUMMY_CLASSES = 1000
DUMMY_UPDATES = 100  # of an epoch


class Source(abc.ABC):
    """Training and validation images in batches.

    Parameters
    ----------
    origin : str
        Where the images come from, in words.
    spec : InputSpec
    classes : int
    class_names : list of str or None
    train_images, validation_images : int
        How many there are.
    batch_size : int
        Images in a batch of `train`: those of one update on this machine.
    part, parts : int
        This machine's number and the number of machines. They share the training images of each epoch equally, and the validation
        images, in order, as `validation_share` says.

    Raises
    ------
    UserError
        When there is only one class, or too few images.
    """

    def __init__(self, origin, spec, classes, class_names, train_images, validation_images, batch_size, part, parts):
        self.origin, self.spec, self.classes, self.class_names = origin, spec, classes, class_names
        self.train_images, self.validation_images = train_images, validation_images
        self.batch_size, self.part, self.parts = batch_size, part, parts
        if classes < 2:
            raise UserError('all images are of one class: there is nothing to learn')
        self.images_per_update = batch_size * parts
        self.updates_per_epoch = train_images // self.images_per_update
        if not self.updates_per_epoch:
            raise UserError(f'{train_images} training images do not fill a batch of {self.images_per_update}: lower --batch-size')
        if not validation_images:
            raise UserError('there are no validation images')

    @property
    def validation_share(self):
        """The numbers of the validation images that are this machine's, a `range`: equal shares, but for the last ones."""
        share = ceil_div(self.validation_images, self.parts)
        return range(self.validation_images)[self.part * share : (self.part + 1) * share]

    @abc.abstractmethod
    def decode_training_images(self):
        """Decode every training image. For ``--dry-run``: it takes as long as reading an epoch.

        What a source has checked when it is made: the first and last bytes of every image, and that validation images can be decoded,
        which would else show only when an epoch is over.

        Raises
        ------
        UserError
            When images cannot be decoded: names them.
        """

    @abc.abstractmethod
    def train(self, epoch, first=0):
        """Yield the batches number `first` to `updates_per_epoch - 1` of an epoch, shuffled and augmented.

        Each is (images, labels): NDArrays (batch_size, channels, size, size) and (batch_size,), float32, normalized. The few images
        that do not fill a batch are left out, in every epoch others. What an epoch yields depends on the seed and the epoch alone.

        Raises
        ------
        DataError
        """

    @abc.abstractmethod
    def validation(self):
        """Yield this machine's share of the validation images in order, once each, preprocessed as `InputSpec` says.

        Batches are (images, labels) as in `train`; the last one may be smaller, and of few images some machines have none. Raises
        `DataError`.
        """


class DummySource(Source):
    """The same batch of normally distributed numbers in every update, and for validation: to time training without reading data.

    Parameters
    ----------
    spec, batch_size, part, parts
        As of `Source`.
    seed : int
    """

    def __init__(self, spec, batch_size, part, parts, seed):
        images = batch_size * parts
        super().__init__('random numbers', spec, DUMMY_CLASSES, None, DUMMY_UPDATES * images, images, batch_size, part, parts)
        random = np.random.RandomState(seed_for(seed, part))
        self._images = mx.nd.array(random.standard_normal((batch_size, *spec.shape)), dtype='float32')
        self._labels = mx.nd.array(random.randint(0, DUMMY_CLASSES, batch_size), dtype='float32')

    def decode_training_images(self):
        pass  # they are arrays

    def train(self, epoch, first=0):
        for _ in range(first, self.updates_per_epoch):
            yield self._images, self._labels

    def validation(self):
        yield self._images, self._labels
