"""``bmx-melius import-bmxnet``: convert checkpoints and packed networks of BMXNet-v2 to files for stock MXNet."""

import collections
import os
import tempfile

from ..arguments import json_object, positive_int, shape
from ..errors import UserError, counted
from ..files.exported import Exported
from .options import add_json_flag, print_json, shape_of_input

_EXAMPLES = """\
examples:
  bmx-melius import-bmxnet meliusnet22-0120.params meliusnet22 --model meliusnet22
  bmx-melius import-bmxnet resnet18_e1_1bit_best.params resnet --model resnet18_e1 --model-options '{"binary_shortcut": true}'
  bmx-melius import-bmxnet binarized_lenet5-symbol.json lenet5 --input-shape 1,1,28,28
  bmx-melius import-bmxnet binarized_lenet5-symbol.json lenet5-packed --input-shape 1,1,28,28 --to packed

The first form reads a checkpoint of a network of the zoo, written by save_parameters or export. The second form reads the symbol and
parameter files written by BMXNet-v2's model_converter, which contain only the signs of binary weights. They must have words of 32 bits,
because files with words of 64 bits are known to be broken. Both forms write PREFIX-symbol.json and PREFIX-0000.params. The first form also
writes PREFIX-summary.json, with the preprocessing of ImageNet, which options of predict and evaluate override; packed files contain it.
"""
_WHERE_LISTED = '; --verbose lists them'


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'import-bmxnet',
        help='import a network that was trained with BMXNet-v2',
        epilog=_EXAMPLES,
        description='Import a checkpoint of BMXNet-v2, or a pair of files written by its model_converter.',
    )
    parser.add_argument('file', metavar='FILE', help='the checkpoint, with --model; or the binarized_NAME-symbol.json of a converted pair')
    parser.add_argument('prefix', metavar='PREFIX', help='prefix of the files to write')
    parser.add_argument('--model', metavar='NAME', help='network of the zoo of the checkpoint (bmx-melius models lists them)')
    parser.add_argument('--initial-layers', metavar='STEM', help='stem of that network (default: inferred from the checkpoint)')
    parser.add_argument(
        '--model-options',
        type=json_object,
        metavar='JSON',
        help='further arguments of get_model for that network, which the file does not contain',
    )
    parser.add_argument('--classes', type=positive_int, metavar='N', help='classes of that network (default: inferred from the checkpoint)')
    parser.add_argument(
        '--params', metavar='PARAMS', help='parameters of a converted pair (default: the file with the prefix of the symbol)'
    )
    parser.add_argument('--input-shape', type=shape, metavar='N,C,H,W', help='input shape of a converted pair, batch first')
    parser.add_argument(
        '--to',
        choices=('float', 'packed'),
        default='float',
        help='write stock operators, which can be trained, or packed operators with bit operations (default: float)',
    )
    parser.add_argument('--verbose', action='store_true', help='list all matched parameters, or all binary layers')
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Import the network and print a report."""
    converted_pair = arguments.file.endswith('.json')
    expected = ('input_shape', 'params') if converted_pair else ('model', 'initial_layers', 'classes', 'model_options')
    for name in ('model', 'initial_layers', 'classes', 'model_options', 'input_shape', 'params'):
        if name not in expected and getattr(arguments, name) is not None:
            raise UserError(
                f'--{name.replace("_", "-")} does not go with {arguments.file}: it is for '
                + ('checkpoints' if converted_pair else 'pairs of a binarized_NAME-symbol.json and its parameters')
            )
    target = Exported(arguments.prefix)
    target.require_writable()
    with tempfile.TemporaryDirectory() as folder:
        packed = arguments.to == 'packed'
        floats = Exported(os.path.join(folder, 'float')) if packed else target
        if converted_pair:
            report, input_shape = _import_converted(arguments, floats)
        else:
            report, input_shape = _import_checkpoint(arguments, floats)
        if packed:
            report['packed'] = _pack(floats, target, input_shape)
    report['written'] = [target.symbol_file, target.parameter_file(0)]
    if os.path.exists(target.description_file):  # packed files contain it
        report['written'].append(target.description_file)
    if arguments.json:
        if packed:
            report['packed'] = report['packed'].to_json()
        print_json(report, output)
        return
    print(_text(arguments.file, report, arguments.verbose), file=output)


def _import_checkpoint(arguments, target):
    from model_zoo import get_model, takes_option

    from ..files.parameters import read_parameters
    from ..importers.bmxnet_v2 import load_reference_parameters, reference_options
    from ..training.saving.export import export_imported
    from ..vision.preprocessing import InputSpec

    if not arguments.model:
        raise UserError(f'which network is {arguments.file}? Give --model NAME, or the binarized_NAME-symbol.json of a converted pair')
    found = {
        name: value for name, value in reference_options(arguments.file).items() if name == 'classes' or takes_option(arguments.model, name)
    }
    model = {'name': arguments.model, **found, **(arguments.model_options or {})}
    model.update({name: getattr(arguments, name) for name in ('initial_layers', 'classes') if getattr(arguments, name) is not None})
    net = get_model(**model)
    matched = load_reference_parameters(net, arguments.file)
    spec = InputSpec(size=getattr(net, 'input_size', None) or InputSpec().size)
    export_imported(net, target, model, spec)
    return {'model': model, 'matched': matched, 'copies': len(read_parameters(arguments.file)) - len(matched)}, (1, *spec.shape)


def _import_converted(arguments, target):
    from ..importers.bmxnet_v2_converted import read_converted

    source = Exported(arguments.file)
    input_shape = arguments.input_shape or shape_of_input(None, source)
    symbol, arrays, weights = read_converted(arguments.file, arguments.params or source.parameter_file(0), input_shape)
    target.write_symbol(symbol.tojson(), arrays)
    target.copy_description(source)
    return {'binary_layers': weights, 'arrays': sorted(arrays)}, input_shape


def _pack(source, target, input_shape):
    from ..deployment.convert.conversion import convert

    return convert(source.symbol_file, source.parameter_file(0), target.prefix, input_shape)


def _text(source, report, verbose):
    lines = _checkpoint_lines(source, report, verbose) if 'matched' in report else _pair_lines(source, report, verbose)
    if 'packed' in report:
        lines.append(str(report['packed']))
    return '\n'.join([*lines, f'written: {", ".join(report["written"])}'])


def _checkpoint_lines(source, report, verbose):
    model, matched = report['model'], report['matched']
    options = ', '.join(f'{name} {value}' for name, value in model.items() if name != 'name')
    copies = f'; {report["copies"]} arrays are second copies of the last stage' if report['copies'] else ''
    listed = [f'{name} = {key}' for name, key in matched.items()] if verbose else []
    return [
        f'{source} is a checkpoint of {model["name"]} ({options})',
        *listed,
        f'{counted(len(matched), "parameter")} matched{copies}{_WHERE_LISTED if not verbose else ""}',
    ]


def _pair_lines(source, report, verbose):
    layers = report['binary_layers']
    operators = collections.Counter(layer['operator'] for layer in layers.values())
    kinds = ', '.join(f'{count} {operator}' for operator, count in operators.items())
    listed = [f'{name}: {layer["operator"]}, {" x ".join(map(str, layer["shape"]))} weights' for name, layer in layers.items()]
    return [
        *(listed if verbose else []),
        f'{source} is a converted network: {len(report["arrays"])} arrays, {len(layers)} of them the bits of binary layers '
        f'({kinds}){_WHERE_LISTED if not verbose else ""}',
    ]
