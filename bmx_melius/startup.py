"""Detection of the command line: ``bmx-melius`` imports MXNet only in the commands that need it.

Importing MXNet takes two seconds, which would delay ``bmx-melius --help``. In all other programs, importing the package registers its
operator and its optimizer with MXNet immediately (docs/deploy.md, Importing).
"""

import os
import sys


def _command():
    """Return the command line of the interpreter, its own options included: Python removes those from `sys.argv`."""
    if hasattr(sys, 'orig_argv'):  # from Python 3.10 on
        return sys.orig_argv
    with open('/proc/self/cmdline', encoding='utf-8', errors='surrogateescape') as file:
        return file.read().split('\0')


def _is_command_line():
    name = os.path.basename(''.join(sys.argv[:1]))
    if name == '-m':  # Python is looking for the module that ``python -m`` names, which may be that of another package
        command = _command()
        return ('-m', __package__) in zip(command, command[1:])
    return name == 'bmx-melius'


IS_COMMAND_LINE = _is_command_line()
