"""Augmentation of training images: one description, applied by MXNet's record iterator or by this module, image by image."""

import dataclasses
from typing import Optional, Tuple

import numpy as np

from .random_operations import erase, randaugment

VALUES = np.arange(256, dtype=np.float32)  # of a pixel
ATTEMPTS = 10  # random crops drawn until one fits into the image
LUMINANCE = np.array(
    [0.114, 0.587, 0.299], np.float32
)  # weights of R, G, B: ITU-R BT.601, with red and blue exchanged as in ImageRecordIter
# Principal components of the colours of ImageNet's pixels (Krizhevsky et al. 2012, section 4.1), in units of 0..255 pixels.
COLOUR_EIGENVALUES = np.array([55.46, 4.794, 1.148])
COLOUR_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random crop, mirroring and colour jitter of training images.

    `mx.io.ImageRecordIter` augments record files (MXNet's ``src/io/image_aug_default.cc``); this class augments single images by the same
    rules, so that training does not depend on how the images are stored. MXNet's rules differ from other libraries:

    - The aspect ratio is uniform in `aspect` and inverted with probability 1/2. The common choice, uniform in the logarithm, is close to
      this: the distribution functions differ by less than .01.
    - When a crop does not fit into the image, area and aspect ratio are drawn again, so large areas are less frequent than small:
      areas up to 3/4 of a square image are equally likely, larger areas increasingly unlikely.
    - When none of `ATTEMPTS` crops fits, as happens with very elongated images, the centre of the input's size is cut out unscaled.
    - After each change of colour the pixels are rounded and clipped to integers from 0 to 255.
    - The luminance weights of red and blue are exchanged. This is kept because published networks were trained with it.

    Attributes
    ----------
    area : (float, float) or None
        Range of the crop's area as a fraction of the image's area; the crop is resized to the input's size. None: the short side is
        resized as in validation, then a square of the input's size is cut out at a random position.
    aspect : (float, float)
        Range of width / height of the crop of `area`; must contain the inverse of each of its values.
    pad : int
        Width in pixels of the black border added around the resized image when `area` is None.
    mirror : bool
        Mirror images horizontally with probability 1/2.
    brightness, contrast, saturation : float
        In random order, the pixels, their difference from the image's mean luminance, and their difference from the pixel's luminance
        are multiplied by a factor drawn uniformly from [1 - value, 1 + value].
    pca_noise : float
        Standard deviation of the noise along the principal components of colour; RGB images only.
    randaugment : (int, int) or None
        Number and magnitude of the operations of RandAugment, see `randaugment`.
    random_erasing : float
        Probability of a random rectangle, see `erase`.
    """

    area: Optional[Tuple[float, float]] = None
    aspect: Tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0
    mirror: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    pca_noise: float = 0.0
    randaugment: Optional[Tuple[int, int]] = None
    random_erasing: float = 0.0

    @property
    def is_for_single_images(self):
        """Whether this module must apply it: `mx.io.ImageRecordIter` has neither RandAugment nor random erasing."""
        return bool(self.randaugment or self.random_erasing)

    def record_arguments(self, spec):
        """Return the arguments of `mx.io.ImageRecordIter` that apply this augmentation for an `InputSpec`."""
        arguments = {
            'rand_mirror': self.mirror,
            'brightness': self.brightness,
            'contrast': self.contrast,
            'saturation': self.saturation,
            'pca_noise': self.pca_noise,
        }
        if self.area is None:
            return {**arguments, 'rand_crop': True, 'resize': spec.resize or spec.size, 'pad': self.pad, 'fill_value': 0}
        return {
            **arguments,
            'random_resized_crop': True,
            'min_random_area': self.area[0],
            'max_random_area': self.area[1],
            'min_aspect_ratio': self.aspect[0],
            'max_aspect_ratio': self.aspect[1],
        }

    def __call__(self, image, spec, random):
        """Augment one image.

        All random numbers come from `random`. The augmenters of `mx.image` use generators shared by the process, which would make the
        result depend on the order in which threads process the images.

        Parameters
        ----------
        image : numpy.ndarray
            (height, width, channels) uint8.
        spec : InputSpec
        random : numpy.random.Generator

        Returns
        -------
        numpy.ndarray of shape (size, size, channels), uint8
        """
        image = self._random_part(image, spec, random) if self.area else self._random_square(image, spec, random)
        if self.mirror and random.random() < 0.5:
            image = _mirror(image)
        changes = (_brightness, self.brightness), (_contrast, self.contrast), (_saturation, self.saturation)
        changes = [(change, amount) for change, amount in changes if amount]
        for index in random.permutation(len(changes)):
            change, amount = changes[index]
            image = change(image, np.float32(random.uniform(1 - amount, 1 + amount)))
        if self.pca_noise:
            noise = COLOUR_EIGENVECTORS @ (random.normal(0, self.pca_noise, 3) * COLOUR_EIGENVALUES)
            image = _look_up(image, np.floor(VALUES[:, None] + noise.astype(np.float32)))
        if self.randaugment:
            image = randaugment(np.ascontiguousarray(image), *self.randaugment, random)
        return erase(image, self.random_erasing, random) if self.random_erasing else image

    def _random_part(self, image, spec, random):
        """Return a crop of random area and aspect ratio, resized to the input's size; the centre if no crop fits."""
        height, width = image.shape[:2]
        for _ in range(ATTEMPTS):
            area, aspect = random.uniform(*self.area) * height * width, random.uniform(*self.aspect)
            if random.random() < 0.5:
                aspect = 1 / aspect
            part_width, part_height = int(round(np.sqrt(area * aspect))), int(round(np.sqrt(area / aspect)))
            if 0 < part_width <= width and 0 < part_height <= height:
                left, top = random.integers(width - part_width + 1), random.integers(height - part_height + 1)
                return _resize(image[top : top + part_height, left : left + part_width], spec.size, spec.size)
        short = min(height, width)
        if short < spec.size:
            image = _resize(image, width * spec.size // short, height * spec.size // short)
        left, top = (image.shape[1] - spec.size) // 2, (image.shape[0] - spec.size) // 2
        return image[top : top + spec.size, left : left + spec.size]

    def _random_square(self, image, spec, random):
        """Return a square of the input's size at a random position of the resized and padded image."""
        height, width = image.shape[:2]
        short, target = min(height, width), spec.resize or spec.size
        image = _resize(image, width * target // short, height * target // short)
        image = np.pad(image, ((self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        left, top = random.integers(image.shape[1] - spec.size + 1), random.integers(image.shape[0] - spec.size + 1)
        return image[top : top + spec.size, left : left + spec.size]


def _resize(image, width, height):
    """Resize with bilinear interpolation and keep the channel axis, which OpenCV drops for a single channel."""
    import cv2  # here, because evaluation does not augment and may run without OpenCV's package

    return cv2.resize(image, (width, height)).reshape(height, width, image.shape[2])


def _mirror(image):
    """Return the mirrored image: a view would be copied by each of the following steps, in a tenth of the speed."""
    import cv2

    return cv2.flip(image, 1).reshape(image.shape)


def _brightness(image, factor):
    return _look_up(image, np.rint(VALUES * factor))


def _contrast(image, factor):
    import cv2

    mean = np.float32(cv2.mean(image)[:3] @ LUMINANCE if image.shape[2] == 3 else image.mean())
    return _look_up(image, np.rint(mean + (VALUES - mean) * factor))


def _saturation(image, factor):
    import cv2

    if image.shape[2] != 3:
        return image  # it has no colour
    matrix = np.eye(3, dtype=np.float32) * factor + (1 - factor) * LUMINANCE
    return _to_pixels(np.rint(cv2.transform(image.astype(np.float32), matrix)))


def _look_up(image, table):
    """Return the image with each value v replaced by ``table[v]``, (256,) for all channels or (256, channels), clipped."""
    import cv2

    return cv2.LUT(image, _to_pixels(table)[None]).reshape(image.shape)


def _to_pixels(values):
    return np.clip(values, 0, 255).astype(np.uint8)
