"""Equations of layers in NumPy, with the gradients that methods state, and the comparison of layers with them."""

import mxnet as mx
import numpy as np
from mxnet import nd

from support.gradients import gradients

ABOVE_ONE = np.nextafter(1, 2)
BOUNDARY = np.array([0, -0.0, 1, -1, ABOVE_ONE, -ABOVE_ONE, 1e-300, -1e-300])


class Statement:
    """An equation with straight-through estimators, evaluated near the point of its first evaluation, the base.

    Values that are not differentiable are replaced by the linear function with the value at the base and the slope that the method
    states, so that differences of any step give the gradient of the method.
    """

    def __init__(self, equation):
        self.equation, self.bases, self.position = equation, [], None

    def __call__(self, arrays):
        self.position = None if not self.bases else 0
        return self.equation(self, **arrays)

    def estimate(self, value, x, slope):
        """value at the base, with the derivative `slope` at the base with respect to x."""
        if self.position is None:
            self.bases.append((value, x, slope))
            return value
        value, base, slope = self.bases[self.position]
        self.position += 1
        return value + slope * (x - base)

    def sign(self, x, slope):
        return self.estimate(signs(x), x, slope(x))

    def constant(self, value):
        return self.estimate(value, value, np.zeros_like(value))


def signs(x):
    return np.where(x >= 0, 1.0, -1.0)


def everywhere(x):
    return np.ones_like(x)


def within_one(x):
    return (np.abs(x) <= 1) * 1.0


def triangle(x):
    return (2 - 2 * np.abs(x)) * within_one(x)


def conv(x, weight, stride=1, pad=1, value=-1):
    """The convolution of x, padded with a constant, by a loop."""
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=value)
    size = weight.shape[2]
    height, width = ((n - size) // stride + 1 for n in x.shape[2:])
    y = np.zeros((len(x), len(weight), height, width))
    for row, column in np.ndindex(height, width):
        window = x[:, :, row * stride : row * stride + size, column * stride : column * stride + size]
        y[:, :, row, column] = np.einsum('nchw,ochw->no', window, weight)
    return y


def filter_mean(weight):
    return np.abs(weight).mean(axis=(1, 2, 3))[:, None, None]


def batch_norm(x, gamma, beta, epsilon=1e-5):
    """BN with running statistics 0 and 1."""
    return x / np.sqrt(1 + epsilon) * gamma[:, None, None] + beta[:, None, None]


def prelu(s, x, slope):
    positive = s.constant((x > 0) * 1.0)  # also where x is exactly 0, as sums of signs are
    return (positive + (1 - positive) * slope[:, None, None]) * x


def assert_equals(layer, equation, x, names, boundary=True, ungraded=()):
    """Compare a layer with an equation: its value and the gradients of x and of all parameters, imperative and hybridized.

    `names` are the names of the parameters in the equation, in the order of the layer; None for running statistics. Those in `ungraded`
    have no gradient, or another than the equation.
    """
    rng = np.random.RandomState(0)
    layer.cast('float64')
    layer.initialize(mx.init.Normal(0.7))
    layer(nd.array(x, dtype='float64'))
    parameters = list(layer.collect_params().values())
    assert len(parameters) == len(names), [(parameter.name, parameter.shape) for parameter in parameters]
    known = {name: parameter for name, parameter in zip(names, parameters) if name}
    for name, parameter in known.items():
        values = rng.randn(*parameter.shape) * 0.7 + (0 if name.startswith('w') else 1)
        if boundary and name == 'w':
            values.reshape(-1)[: len(BOUNDARY)] = BOUNDARY
        parameter.set_data(nd.array(values, dtype='float64'))
    arrays = {'x': x, **{name: parameter.data().asnumpy() for name, parameter in known.items()}}
    statement = Statement(equation)
    expected = statement(arrays)
    dy = rng.randn(*expected.shape)
    differences = {name: difference(statement, arrays, name, dy) for name in arrays if name not in ungraded}
    for hybridize in (False, True):
        layer.hybridize(hybridize)
        y, dx = gradients(layer, [nd.array(x, dtype='float64')], dy, training=False)
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-9)  # MXNet rounds slopes of a PReLU to float32
        for name in differences:
            gradient = dx if name == 'x' else known[name].grad().asnumpy()
            np.testing.assert_allclose(gradient, differences[name], rtol=1e-5, atol=1e-5, err_msg=f'gradient of {name}')


def difference(statement, arrays, name, dy, step=1e-6):
    """Central differences of sum(dy * statement) for one of the arrays."""
    gradient = np.zeros_like(arrays[name])
    for index in np.ndindex(*gradient.shape):
        results = []
        for sign in (1, -1):
            shifted = arrays[name].copy()
            shifted[index] += sign * step
            results.append((statement({**arrays, name: shifted}) * dy).sum())
        gradient[index] = (results[0] - results[1]) / (2 * step)
    return gradient


def inputs(channels=3, boundary=BOUNDARY):
    """Two maps that begin with the values `boundary`."""
    x = np.random.RandomState(1).randn(2, channels, 4, 5)
    x.reshape(-1)[: len(boundary)] = boundary
    return x


def beside(*numbers, dtype=np.float64):
    """Numbers, each followed by the numbers next to it in their type."""
    return [near for number in map(dtype, numbers) for near in (number, np.nextafter(number, dtype(9)), np.nextafter(number, dtype(-9)))]


def outputs_and_gradients(layer, arrays, hybridize):
    """Outputs and gradients of a layer for the arrays x and dy, with the weight that is among the arrays."""
    layer.initialize()
    layer.hybridize(hybridize)
    x = nd.array(arrays['x'])
    layer(x)
    weights = list(layer.collect_params('.*weight').values())  # one, or none in an activation
    for weight in weights:
        weight.set_data(nd.array(arrays['weight']))
    y, dx = gradients(layer, [x], arrays['dy'])
    return dict(y=y, dx=dx, **({'dweight': weights[0].grad().asnumpy()} if weights else {}))
