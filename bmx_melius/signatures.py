"""Signatures: of constructors that forward ``**kwargs``, shown by `help` and checked at the call, and what of a dict a function takes."""

import functools
import inspect
from typing import Any, Callable, Dict, Mapping, Sequence, TypeVar, cast

Function = TypeVar('Function', bound=Callable[..., Any])
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def hands_on(*callees: Callable[..., Any], without: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Decorate an ``__init__`` that forwards ``*args`` and ``**kwargs`` to `callees`, except arguments named in `without`.

    In `inspect.signature` and `help`, ``*args`` is replaced by the positional arguments of the first callee and ``**kwargs`` by all other
    arguments of the callees, keyword-only. Arguments that do not match this signature raise a `TypeError` that names the class and the
    argument; the error of MXNet would name a private base class.
    """

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        shown = _shown(own, [inspect.signature(callee) for callee in callees], without)

        @functools.wraps(function)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                shown.bind(self, *args, **kwargs)
            except TypeError as error:
                raise TypeError(f'{type(self).__name__}: {error}; its arguments are {", ".join(list(shown.parameters)[1:])}') from None
            function(self, *args, **kwargs)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        return cast(Function, checked)

    return decorate


def picked(function: Callable[..., Any], values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the items of a dict that a function has parameters for, or a dataclass fields."""
    return {name: values[name] for name in inspect.signature(function).parameters if name in values}


def _shown(own, callees, without):
    named = [parameter for parameter in own.parameters.values() if parameter.kind not in _VARIABLE]
    parameters = {parameter.name: parameter for parameter in named if parameter.kind is not parameter.KEYWORD_ONLY}
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in own.parameters.values()):
        keywords = {parameter.name for parameter in named if parameter.kind is parameter.KEYWORD_ONLY}
        for parameter in callees[0].parameters.values():
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in keywords:
                parameters.setdefault(parameter.name, parameter)
    for parameter in (*named, *(parameter for callee in callees for parameter in callee.parameters.values())):
        if parameter.kind not in _VARIABLE and parameter.name not in without:
            parameters.setdefault(parameter.name, parameter.replace(kind=parameter.KEYWORD_ONLY))
    return own.replace(parameters=list(parameters.values()))
