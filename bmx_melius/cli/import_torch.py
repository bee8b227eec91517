"""``bmx-melius import-torch``: convert a binary network trained with PyTorch to a packed one."""

from ..arguments import json_object
from ..errors import UserError
from ..files.exported import Exported
from ..user_functions import call_function, find_function
from . import image_options
from .options import add_input_shapes, add_json_flag, add_precisions, add_translation_flags, precisions, print_json, shape_of_input

_EXAMPLES = """\
examples:
  bmx-melius import-torch nets.bireal:birealnet18 packed --weights bireal18.pth --input-shape 1,3,224,224 --zero-is-positive
  bmx-melius import-torch nets.resnet:ResNet packed --model-options '{"depth": 20}' --weights net.pth --input-size 32 --resize 32
  bmx-melius predict packed photo.jpg

The function, or class, returns the network, a torch.nn.Module; it is imported from the current folder or an installed package, and runs.
From the file only weights are read, and nothing in it is executed: a state dict, or one in {'state_dict': ...} or {'model': ...}, with or
without the "module." of nn.DataParallel. The network is exported to ONNX by PyTorch, imported as by import-onnx, and compared with PyTorch
on random inputs. MXNet is not needed; torch, onnx, onnxruntime and onnxscript are: pip install 'bmx-melius[torch]'.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'import-torch',
        help='import a trained binary network from PyTorch, with a file of its weights',
        epilog=_EXAMPLES,
        description='Build a network of PyTorch, load its weights and write a packed network, PREFIX-symbol.json and PREFIX-0000.params.',
    )
    parser.add_argument('function', metavar='PACKAGE.MODULE:FUNCTION', help='function or class that returns the network')
    parser.add_argument('prefix', metavar='PREFIX', help='prefix of the files to write')
    parser.add_argument('--weights', metavar='FILE.pth', help='weights that torch.save wrote (default: those that the function sets)')
    parser.add_argument('--model-options', type=json_object, default={}, metavar='JSON', help='arguments of the function')
    add_input_shapes(
        parser,
        'shape of the input, batch first; for several inputs, repeat the option with the name of each (default: of images, by --input-size '
        'and --channels)',
    )
    add_translation_flags(parser)
    parser.add_argument('--no-verify', dest='verify', action='store_false', help='do not compare with PyTorch and ONNX Runtime')
    parser.add_argument(
        '--exporter',
        choices=('torchscript', 'dynamo'),
        help='exporter of PyTorch (default: torchscript, and dynamo where that fails)',
    )
    parser.add_argument('--keep-onnx', metavar='NET.onnx', help='also write the ONNX model')
    add_precisions(parser)
    image_options.add_options(parser)
    add_json_flag(parser)
    parser.set_defaults(run=run, prepare=None)  # MXNet, which takes seconds to import, is not needed


def run(arguments, output):
    """Build the network, import it and print a report."""
    from ..deployment.pytorch.checkpoints import load_weights
    from ..deployment.pytorch.conversion import import_torch
    from ..deployment.pytorch.modules import require_module
    from ..deployment.pytorch.package import import_torch_package

    target, spec = Exported(arguments.prefix), image_options.given_spec(arguments)
    options = precisions(arguments)
    if not arguments.input_shape and spec is None:
        raise UserError('give the shape of the input: --input-shape N,C,H,W, or --input-size N of images')
    shape = shape_of_input(arguments.input_shape, target) if arguments.input_shape else (1, *spec.shape)
    import_torch_package()
    module = call_function(find_function(arguments.function), arguments.function, arguments.model_options)
    require_module(module, arguments.function)
    if arguments.weights:
        load_weights(module, arguments.weights)
    report = import_torch(
        module,
        shape,
        target.prefix,
        arguments.zero_is_positive,
        arguments.verify,
        arguments.exporter,
        arguments.keep_onnx,
        input_spec=spec,
        class_names=image_options.listed_names(arguments.classes_file) if arguments.classes_file else None,
        outputs=arguments.outputs,
        **options,
    )
    if arguments.json:
        print_json(report.to_json(), output)
    else:
        print(report, file=output)
