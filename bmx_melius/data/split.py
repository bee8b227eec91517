"""The division of a folder into training and validation images, as it is stored with a network that was trained on it."""

import dataclasses
import hashlib
import os
from typing import Optional, Tuple

from ..errors import UserError

_SAMPLE = 64  # training images whose digests are stored
_DIGEST = 16  # hexadecimal digits


@dataclasses.dataclass(frozen=True)
class Split:
    """Which images a network was trained on.

    Attributes
    ----------
    val_fraction : float or None
        Part of each class that was kept for validation; None if the folder has folders train and val.
    training_images : int
    sample : tuple of str
        Digests of the names CLASS/FILE and the sizes of training images: the 64 lowest.
    """

    val_fraction: Optional[float]
    training_images: int
    sample: Tuple[str, ...]

    @classmethod
    def of(cls, images, val_fraction=None):
        """Return the split of a training on an `ImageFolder`."""
        return cls(val_fraction, len(images), tuple(sorted(_digests(images))[:_SAMPLE]))

    @classmethod
    def from_json(cls, fields, source):
        """Return the split in a description, or None. Raises `UserError`, which names the file `source`, if it is malformed."""
        if fields is None:
            return None
        try:
            fraction, count, sample = (fields[name] for name in ('val_fraction', 'training_images', 'sample'))
            is_valid = (fraction is None or 0 < fraction < 1) and isinstance(count, int) and all(isinstance(one, str) for one in sample)
        except (KeyError, TypeError):
            is_valid = False
        if not is_valid:
            raise UserError(f'{source}: split does not describe a division of training images; export the network again')
        return cls(fraction, count, tuple(sample))

    def to_json(self):
        """Return the field of a description."""
        return dataclasses.asdict(self)

    def count_in(self, images):
        """Return how many of the sample an `ImageFolder` contains."""
        return len(set(self.sample).intersection(_digests(images)))

    def is_of(self, images):
        """Return whether an `ImageFolder` has all the training images and no others."""
        return Split.of(images, self.val_fraction) == self


def _digests(images):
    """Yield the digests of the images in an `ImageFolder`."""
    for path, _ in images.items:
        name = os.path.relpath(path, images.path).replace(os.sep, '/')
        yield hashlib.sha256(b'%s\0%d' % (os.fsencode(name), os.path.getsize(path))).hexdigest()[:_DIGEST]
