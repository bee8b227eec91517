"""Model zoo of binary networks with the interface of GluonCV. Importing it also registers them with ``gluoncv.model_zoo.get_model``."""

from . import requirement  # isort: skip  first, because the others import MXNet
from . import alexnet, binary_weights, ensemble, larq, meliusnet, mobile, pokebnn, quicknet, residual, shipped, vgg_small
from .ensemble import get_members
from .larq import from_larq, load_larq_parameters
from .listing import list_models
from .registry import (
    default_of,
    get_gluoncv_list,
    get_model,
    get_model_list,
    get_pretrained_list,
    get_pretrained_options,
    listed_name,
    preset_of,
    takes_option,
    unknown_network,
)
from .shipped import packed

__all__ = [
    'default_of',
    'from_larq',
    'get_gluoncv_list',
    'get_members',
    'get_model',
    'get_model_list',
    'get_pretrained_list',
    'get_pretrained_options',
    'list_models',
    'listed_name',
    'load_larq_parameters',
    'packed',
    'preset_of',
    'takes_option',
    'unknown_network',
]
