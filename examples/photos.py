"""Photos: train a binary network on your own images, fine-tune it to new classes, pack it, and classify without MXNet.

The photos are drawn by this program: shapes of random colours, sizes and places. The steps are the same for real photos: a folder with a
folder for each class, which training divides itself. Each step prints the command that a user would type, except for drawing.
"""

import argparse
import csv
import json
import pathlib
import shlex
import subprocess
import sys

import cv2
import numpy as np

from bmx_melius.__main__ import main as bmx_melius

SIZE = 32  # height and width of the photos in pixels
SHAPES = ('circle', 'square', 'triangle', 'cross')
NEW_SHAPES = ('diamond', 'ring')
NETWORK = ['--model', 'meliusnet_flex', '--model-options', '{"block_numbers": [2, 2], "transitions": [96]}']
INPUT = ['--initial-layers', 'imagenet', '--input-size', str(SIZE), '--augmentation', 'low', '-j', '0', '--log-interval', '0']

# Runs in a separate process, in which MXNet cannot be imported.
CLASSIFY = """
import json, sys
sys.modules['mxnet'] = None
from bmx_melius import Session
prefix, *photos = sys.argv[1:]
session = Session(prefix)
json.dump([session.classify(photo, top=1)[0][0] for photo in photos], sys.stdout)
"""


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--folder', type=pathlib.Path, default=pathlib.Path('out', 'photos'), help='new folder (default: %(default)s)')
    parser.add_argument('--photos', type=int, default=100, help='photos of each class (default: %(default)s)')
    parser.add_argument('--epochs', type=int, default=12, help='epochs of training, and of fine-tuning (default: %(default)s)')
    options = parser.parse_args(arguments)
    folder, epochs = options.folder, ['--num-epochs', options.epochs, '--batch-size', 8]
    if folder.exists():
        sys.exit(f'{folder} exists: remove it, or choose another --folder')

    headline(f'Photos of {", ".join(SHAPES)}; a fifth of each class is kept for validation')
    draw_photos(folder / 'photos', SHAPES, options.photos, seed=0)
    command('train', *NETWORK, *INPUT, '--data-dir', folder / 'photos', *epochs, '--save-dir', folder / 'run')

    headline(f'Fine-tuning to new classes with few photos: {", ".join(NEW_SHAPES)}')
    draw_photos(folder / 'new-photos', NEW_SHAPES, max(8, options.photos // 4), seed=1)
    weights = json.loads((folder / 'run' / 'checkpoint.json').read_text())['weights']
    start = ['--resume-params', folder / 'run' / weights, '--pretrained-lr-factor', 0.1]
    data = ['--data-dir', folder / 'new-photos', '--val-fraction', 0.5]
    command('train', *NETWORK, *INPUT, *data, *start, *epochs, '--save-dir', folder / 'fine-tuned')
    prefix, packed = folder / 'fine-tuned' / 'meliusnet_flex', folder / 'packed'

    headline('Evaluating on the photos that were kept for validation, and packing')
    command('convert', prefix, packed)
    command('evaluate', prefix, folder / 'new-photos', '--val-fraction', 0.5, '--compare', packed)

    headline('Classifying other photos: by the exported network in MXNet, and by the packed one in a process without MXNet')
    draw_photos(folder / 'other-photos', NEW_SHAPES, 5, seed=2)
    folders = [folder / 'other-photos' / name for name in NEW_SHAPES]
    command('predict', prefix, *folders, '--top', 1, '--csv', folder / 'predictions.csv')
    with open(folder / 'predictions.csv', newline='') as file:
        in_mxnet = [row['class_1'] for row in csv.DictReader(file)]
    without = classify_without_mxnet(packed, [path for one in folders for path in sorted(one.iterdir())])
    right = sum(pathlib.Path(path).name == name for path, name in zip([one for one in folders for _ in range(5)], without))
    print(f'{right} of {len(without)} photos are classified correctly without MXNet; {sum(map(str.__eq__, without, in_mxnet))} as in MXNet')


def draw_photos(folder, shapes, count, seed):
    """Write FOLDER/SHAPE/NUMBER.png: a shape of a random colour, size and place on a background of another colour, with noise."""
    random = np.random.RandomState(seed)
    for name in shapes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            background, colour = random.randint(0, 100, 3), random.randint(150, 256, 3)
            image = np.full((SIZE, SIZE, 3), background, np.uint8)
            draw(image, name, tuple(random.randint(13, SIZE - 13, 2).tolist()), int(random.randint(7, 12)), tuple(colour.tolist()))
            noisy = image + random.normal(0, 8, image.shape)
            cv2.imwrite(str(folder / name / f'{number:03d}.png'), noisy.clip(0, 255).astype(np.uint8))


def draw(image, shape, centre, radius, colour):
    """Draw a shape."""
    x, y = centre
    if shape in ('circle', 'ring'):
        cv2.circle(image, centre, radius, colour, thickness=-1 if shape == 'circle' else 2)
    elif shape == 'cross':
        cv2.line(image, (x - radius, y), (x + radius, y), colour, 3)
        cv2.line(image, (x, y - radius), (x, y + radius), colour, 3)
    else:
        corners = {
            'square': [(-1, -1), (1, -1), (1, 1), (-1, 1)],
            'triangle': [(0, -1), (1, 1), (-1, 1)],
            'diamond': [(0, -1), (1, 0), (0, 1), (-1, 0)],
        }[shape]
        cv2.fillPoly(image, [np.array([(x + radius * dx, y + radius * dy) for dx, dy in corners])], colour)


def classify_without_mxnet(packed, paths):
    """Return the names of the most probable classes of photos, from the packed network in a process that cannot import MXNet."""
    words = [sys.executable, '-c', CLASSIFY, str(packed), *map(str, paths)]
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout)


def command(*words):
    """Run a command of bmx-melius in this process, which saves the import of MXNet, and stop if it fails."""
    words = [str(word) for word in words]
    print(f'$ bmx-melius {shlex.join(words)}', flush=True)
    status = bmx_melius(words)
    if status:
        sys.exit(status)


def headline(text):
    print(f'\n== {text}', flush=True)


if __name__ == '__main__':
    main()
