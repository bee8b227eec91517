"""Random changes of training images: one description, carried out by MXNet's record iterator or by its image augmenters."""
import dataclasses
import random
from typing import Optional, Tuple

import mxnet as mx
import numpy as np

BILINEAR = 1
# Principal components of the colours of ImageNet's pixels (Krizhevsky et al. 2012, section 4.1), in units of 0..255 pixels.
COLOUR_EIGENVALUES = np.array([55.46, 4.794, 1.148])
COLOUR_EIGENVECTORS = np.array([[-.5675, .7192, .4009], [-.5808, -.0045, -.8140], [-.5836, -.6948, .4203]])


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How a training image becomes a network's input.

    Attributes
    ----------
    area : (float, float) or None
        A part of the image with a share of its area in this range is cut out and resized to the input's size. None: the short side is
        resized as in validation, then a square of the input's size is cut out anywhere.
    aspect : (float, float)
        Range of width / height of the part cut out by `area`.
    mirror : bool
        Swap left and right in half of the images.
    brightness, contrast, saturation : float
        Each is multiplied by a factor from [1 - value, 1 + value].
    pca_noise : float
        Standard deviation of the noise along the principal components of colour.
    """

    area: Optional[Tuple[float, float]] = None
    aspect: Tuple[float, float] = (3 / 4, 4 / 3)
    mirror: bool = False
    brightness: float = 0.
    contrast: float = 0.
    saturation: float = 0.
    pca_noise: float = 0.

    def record_arguments(self, spec):
        """The same as arguments of `mx.io.ImageRecordIter`, for an `InputSpec`."""
        arguments = {'rand_mirror': self.mirror, 'brightness': self.brightness, 'contrast': self.contrast, 'saturation': self.saturation,
                     'pca_noise': self.pca_noise}
        if self.area is None:
            return {**arguments, 'rand_crop': True, 'resize': spec.resize or spec.size}
        return {**arguments, 'random_resized_crop': True, 'min_random_area': self.area[0], 'max_random_area': self.area[1],
                'min_aspect_ratio': self.aspect[0], 'max_aspect_ratio': self.aspect[1]}

    def augmenters(self, spec):
        """The same as a list of `mx.image.Augmenter`, each (height, width, channels) to (height, width, channels).

        The first takes uint8 pixels, the last gives float32 ones. They draw from the generators of Python and NumPy.
        """
        size = (spec.size, spec.size)
        if self.area is None:
            steps = [mx.image.ResizeAug(spec.resize or spec.size, BILINEAR), mx.image.RandomCropAug(size, BILINEAR)]
        else:
            steps = [mx.image.RandomSizedCropAug(size, self.area, self.aspect, BILINEAR)]
        if self.mirror:
            steps.append(mx.image.HorizontalFlipAug(.5))
        steps.append(mx.image.CastAug())
        jitter = [make(amount) for make, amount in (
            (mx.image.BrightnessJitterAug, self.brightness), (mx.image.ContrastJitterAug, self.contrast),
            (mx.image.SaturationJitterAug, self.saturation)) if amount]
        if jitter:
            steps.append(_InRandomOrder(jitter))
        if self.pca_noise:
            steps.append(mx.image.LightingAug(self.pca_noise, COLOUR_EIGENVALUES, COLOUR_EIGENVECTORS))
        return steps


class _InRandomOrder(mx.image.Augmenter):
    """All of some augmenters. `mx.image.RandomOrderAug` shuffles anew what it shuffled last, so that it depends on earlier images."""

    def __init__(self, augmenters):
        super().__init__()
        self._augmenters = augmenters

    def __call__(self, image):
        for augmenter in random.sample(self._augmenters, len(self._augmenters)):
            image = augmenter(image)
        return image
