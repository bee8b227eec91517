"""Configuration of the training data."""

import dataclasses
from typing import List, Optional, Union

from ..arguments import require, require_not_negative
from .datasets import DATASETS
from .random_operations import MOST_MAGNITUDE


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Dataset, files and preprocessing; each field has the name of a flag of ``train_imagenet.py``.

    `bootstrap_sha256` is not a flag: it is the checksum of the file `bootstrap` with which a run was started, None without a file.

    Raises
    ------
    UserError
        When a value is out of range or does not fit the dataset.
    """

    dataset: str
    input_size: int
    crop_ratio: float
    augmentation: str
    num_workers: int
    data_dir: Optional[str] = None
    val_fraction: Optional[float] = None
    use_rec: bool = False
    rec_train: Optional[str] = None
    rec_train_idx: Optional[str] = None
    rec_val: Optional[str] = None
    rec_val_idx: Optional[str] = None
    randaugment: Optional[List[int]] = None
    random_erasing: float = 0.0
    channels: Optional[int] = None  # None: those of the dataset, with its mean and std
    mean: Optional[List[float]] = None  # None with channels: to be measured
    std: Optional[List[float]] = None
    bootstrap: Union[bool, str] = False
    bootstrap_sha256: Optional[str] = None

    def __post_init__(self):
        require_not_negative(self, 'crop_ratio', 'num_workers')
        require(0 < self.crop_ratio <= 1, f'--crop-ratio must be above 0 and at most 1, not {self.crop_ratio:g}')
        require(
            self.dataset == 'imagenet' or not self.use_rec,
            f'--use-rec: {self.dataset} does not come from record files; leave out --use-rec or --dataset {self.dataset}',
        )
        require(
            not self.data_dir or DATASETS[self.dataset].data_dir is not None,
            f'--data-dir: {self.dataset} needs no files; leave out --data-dir or --dataset {self.dataset}',
        )
        require(
            not self.val_fraction or (self.dataset == 'imagenet' and not self.use_rec),
            f'--val-fraction {self.val_fraction} divides a folder of images with CLASS/*.jpg, which these data are not; leave the flag out',
        )
        require(
            self.channels is None or (self.dataset == 'imagenet' and not self.use_rec),
            f'--channels {self.channels} is for folders of images, which these data are not; leave the flag out',
        )
        require(
            (self.mean is None) == (self.std is None) and (self.channels or self.mean is None),
            '--mean and --std need each other and --channels: give all three, or only --channels, to measure them on the training images',
        )
        require(
            not self.randaugment or self.channels in (None, 1, 3),
            f'--randaugment has operations for 1 or 3 channels, not {self.channels}; leave the flag out',
        )
        require(0 <= self.random_erasing <= 1, f'--random-erasing must be a probability, 0 to 1, not {self.random_erasing:g}')
        if self.randaugment:
            number, magnitude = self.randaugment
            require(
                number >= 1 and 0 <= magnitude <= MOST_MAGNITUDE,
                f'--randaugment {number},{magnitude}: give at least 1 operation, and a magnitude of 0 to {MOST_MAGNITUDE}',
            )
        single = '--randaugment' if self.randaugment else '--random-erasing' if self.random_erasing else ''
        require(not single or self.dataset != 'dummy', f'{single}: dummy has no images; leave the flag out')
        require(not self.bootstrap or self.dataset != 'dummy', '--bootstrap: dummy has no images to draw; leave the flag out')
