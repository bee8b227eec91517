"""What the programs in this folder share: files of arrays, and gradients of Keras models and TensorFlow graphs in float64.

The programs run in an environment of their own (Python 3.11 with tensorflow-cpu 2.13.1, larq 0.13.3 and larq-zoo 2.4.0), never in tests.
Arrays are stored in the layouts of MXNet: maps (N, C, H, W), weights of convolutions (O, I, H, W), of dense layers (units, inputs).
"""

import json
import pathlib
import subprocess

import numpy as np

AXES = {4: (3, 2, 0, 1), 2: (1, 0)}  # of TensorFlow's weights, in the order of MXNet's


def to_mxnet(weight, name=''):
    """Return a weight of TensorFlow in the layout of MXNet."""
    if weight.ndim == 3:  # of channels
        return weight.ravel()
    axes = (2, 3, 0, 1) if 'depthwise' in name else AXES.get(weight.ndim)
    return np.transpose(weight, axes) if axes else weight


def channels_first(array):
    return np.transpose(array, (0, 3, 1, 2)) if array.ndim == 4 else array


def save(name, cases, **metadata):
    """Write NAME.npz: the arrays of each case as CASE/ARRAY, rounded to float32, and the metadata as JSON."""
    arrays = {f'{case}/{key}': np.asarray(value, dtype=np.float32) for case, values in cases.items() for key, value in values.items()}
    arrays['metadata'] = np.array(json.dumps(metadata))
    np.savez_compressed(pathlib.Path(__file__).parent / f'{name}.npz', **arrays)
    print(f'{name}.npz: {", ".join(cases)}; {metadata}')


def commit_of(checkout):
    """Return the commit of a checkout of the authors' repository."""
    return subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=checkout, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def keras_case(inputs, output, x, layers, without_slope=None, training=True, most=4000):
    """Return input, output and gradients of a part of a Keras model, from `inputs` to `output`, with random weights.

    Weights and gradients are numbered in the order of `layers`, those of each layer in the order of Keras; x is (N, H, W, C). Gradients of
    weights with more than `most` elements are left out. `without_slope` is a tensor: no gradient comes from elements of the output that
    equal it, because derivatives of activations at 0 differ between libraries.
    """
    import tensorflow as tf

    random = np.random.default_rng(0)
    model = tf.keras.Model(inputs, output)
    weights = [weight for layer in layers for weight in layer.trainable_weights if weight.trainable]
    for weight in weights:
        center = 1 if any(part in weight.name for part in ('gamma', 'scale_')) else 0.25 if 'alpha' in weight.name else 0
        weight.assign(np.round(random.normal(center, 0.25, weight.shape) * 64) / 64)
    x = tf.constant(x.astype(np.float32).astype(np.float64))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x, training=training)
        dy = np.round(random.normal(size=y.shape) * 64) / 64
        if without_slope is not None:
            dy *= y.numpy() != tf.keras.Model(inputs, without_slope)(x, training=training).numpy()
        total = tf.reduce_sum(y * dy)
    dx, *gradients = tape.gradient(total, [x, *weights])
    case = {key: channels_first(value) for key, value in (('x', x.numpy()), ('y', y.numpy()), ('dy', dy), ('dx', dx.numpy()))}
    for n, (weight, gradient) in enumerate(zip(weights, gradients)):
        case[f'weight{n:02}'] = to_mxnet(weight.numpy(), weight.name)
        if gradient.numpy().size <= most:
            case[f'gradient{n:02}'] = to_mxnet(gradient.numpy(), weight.name)
    return case
