"""``bmx-melius bench``: run time of a packed network on this machine, per step, compared with other libraries."""

import os
import sys
import tempfile

from ..arguments import positive_int, thread_count
from ..deployment.runtime.engine import check_threads, require_engine
from ..errors import UserError
from ..reporting import ProgressLine
from .options import add_input_size, add_json_flag, add_network, exported_network, hint_at_layout, print_json, require_files_or_network

_EXAMPLES = """\
examples:
  bmx-melius bench meliusnet22                              # random weights; time of each step
  bmx-melius bench out/best-packed --threads 2 --batch 8
  bmx-melius bench meliusnet22 --compare                    # compared with all installed libraries
  bmx-melius bench meliusnet22 --compare mxnet,onnxruntime --json
  bmx-melius bench meliusnet22 --int8 --compare onnxruntime # float layers as 8-bit integers, compared with the network without them
  bmx-melius bench net.onnx --compare                       # a trained binary network of another library, imported and in ONNX Runtime

--compare runs each library in a separate process, alternately, on the same input, with random weights: nothing is downloaded.
pip install 'bmx-melius[bench]' installs the libraries.
"""
_ALL = 'all'
_ROUNDS = 10


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'bench',
        help='time a packed network, step by step, and compare it with other libraries',
        epilog=_EXAMPLES,
        description='Time a packed network, step by step, relative to the peak rates of this machine, and compare it with other libraries.',
    )
    add_network(parser, 'PREFIX|NET.onnx', 'the PREFIX of packed files, or an ONNX model, as for import-onnx with --zero-is-positive')
    parser.add_argument(
        '--threads',
        type=thread_count,
        default=1,
        metavar='N',
        help='threads of every library (default: %(default)s; 0, the default of Session: one per usable core, see bmx-melius info)',
    )
    parser.add_argument('--batch', type=positive_int, metavar='N', help='images per batch (default: 1)')
    add_input_size(parser, '224, or as converted')
    parser.add_argument('--repetitions', type=positive_int, default=50, metavar='N', help='number of timed runs (default: %(default)s)')
    parser.add_argument(
        '--compare',
        nargs='?',
        const=_ALL,
        metavar='PEERS',
        help='also time other libraries, separated by commas: mxnet, onnxruntime, litert, openvino, larq (default: all of them); '
        'an ONNX model is compared with itself in ONNX Runtime',
    )
    parser.add_argument(
        '--int8',
        action='store_true',
        help='quantize the float layers of a network of the zoo to int8, as convert --int8 does, with random images; '
        '--compare also times it without that, and with weights in half precision',
    )
    parser.add_argument(
        '--by', choices=('step', 'kind'), default='step', help='rows of the table: steps, or kinds of steps (default: step)'
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Time the network and print tables or a JSON object. Raises `UserError` for invalid arguments."""
    from ..bench import figures, latency, report
    from ..bench.rows import GROUPS

    require_engine()
    check_threads(arguments.threads)
    groups = _groups(arguments.compare, ('packed', 'onnxruntime') if _is_onnx(arguments) else GROUPS)
    content = {'network': arguments.network}
    with tempfile.TemporaryDirectory() as folder:
        prefix, exported, input_shape = _packed(arguments, folder)
        forms = ()
        if arguments.int8:
            prefix, forms = _int8(arguments, prefix, exported, input_shape)
        content.update(machine=latency.measure_machine(), input_shape=input_shape)
        content.update(latency.measure(prefix, input_shape, arguments.threads, arguments.repetitions, content['machine']))
        if groups:
            content['comparison'] = _compare(prefix, exported, input_shape, arguments, groups, forms)
    content['figures'].update(figures.from_rows(content.get('comparison', {})))
    if arguments.json:
        print_json(content, output)
        return
    parts = [
        f'{arguments.network}{", int8" if arguments.int8 else ""}, input {" x ".join(map(str, input_shape))}',
        report.machine_lines(content['machine']),
        report.step_table(content['steps'], content['machine'], arguments.threads, arguments.by),
        report.latency_lines(content['latency'], content['file_bytes'], content['working_memory_bytes']),
    ]
    if groups:
        parts += [report.comparison_table(content['comparison'], 'packed')]
    parts.append(report.figure_table({name: value for name, value in content['figures'].items() if value is not None}))
    print('\n\n'.join(parts), file=output)


def _is_onnx(arguments):
    return arguments.network.endswith('.onnx')


def _groups(compare, known):
    """Return which of the `known` libraries to time, a tuple; empty without --compare."""
    if compare is None:
        return ()
    names = known if compare == _ALL else tuple(compare.split(','))
    for name in names:
        if name not in known:
            raise UserError(f'--compare: unknown library {name!r}; known: {", ".join(known)}')
    return ('packed', *(name for name in names if name != 'packed'))


def _packed(arguments, folder):
    """Return the prefixes of the packed and of the exported files (or None), and the shape of the input."""
    if _is_onnx(arguments):
        from ..deployment.onnx.conversion import import_onnx

        if arguments.input_size is not None:
            raise UserError('--input-size is not for ONNX models: give --input-shape')
        prefix = os.path.join(folder, 'network')
        with hint_at_layout(arguments.input_shape):
            import_onnx(arguments.network, prefix, arguments.input_shape, zero_is_positive=True, verify=False)
        image_shape = _image_shape(arguments, prefix)  # channels second, where the model may have them last
        return prefix, None, (_input_shape(arguments, image_shape)[0], *image_shape)

    exported = exported_network(arguments.network)
    if os.path.exists(exported.symbol_file):
        return exported.prefix, None, _input_shape(arguments, _image_shape(arguments, exported.prefix))

    require_files_or_network(exported)
    from model_zoo import get_model

    from ..bench.networks import pack

    network = get_model(arguments.network, norm_kwargs={'momentum': 0.0})
    input_shape = _input_shape(arguments, (3, 224, 224))
    prefix = os.path.join(folder, 'network')
    print(f'{arguments.network}: random weights, converted for this measurement', file=sys.stderr)
    return pack(network, prefix, input_shape), prefix, input_shape


def _int8(arguments, packed, exported, input_shape):
    """Return the prefix of the packed files with int8 layers, and the other forms of the network, for `rows.network_rows`."""
    from ..bench.networks import calibration_images, convert

    if exported is None:
        raise UserError(f'--int8 is for networks of the zoo: quantize {arguments.network} with convert --int8 and time the result')
    half = convert(exported, 'half', input_shape, half=True)
    forms = (('float', 'float layers', packed), ('half', 'float layers, weights in half precision', half))
    images = calibration_images(input_shape)  # their results do not matter
    return convert(exported, 'int8', input_shape, calibration=images, min_correlation=-1), forms


def _image_shape(arguments, prefix):
    """Return the shape of the input of a packed network without the batch."""
    from ..deployment.runtime.session import Session

    shapes = Session(prefix).input_shapes
    if len(shapes) != 1:
        raise UserError(f'{arguments.network} has {len(shapes)} inputs; bench times networks with one')
    return shapes[0][1:]


def _input_shape(arguments, image_shape):
    if arguments.input_shape is not None:
        if arguments.batch is not None:
            raise UserError('--input-shape includes the batch: omit --batch')
        return arguments.input_shape
    if arguments.input_size is not None:
        if len(image_shape) != 3:
            raise UserError(f'--input-size is for images; {arguments.network} takes vectors of {image_shape[0]}')
        image_shape = (image_shape[0], arguments.input_size, arguments.input_size)
    return (arguments.batch or 1, *image_shape)


def _compare(prefix, exported, input_shape, arguments, groups, forms):
    from ..bench.comparison import compare
    from ..bench.rounds import busy_cores
    from ..bench.rows import busy_rows, layer_rows, mobilenet_rows, network_rows, onnx_rows

    def progress(items, description):
        return ProgressLine(items, total=len(items), description=description, unit='rounds')

    threads, rounds = arguments.threads, min(_ROUNDS, arguments.repetitions)
    if _is_onnx(arguments):
        rows = onnx_rows(prefix, os.path.abspath(arguments.network), input_shape, threads)
        return compare([row for row in rows if row.group in groups], arguments.repetitions, rounds, progress)
    rows = [*network_rows(prefix, exported, input_shape, threads, forms), *mobilenet_rows(input_shape, threads), *layer_rows(threads)]
    chosen = [row for row in rows if row.group in groups]
    results = compare(chosen, arguments.repetitions, rounds, progress)
    with busy_cores():
        results.update(compare(busy_rows(prefix, input_shape), arguments.repetitions, rounds, progress))
    return results
