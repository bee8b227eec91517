"""Detection of the command line: ``bmx-melius`` imports MXNet only in the commands that need it.

Importing MXNet takes two seconds, which would delay ``bmx-melius --help``. In all other programs, importing the package registers its
operator and its optimizer with MXNet immediately (docs/deploy.md, Importing).
"""

import os
import sys

# '-m' while Python looks for the module that ``python -m bmx_melius`` names
IS_COMMAND_LINE = os.path.basename(''.join(sys.argv[:1])) in ('-m', 'bmx-melius')
