"""Comparison of blocks with arrays that the authors of a method computed by their own code (tests/data/methods)."""

import dataclasses
import json

import numpy as np
from mxnet import nd

from support.drawn_values import drawn, normal
from support.gradients import gradients
from support.paths import DATA


@dataclasses.dataclass
class Case:
    """What the code of authors computed of one block in training; arrays in float64.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        x, y, dx, dy and others.
    weights, gradients, products : dict of str to numpy.ndarray
        Of each trained parameter, by its name in their code and in the order there: its value, its gradient, and the sum of the gradient
        times `drawn` values. Of a large gradient there is the product only, or nothing.
    floor : float
        Differences are relative to the largest value of an array, or to this if all are smaller: some gradients are sums that vanish.
    """

    arrays: dict
    weights: dict
    gradients: dict
    products: dict
    floor: float


def read_cases(name):
    """Return the cases of NAME.npz by their names, and its metadata: repository, commit and versions of packages."""
    with np.load(DATA / 'methods' / f'{name}.npz') as file:
        arrays = {key: file[key] for key in file.files}
    metadata = json.loads(str(arrays.pop('metadata')))
    arrays = {key: array.astype(np.float64) for key, array in arrays.items()}
    if 'cases' in metadata:
        return {case: _of_pytorch(case, facts, arrays) for case, facts in metadata['cases'].items()}, metadata
    return {case: _of_tensorflow(case, arrays) for case in dict.fromkeys(key.partition('/')[0] for key in arrays)}, metadata


def _of_pytorch(case, facts, arrays):
    y = arrays[f'{case}:y']
    further = {key: array for key, array in arrays.items() if ':' not in key}
    return Case(
        {**further, 'x': normal(f'{case}:x', facts['x']), 'y': y, 'dx': arrays[f'{case}:dx'], 'dy': normal(f'{case}:dy', y.shape)},
        {name: drawn(name, shape) for name, shape in facts['shapes'].items()},
        {name: arrays[f'{case}:d:{name}'] for name in facts['shapes'] if f'{case}:d:{name}' in arrays},
        facts.get('products', {}),
        facts.get('floor', 0),
    )


def _of_tensorflow(case, arrays):
    own = {key[len(case) + 1 :]: array for key, array in sorted(arrays.items()) if key.startswith(f'{case}/')}
    weights, gradients = (
        {key[len(kind) :]: array for key, array in own.items() if key.startswith(kind) and key[len(kind) :].isdigit()}
        for kind in ('weight', 'gradient')
    )
    return Case(own, weights, gradients, {}, floor=0.1)


def learned(net):
    """The parameters of a network that are trained, in its order."""
    return [parameter for parameter in net.collect_params().values() if parameter.grad_req != 'null']


def assert_same(net, case, names=None, parameters=learned, tolerance=1e-6):
    """Compare a block with a case in float64, imperative and hybridized: output, gradient of the input and of all trained parameters.

    Parameters
    ----------
    names : sequence of (str or tuple of str), or None
        The authors' names of the parameters in the order of the block, or of several that the block has as one array; None: theirs.
    parameters : callable (net) -> list of Parameter
        The parameters of the block that the authors train, in their order.
    """
    names = [(name,) if isinstance(name, str) else name for name in (case.weights if names is None else names)]
    assert sorted(sum(names, ())) == sorted(case.weights)
    net.cast('float64')
    net.initialize()
    net(nd.array(case.arrays['x'], dtype='float64'))
    ours = parameters(net)
    assert len(ours) == len(names), [(parameter.name, parameter.shape) for parameter in ours]

    def joined(values_of, group, shape):
        values = [np.asarray(values_of(name)) for name in group]
        found, expected = (np.empty(one).squeeze().shape for one in (shape, values[0].shape))  # vectors of channels may be maps here
        assert found == expected or len(group) > 1 or len(found) != len(expected), group
        return np.concatenate([value.ravel() for value in values]).reshape(shape)

    def close(found, expected, what):
        atol = tolerance * max(np.abs(expected).max(), case.floor)
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=what)

    for parameter, group in zip(ours, names):
        parameter.set_data(nd.array(joined(case.weights.get, group, parameter.shape), dtype='float64'))
    for hybrid in (False, True):
        net.hybridize(hybrid)
        y, dx = gradients(net, [nd.array(case.arrays['x'], dtype='float64')], case.arrays['dy'])
        close(y, case.arrays['y'], 'output')
        close(dx, case.arrays['dx'], 'gradient of the input')
        for parameter, group in zip(ours, names):
            gradient, what = parameter.grad().asnumpy(), f'gradient of {", ".join(group)}'
            if group[0] in case.gradients:
                close(gradient, joined(case.gradients.get, group, gradient.shape), what)
            elif group[0] in case.products:
                probe = joined(lambda name: drawn(f'{name}:probe', case.weights[name].shape), group, gradient.shape)
                expected = sum(case.products[name] for name in group)
                terms = gradient * probe
                largest = max(np.abs(terms).max(), 1) if case.floor else 1  # deep networks amplify rounding errors
                np.testing.assert_allclose(terms.sum(), expected, rtol=1e-5, atol=1e-6 * largest, err_msg=what)
