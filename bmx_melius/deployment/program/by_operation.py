"""Tables of functions by operation: what one part of the code does with each operation, such as writing it in C."""

from typing import Any, Callable, Dict

from .operation_table import OPERATIONS


class ByOperation(Dict[str, Callable[..., Any]]):
    """Functions by the name of the operation they are for.

    >>> FORMS = ByOperation()
    >>> @FORMS.of('max_pool', 'global_max_pool')
    ... def maximum(operation):
    ...     return f'the maximum in {operation}'
    >>> FORMS['max_pool']('y')
    'the maximum in y'
    """

    def of(self, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that enters a function, or a method, for these operations."""

        def enter(function: Callable[..., Any]) -> Callable[..., Any]:
            for name in names:
                if name not in OPERATIONS or name in self:
                    raise ValueError(f'{name} is not an operation, or has a function: {function.__qualname__}')
                self[name] = function
            return function

        return enter
