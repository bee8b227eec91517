"""Small float networks for tests of the conversion."""

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn

import bmx_melius as bmx


def initialized(net, shape, initializer=None):
    net.initialize(initializer or mx.init.Normal(0.5))
    net.hybridize()
    net(nd.zeros(shape))
    return net


def randomize_statistics(net, **values):
    """Give the normalizations of a network random statistics, factors and summands, and activations random slopes; return the network.

    `values` are assigned to the parameters whose names end with these keys.
    """
    for name, parameter in net.collect_params().items():
        given = [value for suffix, value in values.items() if name.endswith(suffix)]
        if given:
            parameter.set_data(nd.array(given[0]))
        elif name.endswith('running_var'):
            parameter.set_data(nd.random.uniform(0.5, 2, parameter.shape))
        elif name.endswith(('running_mean', 'gamma', 'beta', 'alpha')):
            parameter.set_data(nd.random.normal(shape=parameter.shape))
    return net


def sequence(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def small_network():
    """Return a network that has run on an image (1, 3, 8, 8): a convolution, a normalization and a binary convolution."""
    return initialized(sequence(nn.Conv2D(8, 3), nn.BatchNorm(), bmx.BinaryConv2D(8, 3)), (1, 3, 8, 8))
