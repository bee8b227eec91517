"""Train the network of the page that classifies drawn digits: ``python train_digits.py PREFIX``.

A small binary network learns scikit-learn's digits, 8 x 8 pixels, in half a minute, and is converted to PREFIX-symbol.json and
PREFIX-0000.params. The page makes its images as the dataset's were made (`pixels` in page.js).
"""

import pathlib
import sys
import tempfile

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

import bmx_melius as bmx

INPUT = bmx.InputSpec(channels=1, size=8, resize=None, mean=(77.9,), std=(95.9,))
EPOCHS, BATCH = 15, 32
TEST = 300  # images that training does not use


class Block(nn.HybridBlock):
    """A binary convolution whose result is added to its input."""

    def __init__(self, channels, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.convolution = bmx.BinaryConv2D(channels, kernel_size=3, padding=1, in_channels=channels)
            self.norm = nn.BatchNorm()

    def hybrid_forward(self, F, x):
        return x + self.norm(self.convolution(x))


def make_network():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(64, kernel_size=3, padding=1), nn.BatchNorm(), Block(64), Block(64), nn.MaxPool2D(2), Block(64), Block(64))
    net.add(nn.BatchNorm(), nn.Activation('relu'), nn.Flatten(), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def moved(images, random):
    """Return images moved by up to one pixel, as drawings may be."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    offsets = random.randint(0, 3, (len(images), 2))
    return np.stack([image[:, y : y + 8, x : x + 8] for image, (y, x) in zip(padded, offsets)])


def main(prefix):
    mx.random.seed(1)
    random = np.random.RandomState(1)
    digits = load_digits()
    order = random.permutation(len(digits.target))
    pixels = np.rint(digits.images[order, None] * (255 / 16)).astype(np.float32)
    labels = digits.target[order].astype(np.float32)
    net = make_network()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.003})
    count = len(labels) - TEST

    def normalized(images):
        return mx.nd.array((images - INPUT.mean[0]) / INPUT.std[0])

    for epoch in range(EPOCHS):
        trainer.set_learning_rate(0.003 * (1 - epoch / EPOCHS))
        shuffled = random.permutation(count)
        for begin in range(0, count - BATCH + 1, BATCH):
            rows = shuffled[begin : begin + BATCH]
            with autograd.record():
                value = loss(net(normalized(moved(pixels[rows], random))), mx.nd.array(labels[rows]))
            value.backward()
            trainer.step(BATCH)
    found = net(normalized(pixels[count:])).asnumpy().argmax(axis=1)
    print(f'top-1 of {TEST} digits that training did not use: {100 * np.mean(found == labels[count:]):.1f} %')
    with tempfile.TemporaryDirectory() as folder:
        net.export(f'{folder}/net')
        files = pathlib.Path(folder, 'net-symbol.json'), pathlib.Path(folder, 'net-0000.params')
        names = [str(digit) for digit in range(10)]
        bmx.convert(*files, prefix, (1, *INPUT.shape), input_spec=INPUT, class_names=names)


if __name__ == '__main__':
    main(sys.argv[1])
