"""The command line while Python imports this package for it, which takes seconds: Ctrl-C ends it without a traceback.

``python -m bmx_melius`` and the script ``bmx-melius`` begin after that, so they cannot see to it themselves. Meanwhile the system ends
the process, not an exception, which libraries may swallow, too. In every other program nothing changes.
"""

import os
import signal
import sys

_PROGRAM = os.path.basename(''.join(sys.argv[:1]))  # '-m' while Python looks for the module that `python -m` names
_IS_STARTING = _PROGRAM in ('-m', 'bmx-melius') and signal.getsignal(signal.SIGINT) is signal.default_int_handler

if _IS_STARTING:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end():
    """The package is imported: Ctrl-C is a `KeyboardInterrupt` again."""
    if _IS_STARTING:
        signal.signal(signal.SIGINT, signal.default_int_handler)
