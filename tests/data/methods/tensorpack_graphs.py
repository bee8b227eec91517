"""Code for TensorFlow 1 and tensorpack, run in TensorFlow 2.13 as graphs (https://github.com/tensorpack/tensorpack).

Needs the packages tabulate, termcolor, psutil, pyzmq, tqdm, msgpack and msgpack_numpy besides tensorflow-cpu.
"""

import pathlib
import sys
import types

import numpy as np
import tensorflow
from recording import case_of, commit_of

tf = tensorflow.compat.v1


def use_tensorpack(checkout):
    """Make tensorpack and TensorFlow 1 importable; return metadata."""
    tf.disable_eager_execution()
    sys.path.insert(0, str(pathlib.Path(checkout).resolve()))
    import tensorpack  # noqa: F401  both before TensorFlow is replaced by its old interface

    assert tf.layers.BatchNormalization

    contrib = {name: types.ModuleType(f'tensorflow.contrib.{name}') for name in ('framework', 'layers')}
    contrib['framework'].add_model_variable = lambda variable: None
    contrib['layers'].variance_scaling_initializer = lambda mode='FAN_IN': tf.variance_scaling_initializer(2.0, mode.lower())
    tf.contrib = types.SimpleNamespace(**contrib)
    get_variable = tf.get_variable
    tf.get_variable = lambda name, shape=None, *arguments, **keywords: get_variable(name, _integers(shape), *arguments, **keywords)
    sys.modules.update({'tensorflow': tf, 'tensorflow.contrib': tf.contrib})
    sys.modules.update({f'tensorflow.contrib.{name}': module for name, module in contrib.items()})
    return {'tensorpack': commit_of(checkout), 'tensorflow-cpu': tensorflow.__version__}


def _integers(shape):
    """Return a shape whose sizes may be quotients, which are integers in Python 2."""
    return [int(size) for size in shape] if isinstance(shape, (list, tuple)) else shape


def graph_case(build, x, centers=(('gamma', 1.0), ('basis', None)), dy=None, trained=None, also=None):
    """Return input, output and gradients of the graph that `build` makes of a placeholder, with random weights.

    Parameters
    ----------
    build : callable (tensor (N, H, W, C), float32) -> tensor
    centers : sequence of (part of the name of a variable, mean of its random values or None to keep its initial value)
    trained : callable (variables) -> variables, or None
        Selects the variables whose gradients are stored, and their order; None: all that are trained.
    also : callable () -> dict of str to tensor, or None
        Further tensors to store.
    """
    from tensorpack.tfutils.tower import TrainTowerContext

    random = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session:
        image = tf.placeholder(tf.float32, x.shape)
        with TrainTowerContext(''):
            y = build(image)
        variables = tf.trainable_variables()
        weights = trained(variables) if trained else variables
        session.run(tf.global_variables_initializer())
        for weight in weights:
            center = next((center for part, center in centers if part in weight.name), 0.0)
            if center is not None:
                weight.load((np.floor(random.normal(center, 0.25, weight.shape.as_list()) * 64) + 0.5) / 64, session)  # never 0
        if dy is None:
            dy = np.round(random.normal(size=y.shape.as_list()) * 64) / 64
        gradients = tf.gradients(y, [image, *weights], tf.constant(dy, tf.float32))
        further = also() if also else {}
        values, (result, dx, *gradients), further = session.run([weights, [y, *gradients], further], {image: x})
    return {**case_of({'x': x, 'y': result, 'dy': dy, 'dx': dx}, values, gradients), **further}
