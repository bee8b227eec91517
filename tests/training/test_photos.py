"""Training on few photos: the preset for it, and examples/photos.py, from a folder to predictions without MXNet, in a short form."""

import csv
import json
import re
import subprocess
import sys

from support.images import CLASSES, TRAIN, make_folders
from support.paths import ROOT
from support.training_runs import TINY, printed_by, train

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


def test_the_preset_for_few_photos_trains_small_batches_of_small_images_and_estimates_its_time(tmp_path, capsys):
    make_folders(tmp_path / 'photos')
    flags = [*TINY, '--initial-layers', 'imagenet', '--data-dir', tmp_path / 'photos', '--preset', 'photos', '-j', '0']
    plan = printed_by(capsys, *flags, '--dry-run', '--save-dir', tmp_path / 'run')
    assert 'input      3 x 128 x 128, validation: short side 147, centre 128' in plan
    assert f'updates    40 epochs of {CLASSES * TRAIN // 16} updates of 16 images' in plan and not (tmp_path / 'run').exists()
    total, unit, epochs, seconds = re.search(
        r'^time +about (\d+) (s|min).*: (\d+) epochs of ([\d.]+) s, measured', plan, re.MULTILINE
    ).groups()
    assert epochs == '40' and abs(int(total) * {'s': 1, 'min': 60}[unit] - 40 * float(seconds)) <= max(60, float(seconds))
    train(*flags, '--num-epochs', '1', '--save-dir', tmp_path / 'run')
    spec = json.loads((tmp_path / 'run' / 'meliusnet_flex-summary.json').read_text())['input']
    assert (spec['size'], spec['resize']) == (128, 147)
