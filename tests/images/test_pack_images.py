"""``bmx-melius pack-images``: the record files have what the folders have, or there are none."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import cv2
import mxnet as mx
import numpy as np
import pytest
from support.images import CLASSES, TRAIN, VALIDATION, make_folders, overwrite

from bmx_melius.__main__ import main
from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.im2rec import list_images
from bmx_melius.data.record_source import RecordSource
from bmx_melius.data.records import RecordFile
from bmx_melius.data.source import Batching
from bmx_melius.vision.preprocessing import InputSpec

NAMES = [f'class{label}' for label in range(CLASSES)]


@pytest.fixture
def folder(tmp_path):
    make_folders(tmp_path)
    return tmp_path


def pack(*arguments, status=0):
    assert main(['pack-images', *map(str, arguments)]) == status


def open_records(folder):
    return [RecordFile(f'{folder}/{part}.rec', f'{folder}/{part}.idx') for part in ('train', 'val')]


def contents(records):
    """The encoded images by their paths, which the list beside the records tells, checked against their labels."""
    reader = mx.recordio.MXIndexedRecordIO(records.index_path, records.path, 'r')
    found = {}
    with open(records.path.replace('.rec', '.lst')) as file:
        for line in file:
            key, label, path = line.rstrip('\n').split('\t')
            header, image = mx.recordio.unpack(reader.read_idx(int(key)))
            assert header.label == int(label) == NAMES.index(path.split('/')[1])
            found[path] = image
    assert len(found) == len(records)
    return found


def nothing_was_written(folder):
    return sorted(os.listdir(folder)) == ['train', 'val']


def error_of(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith('error: ')
    return lines[-1]


def test_record_files_have_every_image_with_its_label_and_the_names_of_the_classes_training_images_resized(folder, capsys):
    pack(folder, '--resize', '30', '--json', '--threads', '2')
    assert json.loads(capsys.readouterr().out) == {
        'folder': f'{folder}/rec',
        'classes': CLASSES,
        'train': CLASSES * TRAIN,
        'val': CLASSES * VALIDATION,
        'bytes': {part: os.path.getsize(folder / 'rec' / f'{part}.rec') for part in ('train', 'val')},
    }
    for records, part, number in zip(open_records(folder / 'rec'), ('train', 'val'), (TRAIN, VALIDATION)):
        images = contents(records)
        assert sorted(images) == sorted(f'{part}/{name}/{index}.jpg' for name in NAMES for index in range(number))
        assert np.bincount(records.labels).tolist() == [number] * CLASSES
        for path, image in images.items():
            if part == 'val':
                assert image == (folder / path).read_bytes()
                continue
            packed, original = mx.image.imdecode(image).asnumpy(), cv2.imread(str(folder / path))[..., ::-1]
            expected = cv2.resize(original, (original.shape[1] * 30 // 50, 30))
            assert packed.shape == expected.shape and np.abs(packed.astype(int) - expected).mean() < 5
    train, validation = open_records(folder / 'rec')
    assert train.labels.tolist() != sorted(train.labels), 'shuffled'
    source = RecordSource(train, validation, InputSpec(size=16, resize=20), Augmentation(), Batching(4), threads=1)
    assert source.class_names == NAMES and source.classes == CLASSES


def test_files_can_be_packed_as_they_are_into_another_folder(folder, capsys):
    pack(folder, '--resize', '0', '--output', folder / 'packed')
    text = capsys.readouterr().out
    assert f'train.rec  {CLASSES * TRAIN} images of {CLASSES} classes' in text and 'ImageNet' not in text
    for records in open_records(folder / 'packed'):
        assert all(image == (folder / path).read_bytes() for path, image in contents(records).items())
    umask = os.umask(0)
    os.umask(umask)
    assert (folder / 'packed').stat().st_mode & 0o777 == 0o777 & ~umask


@pytest.mark.parametrize('with_names', [False, True])
def test_validation_images_without_folders_have_their_classes_from_a_file(folder, with_names):
    lines = []
    for number, (name, index) in enumerate((name, index) for index in range(VALIDATION) for name in NAMES):
        os.rename(folder / 'val' / name / f'{index}.jpg', folder / 'val' / f'ILSVRC2012_val_{number:08}.JPEG')
        lines.append(f'ILSVRC2012_val_{number:08}.JPEG {name}\n' if with_names else f'{name}\n')
    for name in NAMES:
        os.rmdir(folder / 'val' / name)
    (folder / 'labels.txt').write_text(''.join(reversed(lines) if with_names else lines))
    if with_names:
        pack(folder, '--val-labels', folder / 'labels.txt', '--resize', '0')
        labels = open_records(folder / 'rec')[1].labels.tolist()
    else:
        labels = [label for _, label in list_images(str(folder), str(folder / 'labels.txt')).images['val']]
    assert labels == list(range(CLASSES)) * VALIDATION


@pytest.mark.parametrize('lines,words', [('class0\n', '1 lines'), ('a.jpg class0\n', 'no class for'), ('klass\n' * 12, "'klass'")])
def test_labels_that_do_not_fit_the_validation_images_are_refused(folder, tmp_path_factory, lines, words, capsys):
    for name in NAMES:
        for index in range(VALIDATION):
            os.rename(folder / 'val' / name / f'{index}.jpg', folder / 'val' / f'{name}-{index}.jpg')
        os.rmdir(folder / 'val' / name)
    labels = tmp_path_factory.mktemp('labels') / 'labels.txt'
    labels.write_text(lines)
    pack(folder, '--val-labels', labels, status=2)
    message = error_of(capsys)
    assert words in message and 'labels.txt' in message and nothing_was_written(folder)


@pytest.mark.parametrize(
    'broken, resize',
    [('train/class1/4.jpg', '0'), ('train/class1/4.jpg', '480'), ('val/class0/0.jpg', '480')],  # val is never resized
)
def test_an_image_that_cannot_be_decoded_is_named_and_nothing_is_written(folder, broken, resize, capsys):
    overwrite(folder / broken, 8, b'\0' * ((folder / broken).stat().st_size - 10))
    pack(folder, '--resize', resize, status=2)
    assert f'1 of {CLASSES * (TRAIN if "train" in broken else VALIDATION)} images cannot be decoded: {folder / broken};' in error_of(capsys)
    assert nothing_was_written(folder)


@pytest.mark.parametrize(
    'change,words',
    [
        (lambda folder: shutil.rmtree(folder / 'val'), 'there is no folder'),
        (lambda folder: os.rename(folder / 'val' / 'class1', folder / 'val' / 'klass1'), 'same classes'),
        (lambda folder: os.rename(folder / 'val' / 'class1' / '1.jpg', folder / 'val' / 'class1' / '1\t.jpg'), 'tabs'),
        (lambda folder: (folder / 'rec').mkdir(), 'remove it'),
    ],
)
def test_folders_that_cannot_be_packed_are_refused_before_any_work(folder, change, words, capsys):
    change(folder)
    pack(folder, status=2)
    assert words in error_of(capsys)
    assert not (folder / 'rec').exists() or not os.listdir(folder / 'rec')


def test_counts_are_compared_with_those_of_imagenet(folder, capsys):
    for part in ('train', 'val'):
        for number, name in enumerate(NAMES):
            os.rename(folder / part / name, folder / part / f'n0000000{number}')
    pack(folder, '--expect-imagenet', status=2)
    assert 'classes 3 instead of 1,000, train 30 instead of 1,281,167, val 12 instead of 50,000' in error_of(capsys)
    assert nothing_was_written(folder)
    pack(folder, '--resize', '0')
    assert 'note: ' in capsys.readouterr().out


def run_apart(folder, prefix=''):
    command = f'{prefix} exec {sys.executable} -m bmx_melius pack-images {folder} --threads 2'
    return subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_a_full_disk_ends_in_one_line_and_nothing_is_written(folder):
    process = run_apart(folder, 'ulimit -f 16;')  # blocks of 512 or 1024 bytes
    _, errors = process.communicate()
    assert process.returncode == 2 and re.match(r'error: im2rec failed: .*\n$', errors), errors
    assert nothing_was_written(folder)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_packing_leaves_no_files(folder, number):
    image = (folder / 'train' / 'class0' / '0.jpg').read_bytes()
    for index in range(TRAIN, 3000):  # some seconds' work
        (folder / 'train' / 'class0' / f'{index}.jpg').write_bytes(image)
    process = run_apart(folder)
    while not list(folder.glob('.packing-*/rec/*.rec')):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 128 + number
    assert nothing_was_written(folder)
