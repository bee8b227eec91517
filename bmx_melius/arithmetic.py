"""Integer arithmetic."""


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up, for integers of any size or arrays of integers; `b` must be positive."""
    return -(-a // b)
