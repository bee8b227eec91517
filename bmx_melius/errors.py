"""The one exception that stands for a mistake of the user's."""


class UserError(ValueError):
    """A wrong argument, file or flag: its message is one line that names what is wrong and what to do.

    The command line prints the message alone and exits with status 2; every other exception is a defect and keeps its traceback.
    """
