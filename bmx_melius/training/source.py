"""What a source of training data offers to the training loop."""
import abc
import logging

from ..errors import UserError

LOG = logging.getLogger(__name__)


class DataError(UserError):
    """Data turned out to be unreadable in the middle of an epoch. The network is as the last batch left it, so the run can be saved."""


class Source(abc.ABC):
    """Training and validation images in batches.

    Parameters
    ----------
    spec : InputSpec
    classes : int
    class_names : list of str or None
    train_images, validation_images : int
        How many there are.
    batch_size : int
        Images in a batch of `train`: those of one update on this machine.
    part, parts : int
        This machine trains on part number `part` of `parts` equal parts of the training images.

    Raises
    ------
    UserError
        When there are fewer training images than an update needs.
    """

    def __init__(self, spec, classes, class_names, train_images, validation_images, batch_size, part, parts):
        self.spec, self.classes, self.class_names = spec, classes, class_names
        self.train_images, self.validation_images = train_images, validation_images
        self.batch_size, self.part, self.parts = batch_size, part, parts
        self.updates_per_epoch = train_images // (batch_size * parts)
        if not self.updates_per_epoch:
            raise UserError(f'{train_images} training images do not fill a batch of {batch_size * parts}: lower --batch-size')
        if not validation_images:
            raise UserError('there are no validation images')

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
        """Yield all validation images in order, once each, preprocessed as `InputSpec` says: (images, labels) as in `train`; the last
        batch may be smaller. Raises `DataError`."""
