"""The datasets that can be trained on: one row each."""
import dataclasses
import math
from typing import Dict, Optional

from ..preprocessing import InputSpec
from .augmentation import Augmentation

LEVELS = ('low', 'medium', 'high')


@dataclasses.dataclass(frozen=True)
class Dataset:
    """What a dataset brings along; the numbers are the defaults of the flags of the same name.

    Attributes
    ----------
    input : InputSpec
    crop_ratio : float
        Side of the validation crop / short side of the image before it.
    augmentations : dict of str to Augmentation
        For each of `LEVELS`.
    initial_layers : str
        The stem that suits the size of the images.
    lr_factor : float
        Times the optimizer's default learning rate, which is one for ImageNet.
    num_epochs, num_workers : int
    """

    input: InputSpec
    crop_ratio: float
    augmentations: Dict[str, Augmentation]
    initial_layers: str
    lr_factor: float
    num_epochs: int
    num_workers: int

    def input_spec(self, size: Optional[int] = None, crop_ratio: Optional[float] = None):
        """The `InputSpec` for another size of the input or another crop; None keeps what the dataset has."""
        size = size or self.input.size
        return dataclasses.replace(self.input, size=size, resize=math.ceil(size / (crop_ratio or self.crop_ratio)))


DATASETS = {
    # Sizes, means and the three levels are those of the MeliusNet paper, section 4.1.
    'imagenet': Dataset(
        input=InputSpec(),
        crop_ratio=.875,
        augmentations={
            'low': Augmentation(mirror=True),
            'medium': Augmentation(area=(.08, 1.), mirror=True),
            'high': Augmentation(area=(.08, 1.), mirror=True, brightness=.4, contrast=.4, saturation=.4, pca_noise=.1),
        },
        initial_layers='grouped_stem',
        lr_factor=1.,
        num_epochs=120,
        num_workers=4,
    ),
    # Gray digits of 8x8 pixels with a border of one pixel, which lets the crop move; a mirrored digit is no digit.
    'digits': Dataset(
        input=InputSpec(channels=1, size=8, resize=10, mean=(77.9,), std=(95.9,)),
        crop_ratio=.8,
        augmentations={
            'low': Augmentation(),
            'medium': Augmentation(area=(.5, .8)),
            'high': Augmentation(area=(.5, .8), brightness=.4),
        },
        initial_layers='thumbnail',
        lr_factor=4.,  # there are few updates
        num_epochs=10,
        num_workers=0,
    ),
}
