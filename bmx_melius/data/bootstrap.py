"""Bootstrap samples: training on images that are drawn with replacement, as many as there are."""

import numpy as np

from ..arithmetic import seed_for
from ..errors import UserError
from ..files.npy import open_npy


class Bootstrap:
    """Draws the training images of each epoch with replacement.

    Without weights the images are drawn once and are the same in all epochs, as in bagging (Breiman 1996, *Bagging Predictors*), where
    each network has one sample, about 63 % of the images. With weights they are drawn again in each epoch: boosting trains with
    probabilities, and one sample would lose images that it needs.

    Parameters
    ----------
    images : int
        Number of images.
    seed : int
        The same seed gives the same images, in all processes and after resuming.
    weights : numpy.ndarray of shape (images,), optional
        Probabilities, up to a common factor.
    """

    def __init__(self, images, seed, weights=None):
        self._images, self._seed = images, seed
        self._probabilities = None if weights is None else weights / weights.sum()

    def indices(self, epoch):
        """Return the indices of the images of an epoch, an int array (images,)."""
        drawn = 0 if self._probabilities is None else epoch
        random = np.random.RandomState(seed_for(self._seed, drawn, 0, 1))  # the 1 keeps it apart from the seeds of order and augmentation
        return random.choice(self._images, self._images, p=self._probabilities)


def open_bootstrap(choice, images, seed):
    """Return the `Bootstrap` that ``--bootstrap`` selects: None if it is off, uniform for True, otherwise with the weights in a file.

    Parameters
    ----------
    choice : bool or str
        Value of the flag; a str is the path of an .npy file with a weight for each training image.
    images : int
        Number of training images.
    seed : int

    Raises
    ------
    UserError
        When the file has no weights for these images.
    """
    if not choice:
        return None
    if choice is True:
        return Bootstrap(images, seed)
    try:
        weights = open_npy(choice)
    except UserError as error:
        raise UserError(f'--bootstrap: {error}') from error
    if weights.shape != (images,):
        raise UserError(
            f'--bootstrap: {choice} has the shape {weights.shape}, but there are {images} training images: it needs ({images},)'
        )
    if weights.dtype.kind in 'fiu':
        weights = np.array(weights, np.float64)
        with np.errstate(over='ignore'):
            if weights.min() >= 0 and 0 < weights.sum() < np.inf:  # false for NaN
                return Bootstrap(images, seed, weights)
    raise UserError(f'--bootstrap: the weights in {choice} must be finite, not negative, and not all zero, and so must be their sum')
