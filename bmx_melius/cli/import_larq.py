"""``bmx-melius import-larq``: convert weights of a network trained with Larq to files for stock MXNet."""

from ..errors import counted
from ..files.exported import Exported
from .options import add_json_flag, print_json

_EXAMPLES = """\
examples:
  bmx-melius import-larq meliusnet22_weights.h5 larq22 --model meliusnet22
  bmx-melius predict larq22 photo.jpg
  bmx-melius convert larq22 larq22-packed

The file is one of Larq Zoo (https://docs.larq.dev/zoo/), or one written by Keras 2 for the same network with other classes. It is read
with h5py (pip install 'bmx-melius[larq]'), without TensorFlow. docs/importing.md lists the files and what differs from the paper's
networks.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'import-larq',
        help='import a network that was trained with Larq (Larq Zoo)',
        epilog=_EXAMPLES,
        description='Read the Keras weights of a network of Larq Zoo and write PREFIX-symbol.json, -0000.params and -summary.json.',
    )
    parser.add_argument('file', metavar='FILE.h5', help='weights or whole model, written by Keras 2')
    parser.add_argument('prefix', metavar='PREFIX', help='prefix of the files to write')
    parser.add_argument('--model', required=True, metavar='NAME', help='name of the network, such as meliusnet22, birealnet18 or quicknet')
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Read the weights, export the network and print the written files. Raises `UserError` if the file does not match the network."""
    from model_zoo import larq

    from ..training.saving.export import export_imported

    target = Exported(arguments.prefix)
    target.require_writable()
    net, model, matched = larq.load(arguments.model, arguments.file)
    counts = export_imported(net, target, model, larq.INPUT)
    written = [target.symbol_file, target.parameter_file(0), target.description_file]
    if arguments.json:
        print_json({'model': model, 'counts': counts, 'matched': matched, 'written': written}, output)
    else:
        print(
            f'{arguments.model} of {counted(model["classes"], "class")}, {counts["ops"]:,.0f} OPs: wrote {", ".join(written)}', file=output
        )
