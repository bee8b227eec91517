"""RandAugment and random erasing of training images. All random numbers come from the generator of the image."""

import dataclasses
from typing import Callable

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps

MAX_MAGNITUDE = 30
ERASED_AREA, ERASED_ASPECT = (0.02, 0.4), (0.3, 1 / 0.3)  # Zhong et al. 2017, section 4.1: sl, sh; r1, r2
_ATTEMPTS = 100  # rectangles drawn until one fits into the image, as in the authors' code


@dataclasses.dataclass(frozen=True)
class ImageOperation:
    """An operation of RandAugment.

    Attributes
    ----------
    apply : callable (PIL.Image.Image, strength) -> PIL.Image.Image
    max_strength : float
        Strength at the largest magnitude; it is proportional to the magnitude.
    has_sign : bool
        Whether the strength is negated with probability 1/2.
    """

    apply: Callable
    max_strength: float = 0.0
    has_sign: bool = False


def _affine(*coefficients):
    """Return the operation whose output pixel (x, y) is the input pixel at the affine map of it; the nearest one, black outside."""

    def apply(image, strength):
        return image.transform(image.size, PIL.Image.AFFINE, [part(strength, *image.size) for part in coefficients], PIL.Image.NEAREST)

    return apply


def _constant(value):
    return lambda strength, width, height: value


def _shift(axis):
    return lambda strength, *size: strength * size[axis]


def _strength(strength, width, height):
    return strength


def _enhanced(kind):
    return lambda image, strength: kind(image).enhance(1 + strength)


_ZERO, _ONE = _constant(0), _constant(1)
# The operations of Cubuk et al. 2020, figure 2, with the largest strengths of AutoAugment (Cubuk et al. 2019, arXiv:1805.09501,
# table 6). As in torchvision, whose magnitudes go to 30 as well, each becomes stronger with the magnitude; translations are 150 of 331
# pixels at most.
OPERATIONS = {
    'identity': ImageOperation(lambda image, strength: image),
    'autocontrast': ImageOperation(lambda image, strength: PIL.ImageOps.autocontrast(image)),
    'equalize': ImageOperation(lambda image, strength: PIL.ImageOps.equalize(image)),
    'rotate': ImageOperation(lambda image, strength: image.rotate(strength), 30, True),
    'solarize': ImageOperation(lambda image, strength: PIL.ImageOps.solarize(image, 256 - strength), 256),
    'posterize': ImageOperation(lambda image, strength: PIL.ImageOps.posterize(image, 8 - round(strength)), 4),
    'color': ImageOperation(_enhanced(PIL.ImageEnhance.Color), 0.9, True),
    'contrast': ImageOperation(_enhanced(PIL.ImageEnhance.Contrast), 0.9, True),
    'brightness': ImageOperation(_enhanced(PIL.ImageEnhance.Brightness), 0.9, True),
    'sharpness': ImageOperation(_enhanced(PIL.ImageEnhance.Sharpness), 0.9, True),
    'shear-x': ImageOperation(_affine(_ONE, _strength, _ZERO, _ZERO, _ONE, _ZERO), 0.3, True),
    'shear-y': ImageOperation(_affine(_ONE, _ZERO, _ZERO, _strength, _ONE, _ZERO), 0.3, True),
    'translate-x': ImageOperation(_affine(_ONE, _ZERO, _shift(0), _ZERO, _ONE, _ZERO), 150 / 331, True),
    'translate-y': ImageOperation(_affine(_ONE, _ZERO, _ZERO, _ZERO, _ONE, _shift(1)), 150 / 331, True),
}


def randaugment(image: np.ndarray, number: int, magnitude: int, random: np.random.Generator) -> np.ndarray:
    """Apply operations that are drawn uniformly, with replacement (RandAugment: Cubuk et al. 2020, arXiv:1909.13719).

    Parameters
    ----------
    image : numpy.ndarray, (height, width, 1 or 3) uint8
    number : int
        Number of operations, N in the paper.
    magnitude : int
        Common strength, 0 to `MAX_MAGNITUDE`, M in the paper (whose own scale is another one in each of its experiments).
    random : numpy.random.Generator

    Returns
    -------
    numpy.ndarray of the same shape, uint8
    """
    changed = PIL.Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    for name in random.choice(list(OPERATIONS), number):
        operation = OPERATIONS[name]
        strength = operation.max_strength * magnitude / MAX_MAGNITUDE
        if operation.has_sign and random.random() < 0.5:
            strength = -strength
        changed = operation.apply(changed, strength)
    return np.asarray(changed).reshape(image.shape)


def erase(image: np.ndarray, probability: float, random: np.random.Generator) -> np.ndarray:
    """Replace a random rectangle by random pixels with a probability (Zhong et al. 2017, arXiv:1708.04896, algorithm 1, RE-R).

    Its area is uniform in `ERASED_AREA` of the image, its height / width uniform in `ERASED_ASPECT`, its place uniform.

    Parameters
    ----------
    image : numpy.ndarray, (height, width, channels) uint8
    probability : float
    random : numpy.random.Generator

    Returns
    -------
    numpy.ndarray of the same shape, uint8
    """
    if random.random() >= probability:
        return image
    height, width, channels = image.shape
    for _ in range(_ATTEMPTS):
        area, aspect = random.uniform(*ERASED_AREA) * height * width, random.uniform(*ERASED_ASPECT)
        rows, columns = int(round(np.sqrt(area * aspect))), int(round(np.sqrt(area / aspect)))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = random.integers(height - rows + 1), random.integers(width - columns + 1)
            result = image.copy()
            result[top : top + rows, left : left + columns] = random.integers(0, 256, (rows, columns, channels), np.uint8)
            return result
    return image
