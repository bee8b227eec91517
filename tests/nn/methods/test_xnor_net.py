"""XNOR-Net: the update of weights and the layers of AlexNet, against the authors' code in Lua, whose padding is 0."""

import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.authors_arrays import read_cases
from support.drawn_values import drawn

from bmx_melius.nn.layers import BinaryConv2D
from bmx_melius.nn.methods.bwn import BWNConv2D
from bmx_melius.nn.methods.updates import finish_update
from bmx_melius.nn.methods.xnor_net import XNORConv2D
from model_zoo import get_model

CASES, METADATA = read_cases('xnor_net')
SHAPE = (3, 4, 3, 3)


@pytest.mark.parametrize('kind', [XNORConv2D, BWNConv2D])
def test_latent_weights_are_centred_and_clipped_after_an_update_as_in_the_authors_code(kind):
    layer = kind(SHAPE[0], 3, in_channels=SHAPE[1])
    layer.initialize()
    layer.qconv.weight.set_data(nd.array(drawn('conv.weight', SHAPE)))
    finish_update(layer)
    np.testing.assert_allclose(layer.qconv.weight.data().asnumpy(), CASES['layer'].arrays['latent'], rtol=1e-6)


def rows_of(layer):
    """A layer of our AlexNet as the authors' code calls it."""
    if isinstance(layer, BinaryConv2D):
        return [['BinActiveZ'], *rows_of(layer.qconv)]
    if isinstance(layer, nn.Conv2D):
        channels, in_channels, *kernel = layer.weight.shape
        kernel_stride_and_padding = [*kernel, *layer._kwargs['stride'], *layer._kwargs['pad']]
        assert layer.bias is not None
        return [['SpatialConvolution', in_channels, channels, *kernel_stride_and_padding]]
    if isinstance(layer, nn.BatchNorm):
        assert layer._kwargs['fix_gamma'] is False  # affine, as Torch's default
        return [['SpatialBatchNormalization', layer.gamma.shape[0], layer._kwargs['eps']]]
    if isinstance(layer, nn.Activation):
        return [['ReLU']]
    if isinstance(layer, nn.MaxPool2D):
        assert layer._kwargs['pad'] == (0, 0)
        return [['SpatialMaxPooling', *layer._kwargs['kernel'], *layer._kwargs['stride']]]
    if isinstance(layer, nn.Dense):
        return [['SpatialConvolution', layer.weight.shape[1], layer.weight.shape[0], 1, 1]]
    assert isinstance(layer, nn.Flatten)
    return []


def comparable(row):
    """A row without what has no counterpart: ReLU in place, BN's momentum (false: the default), stride 1 and padding 0."""
    name, *arguments = row
    if name == 'SpatialConvolution':
        in_channels, channels, *rest = arguments
        return [name, in_channels, channels, *rest, *[1, 1, 0, 0][max(0, len(rest) - 2) :]]
    return [name, *(argument for argument in arguments if not isinstance(argument, bool))]


def test_alexnet_has_the_layers_of_the_authors_code():
    net = get_model('alexnet_xnor')
    net.infer_shape(nd.zeros((1, 3, 224, 224)))
    ours = [comparable(row) for layer in (*net.features, net.output) for row in rows_of(layer)]
    assert ours == [comparable(row) for row in METADATA['alexnet'] if row[0] not in ('View', 'LogSoftMax')]
