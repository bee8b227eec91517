"""``bmx-melius convert``: an exported network to one packed operator."""

import json

from ..exported import Exported
from .options import add_input_shapes, add_json_flag, shape_of_input

_EXAMPLES = """\
examples:
  bmx-melius convert out/best-symbol.json out/best-0000.params out/best-packed
  bmx-melius convert a-symbol.json a-0000.params a-packed --input-shape 1,3,224,224 --half
  bmx-melius convert b-symbol.json b-0000.params b-packed --input-shape left=1,3,64,64 --input-shape right=1,3,64,64

The packed network takes any batch and any size that its layers allow; the shape given is what it is converted and verified with. Its
files are loaded by MXNet (SymbolBlock.imports, Module) after `import bmx_melius`, by bmx_melius.Session without MXNet, and by predict.
"""


def add_parser(commands):
    """Add the command."""
    parser = commands.add_parser(
        'convert',
        help='pack an exported network: binary layers on bit instructions',
        epilog=_EXAMPLES,
        description='Convert an exported network to packed operators, which compute binary layers with bit instructions.',
    )
    parser.add_argument('symbol', metavar='SYMBOL', help='the exported PREFIX-symbol.json')
    parser.add_argument('params', metavar='PARAMS', help='the exported PREFIX-0000.params')
    parser.add_argument('prefix', metavar='PREFIX', help='of the files to write, PREFIX-symbol.json and PREFIX-0000.params')
    add_input_shapes(
        parser,
        'shape of the input, batch first; once for each input, by name, where there are several '
        '(default: what PREFIX-summary.json beside the symbol says)',
    )
    parser.add_argument(
        '--verify',
        action='store_true',
        default=True,
        help='compare each layer with MXNet on a sample (this is the default)',
    )
    parser.add_argument('--no-verify', dest='verify', action='store_false', help='do not')
    parser.add_argument('--half', action='store_true', help='store the weights of float layers in half precision')
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Convert, and print what was done."""
    from ..deployment.convert.conversion import convert

    source, target = Exported(arguments.symbol), Exported(arguments.prefix)
    input_shape = shape_of_input(arguments.input_shape, source)
    report = convert(arguments.symbol, arguments.params, target.prefix, input_shape, arguments.verify, arguments.half)
    target.copy_description(source)
    if arguments.json:
        json.dump(report.to_json(), output, indent=1)
        print(file=output)
    else:
        print(report, file=output)
