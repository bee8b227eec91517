"""Networks that a function of the user builds, named ``package.module:function``."""

from typing import Any

import mxnet as mx
from mxnet.gluon import HybridBlock

from bmx_melius.errors import UserError
from bmx_melius.user_functions import call_function, find_function

_BLOCK_ARGUMENTS = ('prefix', 'params')  # of get_model; functions of the user need not take them


def is_path(name: str) -> bool:
    """Return whether the name of a network is the name of a function, ``package.module:function``."""
    return ':' in name


def build(path: str, classes: int, **kwargs: Any) -> HybridBlock:
    """Build the network of `find_function`, called with `classes` and other keyword arguments.

    Names of blocks begin with the argument ``prefix``, and do not depend on other networks of this process.

    Raises
    ------
    UserError
        As `find_function` and `call_function`, and when the function does not return a HybridBlock.
    """
    function = find_function(path)
    arguments = {'classes': classes, **{name: value for name, value in kwargs.items() if name not in _BLOCK_ARGUMENTS}}
    with mx.name.Prefix(kwargs.get('prefix') or ''):
        net = call_function(function, path, arguments)
    if not isinstance(net, HybridBlock):
        raise UserError(f'{path} returned {type(net).__name__}: it must return a network, a mxnet.gluon.HybridBlock')
    return net
