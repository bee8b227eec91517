"""CBCN: convolutions and blocks against arrays of the authors' code, whose padding is 0."""

import dataclasses

import pytest
from support.authors_arrays import AuthorsArrays

from bmx_melius.nn.methods.cbcn import CirculantConv2D
from model_zoo.method_resnets import METHODS, Residual
from model_zoo.method_units import Place

AUTHORS = AuthorsArrays('cbcn')
METHOD = METHODS['resnet{}_cbcn']
OPTIONS = dataclasses.replace(METHOD.options, conv_kwargs={'pad_value': 0})


@pytest.mark.parametrize('stride', [1, 2])
def test_circulant_convolution_has_the_values_and_gradients_of_the_authors_code(stride):
    AUTHORS.assert_equal(f'convolution {stride}', CirculantConv2D(12, 3, stride, 1, pad_value=0))


@pytest.mark.parametrize('case, channels, stride', [('block', 8, 1), ('halving block', 16, 2)])
def test_block_has_the_values_and_gradients_of_the_authors_code(case, channels, stride):
    block = Residual((Place(channels, 8, stride, 4 * stride),), METHOD, OPTIONS)
    shortcut = ['downsample.0.weight', 'downsample.1.weight', 'downsample.1.bias'] if stride == 2 else []
    AUTHORS.assert_equal(case, block, ['bn.weight', 'bn.bias', 'conv.weight', *shortcut, 'prelu.weight'])
