"""Opening of data: training sources from a configuration, and labelled images from the name of a dataset, a folder or a record file."""

import dataclasses
import os

from ..errors import UserError
from ..reporting import LOG
from .datasets import DATASETS
from .folders import FolderSource, ImageFolder, measure_channels, open_folders
from .image_source import ImageSource, TrainingImages
from .labelled_images import LabelledImages
from .record_source import RecordImageSource, RecordSource
from .records import RecordFile, RecordImages
from .source import DummySource


def open_source(config, batching):
    """Open and check the training data that a configuration selects.

    Parameters
    ----------
    config : DataConfig
    batching : Batching

    Returns
    -------
    Source

    Raises
    ------
    UserError
        When the data are missing (the message says what to do) or broken.
    """
    dataset = DATASETS[config.dataset]
    spec = dataset.input_spec(config.input_size, config.crop_ratio)
    if config.channels:
        mean, std = config.mean or [0] * config.channels, config.std or [1] * config.channels
        spec = dataclasses.replace(spec, channels=config.channels, mean=mean, std=std)
    if config.dataset == 'dummy':
        return DummySource(spec, batching)
    augmentation = dataclasses.replace(
        dataset.augmentations[config.augmentation],
        randaugment=config.randaugment and tuple(config.randaugment),
        random_erasing=config.random_erasing,
    )
    data_dir = os.path.expanduser(config.data_dir or '')
    if dataset.open:
        found = dataset.open(data_dir)
        origin = f'{config.dataset} in {data_dir}' if data_dir else config.dataset
        images = TrainingImages(found.train, found.validation, list(dataset.class_names), origin)
        return ImageSource(images, spec, augmentation, batching, config.num_workers, config.bootstrap)
    if config.use_rec:
        train, validation = (_open_records_of(config, part) for part in ('train', 'val'))
        for records in (train, validation):
            _note_unlike_mxnet(records)
        if augmentation.is_for_single_images:
            LOG.info(
                "%s: MXNet's reader has neither RandAugment nor random erasing: images are read one by one, which is slower", train.path
            )
        if config.bootstrap or augmentation.is_for_single_images or train.unlike_mxnet or validation.unlike_mxnet:
            return RecordImageSource(train, validation, spec, augmentation, batching, config.num_workers, config.bootstrap)
        return RecordSource(train, validation, spec, augmentation, batching, max(1, config.num_workers))
    if not os.path.isdir(data_dir):
        raise UserError(
            f'there is no folder {data_dir}: point --data-dir to a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with CLASS/*.jpg, '
            'or --rec-train and --rec-val to record files, or use --dataset digits, which needs no files'
        )
    if os.path.isfile(_record_path(config, 'train')) and not os.path.isdir(os.path.join(data_dir, 'train')):
        raise UserError(f'{data_dir} has record files, {_record_path(config, "train")}: add --use-rec to read them')
    train, validation = open_folders(data_dir, spec, config.val_fraction)
    if spec.channels != dataset.input.channels:
        augmentation = dataclasses.replace(augmentation, saturation=0.0, pca_noise=0.0)  # of three colours
    if config.channels and not config.mean:
        mean, std = measure_channels(train)
        spec = dataclasses.replace(spec, mean=mean, std=std)
    return FolderSource(train, validation, data_dir, spec, augmentation, batching, config.num_workers, config.bootstrap)


def _note_unlike_mxnet(records):
    if records.unlike_mxnet:
        LOG.warning(
            "%s: MXNet's reader does not decode %s as images are decoded elsewhere (a format that it cannot read, or an orientation "
            'that it ignores). All images are read one by one, which is slower; bmx-melius pack-images packs them for its reader',
            records.path,
            records.name(records.unlike_mxnet),
        )


def _record_path(config, part):
    return os.path.expanduser(getattr(config, f'rec_{part}') or os.path.join(config.data_dir, 'rec', f'{part}.rec'))


def _open_records_of(config, part):
    """Open the record file of `part`, 'train' or 'val'."""
    flag = f'--rec-{part}'
    path = _record_path(config, part)
    if not os.path.isfile(path):
        raise UserError(f'there is no record file {path}: point {flag} to one (bmx-melius pack-images packs it)')
    return _open_records(path, getattr(config, f'rec_{part}_idx'), hint=f'; point {flag}-idx to it')


def _open_records(path, index=None, hint=''):
    """Open a record file with its index, by default the ``.idx`` file beside it. `hint` is appended to the error if there is no index."""
    index = os.path.expanduser(index or os.path.splitext(path)[0] + '.idx')
    if not os.path.isfile(index):
        raise UserError(f'there is no index {index}: im2rec writes it beside the record file {path}{hint}')
    return RecordFile(path, index)


def open_images(data, spec, threads, val_fraction=None):
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
    if dataset and dataset.open:
        images = dataset.open(os.path.expanduser(dataset.data_dir or '')).evaluation
        return LabelledImages(data, images, _numbered(len(images)), len(dataset.class_names), list(dataset.class_names))
    if os.path.isdir(path):
        validation = os.path.join(path, 'val')
        if val_fraction:
            _, folder = open_folders(path, spec, val_fraction)
        else:
            folder = ImageFolder(validation if os.path.isdir(validation) else path, spec)
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


def _numbered(images):
    """Return names for images that have none."""
    return [f'image {number}' for number in range(images)]
