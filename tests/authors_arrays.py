"""Comparison of blocks with arrays that the authors of a method computed by their own code (tests/data/methods)."""

import json
import pathlib

import numpy as np
from drawn_values import drawn
from mxnet import autograd, nd

FOLDER = pathlib.Path(__file__).parent / 'data' / 'methods'


class AuthorsArrays:
    """The arrays of one method. ``metadata`` names repository, commit and versions of packages."""

    def __init__(self, name):
        with np.load(FOLDER / f'{name}.npz') as stored:
            self.arrays = {key: stored[key] for key in stored}
        self.metadata = json.loads(str(self.arrays.pop('metadata')))

    def parameters(self, case):
        """Return the authors' names of the parameters of a case, in their order."""
        prefix = f'{case}:d:'
        return [key[len(prefix) :] for key in self.arrays if key.startswith(prefix)]

    def assert_equal(self, case, block, names=None, arrange=None, rtol=1e-6, hybridize=(False, True)):
        """Compare a block in training mode and float64: output, gradient of the input and gradients of all trained parameters.

        Parameters
        ----------
        names : sequence of str or None
            The authors' names of the parameters in the order of the block; None: theirs.
        arrange : dict or None
            For a name of the authors: the function that arranges their weight, and its gradient, as the block does.
        rtol : float
            Of the largest magnitude in each array.
        """
        expected, arrange = self.arrays, arrange or {}
        names = self.parameters(case) if names is None else names
        assert sorted(names) == sorted(self.parameters(case))
        x = drawn(f'{case}:x', (*expected[f'{case}:shape'], 1))[..., 0]
        dy = drawn(f'{case}:dy', (*expected[f'{case}:y'].shape, 1))[..., 0]
        block.cast('float64')
        block.initialize()
        block(nd.array(x, dtype='float64'))
        parameters = [parameter for parameter in block.collect_params().values() if parameter.grad_req != 'null']
        assert len(parameters) == len(names), [(parameter.name, parameter.shape) for parameter in parameters]
        arranged = [arrange.get(name, lambda array: array) for name in names]
        for parameter, name, change in zip(parameters, names, arranged):
            values = change(drawn(name, expected[f'{case}:s:{name}'])).reshape(parameter.shape)
            parameter.set_data(nd.array(values, dtype='float64'))
        for hybrid in hybridize:
            block.hybridize(hybrid)
            data = nd.array(x, dtype='float64')
            data.attach_grad()
            with autograd.record():
                y = block(data)
            y.backward(nd.array(dy, dtype='float64'))
            close(y, expected[f'{case}:y'], rtol, 'output')
            close(data.grad, expected[f'{case}:dx'], rtol, 'gradient of the input')
            for parameter, name, change in zip(parameters, names, arranged):
                theirs = expected[f'{case}:d:{name}']
                gradient = parameter.grad().asnumpy()
                if theirs.ndim:
                    close(gradient, change(theirs).reshape(gradient.shape), rtol, f'gradient of {name}')
                else:  # its product with drawn values
                    probe = change(drawn(f'{name}:probe', expected[f'{case}:s:{name}'])).reshape(gradient.shape)
                    np.testing.assert_allclose((gradient * probe).sum(), theirs, rtol=1e-5, err_msg=f'gradient of {name}')


def close(ours, theirs, rtol, what):
    ours = ours if isinstance(ours, np.ndarray) else ours.asnumpy()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=rtol * np.abs(theirs).max(), err_msg=what)
