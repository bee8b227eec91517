"""The one exception that stands for a mistake of the user's, and what its messages quote of other errors."""


class UserError(ValueError):
    """A wrong argument, file or flag: its message is one line that names what is wrong and what to do.

    The command line prints the message alone and exits with status 2; every other exception is a defect and keeps its traceback.
    """


class DataError(UserError):
    """Data turned out to be unreadable in the middle of an epoch; the network is as the last update left it, so the run can be saved."""


def last_line(error):
    """The last line of an error's message: MXNet puts a traceback of its C++ before it."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
