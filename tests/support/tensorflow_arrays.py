"""Arrays that the authors of other methods' own code computed (``tests/data/methods``), and their comparison with layers and networks."""

import numpy as np
from mxnet import autograd, nd

from support.paths import DATA

FOLDER = DATA / 'methods'


def read_cases(name):
    """Return the arrays of NAME.npz: case -> array -> values in float64."""
    cases = {}
    with np.load(FOLDER / f'{name}.npz') as file:
        for key in set(file.files) - {'metadata'}:
            case, _, array = key.partition('/')
            cases.setdefault(case, {})[array] = file[key].astype(np.float64)
    return cases


def learned(net):
    """The parameters of a network that are trained, in its order."""
    return [parameter for parameter in net.collect_params().values() if parameter.grad_req != 'null']


def shape_of(array):
    """The shape, as that of a matrix if it is a 1x1 convolution."""
    return array.shape[:2] if array.shape[2:] == (1, 1) else array.shape


def assert_same(net, arrays, parameters=learned, training=True, tolerance=1e-6):
    """Compare the output of a network and the gradients of its input and its parameters with the arrays of a case, in float64.

    The weights of the case are those of `parameters` (net), in this order. Differences are relative to the largest value of an array; some
    gradients are sums that vanish.
    """
    net.cast('float64')
    net.initialize()
    x = nd.array(arrays['x'], dtype='float64')
    net(x)
    ours, weights = parameters(net), [arrays[key] for key in sorted(arrays) if key.startswith('weight')]
    assert [shape_of(parameter) for parameter in ours] == [shape_of(weight) for weight in weights]
    for parameter, weight in zip(ours, weights):
        parameter.set_data(nd.array(weight.reshape(parameter.shape), dtype='float64'))
    x.attach_grad()
    with autograd.record(train_mode=training):
        y = net(x)
    y.backward(nd.array(arrays['dy'], dtype='float64'), train_mode=training)
    compared = {'output': (y, arrays['y']), 'gradient of the input': (x.grad, arrays['dx'])}
    for n, parameter in enumerate(ours):
        if f'gradient{n:02}' in arrays:  # large ones are not stored
            compared[f'gradient of {parameter.name}'] = parameter.grad(), arrays[f'gradient{n:02}']
    for name, (found, expected) in compared.items():
        np.testing.assert_allclose(
            found.asnumpy().reshape(expected.shape), expected, rtol=0, atol=tolerance * max(np.abs(expected).max(), 0.1), err_msg=name
        )
