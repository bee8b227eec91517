"""Integer arithmetic."""


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up, for integers of any size and arrays of them; `b` is positive."""
    return -(-a // b)
