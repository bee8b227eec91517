"""``bmx-melius summary``: what a network costs, and where."""

import dataclasses
import json
import os
import sys

from ..arguments import positive_int
from ..errors import UserError
from ..exported import Exported
from ..files import require_suffix, require_writable
from .options import add_input_size, add_json_flag, add_network

_EXAMPLES = """\
examples:
  bmx-melius summary meliusnet22
  bmx-melius summary meliusnetA --initial-layers imagenet --by kind     # where the operations are
  bmx-melius summary out/best-symbol.json --json                        # an exported network
  bmx-melius summary meliusnet22 --plot meliusnet22.pdf                 # its layers as a drawing

A multiply-accumulate of a convolution is one operation: a BOP if both operands are binary, a FLOP otherwise; OPs = BOPs / 64 + FLOPs.
Sizes count 1 bit for a binary weight and 32 for any other parameter; a MB has 2^20 bytes.
"""


def add_parser(commands):
    """Add the command."""
    parser = commands.add_parser(
        'summary',
        help='operations, parameters and size of a network, layer by layer',
        epilog=_EXAMPLES,
        description='Show the operations, parameters and size of a network, layer by layer.',
    )
    add_network(parser, 'SYMBOL.json', 'an exported symbol or its PREFIX')
    parser.add_argument(
        '--initial-layers', metavar='STEM', help='stem of a network of the zoo: grouped_stem, imagenet or thumbnail (default: grouped_stem)'
    )
    parser.add_argument('--classes', type=positive_int, metavar='N', help='classes of a network of the zoo (default: 1000)')
    add_input_size(parser, '224, or what PREFIX-summary.json beside an exported symbol says', '1,3,224,224')
    parser.add_argument(
        '--by',
        choices=('layer', 'kind'),
        default='layer',
        help='rows of the table: each layer, or each kind of layer with its share of the OPs (default: layer)',
    )
    parser.add_argument(
        '--plot',
        metavar='FILE',
        help='also draw the network: .pdf, .png and .svg need the program dot of graphviz, .gv and .dot, its source, do not',
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the table or the JSON object; write the drawing. Raises `UserError` and `OSError` for what is wrong with the arguments."""
    from ..analysis.drawing import SUFFIXES, draw, save
    from ..analysis.graph import Graph
    from ..analysis.summary import Summary

    if arguments.plot:
        require_suffix(arguments.plot, SUFFIXES)
        require_writable(arguments.plot)
    network, input_shape = _network_and_shape(arguments)
    graph = Graph.read(network, input_shape)
    counted = Summary.of(graph)
    title = f'{arguments.network}, input {" x ".join(map(str, input_shape))}'
    if arguments.plot:
        save(draw(graph, f'{title}: {counted.ops / 1e6:.4g} M OPs, {counted.size_bytes / 2**20:.2f} MB'), arguments.plot)
        print(f'drawing written to {arguments.plot}', file=sys.stderr)
    if arguments.json:
        by_kind = {**counted.counts, 'kinds': [dataclasses.asdict(row) for row in counted.by_kind()]}
        content = by_kind if arguments.by == 'kind' else counted.to_json()
        json.dump({'network': arguments.network, 'input_shape': input_shape, **content}, output, indent=1)
        print(file=output)
    else:
        print(f'{title}\n\n{counted.table_by_kind() if arguments.by == "kind" else counted}', file=output)


def _network_and_shape(arguments):
    options = {name: getattr(arguments, name) for name in ('initial_layers', 'classes') if getattr(arguments, name) is not None}
    channels, size = 3, 224
    exported = Exported(arguments.network)
    if arguments.network.endswith('.json') or os.path.exists(exported.symbol_file):
        if options:
            raise UserError(
                f'--{next(iter(options)).replace("_", "-")} is for networks of the zoo; {arguments.network} is as it was exported'
            )
        network = arguments.network if arguments.network.endswith('.json') else exported.symbol_file
        spec = exported.description().input_spec()
        if spec is not None:
            channels, size = spec.channels, spec.size
    else:
        from model_zoo import get_model

        network = get_model(arguments.network, **options)
    size = arguments.input_size or size
    return network, arguments.input_shape or (1, channels, size, size)
