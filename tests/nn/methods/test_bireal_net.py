"""Bi-Real Net: blocks and a network against arrays of the authors' code, whose padding is 0."""

import dataclasses

import pytest
from support.authors_arrays import AuthorsArrays

from bmx_melius.nn.methods.bnn import clip_latent_weights
from model_zoo.resnet import BIREALNET, Architecture, BinaryResNet, Place, ResidualBlock

AUTHORS = AuthorsArrays('bireal_net')
OPTIONS = dataclasses.replace(BIREALNET.options, initial_layers='imagenet', init_features=4, conv_kwargs={'pad_value': 0})


@pytest.mark.parametrize('case, channels, stride', [('block', 4, 1), ('halving block', 8, 2)])
def test_block_has_the_values_and_gradients_of_the_authors_code(case, channels, stride):
    options = dataclasses.replace(OPTIONS, conv_kwargs={**BIREALNET.convolution, **OPTIONS.conv_kwargs})
    AUTHORS.assert_equal(case, ResidualBlock(Place(4, channels, stride), options))


def test_network_has_the_values_and_gradients_of_the_authors_code():
    AUTHORS.assert_equal('network', BinaryResNet(Architecture((2, 1, 1, 1), BIREALNET), OPTIONS, classes=5))


def test_latent_weights_are_not_clipped_as_in_the_authors_code():
    block = ResidualBlock(Place(4, 4, 1), dataclasses.replace(OPTIONS, conv_kwargs=BIREALNET.convolution), prefix='')
    block.conv.qconv.weight.shape = (4, 4, 3, 3)
    block.conv.qconv.weight.initialize('ones')
    block.conv.qconv.weight.set_data(block.conv.qconv.weight.data() * 2)
    clip_latent_weights(block)
    assert (block.conv.qconv.weight.data().asnumpy() == 2).all()
