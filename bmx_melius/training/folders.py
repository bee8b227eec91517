"""Images in folders, one for each class."""

import os

from mxnet.gluon.data.vision import ImageFolderDataset

from ..errors import UserError
from .images import TAIL, is_cut_off
from .report import LOG


class ImageFolder(ImageFolderDataset):
    """The JPEG and PNG files of FOLDER/CLASS/, labelled by the alphabetical order of the classes; ``synsets`` are their names.

    Items are pairs (image, label): (height, width, channels) uint8, NDArray, and int. An image that is cut off is named in the log.

    Parameters
    ----------
    folder : str
    spec : InputSpec
        Decodes the files.

    Raises
    ------
    UserError
        When there is nothing in the folder, or, on access, when a file is no image.
    OSError
        When the folder or, on access, a file cannot be read.
    """

    def __init__(self, folder, spec):
        super().__init__(folder)
        self._spec = spec
        if not self.items:
            raise UserError(f'{folder} has no folders with JPEG or PNG files in them, one folder for each class')

    def __getitem__(self, index):
        path, label = self.items[index]
        with open(path, 'rb') as file:
            start = file.read(8)
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            if is_cut_off(start, file.read()):
                LOG.warning('%s is cut off; its missing part is gray', path)
        return self._spec.read(path), label


def open_folders(data_dir, spec):
    """The folders DATA_DIR/train and DATA_DIR/val. Raises `UserError` when they have not the same classes, and as `ImageFolder`."""
    train, validation = (ImageFolder(os.path.join(data_dir, part), spec) for part in ('train', 'val'))
    different = sorted(set(train.synsets) ^ set(validation.synsets))
    if different:
        raise UserError(
            f'the folders {data_dir}/train and {data_dir}/val must have the same classes; only one has {different[0]}'
            + (f' (and {len(different) - 1} more)' if different[1:] else '')
        )
    return train, validation
