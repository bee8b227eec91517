"""``bmx-melius import-onnx``: convert a binary network trained with another library, in an ONNX file, to a packed one."""

from ..files.exported import Exported
from . import image_options
from .options import (
    add_input_shapes,
    add_json_flag,
    add_precisions,
    add_translation_flags,
    hint_at_layout,
    precisions,
    print_json,
    shape_of_input,
)

_EXAMPLES = """\
examples:
  bmx-melius import-onnx net.onnx packed --zero-is-positive
  bmx-melius import-onnx net.onnx packed --input-shape 1,3,224,224 --classes-file names.txt --input-size 224 --resize 256
  bmx-melius predict packed photo.jpg

A network of PyTorch becomes such a file by torch.onnx.export(net.eval(), torch.zeros(1, 3, 224, 224), 'net.onnx').

Layers are binary where a value takes few levels, whatever computes it, and the weights of the layer that reads it do, too: exporters leave
gradient estimators and quantizers in a model, and each author writes them in another way. Every node of the result is compared with ONNX
Runtime. The packed network runs in bmx_melius.Session, the C library and the other commands. MXNet is not needed; onnx and onnxruntime
are: pip install 'bmx-melius[onnx]'.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'import-onnx',
        help='import a trained binary network from PyTorch or another library, by ONNX',
        epilog=_EXAMPLES,
        description='Find the binary layers of an ONNX model and write a packed network, PREFIX-symbol.json and PREFIX-0000.params.',
    )
    parser.add_argument('file', metavar='NET.onnx', help='ONNX model, operators of version 9 to 23, or QONNX')
    parser.add_argument('prefix', metavar='PREFIX', help='prefix of the files to write')
    add_input_shapes(
        parser,
        'shape of the input, batch first; for several inputs, repeat the option with the name of each (default: the shape in the model)',
    )
    add_translation_flags(parser)
    parser.add_argument('--no-verify', dest='verify', action='store_false', help='do not compare with ONNX Runtime')
    add_precisions(parser)
    image_options.add_options(parser)
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Import the model and print a report."""
    from ..deployment.onnx.conversion import import_onnx

    target = Exported(arguments.prefix)
    with hint_at_layout(arguments.input_shape):
        report = import_onnx(
            arguments.file,
            target.prefix,
            shape_of_input(arguments.input_shape, target) if arguments.input_shape else None,
            arguments.zero_is_positive,
            arguments.verify,
            input_spec=image_options.given_spec(arguments),
            class_names=image_options.listed_names(arguments.classes_file) if arguments.classes_file else None,
            outputs=arguments.outputs,
            **precisions(arguments),
        )
    if arguments.json:
        print_json(report.to_json(), output)
    else:
        print(report, file=output)
