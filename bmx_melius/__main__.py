"""The command line: ``bmx-melius``, or ``python -m bmx_melius``. The only file of the library that knows the zoo."""

import contextlib
import os
import sys

from ._version import __version__
from .commands import bench, convert, evaluate, export_onnx, import_bmxnet, import_larq, info, pack_images, predict, summary, tables
from .commands.arguments import Parser
from .errors import UserError

_USER_ERROR = 2  # exit status; argparse's, too
_WITH_MXNET = ('mxnet', 'gluoncv', 'graphviz', 'matplotlib', 'cv2', 'tqdm')  # what installing MXNet and GluonCV brings
_DESCRIPTION = 'Binary neural networks on MXNet: count what a network costs, and use what was trained.'
_EXAMPLES = """\
examples:
  bmx-melius summary meliusnet22              # operations, parameters and size, layer by layer
  bmx-melius convert out/best out/packed      # to bit instructions
  bmx-melius import-larq w.h5 larq22 --model meliusnet22      # a network that Larq trained
  bmx-melius import-bmxnet checkpoint.params out/meliusnet22 --model meliusnet22        # trained with BMXNet-v2
  bmx-melius export-onnx out/best best.onnx   # for other runtimes, computed in floats
  bmx-melius predict out/best photo.jpg       # classify with an exported network
  bmx-melius evaluate out/best photos         # its accuracy on labelled images, photos/CLASS/*.jpg
  bmx-melius bench meliusnet22 --compare      # how fast it is here, step by step, and beside other libraries
  bmx-melius pack-images imagenet             # record files for training from folders of images
  bmx-melius tables                           # the paper's figures beside what the networks count here
  bmx-melius info                             # versions, processor, known networks

bmx-melius COMMAND --help explains a command. Training is python train_imagenet.py --help.
"""


def get_model(name, **kwargs):
    """`model_zoo.get_model`, imported when it is called: the zoo brings GluonCV, for which --help should not wait."""
    import model_zoo

    return model_zoo.get_model(name, **kwargs)


def get_model_list():
    """`model_zoo.get_model_list`, imported when it is called."""
    import model_zoo

    return model_zoo.get_model_list()


def get_tables():
    """`model_zoo.published.TABLES`, imported when it is called."""
    from model_zoo.published import TABLES

    return TABLES


def load_larq(name, path):
    """`model_zoo.larq.load`, imported when it is called, and the `InputSpec` of the network."""
    import model_zoo

    return (*model_zoo.larq.load(name, path), model_zoo.larq.INPUT)


def build_parser():
    """The parser of the whole command line; the parsed arguments hold the function `run(arguments, output)` of their command."""
    parser = Parser(prog='bmx-melius', description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument('--version', action='version', version=__version__)
    commands = parser.add_subparsers(metavar='COMMAND', required=True)
    summary.add_parser(commands, get_model)
    convert.add_parser(commands)
    export_onnx.add_parser(commands)
    import_larq.add_parser(commands, load_larq)
    import_bmxnet.add_parser(commands, get_model)
    bench.add_parser(commands, get_model)
    predict.add_parser(commands)
    evaluate.add_parser(commands, get_model)
    pack_images.add_parser(commands)
    tables.add_parser(commands, get_model, get_tables)
    info.add_parser(commands, get_model_list)
    return parser


def main(argv=None):
    """Run a command and return the exit status: 0, or 2 after a mistake of the user's, told in one line on standard error."""
    output = sys.stdout
    try:
        try:
            arguments = build_parser().parse_args(argv)
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
