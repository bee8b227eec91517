"""Folders with classes but without train and val: the same images validate in training, evaluation and packed files."""

import json
import logging
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.training_runs import SMALL, TINY, description_of, printed_by, refused

from bmx_melius import InputSpec, UserError
from bmx_melius.data.folders import ImageFolder, open_folders
from bmx_melius.data.im2rec import list_images

SPEC = InputSpec(size=16, resize=16)


def make_photos(root, counts):
    random = np.random.RandomState(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            image = cv2.resize(random.randint(0, 256, (4, 5, 3)).astype(np.uint8), (24, 20))
            cv2.imwrite(str(root / name / f'{number}.jpg'), image)
    return root


@pytest.fixture(scope='module')
def photos(make_once):
    return make_once('photos', lambda folder: make_photos(folder, {'cat': 10, 'dog': 5, 'emu': 2}))


def names(part):
    return {path for path, _ in part.items}


def test_a_folder_is_divided_by_names_with_images_of_each_class_in_both_parts(photos, caplog):
    with caplog.at_level(logging.INFO):
        train_part, validation = open_folders(str(photos), SPEC)
    assert '13 training and 4 validation images of 3 classes' in caplog.text and '--val-fraction 0.2' in caplog.text
    counts = [[label for _, label in part.items].count(label) for part in (train_part, validation) for label in range(3)]
    assert counts == [8, 4, 1, 2, 1, 1]
    assert names(train_part) | names(validation) == names(ImageFolder(str(photos), SPEC)) and not names(train_part) & names(validation)
    assert train_part.class_names == validation.class_names == ['cat', 'dog', 'emu']


def test_the_parts_depend_on_nothing_but_the_names(photos, tmp_path):
    copied = make_photos(tmp_path / 'copy', {'emu': 2, 'dog': 5, 'cat': 10})
    for fraction in (0.2, 0.5):
        expected = {path[len(str(photos)) :] for path in names(open_folders(str(photos), SPEC, fraction)[1])}
        assert {path[len(str(copied)) :] for path in names(open_folders(str(copied), SPEC, fraction)[1])} == expected
    before = names(open_folders(str(copied), SPEC)[1])
    cv2.imwrite(str(copied / 'cat' / 'new.jpg'), np.zeros((20, 24, 3), np.uint8))
    after = names(open_folders(str(copied), SPEC)[1]) - {str(copied / 'cat' / 'new.jpg')}
    assert len(before - after) <= 1


def test_packed_files_have_the_same_parts(photos):
    images = list_images(str(photos), val_fraction=0.3)
    _, validation = open_folders(str(photos), SPEC, 0.3)
    assert {f'{photos}/{path}' for path, _ in images.images['val']} == names(validation)
    assert images.class_names == ['cat', 'dog', 'emu'] and len(images.images['train']) + len(images.images['val']) == 17


def test_folders_that_cannot_be_divided_are_refused_in_one_line(tmp_path, photos):
    make_photos(tmp_path / 'one', {'cat': 3, 'dog': 1})
    with pytest.raises(UserError, match='one/dog has 1 image: at least 2 are needed'):
        open_folders(str(tmp_path / 'one'), SPEC)
    make_photos(tmp_path / 'half' / 'train', {'cat': 3})
    with pytest.raises(UserError, match='there is no folder .*/half/val'):
        open_folders(str(tmp_path / 'half'), SPEC)
    make_photos(tmp_path / 'half' / 'val', {'cat': 3})
    with pytest.raises(UserError, match='--val-fraction 0.2: .*half has a folder val'):
        open_folders(str(tmp_path / 'half'), SPEC, 0.2)
    with pytest.raises(UserError, match='--val-labels are for images in'):
        list_images(str(photos), val_labels='labels.txt')


def test_a_folder_of_record_files_without_use_rec_is_refused_with_that_flag(tmp_path, run):
    (tmp_path / 'rec').mkdir()
    (tmp_path / 'rec' / 'train.rec').write_bytes(b'')
    code, _, error = run('train', *TINY, '--data-dir', tmp_path, '--dry-run')
    assert code == 2 and f'{tmp_path} has record files, {tmp_path}/rec/train.rec: add --use-rec' in error


def test_folders_without_images_are_no_classes(photos, tmp_path, caplog):
    make_photos(tmp_path / 'photos', {'cat': 2, 'dog': 2})
    (tmp_path / 'photos' / 'rec').mkdir()
    (tmp_path / 'photos' / 'rec' / 'train.rec').write_bytes(b'')
    assert ImageFolder(str(tmp_path / 'photos'), SPEC).class_names == ['cat', 'dog']
    assert 'rec/train.rec' in caplog.text


def test_evaluate_leaves_out_the_images_on_which_the_network_was_trained(photos, tmp_path, run, capsys, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos, 'photos')
    flags = [*SMALL, '--data-dir', 'photos', '--batch-size', '5', '--num-epochs', '1', '-j', '1']
    printed_by(capsys, *flags, '--val-fraction', '0.4', '--save-dir', 'run')
    network = Path('run/meliusnet_flex')
    metrics = description_of(tmp_path / 'run')['metrics']

    def evaluate(data, *arguments, network=network):
        caplog.clear()
        status, output, errors = run('evaluate', network, data, '--json', *arguments)
        assert status == 0, errors
        return json.loads(output), '; '.join(record.getMessage() for record in caplog.records if record.levelno > logging.INFO)

    shutil.copytree('photos', 'moved')
    assert run('convert', 'run/meliusnet_flex-symbol.json', 'run/meliusnet_flex-0000.params', 'packed')[0] == 0
    for data, prefix in (('photos', network), ('moved', network), ('photos', 'packed')):
        found, errors = evaluate(data, network=prefix)
        assert found['images'] == 7 and found['top1'] == pytest.approx(metrics['top1'])
        assert 'the 7 of 17 images that its training kept for validation (--all-images evaluates all)' in errors
        assert 'changed' not in errors
    assert evaluate('photos', '--val-fraction', '0.4')[0]['images'] == 7
    found, errors = evaluate('photos', '--all-images')
    assert found['images'] == 17 and not errors
    assert 'training images of the network are among those evaluated' in evaluate('photos', '--val-fraction', '0.9')[1]
    make_photos(tmp_path / 'others', {'cat': 3, 'dog': 2})
    for number, image in enumerate(sorted((tmp_path / 'others').rglob('*.jpg'))):
        image.write_bytes(image.read_bytes() + bytes(number + 1000))  # the same names, other content
    found, errors = evaluate('others')
    assert found['images'] == 5 and not errors
    for number in range(3):
        shutil.copy('others/cat/0.jpg', f'photos/cat/new{number}.jpg')
    errors = evaluate('photos')[1]
    assert 'its files have changed since the training' in errors


def test_evaluate_warns_of_the_folder_of_training_images(photos, tmp_path, run, capsys, caplog):
    shutil.copytree(photos, tmp_path / 'data' / 'train')
    shutil.copytree(photos, tmp_path / 'data' / 'val')
    for image in (tmp_path / 'data' / 'val').rglob('*.jpg'):
        image.write_bytes(image.read_bytes() + bytes(1000))
    flags = [*SMALL, '--data-dir', tmp_path / 'data', '--batch-size', '5', '--num-epochs', '1', '-j', '1']
    printed_by(capsys, *flags, '--save-dir', tmp_path / 'run')
    for data, warns in (('data', False), ('data/val', False), ('data/train', True)):
        caplog.clear()
        assert run('evaluate', tmp_path / 'run' / 'meliusnet_flex', tmp_path / data)[0] == 0
        assert ('training images of the network are among those evaluated' in caplog.text) == warns


def test_training_validates_on_the_images_on_which_evaluate_then_finds_the_same_accuracy(photos, tmp_path, run, capsys):
    flags = [*SMALL, '--data-dir', photos, '--val-fraction', '0.4', '--batch-size', '5', '--num-epochs', '1', '-j', '1']
    assert '10 training and 7 validation images of 3 classes' in printed_by(capsys, *flags, '--save-dir', tmp_path / 'run')
    description = description_of(tmp_path / 'run')
    status, output, errors = run('evaluate', tmp_path / 'run' / 'meliusnet_flex', photos, '--val-fraction', '0.4', '--json')
    assert status == 0, errors
    evaluated = json.loads(output)
    assert evaluated['images'] == 7 and evaluated['top1'] == pytest.approx(description['metrics']['top1'])
    assert json.loads((tmp_path / 'run' / 'config.json').read_text())['sessions'][0]['arguments']['val_fraction'] == 0.4
    assert 'was started with --val-fraction 0.4' in refused(capsys, '--resume', '--save-dir', tmp_path / 'run', '--val-fraction', '0.3')
    assert run('evaluate', tmp_path / 'run' / 'meliusnet_flex', 'digits', '--val-fraction', '0.4')[0] == 2
