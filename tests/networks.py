"""Networks of the zoo in the tests: arguments that some of them need, and which ones are tested once for several depths."""

from model_zoo import get_model_list
from model_zoo.method_resnets import METHODS

SIZED = ('alexnet_xnor', 'resnet18_xnorpp', 'resnet34_xnorpp')  # networks that accept one size of images
DEEPER = {'quicknet_large', 'resnet34_benn', *(pattern.format(34) for pattern in METHODS)}
OF_ONE_DEPTH = [name for name in get_model_list() if name not in DEEPER]
NARROW = ('abcnet', 'groupnet', 'cbcn', 'benn', 'bwn', 'ttq', 'dorefa', 'hwgq', 'lqnet', 'syq')  # methods that take much time


def of_size(name, size):
    """Arguments of `get_model` for images of size x size; those of some methods become narrow."""
    narrow = {'init_features': 8} if any(method in name for method in NARROW) else {}
    return {**narrow, **({'input_size': size} if name in SIZED else {})}
