"""Labelled images for evaluating a network."""

import dataclasses
from typing import Optional, Sequence

import numpy as np
from mxnet import gluon

from ..arithmetic import evenly_spaced
from ..errors import UserError, counted
from .image_source import validation_batches
from .imagenet import identifier


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """Images with their class labels.

    Attributes
    ----------
    origin : str
        Description of where the images come from.
    dataset : gluon.data.Dataset
        Dataset of pairs (image, label): NDArray (height, width, channels) uint8, and int.
    names : sequence of str
        Name of each image in messages and tables.
    classes : int
        Number of classes; labels are smaller.
    class_names : list of str or None
        Names of the classes, None if the data have none.
    """

    origin: str
    dataset: gluon.data.Dataset
    names: Sequence[str]
    classes: int
    class_names: Optional[list] = None

    def __len__(self):
        return len(self.dataset)

    def numbers_in(self, classes, class_names):
        """Return the network's class number for each class of these images.

        When both have class names, classes are matched by name (ImageNet's by their identifiers), in any order, and the network may
        have additional classes. Otherwise the numbers are taken as they are.

        Parameters
        ----------
        classes : int
            Number of classes of the network.
        class_names : list of str or None
            Names of the network's classes.

        Returns
        -------
        numpy.ndarray of shape (self.classes,), int64

        Raises
        ------
        UserError
            When the classes do not match the network's.
        """
        if self.class_names is None:
            if self.classes > classes:
                raise UserError(f'{self.origin} has labels up to {self.classes - 1}, but the network has the classes 0 to {classes - 1}')
        elif class_names is None:
            if self.classes != classes:
                raise UserError(
                    f'{self.origin} has {counted(self.classes, "class")}, but the network has {classes} without names to '
                    'match them by: give --classes-file'
                )
        else:
            own, known = (list(map(identifier, names)) for names in (self.class_names, class_names))
            unclear = [name for name in own if known.count(name) != 1]
            if unclear:
                why = 'two classes' if unclear[0] in known else 'no class'
                raise UserError(
                    f'{self.origin} has the class {unclear[0]!r}'
                    + (f' (and {len(unclear) - 1} more)' if unclear[1:] else '')
                    + f', but the network has {why} of this name; it has {", ".join(map(repr, class_names[:3]))}, ...'
                )
            return np.array([known.index(name) for name in own])
        return np.arange(self.classes)

    def spread(self, max_images):
        """Return at most so many of the images, at equal distances."""
        chosen = evenly_spaced(len(self), max_images).tolist()
        return dataclasses.replace(self, dataset=_Chosen(self.dataset, chosen), names=[self.names[number] for number in chosen])

    def batches(self, spec, batch_size, threads):
        """Yield batches (images, labels, names) of all images in order, preprocessed by an `InputSpec`.

        Parameters
        ----------
        spec : InputSpec
        batch_size : int
            The last batch may be smaller.
        threads : int
            Number of threads that read images; 0 uses the main thread.

        Yields
        ------
        NDArray (N, channels, size, size) float32, numpy.ndarray (N,) int64, sequence of str

        Raises
        ------
        DataError
            When an image cannot be read.
        UserError
            When the images do not have as many channels as the input.
        """
        channels = self.dataset[0][0].shape[2]
        if channels != spec.channels:
            raise UserError(f'{self.origin}: images have {channels} channels, but the network takes {spec.channels}')
        first = 0
        for images, labels in validation_batches(self.dataset, spec, batch_size, threads):
            yield images, labels.asnumpy().astype(np.int64), self.names[first : first + len(labels)]
            first += len(labels)


class _Chosen(gluon.data.Dataset):
    """Some items of a dataset."""

    def __init__(self, dataset, numbers):
        self._dataset, self._numbers = dataset, numbers

    def __len__(self):
        return len(self._numbers)

    def __getitem__(self, index):
        return self._dataset[self._numbers[index]]
