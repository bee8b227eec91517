"""Networks that a function of the user builds, named ``package.module:function``."""

import importlib
import inspect
import os
import sys
import traceback
from typing import Any, Callable

import mxnet as mx
from mxnet.gluon import HybridBlock

from bmx_melius.errors import UserError, last_line

_BLOCK_ARGUMENTS = ('prefix', 'params')  # of get_model; functions of the user need not take them


def is_path(name: str) -> bool:
    """Return whether the name of a network is the name of a function, ``package.module:function``."""
    return ':' in name


def find_function(path: str) -> Callable[..., HybridBlock]:
    """Import the function that a path ``package.module:function`` names, from the current folder or from an installed package.

    Raises
    ------
    UserError
        When the module does not exist or cannot be imported, or has no such function.
    """
    module_name, _, name = path.partition(':')
    if not all(part.isidentifier() for part in (*module_name.split('.'), name)):
        raise UserError(f'{path!r} does not name a network: write it as package.module:function')
    if os.getcwd() not in sys.path:  # as `python -m` does; it stays there for what the module imports later
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f'{module_name}.'.startswith(f'{error.name}.'):
            why = f'there is no module {error.name} in the current folder {os.getcwd()} or among the installed packages'
        else:
            why = f'it imports {error.name}, which is not installed'
        raise UserError(f'the network {path} cannot be built: {why}') from error
    except Exception as error:  # whatever the user's module raises
        raise UserError(
            f'the network {path} cannot be built: importing {module_name} raises {type(error).__name__}: {last_line(error)}'
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        where = getattr(module, '__file__', None) or module_name  # packages without __init__.py and built-in modules have no file
        raise UserError(f'the network {path} cannot be built: {where} has {"no" if function is None else "an uncallable"} {name}')
    return function


def build(path: str, classes: int, **kwargs: Any) -> HybridBlock:
    """Build the network of `find_function`, called with `classes` and other keyword arguments.

    Names of blocks begin with the argument ``prefix``, and do not depend on other networks of this process.

    Raises
    ------
    UserError
        As `find_function`, when the function does not take the arguments, raises an exception, or does not return a HybridBlock.
    """
    function = find_function(path)
    arguments = {'classes': classes, **{name: value for name, value in kwargs.items() if name not in _BLOCK_ARGUMENTS}}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise UserError(f'{path} does not take the arguments {", ".join(arguments)}: {error}') from error
    with mx.name.Prefix(kwargs.get('prefix') or ''):
        net = _call(function, path, arguments)
    if not isinstance(net, HybridBlock):
        raise UserError(f'{path} returned {type(net).__name__}: it must return a network, a mxnet.gluon.HybridBlock')
    return net


def _call(function, path, arguments):
    """Call the function of the user; its exceptions become a `UserError` with the line of the function."""
    try:
        return function(**arguments)
    except UserError:
        raise
    except Exception as error:  # whatever the user's function raises
        lines = [f' ({frame.filename}, line {frame.lineno})' for frame in traceback.extract_tb(error.__traceback__)[1:2]]
        raise UserError(f'{path} raises {type(error).__name__}: {last_line(error)}{"".join(lines)}') from error
