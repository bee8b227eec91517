"""MNIST, Fashion-MNIST and CIFAR from small files in their formats, and dummy data: images read, and errors for missing files."""

import gzip
import struct
import tarfile

import numpy as np
import pytest
from split_mnist import split

import model_zoo
from bmx_melius.data.datasets import DATASETS
from bmx_melius.data.opening import AugmentationOptions, DataOptions, InputOptions, open_images, open_source
from bmx_melius.data.small_images import open_mnist
from bmx_melius.data.source import Batching
from bmx_melius.errors import UserError
from bmx_melius.training.options.parsing import parse_options

TRAIN, VALIDATION = 40, 15  # images
MNIST = ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte', 't10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
SETS = ('mnist', 'fashion-mnist', 'cifar10', 'cifar100')


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError('a download')

    monkeypatch.setattr('requests.get', refuse)


def make_data(name):
    """Random images and labels: [(N, channels, size, size) uint8, (N,)] for training and validation."""
    random = np.random.RandomState(0)
    shape = DATASETS[name].input.shape
    classes = len(DATASETS[name].class_names)
    return [
        (random.randint(0, 256, (number, *shape)).astype(np.uint8), random.randint(0, classes, number).astype(np.uint8))
        for number in (TRAIN, VALIDATION)
    ]


