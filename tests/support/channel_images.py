"""Images with five channels, in .npy and TIFF files, of two classes that differ in one channel only.

The files in tests/data/channels were written by tifffile 2026.3.3: the numbers of `stored`, of 8 bits or as the upper 8 of 16.
"""

import io

import numpy as np

from support.paths import DATA

CHANNELS = 5
TIFF_FILES = sorted((DATA / 'channels').glob('*.tif'))


def stored():
    """Return the pixels of the files in tests/data/channels, (height, width, channels) uint8."""
    y, x, channel = np.indices((21, 26, CHANNELS))
    return ((7 * y + 13 * x + 31 * channel + x * y) % 256).astype(np.uint8)


def npy(array):
    """Return the content of an .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def make_image(label, number):
    """Return an image of a class, (height, width, channels) uint8: its last channel is dark in one class and bright in the other."""
    image = np.random.RandomState(number).randint(0, 256, (20 + number, 24, CHANNELS)).astype(np.uint8)
    image[..., -1] = image[..., -1] // 4 + 180 * label
    return image


def make_folders(root, images=12):
    """Write ROOT/CLASS/NUMBER.npy."""
    for label, name in enumerate(('dark', 'bright')):
        (root / name).mkdir(parents=True)
        for number in range(images):
            (root / name / f'{number}.npy').write_bytes(npy(make_image(label, 2 * number + label)))
