"""ReActNet: blocks and a network against arrays of the authors' code, whose padding is 0."""

import dataclasses

import pytest
from support.authors_arrays import AuthorsArrays

from model_zoo.method_resnets import METHODS, Architecture, MethodResNet, Residual
from model_zoo.method_units import Place

AUTHORS = AuthorsArrays('reactnet')
METHOD = METHODS['reactnet{}']
OPTIONS = dataclasses.replace(METHOD.options, init_features=4, conv_kwargs={'pad_value': 0})


MODULES = ('move0', 'binary_conv', 'bn1', 'downsample', 'move1', 'prelu', 'move2')  # of a block, in the order of ours


def in_our_order(names):
    """The names of a network's parameters, in which the authors have the shortcut of a block after its other modules."""

    def place(name):
        stage, number, module = (*name.split('.'), '', '')[:3]
        if not stage.startswith('layer'):
            return names.index(name), 0
        return next(index for index, other in enumerate(names) if other.startswith(f'{stage}.{number}.')), MODULES.index(module)

    return sorted(names, key=place)


@pytest.mark.parametrize('case, channels, stride', [('block', 4, 1), ('halving block', 8, 2)])
def test_block_has_the_values_and_gradients_of_the_authors_code(case, channels, stride):
    block = Residual((Place(channels, 4, stride, 4 * stride),), METHOD, OPTIONS)
    names = ['move0.bias', 'binary_conv.weight', 'bn1.weight', 'bn1.bias']
    shortcut = ['downsample.1.weight', 'downsample.2.weight', 'downsample.2.bias'] if stride == 2 else []
    AUTHORS.assert_equal(case, block, [*names, *shortcut, 'move1.bias', 'prelu.weight', 'move2.bias'])


def test_network_has_the_values_and_gradients_of_the_authors_code():
    net = MethodResNet(Architecture((1, 1, 1, 1), METHOD), OPTIONS, classes=5)
    AUTHORS.assert_equal('network', net, in_our_order(AUTHORS.parameters('network')))
