"""The reference MeliusNet22 of tests/data: parameters, an input, and the logits (the first 40 classes of 1000)."""

import json

import numpy as np
from mxnet import nd

from bmx_melius import load_reference_parameters
from model_zoo import get_model
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


def load_reference_network(folder):
    """Write the parameters to FOLDER/reference.params; return the network that has them, which has run, and `read_reference_network()`."""
    known = read_reference_network()
    nd.save(str(folder / 'reference.params'), known['exported'])
    net = get_model('meliusnet22', classes=40)
    load_reference_parameters(net, str(folder / 'reference.params'))
    net.hybridize()
    net(known['x'])
    return net, known
