"""``bmx-melius import-larq``: a network that Larq trained, as files that any MXNet can run."""

import json

from ..exported import Exported
from .options import add_json_flag

_EXAMPLES = """\
examples:
  bmx-melius import-larq meliusnet22_weights.h5 larq22 --model meliusnet22
  bmx-melius predict larq22 photo.jpg
  bmx-melius convert larq22 larq22-packed

The file is one of Larq Zoo (https://docs.larq.dev/zoo/) or one that Keras 2 wrote for the same network with other classes. It is read
with h5py (pip install bmx-melius[larq]), without TensorFlow. docs/zoo.md says where files are and what is different in these networks.
"""


def add_parser(commands):
    """Add the command."""
    parser = commands.add_parser(
        'import-larq',
        help='read a network that Larq trained (Larq Zoo)',
        epilog=_EXAMPLES,
        description='Read the Keras weights of a network of Larq Zoo and write PREFIX-symbol.json, -0000.params and -summary.json.',
    )
    parser.add_argument('file', metavar='FILE.h5', help='weights, or a whole model, that Keras 2 wrote')
    parser.add_argument('prefix', metavar='PREFIX', help='of the files to write')
    parser.add_argument('--model', required=True, metavar='NAME', help='the network, such as meliusnet22, resnet_e18 or birealnet18')
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Read the network, export it and say what was written. Raises `UserError` where the file is not that of the network."""
    from model_zoo import larq

    from ..training.saving.export import export_imported

    target = Exported(arguments.prefix)
    target.require_writable()
    net, model, matched = larq.load(arguments.model, arguments.file)
    counts = export_imported(net, target, model, larq.INPUT)
    written = [target.symbol_file, target.parameter_file(0), target.description_file]
    if arguments.json:
        json.dump({'model': model, 'counts': counts, 'matched': matched, 'written': written}, output, indent=1)
        print(file=output)
    else:
        print(f'{arguments.model} of {model["classes"]} classes, {counts["ops"]:,.0f} OPs: wrote {", ".join(written)}', file=output)
