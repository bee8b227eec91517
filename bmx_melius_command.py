"""The console script ``bmx-melius``.

It is not a part of the package because `import bmx_melius` imports MXNet, which takes seconds: here it is imported when a command needs it,
and not for ``--help``, ``--version`` or an argument that is wrong.
"""

import os


def main():
    """Run the command line; return its exit status."""
    os.environ['BMX_MELIUS_WITHOUT_MXNET'] = '1'
    from bmx_melius.__main__ import main

    return main()
