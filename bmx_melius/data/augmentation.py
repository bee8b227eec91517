"""Random changes of training images: one description, carried out by MXNet's record iterator or here, image by image."""

import dataclasses
from typing import Optional, Tuple

import cv2
import numpy as np

ATTEMPTS = 10  # at a part of the image that fits
LUMINANCE = np.array([0.114, 0.587, 0.299], np.float32)  # of R, G, B: ITU-R BT.601, with red and blue exchanged as in ImageRecordIter
# Principal components of the colours of ImageNet's pixels (Krizhevsky et al. 2012, section 4.1), in units of 0..255 pixels.
COLOUR_EIGENVALUES = np.array([55.46, 4.794, 1.148])
COLOUR_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How a training image becomes a network's input.

    Record files are augmented by `mx.io.ImageRecordIter` (MXNet's ``src/io/image_aug_default.cc``), single images here, after the same
    rules, so that networks see the same whichever way their images are stored. Some rules are peculiar to it:

    - The aspect is uniform in `aspect`, and then turned upside down half of the time. Uniform in its logarithm, as elsewhere, is close to
      that: the distribution functions differ by less than .01.
    - A part that does not fit into the image is drawn again, area and aspect, so large areas are rarer than small ones: areas up to
      3/4 of a square image are equally likely, larger ones less and less.
    - Where `ATTEMPTS` parts do not fit, as happens in very long images, it is the centre of the input's size, unscaled.
    - After each change of colour the pixels are whole numbers from 0 to 255 again.
    - Luminance takes blue for red. Those who trained with it trained with that.

    Attributes
    ----------
    area : (float, float) or None
        A part of the image with a share of its area in this range is cut out and resized to the input's size. None: the short side is
        resized as in validation, then a square of the input's size is cut out anywhere.
    aspect : (float, float)
        Range of width / height of the part cut out by `area`; the inverse of a value in it is in it, too.
    pad : int
        Black pixels that are added around the resized image where `area` is None, so that the square can leave it.
    mirror : bool
        Swap left and right in half of the images.
    brightness, contrast, saturation : float
        The pixels, their difference from the image's mean luminance, and their difference from their own luminance are multiplied by a
        factor from [1 - value, 1 + value], in random order.
    pca_noise : float
        Standard deviation of the noise along the principal components of colour; for RGB images.
    """

    area: Optional[Tuple[float, float]] = None
    aspect: Tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0
    mirror: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    pca_noise: float = 0.0

    def record_arguments(self, spec):
        """The augmentation as arguments of `mx.io.ImageRecordIter`, for an `InputSpec`."""
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

        Only `random` is drawn from, unlike in `mx.image`, whose augmenters share the generators of the process: so an image can have a
        seed of its own, whichever thread treats it.

        Parameters
        ----------
        image : numpy.ndarray
            (height, width, channels) uint8.
        spec : InputSpec
        random : numpy.random.Generator

        Returns
        -------
        numpy.ndarray, (size, size, channels) uint8.
        """
        image = self._random_part(image, spec, random) if self.area else self._random_square(image, spec, random)
        if self.mirror and random.random() < 0.5:
            image = image[:, ::-1]
        jitter = [
            (factor, center)
            for factor, center in ((self.brightness, _black), (self.contrast, _mean_luminance), (self.saturation, _luminance))
            if factor
        ]
        for index in random.permutation(len(jitter)):
            amount, center = jitter[index]
            reference = center(image)
            image = _to_pixels(np.rint(reference + (image - reference) * np.float32(random.uniform(1 - amount, 1 + amount))))
        if self.pca_noise:
            noise = COLOUR_EIGENVECTORS @ (random.normal(0, self.pca_noise, 3) * COLOUR_EIGENVALUES)
            image = _to_pixels(np.floor(image + noise.astype(np.float32)))
        return image

    def _random_part(self, image, spec, random):
        """A part of random area and aspect, resized; the centre where none is found that fits."""
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
        height, width = image.shape[:2]
        short, target = min(height, width), spec.resize or spec.size
        image = _resize(image, width * target // short, height * target // short)
        image = np.pad(image, ((self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        left, top = random.integers(image.shape[1] - spec.size + 1), random.integers(image.shape[0] - spec.size + 1)
        return image[top : top + spec.size, left : left + spec.size]


def _resize(image, width, height):
    """Bilinear; OpenCV drops the axis of a single channel."""
    return cv2.resize(image, (width, height)).reshape(height, width, image.shape[2])


def _to_pixels(values):
    return np.clip(values, 0, 255).astype(np.uint8)


def _black(_):
    return np.float32(0)


def _luminance(image):
    return (image @ LUMINANCE)[..., None] if image.shape[2] == 3 else image.astype(np.float32)


def _mean_luminance(image):
    return _luminance(image).mean()
