"""The reference MeliusNet22 of tests/data: parameters, an input, and the logits (the first 40 classes of 1000)."""

import json

import numpy as np
from mxnet import nd

from support.paths import DATA


def read_reference_network():
    """Return a dict: parameters by both kinds of names (``exported``, ``structural``), the input ``x`` and ``logits``."""
    stored = np.load(DATA / 'meliusnet22.npz')
    parameters = json.loads(bytes(stored['meta']))['params']

    def values(name, shape):
        if 'fp/' + name in stored:
            return nd.array(stored['fp/' + name])
        weight = np.where(np.unpackbits(stored['sign/' + name])[: np.prod(shape)], 1.0, -1.0)
        weight[stored['zero/' + name]] = 0
        return nd.array(weight.reshape(shape))

    arrays = {p['prefix']: values(p['prefix'], p['shape']) for p in parameters}
    exported = {('aux:' if 'running' in name else 'arg:') + name: array for name, array in arrays.items()}
    structural = {name: arrays[p['prefix']] for p in parameters for name in p['structural']}
    return {'exported': exported, 'structural': structural, 'x': nd.array(stored['x']), 'logits': stored['logits']}
