"""Make ``hwgq.npz``: the first two stages of the authors' ResNet 18 with an eighth of its channels, and gradients in training, in float64.

Repository github.com/zhaoweicai/hwgq at commit ebc706bee3e2: ``python make_hwgq.py CHECKOUT``, with tensorflow-cpu 2.13.1. Their networks
are texts for Caffe, which is not compiled here: the order of layers and their numbers are read from
``examples/imagenet/res18-hwgq-3ne-clip-poly-320k/train_val.prototxt``, and each kind of layer is a function below, as its documentation
or, for Quant and BinaryConvolution, ``src/caffe/layers/quant_layer.cpp`` and ``binary_conv_layer.cpp`` describe it.
"""

import pathlib
import re
import sys
from importlib import metadata

import numpy as np
import tensorflow as tf
from recording import case_of, commit_of, save

NETWORK, LAST = 'examples/imagenet/res18-hwgq-3ne-clip-poly-320k/train_val.prototxt', 'res3b'
NARROWER = 8


def read_prototxt(text):
    """Parse protocol buffers as text: a dict of lists."""
    tokens = iter(re.findall(r'[{}]|"[^"]*"|[^\s{}"]+', re.sub('#.*', '', text)))

    def message():
        fields = {}
        for token in tokens:
            if token == '}':
                break
            value = message() if token[-1] != ':' and next(tokens) == '{' else next(tokens).strip('"')
            fields.setdefault(token.rstrip(':'), []).append(value)
        return fields

    return message()


def number(message, name, default):
    return float(message[name][0]) if name in message else default


class Network:
    """The layers of a network, each with weights drawn at random."""

    def __init__(self):
        self.random, self.weights = np.random.default_rng(0), []

    def weight(self, shape, center=0.0):
        self.weights.append(tf.Variable(np.round(self.random.normal(center, 0.25, shape) * 64) / 64))
        return self.weights[-1]

    def convolution(self, x, layer, binary=False):
        own = layer['convolution_param'][0]
        size, stride, pad = (int(number(own, key, default)) for key, default in (('kernel_size', 1), ('stride', 1), ('pad', 0)))
        weight = self.weight((size, size, x.shape[3], int(own['num_output'][0]) // NARROWER))
        if binary:
            alpha = tf.reduce_mean(tf.abs(weight), (0, 1, 2))
            weight = weight + tf.stop_gradient(tf.where(weight >= 0, alpha, -alpha) - weight)
        return tf.nn.conv2d(tf.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)]), weight, stride, 'VALID')

    def pooling(self, x, layer):
        own = layer['pooling_param'][0]
        size, stride = int(own['kernel_size'][0]), int(own['stride'][0])
        beyond = -(x.shape[1] - size) % stride  # the number of windows is rounded up
        padded = tf.pad(x, [(0, 0), (0, beyond), (0, beyond), (0, 0)], constant_values=-np.inf)
        return tf.nn.max_pool2d(padded, size, stride, 'VALID')

    def normalization(self, x, layer):
        mean, variance = tf.nn.moments(x, (0, 1, 2))
        return (x - mean) / tf.sqrt(variance + 1e-5)

    def scale(self, x, layer):
        return x * self.weight(x.shape[3:], 1.0) + self.weight(x.shape[3:])

    def quant(self, x, layer):
        own = layer['quant_param'][0]
        assert (own['forward_func'], own['backward_func']) == (['hwgq'], ['relu'])
        centers = [float(center) for center in own['centers']]
        bounds = [0, *((low + high) / 2 for low, high in zip(centers, centers[1:]))]
        level = sum(tf.where(x > bound, step, 0.0) for bound, step in zip(bounds, np.diff([0, *centers])))
        kept = tf.cast((x > 0) & (x <= number(own, 'clip_thr', np.inf)), x.dtype)
        return tf.stop_gradient(level - x * kept) + x * tf.stop_gradient(kept)

    def run(self, layers, image):
        kinds = {
            'Convolution': self.convolution,
            'BinaryConvolution': lambda x, layer: self.convolution(x, layer, binary=True),
            'Pooling': self.pooling,
            'BatchNorm': self.normalization,
            'Scale': self.scale,
            'Quant': self.quant,
        }
        blobs = {'data': image}
        for layer in layers:
            sources = [blobs[name] for name in layer['bottom']]
            (kind,), (top,) = layer['type'], layer['top']
            blobs[top] = sources[0] + sources[1] if kind == 'Eltwise' else kinds[kind](*sources, layer)
            if top == LAST:
                return blobs[top]


def main():
    checkout = pathlib.Path(sys.argv[1])
    layers = [layer for layer in read_prototxt((checkout / NETWORK).read_text())['layer'] if layer['type'] != ['Data']]
    network, random = Network(), np.random.default_rng(1)
    x = tf.constant(random.normal(size=(2, 32, 32, 3)).astype(np.float32).astype(np.float64))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = network.run(layers, x)
        dy = np.round(random.normal(size=y.shape) * 64) / 64
        total = tf.reduce_sum(y * dy)
    dx, *gradients = tape.gradient(total, [x, *network.weights])
    case = case_of({'x': x, 'y': y, 'dy': dy, 'dx': dx}, network.weights, gradients)
    commit = commit_of(checkout)
    save('hwgq', {'stages': case}, repository='github.com/zhaoweicai/hwgq', commit=commit, tensorflow=metadata.version('tensorflow-cpu'))


if __name__ == '__main__':
    main()
