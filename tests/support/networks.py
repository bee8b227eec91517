"""Networks of the zoo in the tests: arguments that some of them need, which are tested once for several depths; their layers."""

import pytest

from bmx_melius.nn.quantizers import FULL_PRECISION
from model_zoo import get_model_list
from model_zoo.registry import find, takes_option
from model_zoo.residual import NETWORKS

SIZED = (
    'alexnet_xnor',
    'binary_alexnet',
    *(f'binary_vgg{depth}' for depth in (11, 13, 16, 19)),
    'resnet18_xnorpp',
    'resnet34_xnorpp',
    'vgg_small_irnet',
    'vgg_small_recu',
    'vgg_small_adabin',
)  # networks that accept one size of images
# Of more blocks, otherwise like a network that is tested each time.
_LONG = {'meliusnet29', 'meliusnet42', 'meliusnet59', 'binary_densenet37', 'binary_densenet45', 'birealnet34', 'resnet_e34'}
DEEPER = {'quicknet_large', 'resnet34_benn', 'binary_vgg13', 'binary_vgg16', 'binary_vgg19'}
DEEPER |= {pattern.format(34) for pattern in NETWORKS if '{}' in pattern} - _LONG
# the layers of one network and the structure of another
DEEPER |= {
    'binary_mobilenet_vww',
    'bnext18',
    'bnext_s',
    'bnext_m',
    'bnext_l',
    'pokebnn_0_75',
    'pokebnn_1_0',
    'pokebnn_1_25',
    'pokebnn_1_5',
    'pokebnn_2_0',
    'resnet18_irnet',
    'resnet18_adabin',
    'resnet20_adabin',
    'resnet20_recu',
    'vgg_small_irnet',
    'vgg_small_recu',
}
FLOAT = [name for name in get_model_list() if getattr(find(name).options, 'bits', None) == FULL_PRECISION]  # without binary layers
OF_ONE_DEPTH = [name for name in get_model_list() if name not in DEEPER]
NARROW = (
    'abcnet',
    'groupnet',
    'cbcn',
    'benn',
    'bwn',
    'ttq',
    'dorefa',
    'hwgq',
    'lqnet',
    'syq',
    'bnext',
    'reactnet_a',
    'pokebnn',
)  # methods that take much time


def of_size(name, size, full=False):
    """Arguments of `get_model` for images of size x size, with few channels.

    Their layers, and the marks and operators of these, are as in the full width, which `full` selects except for methods that take
    much time.
    """
    if any(method in name for method in NARROW):
        width = {'init_features': 8}
    elif full:
        width = {}
    elif takes_option(name, 'growth_rate'):
        width = {'init_features': 32, 'growth_rate': 32}
    else:
        width = {'init_features': 16}
    spectrogram = {'spectrogram': (size, size)} if takes_option(name, 'spectrogram') else {}
    return {**width, **spectrogram, **({'input_size': size} if name in SIZED else {})}


def cases(names, *others, long=()):
    """Return parameters for `pytest.mark.parametrize`, each a name, or a name and `others`; deep networks and `long` are for long runs."""
    return [pytest.param(name, *others, marks=[pytest.mark.long] if name in {*_LONG, *DEEPER, *long} else []) for name in names]


def layers_of(net, kind):
    """All layers of a class in a network."""
    found = []
    net.apply(lambda layer: found.append(layer) if isinstance(layer, kind) else None)
    return found
