"""Run blocks of other authors' code in PyTorch, in float64 and training mode, and store inputs, outputs and gradients.

The scripts of this folder use it. They need PyTorch and a checkout of the authors' repository; the tests need only the stored arrays.
"""

import json
import pathlib
import platform
import subprocess
import sys

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))
from support.drawn_values import drawn, normal  # noqa: E402  (of tests/)

torch.set_default_dtype(torch.float64)


def commit_of(checkout):
    """Return the commit of a git checkout."""
    return subprocess.run(['git', '-C', checkout, 'rev-parse', 'HEAD'], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Recording:
    """Arrays of several cases, saved as NAME.npz.

    Keys: the output ``CASE:y``, and the gradients ``CASE:dx`` of the input and ``CASE:d:PARAMETER``; ``metadata``, in JSON: source and
    versions, and of each case the shapes of input and parameters, and the products of gradients that are not stored.
    """

    def __init__(self, name, repository, checkout, **metadata):
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
        module.train()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(torch.from_numpy(drawn(name, tuple(parameter.shape))))
        x = torch.from_numpy(normal(f'{case}:x', shape)).requires_grad_()
        y = module(x)
        dy = torch.from_numpy(normal(f'{case}:dy', y.shape))
        y.backward(dy)
        self.arrays[f'{case}:y'], self.arrays[f'{case}:dx'] = y.detach().numpy(), x.grad.numpy()
        trained = {name: parameter.grad.numpy() for name, parameter in module.named_parameters() if parameter.grad is not None}
        facts = {'x': shape, 'shapes': {name: gradient.shape for name, gradient in trained.items()}}
        if whole_gradients:
            self.arrays.update({f'{case}:d:{name}': gradient for name, gradient in trained.items()})
        else:
            facts['products'] = {name: (gradient * drawn(f'{name}:probe', gradient.shape)).sum() for name, gradient in trained.items()}
        self.metadata['cases'][case] = facts

    def save(self):
        path = FOLDER / f'{self.name}.npz'
        arrays = {key: array.astype(np.float32) if array.dtype == np.float64 else array for key, array in self.arrays.items()}
        np.savez_compressed(path, metadata=json.dumps(self.metadata), **arrays)
        print(f'{path}: {path.stat().st_size} bytes, {self.metadata}')
