"""Whether this package is imported for its own command line, which imports MXNet only when a command needs it.

Importing MXNet takes two seconds, for which ``bmx-melius --help`` should not wait. Every other program that imports the package gets the
operator and the optimizer registered with MXNet at once (docs/deploy.md, Importing).
"""

import os
import sys

# '-m' while Python looks for the module that ``python -m bmx_melius`` names
IS_COMMAND_LINE = os.path.basename(''.join(sys.argv[:1])) in ('-m', 'bmx-melius')
