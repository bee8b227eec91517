"""Networks of the zoo in the tests: which ones accept one size of images, and which ones are tested once for several depths."""

from model_zoo import get_model_list
from model_zoo.method_resnets import METHODS

SIZED = ('alexnet_xnor', 'resnet18_xnorpp', 'resnet34_xnorpp')  # networks that accept one size of images
DEEPER = {'quicknet_large', *(pattern.format(34) for pattern in METHODS)}
OF_ONE_DEPTH = [name for name in get_model_list() if name not in DEEPER]


def of_size(name, size):
    """Arguments of `get_model` for images of size x size."""
    return {'input_size': size} if name in SIZED else {}
