"""A classifier of few classes: its images, their preprocessing, and the description beside its files."""

import json

import cv2
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

import bmx_melius as bmx
from support.small_networks import initialized, sequence

SPEC = bmx.InputSpec(size=24, resize=28)
NAMES = ['cat', 'dog', 'fish', 'bird', 'crab', 'frog', 'newt']


def write_classifier(folder, spec=SPEC, names=NAMES):
    """Write the files of a small classifier with a binary layer: FOLDER/net, and packed with its description, whose prefix is returned."""
    folder.mkdir(exist_ok=True)
    net = sequence(nn.Conv2D(32, 3), nn.BatchNorm(), bmx.BinaryConv2D(64, kernel_size=3, padding=1), nn.BatchNorm(), nn.GlobalAvgPool2D())
    net.add(nn.Dense(len(names)))
    mx.random.seed(0)
    initialized(net, (1, *spec.shape)).export(str(folder / 'net'))
    files = folder / 'net-symbol.json', folder / 'net-0000.params', folder / 'packed'
    bmx.convert(*files, (1, *spec.shape), input_spec=spec, class_names=names)
    return folder / 'packed'


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
