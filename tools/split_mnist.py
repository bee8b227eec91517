"""Set aside images for choices: of a dataset in MNIST's format, write one whose test images are part of its training images.

    python tools/split_mnist.py FOLDER OUTPUT [--validation N] [--training M]

FOLDER has the four files of MNIST or Fashion-MNIST, of which the test images are not read. N training images of each class, drawn with
seed 0, become the test images of OUTPUT, the others, or with --training M of each class, its training images, both in the order of
FOLDER. `bmx-melius train --data-dir OUTPUT` then selects the best epoch on images that are not those of the final evaluation.
"""

import argparse
import gzip
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from bmx_melius.arguments import positive_int  # noqa: E402
from bmx_melius.data.small_images import MNIST_FILES, open_mnist  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.files.io import replacing  # noqa: E402


def write_idx(file, array):
    """Write an array of uint8 in MNIST's format, compressed, with the same bytes in each run."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, '>u4').tobytes()
    with replacing(file) as temporary, open(temporary, 'wb') as raw, gzip.GzipFile('', 'wb', fileobj=raw, mtime=0) as compressed:
        compressed.write(header + array.astype(np.uint8).tobytes())


def split(folder, output, validation, training=None):
    """Write the four files of the split to the folder `output`, which is made; return the numbers of training and validation images."""
    images, labels = open_mnist(folder).train[:]
    images, labels = images.asnumpy()[..., 0], np.asarray(labels)
    random = np.random.RandomState(0)
    shuffled = [random.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    fewest = min(map(len, shuffled))
    if fewest < validation + (training or 1):
        raise UserError(f'a class of {folder} has only {fewest:,} images: choose fewer for --validation and --training')
    end = None if training is None else validation + training
    chosen = {
        True: np.sort(np.concatenate([numbers[validation:end] for numbers in shuffled])),
        False: np.sort(np.concatenate([numbers[:validation] for numbers in shuffled])),
    }
    output.mkdir(parents=True, exist_ok=True)
    for train, numbers in chosen.items():
        for name, array in zip(MNIST_FILES[train], (images, labels)):
            write_idx(output / f'{name}.gz', array[numbers])
    return len(chosen[True]), len(chosen[False])


def main():
    """Split the dataset that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder')
    parser.add_argument('output', type=pathlib.Path)
    parser.add_argument('--validation', type=positive_int, default=500, metavar='N', help='images of each class (default: %(default)s)')
    parser.add_argument('--training', type=positive_int, metavar='M', help='training images of each class (default: all others)')
    arguments = parser.parse_args()
    try:
        training, validation = split(arguments.folder, arguments.output, arguments.validation, arguments.training)
    except UserError as error:
        sys.exit(f'error: {error}')
    print(f'{arguments.output}: {training:,} training images, {validation:,} validation images')


if __name__ == '__main__':
    main()
