"""What the scripts of this folder share: running the code of authors with given weights, and storing inputs, outputs and gradients.

They run in separate environments and with checkouts of the authors' repositories; the tests need only the stored arrays. Code for PyTorch
(`Recording`) and for Flax (`FlaxRecording`) runs in float64 and training mode. Code for TensorFlow (`keras_case`) runs in Python 3.11 with
tensorflow-cpu 2.13.1, larq 0.13.3 and larq-zoo 2.4.0. The arrays of both are stored in the layouts of MXNet: maps (N, C, H, W), weights of
convolutions (O, I, H, W), of dense layers (units, inputs).
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
        self._begin(name, repository, checkout, torch=torch.__version__, **metadata)

    def _begin(self, name, repository, checkout, **metadata):
        self.name, self.arrays = name, {}
        self.metadata = {
            'repository': repository,
            'commit': commit_of(checkout),
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
        self._add(case, y.detach().numpy(), x.grad.numpy(), gradients, whole_gradients)

    def _add(self, case, y, dx, gradients, whole_gradients):
        self.arrays[f'{case}:y'], self.arrays[f'{case}:dx'] = y, dx
        facts = {'x': dx.shape, 'shapes': {name: gradient.shape for name, gradient in gradients.items()}}
        if whole_gradients:
            self.arrays.update({f'{case}:d:{name}': gradient for name, gradient in gradients.items()})
        else:
            facts['products'] = {name: (gradient * drawn(f'{name}:probe', gradient.shape)).sum() for name, gradient in gradients.items()}
        self.metadata['cases'][case] = facts

    def save(self):
        write(self.name, self.arrays, self.metadata)


class FlaxRecording(Recording):
    """As `Recording`, of modules of Flax, which read maps (N, H, W, C). Arrays are stored in the layouts of MXNet."""

    def __init__(self, name, repository, checkout, negated=(), **metadata):
        """Begin a recording. `negated` are ends of the names of parameters that the modules subtract and MXNet's layers add."""
        import flax
        import jax

        jax.config.update('jax_enable_x64', True)
        self.negated = tuple(negated)
        self._begin(name, repository, checkout, jax=jax.__version__, flax=flax.__version__, **metadata)

    def run(self, case, module, shape, whole_gradients=True):
        """Record `module` for an input of this shape (N, C, H, W); see `Recording.run`."""
        import jax

        x = normal(f'{case}:x', shape).transpose(0, 2, 3, 1)
        variables = dict(module.init(jax.random.PRNGKey(0), x))
        flat = _flat(variables.pop('params'))
        shapes = {name: to_mxnet(value).shape for name, value in flat.items()}
        weights = {name: self._of_flax(name, drawn(name, shapes[name])) for name in flat}

        def apply(weights, x):
            nested = {}
            for name, weight in weights.items():
                *parents, last = name.split('.')
                folder = nested
                for parent in parents:
                    folder = folder.setdefault(parent, {})
                folder[last] = weight
            return module.apply({'params': nested, **variables}, x, mutable=list(variables))[0]

        y, backward = jax.vjp(apply, weights, x)
        dy = normal(f'{case}:dy', channels_first(np.asarray(y)).shape)
        gradients, dx = backward(dy.transpose(0, 2, 3, 1) if dy.ndim == 4 else dy)
        trained = {name: self._of_mxnet(name, np.asarray(gradients[name])) for name in flat}
        self._add(case, channels_first(np.asarray(y)), channels_first(np.asarray(dx)), trained, whole_gradients)
        self.metadata['cases'][case]['floor'] = 0.1  # before a normalization some gradients vanish

    def _of_mxnet(self, name, array):
        return to_mxnet(-array if name.endswith(self.negated) else array)

    def _of_flax(self, name, array):
        axes = FLAX_AXES.get(array.ndim)
        array = -array if name.endswith(self.negated) else array
        return np.transpose(array, axes) if axes else array


def _flat(tree, path=''):
    """Return the arrays of nested dicts by their paths, in the order of the dicts."""
    if not hasattr(tree, 'items'):
        return {path: np.asarray(tree)}
    return {name: array for key, value in tree.items() for name, array in _flat(value, f'{path}.{key}' if path else key).items()}


# --- TensorFlow ------------------------------------------------------------------------------------------------------------------------

AXES = {4: (3, 2, 0, 1), 2: (1, 0)}  # of TensorFlow's and Flax's weights, in the order of MXNet's
FLAX_AXES = {4: (2, 3, 1, 0), 2: (1, 0)}  # of MXNet's weights, in the order of Flax's


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
