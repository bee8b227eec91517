"""Training on few photos: the preset for it, and examples/photos.py, from a folder to predictions without MXNet, in a short form."""

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from support.images import CLASSES, TRAIN, encode, make_folders
from support.paths import ROOT
from support.training_runs import TINY, printed_by, refused, train

EXAMPLE = ROOT / 'examples' / 'photos.py'


def test_the_example_trains_fine_tunes_packs_and_classifies_without_mxnet(tmp_path):
    folder = tmp_path / 'photos'
    command = [sys.executable, EXAMPLE, '--folder', folder, '--photos', '20', '--epochs', '1']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'photos has no folders train and val: 64 training and 16 validation images of 4 classes' in done.stdout
    assert (
        '4 classes, this network 2: the output layer (output.weight, output.bias) is newly initialized; the rest is loaded' in done.stdout
    )
    assert '8 images, 2 classes' in done.stdout  # evaluate, on the images that were kept for validation
    right, count, same = map(int, re.search(r'^(\d+) of (\d+) photos .* MXNet; (\d+) as in MXNet$', done.stdout, re.MULTILINE).groups())
    assert count == same == 10 and 0 <= right <= count
    with open(folder / 'predictions.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 and {row['class_1'] for row in rows} <= {'diamond', 'ring'}


@pytest.mark.parametrize('photos, batch, updates', [(20, 16, 3), (4, 4, 2)])  # 60 and 12
def test_a_folder_of_few_photos_is_trained_without_other_flags_by_the_preset_for_them_and_resumed(tmp_path, capsys, photos, batch, updates):
    random = np.random.RandomState(0)
    for name in 'abc':
        (tmp_path / 'photos' / name).mkdir(parents=True)
        for number in range(photos):
            pixels = random.randint(0, 256, (40, 40, 3)).astype(np.uint8)
            (tmp_path / 'photos' / name / f'{number}.png').write_bytes(encode(pixels))
    flags = ['--data-dir', tmp_path / 'photos', '--save-dir', tmp_path / 'run', '-j', '0']
    short = [*TINY, '--input-size', '32', '--num-epochs', '1']
    plan = printed_by(capsys, *short, *flags)
    assert 'preset     photos (the default for fewer than 640 training images in a folder): --lr ' in plan
    assert f'updates    1 epoch of {updates} updates of {batch} images' in plan
    stored = json.loads((tmp_path / 'run' / 'checkpoint.json').read_text())['options']
    assert (stored['preset'], stored['batch_size'], stored['few_images']) == ('photos', batch, 48 if photos == 20 else 9)
    assert stored['lr'] == 0.001 * (batch / 16) ** 0.5
    resumed = printed_by(capsys, *flags, '--resume', '--num-epochs', '2')
    assert 'preset     photos (the default' in resumed and f'updates    2 epochs of {updates} updates of {batch} images' in resumed
    given = [*short, '--data-dir', tmp_path / 'photos', '--save-dir', tmp_path / 'other', '--preset', 'meliusnet']
    assert 'do not fill a batch of 64: lower --batch-size (--preset photos is for few)' in refused(capsys, *given)


def test_the_preset_for_few_photos_trains_small_batches_of_small_images_and_estimates_its_time(tmp_path, capsys):
    make_folders(tmp_path / 'photos')
    flags = [*TINY, '--initial-layers', 'imagenet', '--data-dir', tmp_path / 'photos', '--preset', 'photos', '-j', '0']
    plan = printed_by(capsys, *flags, '--dry-run', '--save-dir', tmp_path / 'run')
    assert 'input      3 x 128 x 128, validation: short side 147, centre 128' in plan
    assert f'updates    40 epochs of {CLASSES * TRAIN // 8} updates of 8 images' in plan and not (tmp_path / 'run').exists()
    total, unit, epochs, seconds = re.search(
        r'^time +about (\d+) (s|min).*: (\d+) epochs of ([\d.]+) s, measured', plan, re.MULTILINE
    ).groups()
    assert epochs == '40' and abs(int(total) * {'s': 1, 'min': 60}[unit] - 40 * float(seconds)) <= max(60, float(seconds))
    train(*flags, '--num-epochs', '1', '--save-dir', tmp_path / 'run')
    spec = json.loads((tmp_path / 'run' / 'meliusnet_flex-summary.json').read_text())['input']
    assert (spec['size'], spec['resize']) == (128, 147)
