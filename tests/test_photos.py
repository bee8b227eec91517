"""examples/photos.py: from a folder of photos to predictions without MXNet, in a short form."""

import csv
import pathlib
import re
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / 'examples' / 'photos.py'


def test_the_example_trains_fine_tunes_packs_and_classifies_without_mxnet(tmp_path):
    folder = tmp_path / 'photos'
    command = [sys.executable, EXAMPLE, '--folder', folder, '--photos', '20', '--epochs', '1']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'photos has no folders train and val: 64 training and 16 validation images of 4 classes' in done.stdout
    assert '4 classes, this network 2: the output layer (output.weight, output.bias) starts anew; all else is loaded' in done.stdout
    assert '8 images, 2 classes' in done.stdout  # evaluate, on the images that were kept for validation
    right, count, same = map(int, re.search(r'^(\d+) of (\d+) photos .* MXNet; (\d+) as in MXNet$', done.stdout, re.MULTILINE).groups())
    assert count == same == 10 and 0 <= right <= count
    with open(folder / 'predictions.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 and {row['class_1'] for row in rows} <= {'diamond', 'ring'}
