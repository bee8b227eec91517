"""Generate tiny.npz: the reference networks of MLPerf Tiny without softmax, in training, with gradients, by the code of their authors.

Usage: ``python make_tiny.py CHECKOUT``, a clone of github.com/mlcommons/tiny at the commit in `COMMIT`, in Python 3.11 with tensorflow-cpu
2.13.1. ResNet-8 has 16 channels after the first convolution, as in the paper and in the published weights; the default of the code is 26.
MobileNet reads images of 32 x 32 here, because arrays of 96 x 96 would be large. Nothing is dropped in training. Modules that read data
and draw are not needed: empty ones take their places.
"""

import argparse
import importlib
import pathlib
import sys
import types

import numpy as np
import tensorflow as tf
from recording import channels_first, commit_of, drawn, normal, to_mxnet, write

COMMIT = '1afd2c9820f795965a6134facd0b4dfae41ef23f'
(CHECKOUT,) = sys.argv[1:]
assert commit_of(CHECKOUT) == COMMIT
tf.keras.backend.set_floatx('float64')
PARTS = 'Conv2D', 'DepthwiseConv2D', 'BatchNormalization', 'Dense'


def build(folder, module, make):
    """Return a model, and its layers with parameters in the order in which the authors' code makes them."""
    sys.path.insert(0, str(pathlib.Path(CHECKOUT) / 'benchmark' / 'training' / folder))
    code = importlib.import_module(module)
    del sys.path[0], sys.modules[module]
    layers = []

    def recorded(layer):
        return lambda *args, **kwargs: layers.append(layer(*args, **kwargs)) or layers[-1]

    if hasattr(code, 'Dropout'):
        code.Dropout = lambda rate: tf.keras.layers.Dropout(0)
    for name in PARTS:
        if hasattr(code, name):
            setattr(code, name, recorded(getattr(code, name)))
    return make(code), layers


def to_keras(values, name):
    """Return values in the layout of MXNet as Keras has them."""
    axes = {2: (1, 0), 4: (2, 3, 0, 1) if 'depthwise' in name else (2, 3, 1, 0)}
    return values.transpose(axes[values.ndim]) if values.ndim in axes else values


def case(name, model, layers):
    """Return the arrays and the facts of a case: products of gradients in place of gradients, as in `Recording.run`."""
    layers[-1].activation = tf.keras.activations.linear  # in place of softmax
    weights = {
        f'{number:02}.{weight.name.partition("/")[2].partition(":")[0]}': weight
        for number, layer in enumerate(layers)
        for weight in layer.trainable_weights
    }
    shapes = {key: to_mxnet(weight.numpy(), key).shape for key, weight in weights.items()}
    for key, weight in weights.items():
        weight.assign(to_keras(drawn(key, shapes[key]), key))
    x = normal(f'{name}:x', (2, model.input.shape[3], *model.input.shape[1:3]))
    inputs = tf.constant(x.transpose(0, 2, 3, 1))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = model(inputs, training=True)
        total = tf.reduce_sum(y * normal(f'{name}:dy', y.shape))
    dx, *gradients = tape.gradient(total, [inputs, *weights.values()])
    gradients = {key: to_mxnet(gradient.numpy(), key) for key, gradient in zip(weights, gradients)}
    products = {key: (gradient * drawn(f'{key}:probe', gradient.shape)).sum() for key, gradient in gradients.items()}
    facts = {'x': x.shape, 'shapes': shapes, 'products': products, 'parameters': model.count_params()}
    return {f'{name}:y': y.numpy(), f'{name}:dx': channels_first(dx.numpy())}, facts


def wake_words(code):
    """Return MobileNet for images of 32 x 32."""
    code.Input = lambda shape: tf.keras.Input((32, 32, 3))
    return code.mobilenet_v1()


frontend = 'tensorflow.lite.experimental.microfrontend.python.ops'
for unused in ('tensorflow_datasets', 'matplotlib', 'matplotlib.pyplot', frontend):
    sys.modules[unused] = types.ModuleType(unused)
sys.modules[frontend].audio_microfrontend_op = None
SETTINGS = argparse.Namespace(  # the defaults of the authors' command
    model_architecture='ds_cnn',
    feature_type='mfcc',
    sample_rate=16000,
    clip_duration_ms=1000,
    window_size_ms=30,
    window_stride_ms=20,
    dct_coefficient_count=10,
    learning_rate=0.0005,
)
NETWORKS = {
    'resnet8': ('image_classification', 'keras_model', lambda code: code.resnet_v1_eembc(conv_filters=16)),
    'mobilenet_vww': ('visual_wake_words', 'vww_model', wake_words),
    'ds_cnn': ('keyword_spotting', 'keras_model', lambda code: code.get_model(SETTINGS)),
}
arrays, cases = {}, {}
for name, where in NETWORKS.items():
    found, cases[name] = case(name, *build(*where))
    arrays.update(found)
versions = {'tensorflow': tf.__version__, 'numpy': np.__version__}
write('tiny', arrays, {'repository': 'github.com/mlcommons/tiny', 'commit': COMMIT, **versions, 'cases': cases})
