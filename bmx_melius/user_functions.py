"""Functions of the user that build networks, named ``package.module:function``."""

import importlib
import inspect
import os
import sys
import traceback
from typing import Any, Callable, Mapping

from .errors import UserError, last_line


def find_function(path: str) -> Callable[..., Any]:
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


def call_function(function: Callable[..., Any], path: str, arguments: Mapping[str, Any]) -> Any:
    """Return the result of a function of the user, called with keyword arguments.

    Raises
    ------
    UserError
        When it does not take the arguments, or raises an exception; the message has the line of the function.
    """
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        given = f'the arguments {", ".join(arguments)}' if arguments else 'no arguments'
        raise UserError(f'{path} does not take {given}: {error}') from error
    try:
        return function(**arguments)
    except UserError:
        raise
    except Exception as error:  # whatever the user's function raises
        lines = [f' ({frame.filename}, line {frame.lineno})' for frame in traceback.extract_tb(error.__traceback__)[1:2]]
        raise UserError(f'{path} raises {type(error).__name__}: {last_line(error)}{"".join(lines)}') from error
