"""Labelled images to evaluate a network on."""

import dataclasses
from typing import Optional, Sequence

import numpy as np
from mxnet import gluon

from ..errors import UserError
from .image_source import validation_batches


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """Images with class numbers.

    Attributes
    ----------
    origin : str
        Where they come from, in words.
    dataset : gluon.data.Dataset
        Of pairs (image, label): (height, width, channels) uint8, NDArray, and int.
    names : sequence of str
        What each image is called in messages and tables.
    classes : int
        Labels are below that.
    class_names : list of str or None
        Where the data have names for their classes.
    """

    origin: str
    dataset: gluon.data.Dataset
    names: Sequence[str]
    classes: int
    class_names: Optional[list] = None

    def __len__(self):
        return len(self.dataset)

    def numbers_in(self, classes, class_names):
        """The number that each class of these images has in a network.

        Where both have names, classes are matched by them, whatever their order, and the network may know more. Where only the images
        have, they are the network's, in this order.

        Parameters
        ----------
        classes : int
            Of the network.
        class_names : list of str or None
            Of the network.

        Returns
        -------
        numpy.ndarray, (self.classes,) int64

        Raises
        ------
        UserError
            When the classes are not those of the network.
        """
        if self.class_names is None:
            if self.classes > classes:
                raise UserError(f'{self.origin} has labels up to {self.classes - 1}, but the network has the classes 0 to {classes - 1}')
        elif class_names is None:
            if self.classes != classes:
                raise UserError(
                    f'{self.origin} has {self.classes} classes, but the network has {classes}, and nobody gave their names to '
                    'choose by: give --classes-file'
                )
        else:
            unclear = [name for name in self.class_names if class_names.count(name) != 1]
            if unclear:
                why = 'two classes' if unclear[0] in class_names else 'no class'
                raise UserError(
                    f'{self.origin} has the class {unclear[0]!r}'
                    + (f' (and {len(unclear) - 1} more)' if unclear[1:] else '')
                    + f', but the network has {why} of this name; it has {", ".join(map(repr, class_names[:3]))}, ...'
                )
            return np.array([class_names.index(name) for name in self.class_names])
        return np.arange(self.classes)

    def batches(self, spec, batch_size, threads):
        """Yield (images, labels, names) of all images in order, prepared as an `InputSpec` says.

        Parameters
        ----------
        spec : InputSpec
        batch_size : int
            The last batch may be smaller.
        threads : int
            That read images; 0 reads them between the batches.

        Yields
        ------
        NDArray (N, channels, size, size) float32, numpy.ndarray (N,) int64, sequence of str

        Raises
        ------
        DataError
            When an image cannot be read.
        UserError
            When images have not the channels of the input.
        """
        channels = self.dataset[0][0].shape[2]
        if channels != spec.channels:
            raise UserError(f'{self.origin}: images have {channels} channels, but the network takes {spec.channels}')
        first = 0
        for images, labels in validation_batches(self.dataset, spec, batch_size, threads):
            yield images, labels.asnumpy().astype(np.int64), self.names[first : first + len(labels)]
            first += len(labels)
