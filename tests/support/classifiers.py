"""A classifier of few classes: its images, their preprocessing, and the description beside its files."""

import json

import cv2
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from bmx_melius import InputSpec
from support.small_networks import initialized, sequence

SPEC = InputSpec(size=24, resize=28)
NAMES = ['cat', 'dog', 'fish', 'bird', 'crab', 'frog', 'newt']


def classifier(*layers):
    """A network of few classes that begins with these layers, and has run."""
    return initialized(sequence(*layers, nn.GlobalAvgPool2D(), nn.Dense(len(NAMES))), (1, *SPEC.shape), mx.init.Normal(0.3))


def describe(prefix, **changes):
    fields = {'model': {}, 'input': SPEC.to_json(), 'class_names': NAMES, 'counts': {}, 'metrics': {}, **changes}
    (prefix.parent / 'net-summary.json').write_text(json.dumps(fields))


def write_image(path, channels=3, height=40, width=50, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    pixels = np.random.RandomState(seed).randint(0, 256, shape, np.uint8)
    assert cv2.imwrite(str(path), cv2.resize(pixels, (width, height)))
    return path
