"""What the scripts of this folder share: running the code of authors with given weights, and storing inputs, outputs and gradients.

They run in separate environments and with checkouts of the authors' repositories; the tests need only the stored arrays. Code for PyTorch
(`Recording`) runs in float64 and training mode. Code for TensorFlow (`keras_case`) runs in Python 3.11 with tensorflow-cpu 2.13.1, larq
0.13.3 and larq-zoo 2.4.0; its arrays are stored in the layouts of MXNet: maps (N, C, H, W), weights of convolutions (O, I, H, W), of dense
layers (units, inputs).
"""

import json
import pathlib
import platform
import subprocess
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))
from support.drawn_values import drawn, normal  # noqa: E402  (of tests/)


def commit_of(checkout):
    """Return the commit of a checkout of the authors' repository."""
    return subprocess.run(['git', '-C', checkout, 'rev-parse', 'HEAD'], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def write(name, arrays, metadata):
    """Write NAME.npz: arrays, rounded to float32, and the metadata as JSON."""
    path = FOLDER / f'{name}.npz'
    arrays = {key: np.asarray(array, dtype=np.float32) for key, array in arrays.items()}
    np.savez_compressed(path, metadata=json.dumps(metadata), **arrays)
    print(f'{path}: {path.stat().st_size} bytes')


class Recording:
    """Arrays of several cases that PyTorch computes, saved as NAME.npz. Modules made after it are in float64.

    Keys: the output ``CASE:y``, and the gradients ``CASE:dx`` of the input and ``CASE:d:PARAMETER``; ``metadata``, in JSON: source and
    versions, and of each case the shapes of input and parameters, and the products of gradients that are not stored.
    """

    def __init__(self, name, repository, checkout, **metadata):
        import torch

        torch.set_default_dtype(torch.float64)
        self.name, self.arrays = name, {}
        self.metadata = {
            'repository': repository,
            'commit': commit_of(checkout),
            'torch': torch.__version__,
            'numpy': np.__version__,
            'python': platform.python_version(),
            **metadata,
            'cases': {},
        }

    def run(self, case, module, shape, whole_gradients=True):
        """Record `module`, whose parameters get the values of `drawn`, for one input.

        Without `whole_gradients`, the gradient of a parameter is stored as its product with `drawn` values of the same shape.
        """
        import torch

        module.train()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(torch.from_numpy(drawn(name, tuple(parameter.shape))))
        x = torch.from_numpy(normal(f'{case}:x', shape)).requires_grad_()
        y = module(x)
        y.backward(torch.from_numpy(normal(f'{case}:dy', y.shape)))
        trained = {name: parameter.grad.numpy() for name, parameter in module.named_parameters() if parameter.grad is not None}
        self.add(case, x, y, trained, whole_gradients)

    def add(self, case, x, y, gradients, whole_gradients=True):
        """Add input, output and gradients, of the parameters by their names, of a case whose backward pass has run."""
        self.arrays[f'{case}:y'], self.arrays[f'{case}:dx'] = y.detach().numpy(), x.grad.numpy()
        facts = {'x': tuple(x.shape), 'shapes': {name: gradient.shape for name, gradient in gradients.items()}}
        if whole_gradients:
            self.arrays.update({f'{case}:d:{name}': gradient for name, gradient in gradients.items()})
        else:
            facts['products'] = {name: (gradient * drawn(f'{name}:probe', gradient.shape)).sum() for name, gradient in gradients.items()}
        self.metadata['cases'][case] = facts

    def save(self):
        write(self.name, self.arrays, self.metadata)


# --- TensorFlow ------------------------------------------------------------------------------------------------------------------------

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
    """Write NAME.npz: the arrays of each case as CASE/ARRAY, and the metadata."""
    write(name, {f'{case}/{key}': value for case, values in cases.items() for key, value in values.items()}, metadata)


def case_of(maps, weights, gradients, names=None, most=np.inf):
    """Return the arrays of a case: `maps`, by name, and numbered weights and gradients, except gradients with more than `most` elements."""
    case = {key: channels_first(np.asarray(value)) for key, value in maps.items()}
    for n, (weight, gradient) in enumerate(zip(weights, gradients)):
        name = names[n] if names else ''
        case[f'weight{n:02}'] = to_mxnet(np.asarray(weight), name)
        if np.size(gradient) <= most:
            case[f'gradient{n:02}'] = to_mxnet(np.asarray(gradient), name)
    return case


def keras_case(inputs, output, x, layers, without_slope=None, training=True, most=4000):
    """Return input, output and gradients of a part of a Keras model, from `inputs` to `output`, with random weights.

    Weights and gradients are numbered in the order of `layers`, in each layer in the order of Keras; x is (N, H, W, C). Gradients of
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
    return case_of({'x': x, 'y': y, 'dy': dy, 'dx': dx}, weights, gradients, [weight.name for weight in weights], most)
