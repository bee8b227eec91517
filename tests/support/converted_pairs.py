"""Pairs of BMXNet-v2's model_converter for tests: the authors' pair, small pairs of random parameters, and their import."""

import json

import numpy as np
from mxnet import nd
from mxnet.gluon import nn

from bmx_melius.__main__ import main
from bmx_melius.importers.bmxnet_v2_converted import read_converted
from support import bmxnet_v2_converter as bmxnet
from support.paths import DATA

PAIR = DATA / 'bmxnet_v2_converted'
LENET = str(PAIR / 'binarized_lenet5-symbol.json')
LENET_SHAPE = '1,1,28,28'
WEIGHT = 'arg:net_qconv0_weight'  # of the networks of `write_pair`


def run(*arguments):
    """Run ``bmx-melius import-bmxnet``; return its exit status."""
    return main(['import-bmxnet', *map(str, arguments)])


def convolution(**arguments):
    return [bmxnet.Activation(), bmxnet.Convolution(5, 3, in_channels=32, **arguments), nn.BatchNorm(in_channels=5)]


def dense():
    return [nn.Flatten(), bmxnet.Activation(), bmxnet.Dense(7, in_units=32 * 36), nn.BatchNorm(in_channels=7)]


def write_pair(layers, folder, bits=32, channels=32):
    """Write a converted pair of random parameters to FOLDER/binarized_net; return an input and the output of the float network."""
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(*layers())
    x = nd.array(np.random.RandomState(1).randn(2, channels, 6, 6))
    y = bmxnet.randomize(net, x)
    net.export(str(folder / 'net'))
    bmxnet.convert(folder / 'net', folder / 'binarized_net', bits)
    return x, y


def read(folder, shape=(2, 32, 6, 6)):
    """Read the pair in FOLDER/binarized_net."""
    return read_converted(folder / 'binarized_net-symbol.json', folder / 'binarized_net-0000.params', shape)


def edit(path, operator, change):
    """Change the first node of an operator in a symbol."""
    symbol = json.loads(path.read_text())
    change(next(node for node in symbol['nodes'] if node['op'] == operator))
    path.write_text(json.dumps(symbol))
