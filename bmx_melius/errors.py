"""The exception that stands for a mistake of the user's, its form for files, and what messages quote of other errors."""


class UserError(ValueError):
    """A wrong argument, file or flag: its message is one line that names what is wrong and what to do.

    The command line prints the message alone and exits with status 2; every other exception is a defect and keeps its traceback.
    """


class DataError(UserError):
    """Data turned out to be unreadable in the middle of an epoch; the network is as the last update left it, so the run can be saved."""


class FileError(OSError, UserError):
    """A file that cannot be read, with the fields of an `OSError`: number and text of the error, and the name of the file."""

    def __str__(self):
        return f'{self.filename}: {self.strerror}'


def last_line(error):
    """The last line of an error's message: MXNet puts a traceback of its C++ before it."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
