"""Entry point of the command line: ``bmx-melius`` or ``python -m bmx_melius``."""

import contextlib
import errno
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading

from ._version import __version__
from .arguments import Parser
from .errors import UserError, describe_os_error, printable
from .import_hooks import only_from
from .process import how_to_install_mxnet

COMMANDS = (  # modules of `cli`
    'train',
    'models',
    'summary',
    'convert',
    'export_onnx',
    'export_c',
    'import_torch',
    'import_onnx',
    'import_larq',
    'import_bmxnet',
    'bench',
    'predict',
    'score',
    'serve',
    'evaluate',
    'pack_images',
    'tables',
    'operators',
    'info',
)
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN_MODULES = ('model_zoo', 'train_imagenet')  # beside this package; users call theirs so, too
_USER_ERROR = 2  # exit status, the same as argparse's
_PACKAGES = {  # modules that commands need, and how to install them
    'mxnet': how_to_install_mxnet(),
    'gluoncv': 'pip install gluoncv',
    'graphviz': 'pip install graphviz',
    'matplotlib': 'pip install matplotlib',
    'cv2': 'pip install opencv-python-headless',
    'tqdm': 'pip install tqdm',
    'PIL': 'pip install pillow',
    'pyarrow': "pip install 'bmx-melius[score]'",
    'distributed': "pip install 'bmx-melius[score]'",
    'ray': "pip install 'bmx-melius[ray]'",
    **dict.fromkeys(('starlette', 'uvicorn', 'h11', 'prometheus_client', 'python_multipart'), "pip install 'bmx-melius[serve]'"),
}
_DESCRIPTION = 'Binary neural networks on MXNet: train, count operations and parameters, convert, evaluate and time trained networks.'
_EXAMPLES = """\
examples:
  bmx-melius train --model meliusnet22 --dataset digits       # train a network and export it
  bmx-melius models '*melius*'                # networks of the zoo: accuracy, operations, size, weights
  bmx-melius summary meliusnet22              # operations, parameters and size of each layer
  bmx-melius convert out/best out/packed      # binary layers to bit operations
  bmx-melius import-torch nets:bireal packed --weights net.pth --input-shape 1,3,224,224    # a network trained with PyTorch
  bmx-melius import-onnx net.onnx packed      # a network trained with another library, by ONNX
  bmx-melius import-larq w.h5 larq22 --model meliusnet22      # a network trained with Larq
  bmx-melius import-bmxnet checkpoint.params meliusnet22 --model meliusnet22    # a BMXNet-v2 checkpoint
  bmx-melius export-onnx out/best best.onnx   # for other runtimes, in float arithmetic
  bmx-melius export-c out/packed firmware     # C for microcontrollers
  bmx-melius predict out/best photo.jpg       # classify with an exported network
  bmx-melius score out/packed photos --output scores          # classify many images in parallel, into Parquet files
  bmx-melius serve out/best-packed            # serve packed networks over HTTP
  bmx-melius evaluate out/best photos         # accuracy on labelled images, photos/CLASS/*.jpg
  bmx-melius bench meliusnet22 --compare      # time of each step on this machine, compared with other libraries
  bmx-melius pack-images imagenet             # folders of images to record files for training
  bmx-melius tables                           # the paper's figures compared with the counts of this project
  bmx-melius info                             # versions, processor, known networks

Run bmx-melius COMMAND --help for the options of a command.
"""


def build_parser():
    """Return the parser of all commands; parsed arguments have an attribute `run`, the function `run(arguments, output)` of the command."""
    parser = Parser(prog='bmx-melius', description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.set_defaults(prepare=_import_mxnet)  # of commands without MXNet: None
    parser.add_argument('--version', action='version', version=__version__)
    commands = parser.add_subparsers(metavar='COMMAND', required=True)
    for command in COMMANDS:
        importlib.import_module(f'.cli.{command}', __package__).add_parser(commands)
    return parser


def _import_mxnet():
    """Import MXNet where it is installed; commands that need other packages first name the one that is missing."""
    if importlib.util.find_spec('mxnet'):
        importlib.import_module('mxnet')


@contextlib.contextmanager
def _interrupts_end_the_process():
    """Let the system handle Ctrl-C within the block, to end the process at once.

    Imports of libraries run callbacks in which Python reports a KeyboardInterrupt, with a traceback, and then ignores it.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def main(argv=None):
    """Run a command. Return the exit status: 0, the status of a training, or 2 after a user error, a line on standard error."""
    output = sys.stdout
    for stream in (output, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # file names may contain characters that the terminal cannot show
    try:
        try:
            parser = build_parser()
            if not (sys.argv[1:] if argv is None else argv):
                parser.print_help(output)
                return 0
            arguments = parser.parse_args(argv)
            with only_from(_FOLDER, _OWN_MODULES):
                if arguments.prepare:
                    with _interrupts_end_the_process():
                        arguments.prepare()
                with contextlib.redirect_stdout(sys.stderr):  # the output of libraries must not mix with the results
                    return arguments.run(arguments, output) or 0
        finally:
            output.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # otherwise the interpreter's flush at exit would fail again
        return 128 + 13  # the exit status of a program ended by SIGPIPE
    except KeyboardInterrupt:
        return 128 + 2
    except UserError as error:
        print(f'error: {printable(str(error))}', file=sys.stderr)
    except ModuleNotFoundError as error:
        name = (error.name or '').partition('.')[0]
        if name not in _PACKAGES:
            raise
        print(f'error: this command needs the package {name}, which is not installed: {_PACKAGES[name]}', file=sys.stderr)
    except (ImportError, MemoryError, SystemError) as error:  # a library cannot be loaded, or has no memory
        reason = (str(error).strip().splitlines() or ['it needs more than this process may use'])[-1]  # NumPy adds advice before it
        print(f'error: the memory does not suffice, or a library is damaged: {printable(reason)}', file=sys.stderr, flush=True)
        os._exit(_USER_ERROR)  # at its end the process would wait for threads of libraries that could not start
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        if error.filename is None:  # standard output is a file on a full disk
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
            print(f'error: the results cannot be written: {error.strerror}', file=sys.stderr)
        else:
            print(f'error: {printable(describe_os_error(error))}', file=sys.stderr)
    return _USER_ERROR


if __name__ == '__main__':
    sys.exit(main())
