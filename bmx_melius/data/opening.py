"""Opening of data: training sources, and labelled images from the name of a dataset, a folder or a record file."""

import dataclasses
import math
import os
from typing import Optional, Sequence, Union

from ..errors import UserError
from ..reporting import LOG
from .datasets import DATASETS
from .folders import VAL_FRACTION, FolderSource, ImageFolder, is_divided, measure_channels, open_folders
from .image_source import ImageSource, TrainingImages
from .labelled_images import LabelledImages
from .record_source import RecordImageSource, RecordSource
from .records import RecordFile, RecordImages
from .source import DummySource
from .split import Split


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Where the images of a training are and how they are read, by the flags with the names of the fields."""

    dataset: str  # name in `DATASETS`
    data_dir: Optional[str] = None
    val_fraction: Optional[float] = None  # of a folder that is not divided; None: `VAL_FRACTION`
    use_rec: bool = False  # read record files, by default those in `data_dir`
    rec_train: Optional[str] = None
    rec_train_idx: Optional[str] = None  # by default beside the record file
    rec_val: Optional[str] = None
    rec_val_idx: Optional[str] = None
    num_workers: int = 0  # threads that decode images
    bootstrap: Union[bool, str] = False  # draw images with replacement, with the weights in a file


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """Preprocessing of images where it differs from that of the dataset, by the flags with the names of the fields."""

    input_size: Optional[int] = None
    crop_ratio: Optional[float] = None
    channels: Optional[int] = None
    mean: Optional[Sequence[float]] = None  # of each channel, in pixels of 0 to 255
    std: Optional[Sequence[float]] = None

    def spec(self, dataset):
        """Return the `InputSpec` of a `Dataset`; the mean and the standard deviation of RGB images do not change gray ones."""
        size = self.input_size or dataset.input.size
        spec = dataclasses.replace(dataset.input, size=size, resize=math.ceil(size / (self.crop_ratio or dataset.crop_ratio)))
        if self.channels:
            mean, std = self.mean or [0] * self.channels, self.std or [1] * self.channels
            return dataclasses.replace(spec, channels=self.channels, mean=mean, std=std)
        given = {name: values for name, values in (('mean', self.mean), ('std', self.std)) if values}
        if any(len(values) != spec.channels for values in given.values()):
            LOG.warning('--mean and --std have no effect: they are of RGB images, and these are gray')
            return spec
        return dataclasses.replace(spec, **given)


@dataclasses.dataclass(frozen=True)
class AugmentationOptions:
    """Random changes of training images, by the flags with the names of the fields."""

    augmentation: str = 'medium'  # one of `LEVELS`
    randaugment: Optional[Sequence[int]] = None  # number and magnitude of operations
    random_erasing: float = 0.0  # probability
    no_mirror: bool = False

    def of(self, dataset):
        """Return the `Augmentation` of the images of a `Dataset`."""
        level = dataset.augmentations[self.augmentation]
        mirror, randaugment = level.mirror and not self.no_mirror, self.randaugment and tuple(self.randaugment)
        return dataclasses.replace(level, mirror=mirror, randaugment=randaugment, random_erasing=self.random_erasing)


def open_source(batching, options, input_options=InputOptions(), augmentation=AugmentationOptions()):
    """Open and check training data.

    Parameters
    ----------
    batching : Batching
    options : DataOptions
    input_options : InputOptions
    augmentation : AugmentationOptions

    Returns
    -------
    Source

    Raises
    ------
    UserError
        When the data are missing (the message says what to do) or broken.
    """
    dataset = DATASETS[options.dataset]
    spec, augmentation = input_options.spec(dataset), augmentation.of(dataset)
    if options.dataset == 'dummy':
        return DummySource(spec, batching)
    reading = {'threads': options.num_workers, 'bootstrap': options.bootstrap}
    data_dir = os.path.expanduser(options.data_dir or '')
    if dataset.open:
        found, origin = dataset.open(data_dir), f'{options.dataset} in {data_dir}' if data_dir else options.dataset
        images = TrainingImages(found.train, found.validation, list(dataset.class_names), origin)
        return ImageSource(images, spec, augmentation, batching, **reading)
    paths = {'train': options.rec_train, 'val': options.rec_val}
    record_files = [os.path.expanduser(path or _record_file(data_dir, part)) for part, path in paths.items()]
    if options.use_rec or os.path.dirname(record_files[0]) == os.path.normpath(data_dir):  # as BMXNet-v2 places them
        train, validation = map(_open_records_of, paths, record_files, (options.rec_train_idx, options.rec_val_idx))
        for records in (train, validation):
            if records.unlike_mxnet:
                LOG.warning(
                    "%s: MXNet's reader does not decode %s as images are decoded elsewhere (a format that it cannot read, or an "
                    'orientation that it ignores). All images are read one by one, which is slower; bmx-melius pack-images packs them '
                    'for its reader',
                    records.path,
                    records.name(records.unlike_mxnet),
                )
        if augmentation.is_for_single_images:
            LOG.info(
                "%s: MXNet's reader has neither RandAugment nor random erasing: images are read one by one, which is slower", train.path
            )
        if options.bootstrap or augmentation.is_for_single_images or train.unlike_mxnet or validation.unlike_mxnet:
            return RecordImageSource(train, validation, spec, augmentation, batching, **reading)
        return RecordSource(train, validation, spec, augmentation, batching, threads=max(1, options.num_workers))
    if not os.path.isdir(data_dir):
        raise UserError(
            f'there is no folder {data_dir}: point --data-dir to a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with CLASS/*.jpg, '
            'or --rec-train and --rec-val to record files, or use --dataset digits, which needs no files'
        )
    if os.path.isfile(record_files[0]) and not os.path.isdir(os.path.join(data_dir, 'train')):
        raise UserError(f'{data_dir} has record files, {record_files[0]}: add --use-rec to read them')
    train, validation = open_folders(data_dir, spec, options.val_fraction)
    if spec.channels != dataset.input.channels:
        augmentation = dataclasses.replace(augmentation, saturation=0.0, pca_noise=0.0)  # of three colours
    if input_options.channels and not input_options.mean:
        mean, std = measure_channels(train)
        spec = dataclasses.replace(spec, mean=mean, std=std)
    source = FolderSource(train, validation, data_dir, spec, augmentation, batching, **reading)
    source.split = Split.of(train, None if is_divided(data_dir) else options.val_fraction or VAL_FRACTION)
    return source


def _without_training_images(folder, split, val_fraction):
    """Return the images of an `ImageFolder` that were not used to train a network, by its `Split`; log what is left out."""
    if not split.count_in(folder):
        return folder
    if split.val_fraction and not val_fraction:
        everything = len(folder)
        train, folder = folder.split(split.val_fraction)
        LOG.warning(
            '%s: the network was trained on images of this folder; evaluated are the %s of %s images that its training kept for validation '
            '(--all-images evaluates all)',
            folder.path,
            f'{len(folder):,}',
            f'{everything:,}',
        )
        if split.is_of(train):
            return folder
        LOG.warning('%s: its files have changed since the training, so that training images may be among those evaluated', folder.path)
    else:
        LOG.warning('%s: training images of the network are among those evaluated: its accuracy on others is lower', folder.path)
    return folder


def _record_file(data_dir, part):
    """Return the record file of `part` in a folder: in rec/, as in GluonCV, or directly in the folder, as in BMXNet-v2."""
    names = [os.path.join('rec', f'{part}.rec'), f'{part}.rec', f'imagenet1k-{part}.rec']
    paths = [os.path.join(os.path.normpath(data_dir), name) for name in names]
    return next((path for path in paths if os.path.isfile(path)), paths[0])


def _open_records_of(part, path, index):
    """Open the record file of `part`, 'train' or 'val'."""
    flag = f'--rec-{part}'
    if not os.path.isfile(path):
        raise UserError(f'there is no record file {path}: point {flag} to one (bmx-melius pack-images packs it)')
    return _open_records(path, index, hint=f'; point {flag}-idx to it')


def _open_records(path, index=None, hint=''):
    """Open a record file with its index, by default the ``.idx`` file beside it. `hint` is appended to the error if there is no index."""
    index = os.path.expanduser(index or os.path.splitext(path)[0] + '.idx')
    if not os.path.isfile(index):
        raise UserError(f'there is no index {index}: im2rec writes it beside the record file {path}{hint}')
    return RecordFile(path, index)


def open_images(data, spec, threads, val_fraction=None, training=False, split=None, data_dir=None):
    """Open the images on which a network is evaluated.

    Parameters
    ----------
    data : str
        'digits' or 'glyphs' (their test images), 'mnist', 'fashion-mnist', 'cifar10' or 'cifar100' (in ~/.mxnet/datasets), a folder
        with CLASS/*.jpg or val/CLASS/*.jpg, or a .rec file of im2rec with its .idx beside it.
    spec : InputSpec
        Decodes the files.
    threads : int
        Number of threads that check the first and last bytes of the files.
    val_fraction : float, optional
        Of a folder with CLASS/*.jpg, open only the images on which training with this ``--val-fraction`` validates.
    training : bool
        Open the training images of a dataset or of a folder with train/CLASS/*.jpg.
    split : Split, optional
        As in the training of the network. Of a folder with CLASS/*.jpg on which it was trained, only the images are opened on which that
        training validated, unless there is a `val_fraction`; a warning is logged if training images are among those that are opened.
    data_dir : str, optional
        Folder of the files of a dataset.

    Returns
    -------
    LabelledImages

    Raises
    ------
    UserError
        When there are no images, or when they are broken.
    """
    dataset = DATASETS.get(data)
    path = os.path.expanduser(data)
    if val_fraction and (dataset or not os.path.isdir(path)):
        raise UserError(f'--val-fraction {val_fraction:g} divides a folder with CLASS/*.jpg, which {data} is not; leave the flag out')
    if data_dir and not (dataset and dataset.open and dataset.data_dir):
        raise UserError(f'--data-dir {data_dir} is the folder of the files of mnist, fashion-mnist, cifar10 or cifar100, not of {data}')
    if dataset and dataset.open:
        found = dataset.open(os.path.expanduser(data_dir or dataset.data_dir or ''))
        images = found.train if training else found.evaluation
        names = [f'image {number}' for number in range(len(images))]
        return LabelledImages(data, images, names, len(dataset.class_names), list(dataset.class_names))
    if os.path.isdir(path):
        part = os.path.join(path, 'train' if training else 'val')
        if val_fraction:
            _, folder = open_folders(path, spec, val_fraction)
        else:
            folder = ImageFolder(part if os.path.isdir(part) else path, spec)
        if split and not training:
            folder = _without_training_images(folder, split, val_fraction)
        folder.check_ends(threads)
        return LabelledImages(path, folder, [name for name, _ in folder.items], len(folder.class_names), folder.class_names)
    if not os.path.isfile(path):
        raise UserError(
            f'there is no {data}: give digits, glyphs, mnist, cifar10, ..., a folder with CLASS/*.jpg or val/CLASS/*.jpg, or a .rec file '
            'of im2rec'
        )
    records = _open_records(path)
    records.check_ends(threads)
    return LabelledImages(path, RecordImages(records, spec), [f'record {key}' for key in records.keys], int(records.labels.max()) + 1)
