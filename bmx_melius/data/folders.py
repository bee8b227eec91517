"""Image folders with one subfolder for each class."""

import copy
import hashlib
import math
import os
from multiprocessing.pool import ThreadPool

import numpy as np
from mxnet.gluon.data import Dataset

from ..errors import UserError, counted, name_some
from ..reporting import LOG, ProgressLine
from ..vision.pixels import FORMAT_NAMES, SUFFIXES, decode, read_file
from .encoded_images import START, TAIL, EncodedImages, looks_complete
from .image_source import ImageSource, TrainingImages

VAL_FRACTION = 0.2  # the default of --val-fraction
MEASURED = 1000  # images from which mean and standard deviation are computed
BLOCK = 256  # files checked by a thread in one step


class ImageFolder(EncodedImages, Dataset):
    """Dataset of the image files in FOLDER/CLASS/, labelled by the alphabetical order of the classes.

    Items are pairs (image, label): NDArray (height, width, channels) uint8, and int. Files whose names do not end with one of
    `bmx_melius.vision.pixels.SUFFIXES` are ignored and listed in the log.

    Parameters
    ----------
    path : str
        The folder.
    spec : InputSpec
        Decodes the files.

    Attributes
    ----------
    class_names : list of str
    items : list of (str, int)
        Paths and labels, sorted by class and file name.

    Raises
    ------
    UserError
        When the folder has no images; on item access, when a file is not an image.
    OSError
        When the folder, or on item access a file, cannot be read.
    """

    remedy = 'repair these files or remove them'

    def __init__(self, path, spec):
        self.path, self._spec, self.channels = path, spec, spec.channels
        self.class_names, self.items = [], []
        ignored = []
        for name in sorted(os.listdir(path)):
            folder = os.path.join(path, name)
            if not os.path.isdir(folder):
                ignored.append(name)
                continue
            files = sorted(os.listdir(folder))
            images = [file for file in files if _is_image(file)]
            ignored += [os.path.join(name, file) for file in files if not _is_image(file)]
            if images or not files:
                self.items += [(os.path.join(folder, file), len(self.class_names)) for file in images]
                self.class_names.append(name)
        if not self.items:
            raise UserError(
                f'{path} has no folders with images in them ({" ".join(SUFFIXES)}), one folder for each class'
                + ('; bmx-melius predict classifies images without classes' if any(map(_is_image, ignored)) else '')
            )
        if ignored:
            LOG.warning('%s: ignored files that are not %s files in a class folder: %s', path, FORMAT_NAMES, name_some(ignored))

    def split(self, fraction):
        """Divide the images of each class into two parts by their names, without moving files.

        The images with the lowest SHA-256 of ``CLASS/FILE`` come first, so the parts depend only on these names: they are the same in
        all programs, for all seeds and on all machines, and images that are added later move few others to the other part.

        Parameters
        ----------
        fraction : float
            Part of the images of each class for validation, rounded; at least one image of each class is in both parts.

        Returns
        -------
        train, validation : ImageFolder

        Raises
        ------
        UserError
            When a class has fewer than two images.
        """
        images = {label: [] for label in range(len(self.class_names))}
        for path, label in self.items:
            images[label].append(path)
        chosen = set()
        for label, paths in images.items():
            if len(paths) < 2:
                raise UserError(
                    f'{os.path.join(self.path, self.class_names[label])} has {counted(len(paths), "image")}: at least 2 are needed, '
                    'one for training and one for validation; add images, or remove the folder'
                )
            chosen.update(sorted(paths, key=self._digest)[: _validation_images(len(paths), fraction)])
        parts = copy.copy(self), copy.copy(self)
        for part, validates in zip(parts, (False, True)):
            part.items = [item for item in self.items if (item[0] in chosen) == validates]
        return parts

    def _digest(self, path):
        name = os.path.relpath(path, self.path).replace(os.sep, '/')
        return hashlib.sha256(os.fsencode(name)).digest()

    @property
    def labels(self):
        """Labels of the images, a list of int."""
        return [label for _, label in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        return decode(read_file(path), path, self._spec.channels), label

    def read(self, index):
        return read_file(self.items[index][0])

    def suspects(self, threads):
        with ThreadPool(threads) as pool:
            complete = pool.imap(self._looks_complete, range(len(self)), BLOCK)
            bar = ProgressLine(complete, total=len(self), description=f'checking {os.path.basename(self.path)}', unit='files')
            return [index for index, is_complete in enumerate(bar) if not is_complete]

    def _looks_complete(self, index):
        with open(self.items[index][0], 'rb', buffering=0) as file:
            start, size = file.read(START), os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            return looks_complete(start, file.read(TAIL), size)

    def name(self, indices):
        return name_some([os.path.relpath(self.items[index][0], self.path) for index in indices])


class FolderSource(ImageSource):
    """Training and validation images from two folders, checked on construction.

    Parameters
    ----------
    train, validation : ImageFolder
        Subfolders of the same folder, or parts of one folder.
    origin : str
        The folder, in messages.
    spec, augmentation, batching, threads, bootstrap
        See `ImageSource`.

    Raises
    ------
    UserError
        For the reasons given in `Source`, and when images cannot be decoded.
    """

    def __init__(self, train, validation, origin, spec, augmentation, batching, threads, bootstrap=False):
        super().__init__(TrainingImages(train, validation, train.class_names, origin), spec, augmentation, batching, threads, bootstrap)
        self._check_encoded(train, validation, threads)


def measure_channels(images):
    """Return mean and standard deviation of each channel, lists of float, of up to `MEASURED` images, and log them.

    Parameters
    ----------
    images : ImageFolder

    Raises
    ------
    UserError
        When one of the images cannot be decoded.
    """
    numbers = range(0, len(images), math.ceil(len(images) / MEASURED))
    count, total, squares = 0, 0, 0
    for number in numbers:
        pixels = decode(images.read(number), images.name([number]), images.channels).reshape(-1, images.channels).astype(np.int64)
        count, total, squares = count + len(pixels), total + pixels.sum(axis=0), squares + (pixels**2).sum(axis=0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1))  # at least 1, also of a channel that is the same everywhere
    values = [[float(f'{value:.5g}') for value in row] for row in (mean, std)]
    LOG.info(
        '%s: measured on %d training images: --mean %s --std %s', images.path, len(numbers), *(','.join(map(str, row)) for row in values)
    )
    return values


