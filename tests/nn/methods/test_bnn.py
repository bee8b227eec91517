"""BNN: a network against arrays of the authors' code, whose padding is 0."""

import dataclasses
import re

import numpy as np
from support.authors_arrays import AuthorsArrays
from support.drawn_values import drawn

from model_zoo.method_resnets import METHODS, Architecture, MethodResNet

AUTHORS = AuthorsArrays('bnn')
METHOD = METHODS['resnet{}_bnn']
BINARY = re.compile(r'layer\d\.\d\.(conv\d|downsample\.0)\.weight')


def in_our_order(names):
    """The names of a network's parameters, with the shortcut of a block before the normalization that follows the addition."""
    ordered = [name for name in names if 'downsample' not in name]
    place = ordered.index('layer2.0.bn2.weight')
    return ordered[:place] + [name for name in names if 'downsample' in name] + ordered[place:]


def test_network_has_the_values_and_gradients_of_the_authors_code():
    options = dataclasses.replace(METHOD.options, initial_layers='thumbnail', init_features=4, conv_kwargs={'pad_value': 0})
    net = MethodResNet(Architecture((2, 2), METHOD), options, classes=5)
    shapes = AUTHORS.metadata['cases']['network']['shapes']
    clipped = {name: np.clip(drawn(name, shape), -1, 1) for name, shape in shapes.items() if BINARY.match(name)}  # as after each update
    AUTHORS.assert_equal('network', net, in_our_order(AUTHORS.parameters('network')), clipped)
