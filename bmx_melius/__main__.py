"""The command line: ``bmx-melius``, or ``python -m bmx_melius``."""

import contextlib
import importlib.util
import io
import os
import sys

from ._version import __version__
from .arguments import Parser
from .cli import bench, convert, evaluate, export_onnx, import_bmxnet, import_larq, info, pack_images, predict, summary, tables
from .errors import UserError

_COMMANDS = (summary, convert, export_onnx, import_larq, import_bmxnet, bench, predict, evaluate, pack_images, tables, info)
_USER_ERROR = 2  # exit status; argparse's, too
_WITH_MXNET = ('mxnet', 'gluoncv', 'graphviz', 'matplotlib', 'cv2', 'tqdm')  # what installing MXNet and GluonCV brings
_DESCRIPTION = 'Binary neural networks on MXNet: count what a network costs, and use what was trained.'
_EXAMPLES = """\
examples:
  bmx-melius summary meliusnet22              # operations, parameters and size, layer by layer
  bmx-melius convert out/best out/packed      # to bit instructions
  bmx-melius import-larq w.h5 larq22 --model meliusnet22      # a network that Larq trained
  bmx-melius import-bmxnet checkpoint.params meliusnet22 --model meliusnet22    # trained with BMXNet-v2
  bmx-melius export-onnx out/best best.onnx   # for other runtimes, computed in floats
  bmx-melius predict out/best photo.jpg       # classify with an exported network
  bmx-melius evaluate out/best photos         # its accuracy on labelled images, photos/CLASS/*.jpg
  bmx-melius bench meliusnet22 --compare      # how fast it is here, step by step, and beside other libraries
  bmx-melius pack-images imagenet             # record files for training from folders of images
  bmx-melius tables                           # the paper's figures beside what the networks count here
  bmx-melius info                             # versions, processor, known networks

bmx-melius COMMAND --help explains a command. Training is python train_imagenet.py --help.
"""


def build_parser():
    """The parser of the whole command line; the parsed arguments hold the function `run(arguments, output)` of their command."""
    parser = Parser(prog='bmx-melius', description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument('--version', action='version', version=__version__)
    commands = parser.add_subparsers(metavar='COMMAND', required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def _register_operator():
    """Let MXNet read packed files, for commands that load them: `import bmx_melius` may have left MXNet out."""
    if importlib.util.find_spec('mxnet'):
        from .deployment.runtime import mxnet_operator

        mxnet_operator.register()


def main(argv=None):
    """Run a command and return the exit status: 0, or 2 after a mistake of the user's, told in one line on standard error."""
    output = sys.stdout
    for stream in (output, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # names of files need not be text that a terminal can show
    try:
        try:
            arguments = build_parser().parse_args(argv)
            _register_operator()
            with contextlib.redirect_stdout(sys.stderr):  # what libraries print must not mix with the results
                arguments.run(arguments, output)
        finally:
            output.flush()
        return 0
    except BrokenPipeError:  # the reader has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # or the interpreter's own flush at exit would fail again
        return 128 + 13  # as a program that SIGPIPE ended
    except KeyboardInterrupt:
        return 128 + 2
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name not in _WITH_MXNET:
            raise
        print(f'error: this command needs {error.name}, which is not installed: pip install mxnet==1.9.1 gluoncv', file=sys.stderr)
    except OSError as error:
        if error.filename is None:
            raise
        print(f'error: {error.filename}: {error.strerror}', file=sys.stderr)
    return _USER_ERROR


if __name__ == '__main__':
    sys.exit(main())
