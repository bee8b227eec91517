"""Padding that differs between opposite sides in packed networks, as TensorFlow's: operations that need no others beside them."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn
from support.conversions import names_of, program_of
from support.engines import needs_engine
from support.packed_networks import engine_of

import bmx_melius as bmx
import model_zoo
from bmx_melius.deployment.program.operations import ProgramError
from model_zoo.padding import padded


@pytest.mark.parametrize('kind', ['float', 'binary', 'scaled', 'low-bit'])
def test_the_padding_of_tensorflow_needs_no_more_operations_than_other_padding(kind):
    layers = {
        'float': lambda padding: nn.Conv2D(8, 3, 2, padding, in_channels=4),
        'binary': lambda padding: bmx.BinaryConv2D(8, 3, strides=2, padding=padding, in_channels=4, pad_value=0, no_offset=True),
        'scaled': lambda padding: bmx.BinaryConv2D(8, 3, strides=2, padding=padding, in_channels=4, apply_scaling=True),
        'low-bit': lambda padding: bmx.BinaryConv2D(
            8, 3, strides=2, padding=padding, in_channels=4, pad_value=0, activation_bits=2, activation_method='hwgq'
        ),
    }
    found = {}
    for same in (False, True):
        net = nn.HybridSequential()
        net.add(nn.BatchNorm(in_channels=4), padded(layers[kind], 3, 2, same_padding=same), nn.Activation('relu'))
        net.initialize(mx.init.Normal(1))
        packed = bmx.deploy(net, (1, 4, 10, 10))
        for size in ((10, 10), (12, 6)):
            x = mx.nd.random.normal(shape=(2, 4, *size))
            np.testing.assert_allclose(packed(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)
        found[same] = names_of(program_of(packed))
    assert found[True] == found[False]


class Trimmed(mx.gluon.HybridBlock):
    """A convolution whose result several operations read, without the first row and column."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(4, 3, 2, 2, in_channels=3)

    def hybrid_forward(self, F, x):
        y = self.conv(x)
        y = F.relu(y) + F.abs(y)
        for _ in range(6):
            y = y + y
        return F.slice(y, begin=(0, 0, 1, 1), end=(None, None, None, None))


def test_operations_before_removed_rows_are_added_once():
    net = Trimmed()
    net.initialize(mx.init.Normal(1))
    packed = bmx.deploy(net, (1, 3, 8, 6))
    x = mx.nd.random.normal(shape=(2, 3, 9, 7))
    np.testing.assert_allclose(packed(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-3)
    names = names_of(program_of(packed))
    assert (names.count('conv'), names.count('add')) == (1, 7)


@needs_engine
def test_the_check_of_sizes_is_not_computed_in_a_run():
    net = model_zoo.get_model('quicknet_small', classes=3, same_padding=True)
    net.initialize()
    program = program_of(bmx.deploy(net, (1, 3, 64, 64)))
    assert names_of(program).count('global_avg_pool') == 2  # one of them is part of the check
    steps = [name for name, *_ in engine_of(program).profile([np.zeros((1, 3, 64, 64), np.float32)])]
    assert sum('global_avg_pool' in name for name in steps) == 1 and not any('slice' in name or 'concat' in name for name in steps)
    with pytest.raises(ProgramError, match='concat of'):
        engine_of(program).run([np.zeros((1, 3, 64, 72), np.float32)])
