"""Binary networks by name, in GluonCV's manner; importing this package also makes them known to ``gluoncv.model_zoo.get_model``."""

from . import larq, meliusnet, resnet
from .larq import from_larq, load_larq_parameters
from .registry import get_model, get_model_list

__all__ = ['from_larq', 'get_model', 'get_model_list', 'load_larq_parameters']
