"""``bmx-melius convert``: convert an exported network to a packed one."""

import os

from ..errors import UserError
from ..files.exported import Exported
from . import image_options
from .options import add_input_shapes, add_json_flag, add_precisions, hint_at_layout, precisions, print_json, shape_of_input

_EXAMPLES = """\
examples:
  bmx-melius convert out/best out/packed
  bmx-melius convert a a-packed --input-shape 1,3,224,224 --half
  bmx-melius convert out/best out/int8 --int8 photos            # int8 layers; MeliusNet22: 1.6 MB instead of 3.8
  bmx-melius convert b b-packed --input-shape left=1,3,64,64 --input-shape right=1,3,64,64
  bmx-melius convert net net-packed --input-size 224 --resize 256 --classes-file names.txt    # a network without NAME-summary.json
  bmx-melius convert c-symbol.json c-0012.params c-packed     # file names instead of a prefix, here of epoch 12

The packed network accepts any batch and any input size that its layers allow; conversion and verification use the given shape. Its
files can be loaded by MXNet (SymbolBlock.imports, Module) after `import bmx_melius`, by bmx_melius.Session without MXNet, and by predict.
They contain the preprocessing of images and the class names, from PREFIX-summary.json and the options, which override it.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'convert',
        help='convert an exported network to a packed one, whose binary layers use bit operations',
        usage='%(prog)s [options] PREFIX PACKED\n       %(prog)s [options] SYMBOL PARAMS PACKED',
        epilog=_EXAMPLES,
        description='Convert an exported network to packed operators, which compute binary layers with bit operations.',
    )
    parser.add_argument(
        'files',
        metavar='FILES',
        nargs='+',
        help='PREFIX of the exported files PREFIX-symbol.json and PREFIX-0000.params, or the names of both files, SYMBOL and PARAMS; '
        'then PACKED, the prefix of the files to write, PACKED-symbol.json and PACKED-0000.params',
    )
    add_input_shapes(
        parser,
        'shape of the input, batch first (N,C,W or N,C,D,H,W for 1-D or 3-D maps); for several inputs, repeat the option '
        'with the name of each (default: the shape in PREFIX-summary.json)',
    )
    parser.add_argument(
        '--verify',
        action='store_true',
        default=True,
        help='compare each layer with MXNet on a sample (default)',
    )
    parser.add_argument('--no-verify', dest='verify', action='store_false', help='do not compare')
    add_precisions(parser)
    image_options.add_options(parser)
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Convert the network and print a report."""
    from ..deployment.convert.conversion import convert

    symbol, params, target = _files(arguments.files)
    source = Exported(symbol)
    spec = image_options.described_spec(arguments, source.description())
    input_shape = (1, *spec.shape) if spec and not arguments.input_shape else shape_of_input(arguments.input_shape, source)
    names = image_options.listed_names(arguments.classes_file) if arguments.classes_file else None
    with hint_at_layout(arguments.input_shape):
        report = convert(
            symbol,
            params,
            target.prefix,
            input_shape,
            arguments.verify,
            input_spec=spec,
            class_names=names,
            **precisions(arguments),
        )
    if arguments.json:
        print_json(report.to_json(), output)
    else:
        print(report, file=output)


def _files(names):
    """Return the names of the symbol and parameter files, and the `Exported` to write."""
    if len(names) not in (2, 3) or len(names) == 2 and names[1].endswith('.params'):
        raise UserError(f'convert takes PREFIX PACKED or SYMBOL PARAMS PACKED; PACKED names the files to write; given: {" ".join(names)}')
    source = Exported(names[0])
    symbol, params = (source.symbol_file, source.parameter_file(0)) if len(names) == 2 else names[:2]
    if len(names) == 2:
        source.require()
    for name in (symbol, params):
        if not os.path.exists(name):
            raise UserError(f'there is no {name}: give the PREFIX of exported files, or the names of both files, SYMBOL and PARAMS')
    return symbol, params, Exported(names[-1])
