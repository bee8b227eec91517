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


def randomize_statistics(net):
    """Give the normalizations of a network random statistics, factors and summands."""
    for name, parameter in net.collect_params().items():
        if name.endswith('running_var'):
            parameter.set_data(nd.random.uniform(0.5, 2, parameter.shape))
        elif name.endswith(('running_mean', 'gamma', 'beta')):
            parameter.set_data(nd.random.normal(shape=parameter.shape))


def sequence(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def small_network():
    """Return a network that has run on an image (1, 3, 8, 8): a convolution, a normalization and a binary convolution."""
    return initialized(sequence(nn.Conv2D(8, 3), nn.BatchNorm(), bmx.BinaryConv2D(8, 3)), (1, 3, 8, 8))
