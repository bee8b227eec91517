"""GroupNet: a network with gates, scales and binary shortcuts against arrays of the authors' code."""

import dataclasses
import re

from authors_arrays import AuthorsArrays

from model_zoo.method_resnets import BASES, METHODS, Architecture, MethodResNet

AUTHORS = AuthorsArrays('group_net')
METHOD = METHODS['groupnet{}']


def in_our_order(names):
    """The names of a network's parameters: those of a block by base, and its scales as one array."""
    blocks = list(dict.fromkeys(re.match(r'layer\d+\.\d+\.|', name).group() for name in names))
    ordered = []
    for block in blocks[1:]:
        own = [name for name in names if name.startswith(block)]
        bases = [
            [name for name in own if re.match(rf'{re.escape(block)}(conv|bn){unit}\.{base}\.', name)]
            for base in range(BASES)
            for unit in (1, 2)
        ]
        ordered += [name for name in own if 'gate' in name] + [name for name in own if 'downsample' in name] + sum(bases, [])
        ordered.append(tuple(name for name in own if 'scales' in name))
    outside = [name for name in names if not name.startswith('layer')]
    return [name for name in outside if not name.startswith('fc')] + ordered + [name for name in outside if name.startswith('fc')]


def test_network_has_the_values_and_gradients_of_the_authors_code():
    options = dataclasses.replace(METHOD.options, init_features=4)
    net = MethodResNet(Architecture((2, 1, 1, 1), METHOD), options, classes=5)
    AUTHORS.assert_equal('network', net, in_our_order(AUTHORS.parameters('network')))
