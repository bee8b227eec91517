"""Image folders with one subfolder for each class."""

import os
from multiprocessing.pool import ThreadPool

from mxnet.gluon.data import Dataset

from ..errors import UserError
from ..reporting import LOG, progress_bar
from .encoded_images import START, TAIL, EncodedImages, has_known_start, is_cut_off, name_some
from .image_source import ImageSource, TrainingImages

SUFFIXES = ('.jpg', '.jpeg', '.png')
BLOCK = 256  # files checked by a thread in one step


class ImageFolder(EncodedImages, Dataset):
    """Dataset of the JPEG and PNG files in FOLDER/CLASS/, labelled by the alphabetical order of the classes.

    Items are pairs (image, label): NDArray (height, width, channels) uint8, and int. Other files are ignored and listed in the log.

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
        self.path, self._spec = path, spec
        self.class_names, self.items = [], []
        ignored = []
        for name in sorted(os.listdir(path)):
            folder = os.path.join(path, name)
            if not os.path.isdir(folder):
                ignored.append(name)
                continue
            for file in sorted(os.listdir(folder)):
                if _is_image(file):
                    self.items.append((os.path.join(folder, file), len(self.class_names)))
                else:
                    ignored.append(os.path.join(name, file))
            self.class_names.append(name)
        if not self.items:
            raise UserError(
                f'{path} has no folders with JPEG or PNG files in them, one folder for each class'
                + ('; bmx-melius predict classifies images without classes' if any(map(_is_image, ignored)) else '')
            )
        if ignored:
            LOG.warning('%s: ignored files that are not JPEG or PNG files in a class folder: %s', path, name_some(ignored))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        return self._spec.read(path), label

    def read(self, index):
        with open(self.items[index][0], 'rb') as file:
            return file.read()

    def suspects(self, threads):
        unrecognized, cut_off = [], []
        with ThreadPool(threads) as pool:
            ends = pool.imap(self._ends, range(len(self)), BLOCK)
            bar = progress_bar(ends, total=len(self), description=f'checking {os.path.basename(self.path)}', unit='files')
            for index, (start, tail) in enumerate(bar):
                if not has_known_start(start):
                    unrecognized.append(index)
                elif is_cut_off(start, tail):
                    cut_off.append(index)
        return unrecognized, cut_off

    def _ends(self, index):
        """Return the first and the last bytes of a file."""
        with open(self.items[index][0], 'rb', buffering=0) as file:
            start = file.read(START)
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return start, file.read(TAIL)

    def name(self, indices):
        return name_some([os.path.relpath(self.items[index][0], self.path) for index in indices])


class FolderSource(ImageSource):
    """Training and validation images from two folders, checked on construction as `Source.decode_training_images` describes.

    Parameters
    ----------
    train, validation : ImageFolder
        Subfolders of the same folder.
    spec, augmentation, batching, threads
        See `ImageSource`.

    Raises
    ------
    UserError
        For the reasons given in `Source`, and when images cannot be decoded.
    """

    def __init__(self, train, validation, spec, augmentation, batching, threads):
        images = TrainingImages(train, validation, train.class_names, origin=os.path.dirname(train.path))
        super().__init__(images, spec, augmentation, batching, threads)
        self._training_images, self._threads = train, max(1, threads)
        for images in (train, validation):
            images.check_ends(self._threads)
        validation.decode_all(self._threads)

    def decode_training_images(self):
        self._training_images.decode_all(self._threads)


def open_folders(data_dir, spec):
    """Open DATA_DIR/train and DATA_DIR/val. Raises `UserError` when their classes differ, and like `ImageFolder`."""
    train, validation = (ImageFolder(os.path.join(data_dir, part), spec) for part in ('train', 'val'))
    different = sorted(set(train.class_names) ^ set(validation.class_names))
    if different:
        raise UserError(
            f'the folders {data_dir}/train and {data_dir}/val must have the same classes; only one has {different[0]}'
            + (f' (and {len(different) - 1} more)' if different[1:] else '')
        )
    return train, validation


def _is_image(name):
    return os.path.splitext(name)[1].lower() in SUFFIXES
