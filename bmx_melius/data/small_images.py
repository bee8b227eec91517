"""Datasets of small images: scikit-learn's digits; MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 from local files.

Nothing is downloaded; the digits, 1797 gray images of 8x8 pixels, are part of scikit-learn. Sources: Alpaydin and Kaynak, "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998 (its test set); LeCun et al., "Gradient-Based Learning Applied
to Document Recognition", 1998; Xiao et al., "Fashion-MNIST", 2017; Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
2009.
"""

import gzip
import math
import os
import shutil
import struct
import tarfile
import tempfile
import zlib

import mxnet as mx
import numpy as np
from mxnet.gluon.data import ArrayDataset
from mxnet.gluon.data.vision import CIFAR10, CIFAR100

from ..errors import UserError, last_line
from ..reporting import LOG
from .source import Splits

DIGITS = tuple('0123456789')
SHARE = 5  # of each digit, images 0, 5, 10, ... are test images, 364 of 1797, and images 1, 6, 11, ... validation images, 362
WHITE = 16  # the value of a white pixel of scikit-learn's digits
BORDER = 1  # width in pixels of the black border added to scikit-learn's digits, so that crops can move

MNIST_FILES = {True: ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte'), False: ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')}
MNIST_SHAPE = (28, 28)
CIFAR_IMAGES = {True: 50000, False: 10000}  # for training and validation; the files have no header that tells their number
DAMAGED = (ValueError, EOFError, struct.error, zlib.error, gzip.BadGzipFile, tarfile.TarError, mx.MXNetError)

FASHION_CLASSES = ('T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat', 'Sandal', 'Shirt', 'Sneaker', 'Bag', 'Ankle boot')
CIFAR10_CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')
CIFAR100_CLASSES = (
    'apple', 'aquarium_fish', 'baby', 'bear', 'beaver', 'bed', 'bee', 'beetle', 'bicycle', 'bottle', 'bowl', 'boy', 'bridge', 'bus',
    'butterfly', 'camel', 'can', 'castle', 'caterpillar', 'cattle', 'chair', 'chimpanzee', 'clock', 'cloud', 'cockroach', 'couch',
    'crab', 'crocodile', 'cup', 'dinosaur', 'dolphin', 'elephant', 'flatfish', 'forest', 'fox', 'girl', 'hamster', 'house', 'kangaroo',
    'keyboard', 'lamp', 'lawn_mower', 'leopard', 'lion', 'lizard', 'lobster', 'man', 'maple_tree', 'motorcycle', 'mountain', 'mouse',
    'mushroom', 'oak_tree', 'orange', 'orchid', 'otter', 'palm_tree', 'pear', 'pickup_truck', 'pine_tree', 'plain', 'plate', 'poppy',
    'porcupine', 'possum', 'rabbit', 'raccoon', 'ray', 'road', 'rocket', 'rose', 'sea', 'seal', 'shark', 'shrew', 'skunk', 'skyscraper',
    'snail', 'snake', 'spider', 'squirrel', 'streetcar', 'sunflower', 'sweet_pepper', 'table', 'tank', 'telephone', 'television',
    'tiger', 'tractor', 'train', 'trout', 'tulip', 'turtle', 'wardrobe', 'whale', 'willow_tree', 'wolf', 'woman', 'worm',
)  # fmt: skip


def open_digits():
    """Return the `Splits` of scikit-learn's digits: pairs of NDArray (10, 10, 1) uint8 and int.

    Raises
    ------
    UserError
        When scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError('the digits come with scikit-learn, which is not installed: pip install scikit-learn') from error
    digits = load_digits()
    images = np.pad(np.rint(digits.images * (255 / WHITE)), ((0, 0), (BORDER, BORDER), (BORDER, BORDER)))[..., None].astype(np.uint8)
    places = np.empty(len(images), int)  # among the images of the same digit
    for label in range(len(DIGITS)):
        same = np.flatnonzero(digits.target == label)
        places[same] = np.arange(len(same)) % SHARE
    return Splits(
        *(
            ArrayDataset(mx.nd.array(images[part], dtype='uint8'), digits.target[part].tolist())
            for part in (places > 1, places == 1, places == 0)
        )
    )


class _AnyCIFAR:
    """Mixin that makes Gluon's CIFAR datasets read local files without verifying checksums or downloading."""

    def _get_data(self):
        batches = [self._read_batch(os.path.join(self._root, name)) for name, _ in (self._train_data if self._train else self._test_data)]
        images, labels = map(np.concatenate, zip(*batches))
        self._data, self._label = mx.nd.array(images, dtype='uint8'), labels


class _CIFAR10(_AnyCIFAR, CIFAR10):
    files = (*(f'data_batch_{number}.bin' for number in range(1, 6)), 'test_batch.bin')
    archive, folder = 'cifar-10-binary.tar.gz', 'cifar-10-batches-bin'