def is_divided(data_dir):
    """Return whether a folder has its training and validation images in the folders train and val, instead of folders of classes.

    Raises
    ------
    UserError
        When only one of the two exists, or no folder of images.
    """
    there = [part for part in ('train', 'val') if os.path.isdir(os.path.join(data_dir, part))]
    if len(there) == 1 or not os.path.isdir(data_dir) or not (there or _has_classes(data_dir)):
        missing = os.path.join(data_dir, 'train' if 'train' not in there else 'val')
        raise UserError(
            f'there is no folder {missing}: put images into {data_dir}/train/CLASS/ and {data_dir}/val/CLASS/, or all of them into '
            f'{data_dir}/CLASS/, of which --val-fraction are used for validation'
        )
    return bool(there)


def open_folders(data_dir, spec, val_fraction=None):
    """Open the training and validation images in a folder.

    Parameters
    ----------
    data_dir : str
        Folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with CLASS/*.jpg, which is divided by `ImageFolder.split`.
    spec : InputSpec
    val_fraction : float or None
        For a folder without train and val; None: `VAL_FRACTION`.

    Returns
    -------
    train, validation : ImageFolder

    Raises
    ------
    UserError
        When the classes of train and val differ, when `val_fraction` is given for a folder that is divided already, and as `is_divided`,
        `ImageFolder` and `ImageFolder.split`.
    """
    if not is_divided(data_dir):
        fraction = val_fraction or VAL_FRACTION
        train, validation = ImageFolder(data_dir, spec).split(fraction)
        LOG.info(
            '%s has no folders train and val: %s training and %s validation images of %d classes, divided by their names '
            '(--val-fraction %g)',
            data_dir,
            f'{len(train):,}',
            f'{len(validation):,}',
            len(train.class_names),
            fraction,
        )
        return train, validation
    if val_fraction:
        raise UserError(f'--val-fraction {val_fraction:g}: {data_dir} has a folder val with the images for validation; leave the flag out')
    train, validation = (ImageFolder(os.path.join(data_dir, part), spec) for part in ('train', 'val'))
    different = sorted(set(train.class_names) ^ set(validation.class_names))
    if different:
        raise UserError(f'the folders {data_dir}/train and {data_dir}/val must have the same classes; only one has {name_some(different)}')
    return train, validation


def count_training_images(data_dir, val_fraction, limit):
    """Return the number of training images that `open_folders` would find in a folder, without reading them.

    Returns `limit` if there are at least as many, without counting the rest, and None if it is not a folder of images.
    """
    part = os.path.join(data_dir, 'train')
    is_whole, count = not os.path.isdir(part), 0
    try:
        for entry in os.scandir(data_dir if is_whole else part):
            images = sum(map(_is_image, os.listdir(entry.path))) if entry.is_dir() else 0
            count += images - (_validation_images(images, val_fraction or VAL_FRACTION) if is_whole and images else 0)
            if count >= limit:
                return limit
    except OSError:  # opening the folder reports it
        return None
    return count or None


def _validation_images(images, fraction):
    """Return how many of the images of a class are for validation."""
    return min(max(1, round(images * fraction)), images - 1)


def _has_classes(folder):
    """Return whether one of the folders in a folder has images."""
    return any(any(map(_is_image, os.listdir(entry.path))) for entry in os.scandir(folder) if entry.is_dir())


def _is_image(name):
    return os.path.splitext(name)[1].lower() in SUFFIXES
