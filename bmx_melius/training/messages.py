"""Errors of MXNet in messages to the user."""


def last_line(error):
    """The last line of an error's message: MXNet puts a traceback of its C++ before it."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
