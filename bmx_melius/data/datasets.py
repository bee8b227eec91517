"""Table of the training datasets, one row each."""

import dataclasses
import os
from typing import Callable, Dict, Optional, Sequence

from ..vision.preprocessing import InputSpec
from . import glyphs, small_images
from .augmentation import Augmentation

LEVELS = ('low', 'medium', 'high')


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Preprocessing, augmentation and default settings of a dataset; numbers are the defaults of the flags with the same names.

    Attributes
    ----------
    input : InputSpec
    crop_ratio : float
        Side of the validation crop / short side of the image before cropping.
    augmentations : dict of str to Augmentation
        One for each of `LEVELS`.
    initial_layers : str or None
        Default stem, for small images; None: that of the network.
    lr_factor : float
        Factor on the optimizer's default learning rate, which is meant for ImageNet.
    num_epochs, num_workers : int
    batch_limit : int or None
        Largest batch size that a preset sets by default, for datasets with few images.
    data_dir : str or None
        Default folder of the files; None if the dataset needs no files.
    open : callable str -> Splits, or None
        Open the datasets of pairs (image, label) in a folder. None: `opening.open_source` handles the dataset.
    class_names : sequence of str or None
        Names of the classes of the datasets that `open` returns.
    has_test_images : bool
        Whether `open` returns test images beside the validation images.
    """

    input: InputSpec
    crop_ratio: float
    augmentations: Dict[str, Augmentation]
    initial_layers: Optional[str]
    lr_factor: float
    num_epochs: int
    num_workers: int
    batch_limit: Optional[int] = None
    data_dir: Optional[str] = None
    open: Optional[Callable] = None
    class_names: Optional[Sequence[str]] = None
    has_test_images: bool = False


FOLDER = os.path.join('~', '.mxnet', 'datasets')  # Gluon's default
# Zhong et al., "Random Erasing Data Augmentation", 2017, section 4.1; common for images of this size.
SHIFTED = {'pad': 4, 'mirror': True}
# Settings shared by the datasets of small images.
SMALL = {'crop_ratio': 1.0, 'initial_layers': 'thumbnail', 'lr_factor': 1.0, 'num_workers': 2}
CIFAR = {
    **SMALL,
    'num_epochs': 200,
    'augmentations': {
        'low': Augmentation(mirror=True),
        'medium': Augmentation(**SHIFTED),
        'high': Augmentation(**SHIFTED, brightness=0.4, contrast=0.4, saturation=0.4, pca_noise=0.1),
    },
}

# Means and standard deviations of MNIST, Fashion-MNIST and CIFAR are over all pixels of the training images. They agree with PyTorch's
# example for MNIST (.1307, .3081 of 255), with Page, "How to Train Your ResNet", 2018, for CIFAR-10, and with weiaicunzai/pytorch-cifar100.
DATASETS = {
    # Normalization, mirroring and random resized crop: MeliusNet paper, section 4.1. Values and the names of the levels: the authors' code.
    'imagenet': Dataset(
        input=InputSpec(),
        crop_ratio=0.875,
        augmentations={
            'low': Augmentation(mirror=True),
            'medium': Augmentation(area=(0.08, 1.0), mirror=True),
            'high': Augmentation(area=(0.08, 1.0), mirror=True, brightness=0.4, contrast=0.4, saturation=0.4, pca_noise=0.1),
        },
        initial_layers=None,
        lr_factor=1.0,
        num_epochs=120,
        num_workers=4,
        data_dir=os.path.join(FOLDER, 'imagenet'),
    ),
    # Gray digits of 8x8 pixels with a border of one pixel, so that the crop can move; mirroring would change their meaning.
    'digits': Dataset(
        input=InputSpec(channels=1, size=8, resize=10, mean=(77.9,), std=(95.9,)),
        crop_ratio=0.8,
        augmentations={
            'low': Augmentation(),
            'medium': Augmentation(area=(0.5, 0.8)),
            'high': Augmentation(area=(0.5, 0.8), brightness=0.4),
        },
        initial_layers='thumbnail',
        lr_factor=4.0,  # compensates for the small number of updates
        num_epochs=10,
        num_workers=0,
        batch_limit=64,
        open=lambda _: small_images.open_digits(),
        class_names=small_images.DIGITS,
        has_test_images=True,
    ),
    # Gray characters of 32x32 pixels, of random contrast and distorted when they are rendered.
    'glyphs': Dataset(
        input=InputSpec(channels=1, size=32, resize=32, mean=(128.2,), std=(77.6,)),
        augmentations={
            'low': Augmentation(),
            'medium': Augmentation(pad=2),
            'high': Augmentation(pad=2, brightness=0.4, contrast=0.4),
        },
        num_epochs=20,
        batch_limit=64,
        open=lambda _: glyphs.open_glyphs(),
        class_names=glyphs.CHARACTERS,
        has_test_images=True,
        **SMALL,
    ),
    'mnist': Dataset(
        input=InputSpec(channels=1, size=28, resize=28, mean=(33.31,), std=(78.57,)),
        augmentations={
            'low': Augmentation(),
            'medium': Augmentation(pad=2),
            'high': Augmentation(pad=2, brightness=0.4),
        },
        num_epochs=20,
        data_dir=os.path.join(FOLDER, 'mnist'),
        open=small_images.open_mnist,
        class_names=small_images.DIGITS,
        **SMALL,
    ),
    'fashion-mnist': Dataset(
        input=InputSpec(channels=1, size=28, resize=28, mean=(72.94,), std=(90.02,)),
        augmentations={
            'low': Augmentation(mirror=True),
            'medium': Augmentation(**SHIFTED),
            'high': Augmentation(**SHIFTED, brightness=0.4, contrast=0.4),
        },
        num_epochs=60,
        data_dir=os.path.join(FOLDER, 'fashion-mnist'),
        open=small_images.open_mnist,
        class_names=small_images.FASHION_CLASSES,
        **SMALL,
    ),
    'cifar10': Dataset(
        input=InputSpec(size=32, resize=32, mean=(125.31, 122.95, 113.87), std=(62.99, 62.09, 66.70)),
        data_dir=os.path.join(FOLDER, 'cifar10'),
        open=small_images.open_cifar10,
        class_names=small_images.CIFAR10_CLASSES,
        **CIFAR,
    ),
    'cifar100': Dataset(
        input=InputSpec(size=32, resize=32, mean=(129.30, 124.07, 112.43), std=(68.17, 65.39, 70.42)),
        data_dir=os.path.join(FOLDER, 'cifar100'),
        open=small_images.open_cifar100,
        class_names=small_images.CIFAR100_CLASSES,
        **CIFAR,
    ),
    # Random numbers, for timing training without reading data: see `source.DummySource`.
    'dummy': Dataset(
        input=InputSpec(),
        crop_ratio=0.875,
        augmentations=dict.fromkeys(LEVELS, Augmentation()),
        initial_layers=None,
        lr_factor=1.0,
        num_epochs=1,
        num_workers=0,
    ),
}
