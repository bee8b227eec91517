"""PyTorch, imported where it is needed."""

import re

from ...errors import UserError

_COLOURS = re.compile('\x1b\\[[0-9;]*m')  # of terminals
_LONGEST = 300  # characters of a message


def import_torch_package():
    """Return the package torch. Raises `UserError` with the way to install it."""
    try:
        import torch
    except ImportError as error:
        raise UserError(f"networks of PyTorch need the package torch: pip install 'bmx-melius[torch]' ({error})") from error
    return torch


def reason(error):
    """Return the class of the first cause of an exception and the first line of its message, after which PyTorch adds traces and advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _COLOURS.sub('', str(error)).splitlines() if line.strip()]
    return f'{type(error).__name__}: {lines[0][:_LONGEST]}' if lines else type(error).__name__
