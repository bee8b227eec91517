"""Comparison of blocks with arrays that the authors of a method computed by their own code (tests/data/methods)."""

import json

import numpy as np
from mxnet import autograd, nd

from support.drawn_values import drawn, normal
from support.paths import DATA

FOLDER = DATA / 'methods'


class AuthorsArrays:
    """The arrays of one method. ``metadata`` names repository, commit and versions of packages."""

    def __init__(self, name):
        with np.load(FOLDER / f'{name}.npz') as stored:
            self.arrays = {key: stored[key] for key in stored}
        self.metadata = json.loads(str(self.arrays.pop('metadata')))

    def parameters(self, case):
        """Return the authors' names of the parameters of a case, in their order."""
        return list(self.metadata['cases'][case]['shapes'])

    def assert_equal(self, case, block, names=None, values=None):
        """Compare a block in training mode and float64: output, gradient of the input and gradients of all trained parameters.

        Parameters
        ----------
        names : sequence of (str or tuple of str), or None
            The authors' names of the parameters in the order of the block, or of several that the block has as one array; None: theirs.
        values : dict or None
            The values of parameters that differ from those of `drawn`, by the authors' names.
        """
        facts, arrays = self.metadata['cases'][case], self.arrays
        names = [(name,) if isinstance(name, str) else name for name in (self.parameters(case) if names is None else names)]
        assert sorted(sum(names, ())) == sorted(self.parameters(case))
        x, dy = normal(f'{case}:x', facts['x']), normal(f'{case}:dy', arrays[f'{case}:y'].shape)
        block.cast('float64')
        block.initialize()
        block(nd.array(x, dtype='float64'))
        parameters = [parameter for parameter in block.collect_params().values() if parameter.grad_req != 'null']
        assert len(parameters) == len(names), [(parameter.name, parameter.shape) for parameter in parameters]

        def joined(values_of, group, shape):
            return np.concatenate([values_of(name).ravel() for name in group]).reshape(shape)

        for parameter, group in zip(parameters, names):
            array = joined(lambda name: (values or {}).get(name, drawn(name, facts['shapes'][name])), group, parameter.shape)
            parameter.set_data(nd.array(array, dtype='float64'))
        for hybrid in (False, True):
            block.hybridize(hybrid)
            data = nd.array(x, dtype='float64')
            data.attach_grad()
            with autograd.record():
                y = block(data)
            y.backward(nd.array(dy, dtype='float64'))
            close(y.asnumpy(), arrays[f'{case}:y'], 'output')
            close(data.grad.asnumpy(), arrays[f'{case}:dx'], 'gradient of the input')
            for parameter, group in zip(parameters, names):
                gradient, what = parameter.grad().asnumpy(), f'gradient of {", ".join(group)}'
                if 'products' in facts:
                    probe = joined(lambda name: drawn(f'{name}:probe', facts['shapes'][name]), group, gradient.shape)
                    expected = sum(facts['products'][name] for name in group)
                    np.testing.assert_allclose((gradient * probe).sum(), expected, rtol=1e-5, atol=1e-6, err_msg=what)
                else:
                    close(gradient, joined(lambda name: arrays[f'{case}:d:{name}'], group, gradient.shape), what)


def close(ours, theirs, what):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max(), err_msg=what)