def write(folder, name):
    """Write the files of a dataset as its authors publish them (MNIST unpacked); return what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    data = make_data(name)
    if 'mnist' in name:
        for (images, labels), image_file, label_file in zip(data, MNIST[::2], MNIST[1::2]):
            (folder / image_file).write_bytes(struct.pack('>IIII', 2051, len(images), 28, 28) + images.tobytes())
            (folder / label_file).write_bytes(struct.pack('>II', 2049, len(labels)) + labels.tobytes())
        return data
    coarse = [b'\x07'] if name == 'cifar100' else []  # a label that is not used
    rows = [[b''.join([*coarse, bytes([label]), image.tobytes()]) for image, label in zip(*part)] for part in data]
    if name == 'cifar100':
        files = {'train.bin': rows[0], 'test.bin': rows[1]}
    else:
        files = {
            **{f'data_batch_{number + 1}.bin': rows[0][number * TRAIN // 5 : (number + 1) * TRAIN // 5] for number in range(5)},
            'test_batch.bin': rows[1],
        }
    for file, content in files.items():
        (folder / file).write_bytes(b''.join(content))
    return data


def pack(folder, name):
    """Replace the files of a dataset by packed files, as they are published."""
    if 'mnist' in name:
        for path in list(folder.iterdir()):
            (folder / f'{path.name}.gz').write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        return
    number = name[len('cifar') :]
    inside = f'cifar-{number}-batches-bin' if number == '10' else f'cifar-{number}-binary'
    with tarfile.open(folder / f'cifar-{number}-binary.tar.gz', 'w:gz') as tar:
        for path in sorted(folder.glob('*.bin')):
            tar.add(path, f'{inside}/{path.name}')
            path.unlink()


def parse(*arguments):
    return parse_options(['--model', 'meliusnet22', '--save-dir', '/nowhere', *map(str, arguments)], model_zoo)


def open_data(name, folder, *arguments):
    config = parse('--dataset', name, '--data-dir', folder, '--batch-size', '8', '-j', '0', '--augmentation', 'low', *arguments)
    return open_source(Batching(config.images_per_batch, config.seed), *map(config.make, (DataOptions, InputOptions, AugmentationOptions)))


def check(source, name, data):
    """The source yields the images and labels of the files: all of them in validation, whole batches of them in training."""
    dataset = DATASETS[name]
    assert (source.train_images, source.validation_images) == (TRAIN, VALIDATION) and source.class_names == list(dataset.class_names)
    mean, std = (np.array(values).reshape(-1, 1, 1) for values in (dataset.input.mean, dataset.input.std))
    images, labels = (np.concatenate([array.asnumpy() for array in arrays]) for arrays in zip(*source.validation()))
    np.testing.assert_allclose(images, (data[1][0] - mean) / std, atol=1e-4)
    np.testing.assert_array_equal(labels, data[1][1])
    seen, steps = set(), (1, -1) if dataset.augmentations['low'].mirror else (1,)
    for images, labels in source.train(0):
        for image, label in zip(images.asnumpy(), labels.asnumpy()):
            pixels = np.rint(image * std + mean).astype(np.uint8)
            found = [number for number in range(TRAIN) if any(np.array_equal(pixels, data[0][0][number][..., ::step]) for step in steps)]
            assert len(found) == 1 and data[0][1][found[0]] == label
            seen.add(found[0])
    assert len(seen) == TRAIN


@pytest.mark.parametrize('name', SETS)
def test_files_are_read_whatever_their_checksums(tmp_path, name):
    data = write(tmp_path, name)
    check(open_data(name, tmp_path), name, data)


@pytest.mark.parametrize('flags,mirrored', [([], True), (['--no-mirror'], False)])
def test_images_are_mirrored_unless_the_flag_forbids_it(tmp_path, flags, mirrored):
    images = write(tmp_path, 'fashion-mnist')[0][0]
    mean, std = (values[0] for values in (DATASETS['fashion-mnist'].input.mean, DATASETS['fashion-mnist'].input.std))
    seen = [np.rint(image * std + mean) for batch, _ in open_data('fashion-mnist', tmp_path, *flags).train(0) for image in batch.asnumpy()]
    unchanged = [any(np.array_equal(image, other) for other in images) for image in seen]
    assert any(unchanged) and all(unchanged) != mirrored


@pytest.mark.parametrize('name', SETS)
def test_packed_files_are_read_and_left_as_they_are(tmp_path, name):
    data = write(tmp_path, name)
    pack(tmp_path, name)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    check(open_data(name, tmp_path), name, data)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_folder_of_an_unpacked_archive_is_found(tmp_path):
    data = write(tmp_path / 'cifar-10-batches-bin', 'cifar10')
    check(open_data('cifar10', tmp_path), 'cifar10', data)


@pytest.mark.parametrize('name', SETS)
def test_files_are_found_in_the_folder_of_gluon(tmp_path, name, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    write(tmp_path / '.mxnet' / 'datasets' / name, name)
    assert open_source(Batching(8), parse('--dataset', name).make(DataOptions)).train_images == TRAIN


def test_evaluation_finds_them_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    data = write(tmp_path / '.mxnet' / 'datasets' / 'cifar100', 'cifar100')
    images = open_images('cifar100', DATASETS['cifar100'].input, threads=1)
    assert len(images) == VALIDATION and images.class_names == list(DATASETS['cifar100'].class_names)
    np.testing.assert_array_equal(images.dataset[3][0].asnumpy(), data[1][0][3].transpose(1, 2, 0))


def test_images_are_set_aside_for_choices_and_none_is_of_both_parts(tmp_path):
    of_all = write(tmp_path / 'all', 'mnist')[0][0][:, 0]
    labels_of_all = np.arange(TRAIN) % 10
    (tmp_path / 'all' / MNIST[1]).write_bytes(struct.pack('>II', 2049, TRAIN) + labels_of_all.astype(np.uint8).tobytes())
    assert split(tmp_path / 'all', tmp_path / 'split', validation=2) == (TRAIN - 20, 20)
    assert split(tmp_path / 'all', tmp_path / 'less', validation=1, training=1) == (10, 10)
    for name, of_each_class in (('split', 2), ('less', 1)):
        found, places = open_mnist(tmp_path / name), []
        for part in (found.train, found.evaluation):
            images, labels = part[:]
            assert np.array_equal(np.bincount(labels), np.full(10, of_each_class))
            equal = (images.asnumpy()[:, None, ..., 0] == of_all).all((2, 3))  # images of the part, images of all
            assert np.array_equal(equal.sum(1), np.ones(len(images))) and np.array_equal(labels_of_all[equal.argmax(1)], labels)
            assert (np.diff(equal.argmax(1)) > 0).all()  # in the order of the files
            places += equal.argmax(1).tolist()
        assert len(set(places)) == len(places)
    with pytest.raises(UserError, match='has only 4 images: choose fewer'):
        split(tmp_path / 'all', tmp_path / 'none', validation=2, training=3)


@pytest.mark.parametrize(
    'name,missing',
    [
        ('mnist', 't10k-labels-idx1-ubyte'),
        ('fashion-mnist', 'train-images-idx3-ubyte'),
        ('cifar10', 'data_batch_3.bin'),
        ('cifar100', 'test.bin'),
    ],
)
def test_missing_files_are_named_with_their_folder(tmp_path, name, missing):
    write(tmp_path, name)
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=f'{tmp_path} lacks .*{missing}.*not downloaded'):
        open_data(name, tmp_path)
    with pytest.raises(UserError, match='nothing lacks'):
        open_data(name, tmp_path / 'nothing')
    assert not (tmp_path / 'nothing').exists()


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('name', SETS)
def test_truncated_files_are_reported_in_one_line(tmp_path, name, packed):
    write(tmp_path, name)
    if packed:
        pack(tmp_path, name)
    for path in list(tmp_path.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[: -len(content) // 3])
    with pytest.raises(UserError, match='damaged') as raised:
        open_data(name, tmp_path)
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize('packed', [False, True])
def test_files_of_mnist_that_lack_their_last_images_and_labels_are_refused(tmp_path, packed):
    write(tmp_path, 'mnist')
    for name, count in ((MNIST[0], 2 * 28 * 28), (MNIST[1], 2)):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-count])
    if packed:
        pack(tmp_path, 'mnist')
    with pytest.raises(UserError, match='damaged: .*train-images.* has 29,792 bytes after a header for 40 x 28 x 28'):
        open_data('mnist', tmp_path)


def test_files_of_cifar_with_another_number_of_images_are_warned_of(tmp_path, caplog):
    write(tmp_path, 'cifar10')
    open_data('cifar10', tmp_path)
    assert [message.partition(': ')[2].partition(':')[0] for message in caplog.messages][:2] == [
        '40 training images instead of 50,000',
        '15 validation images instead of 10,000',
    ]


@pytest.mark.parametrize('name', ['mnist', 'cifar10'])
def test_a_flipped_bit_in_a_packed_file_is_refused(tmp_path, name):
    write(tmp_path, name)
    pack(tmp_path, name)
    path = sorted(tmp_path.iterdir())[0]
    content = bytearray(path.read_bytes())
    for place in (len(content) // 2, len(content) - 6):  # in the compressed bytes, and in their checksum
        damaged = content.copy()
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UserError, match='damaged'):
            open_data(name, tmp_path)


def test_labels_of_other_data_are_refused(tmp_path):
    write(tmp_path, 'mnist')
    (tmp_path / MNIST[1]).write_bytes(struct.pack('>II', 2049, TRAIN) + bytes(range(TRAIN)))
    with pytest.raises(UserError, match='label 39'):
        open_data('mnist', tmp_path)


def test_dummy_yields_the_same_batch_of_the_requested_size_in_every_update():
    source = open_source(Batching(4, part=1, parts=2), DataOptions('dummy'), InputOptions(16))
    assert source.classes == 1000 and source.updates_per_epoch == 100 and source.images_per_update == 8
    batches = list(source.train(0, first=90))
    assert len(batches) == 10
    images, labels = batches[0]
    assert images.shape == (4, 3, 16, 16) and images.dtype == labels.dtype == np.float32
    assert all(other is images for other, _ in batches)
    assert abs(images.asnumpy().mean()) < 0.1 and abs(images.asnumpy().std() - 1) < 0.1
    assert labels.asnumpy().min() >= 0 and labels.asnumpy().max() < 1000
    assert sum(len(labels) for _, labels in source.validation()) == len(source.validation_share) == 4
