"""``bmx-melius summary``: operations, parameters and size of a network."""

import dataclasses
import os
import sys

from ..arguments import positive_int
from ..errors import UserError
from ..files.exported import Exported
from ..files.io import require_suffix, require_writable
from ..files.symbol_json import VARIABLE, SymbolJson
from .options import add_input_size, add_json_flag, add_network, print_json, require_files_or_network

_EXAMPLES = """\
examples:
  bmx-melius summary meliusnet22
  bmx-melius summary meliusnetA --initial-layers imagenet --by kind     # operations per kind of layer
  bmx-melius summary out/best-symbol.json --json                        # an exported network
  bmx-melius summary packed                                             # a packed network: the operations of its program
  bmx-melius summary meliusnet22 --plot meliusnet22.pdf                 # draw the network

A multiply-accumulate of a convolution is one operation: a BOP if both operands are binary, a FLOP otherwise; OPs = BOPs / 64 + FLOPs.
A binary weight counts 1 bit, any other parameter 32 bits; 1 MB is 2^20 bytes. For a packed network, its program is counted:
normalizations are folded into comparisons and convolutions, so that it has fewer float parameters than the original.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'summary',
        help='show operations, parameters and size of a network, layer by layer',
        epilog=_EXAMPLES,
        description='Show the operations, parameters and size of a network, layer by layer.',
    )
    add_network(parser, 'SYMBOL.json', 'an exported symbol or its PREFIX')
    parser.add_argument(
        '--initial-layers',
        metavar='STEM',
        help='stem of a network of the zoo: grouped_stem, imagenet, thumbnail, alexnet, alexnet_same or quicknet',
    )
    parser.add_argument('--classes', type=positive_int, metavar='N', help='classes of a network of the zoo (default: 1000)')
    add_input_size(
        parser, '224, or the size in PREFIX-summary.json of an exported symbol, or at the conversion of a packed one', '1,3,224,224'
    )
    parser.add_argument(
        '--by',
        choices=('layer', 'kind'),
        default='layer',
        help='rows of the table: layers, or kinds of layers with their share of the OPs (default: layer)',
    )
    parser.add_argument(
        '--plot',
        metavar='FILE',
        help='also draw the network: as .pdf, .png or .svg, which need the program dot of graphviz, or as its source, .gv or .dot',
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print a table or a JSON object, and write the drawing. Raises `UserError` or `OSError` for invalid arguments."""
    from ..analysis.drawing import SUFFIXES, draw, save
    from ..analysis.summary import Summary
    from ..deployment.program_graph import with_operations
    from ..graph.tracing import read_graph

    if arguments.plot:
        require_suffix(arguments.plot, SUFFIXES)
        require_writable(arguments.plot)
    network, name, input_shape = _network_and_shape(arguments)
    graph = with_operations(read_graph(network, {name: input_shape}))
    counted = Summary.of(graph)
    title = f'{arguments.network}, input {" x ".join(map(str, input_shape))}'
    if arguments.plot:
        save(draw(graph, f'{title}: {counted.ops / 1e6:.4g} M OPs, {counted.size_bytes / 2**20:.2f} MB'), arguments.plot)
        print(f'drawing written to {arguments.plot}', file=sys.stderr)
    if arguments.json:
        by_kind = {**counted.counts, 'kinds': [dataclasses.asdict(row) for row in counted.by_kind()]}
        content = by_kind if arguments.by == 'kind' else counted.to_json()
        print_json({'network': arguments.network, 'input_shape': input_shape, **content}, output)
    else:
        print(f'{title}\n\n{counted.table_by_kind() if arguments.by == "kind" else counted}', file=output)


def _network_and_shape(arguments):
    """Return the network, the name of its input, and the shape of that."""
    from ..deployment.runtime.packed_files import runs_without_mxnet
    from ..deployment.runtime.session import Session

    options = {name: getattr(arguments, name) for name in ('initial_layers', 'classes') if getattr(arguments, name) is not None}
    name, channels, size = 'data', 3, 224
    exported = Exported(arguments.network)
    if exported.names_files:
        if options:
            raise UserError(
                f'--{next(iter(options)).replace("_", "-")} is for networks of the zoo, but {arguments.network} is an exported network'
            )
        network = arguments.network if arguments.network.endswith('.json') else exported.symbol_file
        if not os.path.exists(network):
            exported.require()
        variables = [node['name'] for node in SymbolJson.read(network).nodes if node['op'] == VARIABLE]
        name = name if name in variables else variables[0]  # the first one is an input
        spec = exported.description().input_spec()
        if spec is not None:
            channels, size = spec.channels, spec.size
        elif not (arguments.input_shape or arguments.input_size) and runs_without_mxnet(arguments.network):
            _, *sizes = Session(arguments.network, threads=1).input_shapes[0]
            return network, name, (1, *sizes)
    else:
        require_files_or_network(exported)
        from model_zoo import get_model

        network = get_model(arguments.network, **options)
    size = arguments.input_size or size
    return network, name, arguments.input_shape or (1, channels, size, size)