class _CIFAR100(_AnyCIFAR, CIFAR100):
    files = ('train.bin', 'test.bin')
    archive, folder = 'cifar-100-binary.tar.gz', 'cifar-100-binary'

    def __init__(self, root, train):
        super().__init__(root, fine_label=True, train=train)


def open_mnist(folder, classes=10):
    """Return the `Splits` of MNIST files, training and validation: pairs of NDArray (28, 28, 1) uint8 and int.

    Parameters
    ----------
    folder : str
        Folder with the four files of MNIST or of another dataset in its format, gzip-compressed or not.
    classes : int
        Number of classes; labels must be smaller.

    Raises
    ------
    UserError
        When files are missing (the message names them) or damaged.
    """
    names = [name for part in (True, False) for name in MNIST_FILES[part]]
    packed = [f'{name}.gz' for name in names]
    if _missing(folder, packed) and _missing(folder, names):
        raise UserError(
            f'{folder} lacks {", ".join(_missing(folder, packed))}: put the four files there, gzip-compressed or not, or point '
            '--data-dir to them; they are not downloaded'
        )
    suffix = '' if _missing(folder, packed) else '.gz'

    def read(train):
        images, labels = (_read_idx(os.path.join(folder, name + suffix)) for name in MNIST_FILES[train])
        if images.shape[1:] != MNIST_SHAPE or labels.shape != images.shape[:1]:
            raise ValueError(f'{MNIST_FILES[train][0]} has an array {images.shape}, {MNIST_FILES[train][1]} an array {labels.shape}')
        return mx.nd.array(images[..., None], dtype='uint8'), labels

    return _read(folder, classes, read)


def _read_idx(path):
    """Return the array of uint8 in a file in the format of MNIST, whose header has its shape: the file has as many bytes and no others."""
    with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as file:
        content = file.read()  # to the end, where gzip has a checksum
    if content[:3] != b'\0\0\x08' or len(content) < 4 * (1 + content[3]):
        raise ValueError(f'{path} is not a file of unsigned bytes in the format of MNIST')
    begin = 4 * (1 + content[3])
    shape = np.frombuffer(content[4:begin], '>u4').tolist()
    if not 0 < len(content) - begin == math.prod(shape):
        raise ValueError(f'{path} has {len(content) - begin:,} bytes after a header for {" x ".join(map(str, shape))}')
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def open_cifar10(folder):
    """Like `open_mnist`, with images (32, 32, 3), from the files of the binary version in `folder`, its subfolder, or the archive there."""
    return _open_cifar(folder, _CIFAR10, len(CIFAR10_CLASSES))


def open_cifar100(folder):
    """Like `open_cifar10` for CIFAR-100, with the fine labels."""
    return _open_cifar(folder, _CIFAR100, len(CIFAR100_CLASSES))


def _open_cifar(folder, kind, classes):
    for place in (folder, os.path.join(folder, kind.folder)):
        if not _missing(place, kind.files):
            return _read(place, classes, lambda train, place=place: kind(place, train=train)[:], CIFAR_IMAGES)
    archive = os.path.join(folder, kind.archive)
    if not os.path.isfile(archive):
        raise UserError(
            f'{folder} lacks {", ".join(_missing(folder, kind.files))}: put them there, or {kind.archive}, which has them, or '
            'point --data-dir to them; they are not downloaded'
        )
    with tempfile.TemporaryDirectory() as unpacked:
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    if os.path.basename(member.name) in kind.files and member.isfile():
                        with open(os.path.join(unpacked, os.path.basename(member.name)), 'wb') as file:
                            shutil.copyfileobj(tar.extractfile(member), file)
                while tar.fileobj.read(1 << 20):  # to the end, where gzip has a checksum of all
                    pass
        except DAMAGED as error:
            raise UserError(f'{archive} is damaged: {last_line(error)}') from error
        if _missing(unpacked, kind.files):
            raise UserError(f'{archive} lacks {", ".join(_missing(unpacked, kind.files))}')
        return _read(archive, classes, lambda train: kind(unpacked, train=train)[:], CIFAR_IMAGES)


def _missing(folder, names):
    return [name for name in names if not os.path.isfile(os.path.join(folder, name))]


def _read(place, classes, read, usual=None):
    """Return the `Splits` of training and validation; `read(train)` returns the images and labels of one of them.

    `usual` are the expected numbers of images, for files that do not have a number: others are logged as a warning.
    """
    parts = []
    for train in (True, False):
        try:
            images, labels = read(train)
        except DAMAGED as error:
            raise UserError(f'{place}: the files are damaged: {last_line(error)}') from error
        if usual and len(images) != usual[train]:
            LOG.warning(
                '%s: %s %s images instead of %s: the files belong to another dataset, or were cut between two images',
                place,
                f'{len(images):,}',
                'training' if train else 'validation',
                f'{usual[train]:,}',
            )
        labels = labels.astype(int).tolist()
        if max(labels) >= classes:
            raise UserError(
                f'{place} has the label {max(labels)}, but there are only {classes} classes: the files belong to another dataset'
            )
        parts.append(ArrayDataset(images, labels))
    return Splits(*parts)
