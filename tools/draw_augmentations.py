"""Draw docs/augmentation.png: random samples of the augmentations of one photo. `python tools/draw_augmentations.py`.

The photo shows Grace Hopper, from matplotlib's sample data (U.S. Navy, public domain); CutMix mixes it with the same photo, inverted.
"""

import pathlib
import sys

import matplotlib.cbook
import mxnet as mx
import numpy as np
import PIL.Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from bmx_melius.data.augmentation import Augmentation  # noqa: E402
from bmx_melius.data.datasets import DATASETS  # noqa: E402
from bmx_melius.training.objective import CutMix  # noqa: E402
from bmx_melius.vision.preprocessing import InputSpec  # noqa: E402

SPEC, COLUMNS, GAP = InputSpec(size=96, resize=110), 8, 4
LEVELS = DATASETS['imagenet'].augmentations
ROWS = (
    *(LEVELS[level] for level in ('low', 'medium', 'high')),
    Augmentation(mirror=True, randaugment=(2, 9)),
    Augmentation(mirror=True, random_erasing=1.0),
)


def main():
    """Draw one row for each augmentation, and one for CutMix."""
    with matplotlib.cbook.get_sample_data('grace_hopper.jpg') as file:
        photo = np.asarray(PIL.Image.open(file).convert('RGB').crop((56, 0, 456, 400)))
    rows = [[augmentation(photo, SPEC, np.random.default_rng(number)) for number in range(COLUMNS)] for augmentation in ROWS]
    plain = Augmentation()(photo, SPEC, np.random.default_rng(0)).transpose(2, 0, 1)
    pair = mx.nd.array(np.stack([plain, 255 - plain]))
    mixed = (CutMix(seed=0).mix(pair, 0, number)[0][0].asnumpy() for number in range(COLUMNS))
    rows.append([image.transpose(1, 2, 0).astype(np.uint8) for image in mixed])
    side = SPEC.size + GAP
    canvas = np.full((side * len(rows) - GAP, side * COLUMNS - GAP, 3), 255, np.uint8)
    for number, row in enumerate(rows):
        for column, image in enumerate(row):
            canvas[number * side :, column * side :][: SPEC.size, : SPEC.size] = image
    PIL.Image.fromarray(canvas).quantize(128).save(ROOT / 'docs' / 'augmentation.png', optimize=True)


if __name__ == '__main__':
    main()
