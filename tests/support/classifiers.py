"""A classifier of few classes: its images, their preprocessing, and the description beside its files."""

import json

import cv2
import numpy as np

from bmx_melius import InputSpec

SPEC = InputSpec(size=24, resize=28)
NAMES = ['cat', 'dog', 'fish', 'bird', 'crab', 'frog', 'newt']


def describe(prefix, **changes):
    fields = {'model': {}, 'input': SPEC.to_json(), 'class_names': NAMES, 'counts': {}, 'metrics': {}, **changes}
    (prefix.parent / 'net-summary.json').write_text(json.dumps(fields))


def write_image(path, channels=3, height=40, width=50, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    pixels = np.random.RandomState(seed).randint(0, 256, shape, np.uint8)
    assert cv2.imwrite(str(path), cv2.resize(pixels, (width, height)))
    return path
