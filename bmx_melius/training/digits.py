"""Scikit-learn's handwritten digits: 1797 gray images of 8x8 pixels, part of the package, so that nothing is downloaded.

Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998 (its test set).
"""

import mxnet as mx
import numpy as np
from mxnet.gluon.data import ArrayDataset

from ..errors import UserError

CLASSES = tuple('0123456789')
HELD_BACK = 5  # each class's images number 0, 5, 10 ... are for validation: 364 of 1797
LEVELS = 16  # the value of a white pixel
BORDER = 1  # black pixels around each image, so that a crop can move


def open_digits():
    """Two datasets of pairs (image, label), for training and validation: (10, 10, 1) uint8, NDArray, and int.

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
    images = np.pad(np.rint(digits.images * (255 / LEVELS)), ((0, 0), (BORDER, BORDER), (BORDER, BORDER)))[..., None].astype(np.uint8)
    held_back = np.zeros(len(images), bool)
    for label in range(len(CLASSES)):
        held_back[np.flatnonzero(digits.target == label)[::HELD_BACK]] = True
    return tuple(
        ArrayDataset([mx.nd.array(image, dtype='uint8') for image in images[part]], digits.target[part].tolist())
        for part in (~held_back, held_back)
    )
