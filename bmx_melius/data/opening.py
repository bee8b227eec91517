"""Opening of data: training sources from a configuration, and labelled images from the name of a dataset, a folder or a record file."""

import os

from ..errors import UserError
from .datasets import DATASETS
from .folders import FolderSource, ImageFolder, open_folders
from .image_source import ImageSource
from .labelled_images import LabelledImages
from .record_source import RecordSource
from .records import RecordFile, RecordImages
from .source import DummySource


def open_source(config, batch_size, seed=0, part=0, parts=1):
    """Open and check the training data that a configuration selects.

    Parameters
    ----------
    config : DataConfig
    batch_size : int
        Number of images of an update in this process.
    seed : int
        Seed of shuffling and augmentation.
    part, parts : int
        Rank of this process, and the number of processes.

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
    machine = {
        'spec': spec,
        'part': part,
        'parts': parts,
        'batch_size': batch_size,
        'seed': seed,
    }
    if config.dataset == 'dummy':
        return DummySource(**machine)
    common = {**machine, 'augmentation': dataset.augmentations[config.augmentation]}
    data_dir = os.path.expanduser(config.data_dir or '')
    if dataset.open:
        parts_of_data = dataset.open(data_dir)
        origin = f'{config.dataset} in {data_dir}' if data_dir else config.dataset
        return ImageSource(
            parts_of_data.train, parts_of_data.validation, list(dataset.class_names), origin, threads=config.num_workers, **common
        )
    if config.use_rec:
        train = _open_records(config, 'train')
        validation = _open_records(config, 'val')
        return RecordSource(train, validation, threads=max(1, config.num_workers), **common)
    for folder in ('train', 'val'):
        if not os.path.isdir(os.path.join(data_dir, folder)):
            raise UserError(
                f'there is no folder {os.path.join(data_dir, folder)}: point --data-dir to a folder with train/CLASS/*.jpg and '
                'val/CLASS/*.jpg, or --rec-train and --rec-val to record files, or use --dataset digits, which '
                'needs no files'
            )
    train, validation = open_folders(data_dir, spec)
    return FolderSource(train, validation, data_dir, threads=config.num_workers, **common)


def _open_records(config, part):
    """Open the record file of `part`, 'train' or 'val'."""
    flag = f'--rec-{part}'
    path = os.path.expanduser(getattr(config, f'rec_{part}') or os.path.join(config.data_dir, 'rec', f'{part}.rec'))
    index_path = os.path.expanduser(getattr(config, f'rec_{part}_idx') or os.path.splitext(path)[0] + '.idx')
    if not os.path.isfile(path):
        raise UserError(f'there is no record file {path}: point {flag} to one (bmx-melius pack-images packs it)')
    if not os.path.isfile(index_path):
        raise UserError(f'there is no index {index_path}: im2rec writes it beside {path}; point {flag}-idx to it')
    return RecordFile(path, index_path)


def open_images(data, spec, threads):
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

    Returns
    -------
    LabelledImages

    Raises
    ------
    UserError
        When there are no images, or when they are broken.
    """
    dataset = DATASETS.get(data)
    if dataset and dataset.open:
        images = dataset.open(os.path.expanduser(dataset.data_dir or '')).evaluation
        return LabelledImages(data, images, _numbered(len(images)), len(dataset.class_names), list(dataset.class_names))
    path = os.path.expanduser(data)
    if os.path.isdir(path):
        validation = os.path.join(path, 'val')
        folder = ImageFolder(validation if os.path.isdir(validation) else path, spec)
        folder.check_ends(threads)
        return LabelledImages(path, folder, [name for name, _ in folder.items], len(folder.class_names), folder.class_names)
    if not os.path.isfile(path):
        raise UserError(
            f'there is no {data}: give digits, glyphs, mnist, cifar10, ..., a folder with CLASS/*.jpg or val/CLASS/*.jpg, or a .rec file '
            'of im2rec'
        )
    index = os.path.splitext(path)[0] + '.idx'
    if not os.path.isfile(index):
        raise UserError(f'there is no index {index}: im2rec writes it beside the .rec file')
    records = RecordFile(path, index)
    records.check_ends(threads)
    return LabelledImages(path, RecordImages(records, spec), [f'record {key}' for key in records.keys], int(records.labels.max()) + 1)


def _numbered(images):
    """Return names for images that have none."""
    return [f'image {number}' for number in range(images)]
