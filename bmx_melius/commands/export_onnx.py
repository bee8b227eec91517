"""``bmx-melius export-onnx``: an exported or packed network as an ONNX model."""

import json
import os
import tempfile

import numpy as np

from ..errors import UserError
from ..files import replacing
from .arguments import add_json_flag, named_shape
from .exported import Exported

_EXAMPLES = """\
examples:
  bmx-melius export-onnx params/meliusnet22 meliusnet22.onnx
  bmx-melius export-onnx packed packed.onnx --no-verify

Any runtime of ONNX runs the model, in floats: signs and sums are those of the network, but no runtime computes them on bits, and a
binary weight takes a byte in the file and four in memory. For speed and size deploy the packed network itself. Batch, height and width
are free.
"""
_TOLERANCE = 1e-4  # of the largest result


def add_parser(commands):
    """Add the command."""
    parser = commands.add_parser(
        'export-onnx',
        help='write a network as an ONNX model',
        epilog=_EXAMPLES,
        description='Write an exported or packed network as an ONNX model of standard operators (opset 13).',
    )
    parser.add_argument('prefix', metavar='PREFIX', help='of PREFIX-symbol.json and PREFIX-0000.params, exported or packed')
    parser.add_argument('model', metavar='FILE.onnx', help='the file to write')
    parser.add_argument(
        '--input-shape',
        type=named_shape,
        action='append',
        metavar='[NAME=]N,C,H,W',
        help='of a network that is not packed yet, as for convert (default: what PREFIX-summary.json says)',
    )
    parser.add_argument('--no-verify', dest='verify', action='store_false',
                        help='do not compare with the packed network on a sample (ONNX Runtime does that, where it is installed)')
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Write the model, and print what it is."""
    from ..deploy.onnx_export import to_onnx
    from ..deploy.session import Session, read_packed

    source = Exported(arguments.prefix)
    with tempfile.TemporaryDirectory() as folder:
        packed = _packed_prefix(source, arguments.input_shape, folder)
        program, _, input_names, output_order = read_packed(packed)
        session = Session(packed)
    model = to_onnx(program, input_names, output_order)
    with replacing(arguments.model) as temporary, open(temporary, 'wb') as file:
        file.write(model.SerializeToString())
    facts = {
        'file': arguments.model,
        'bytes': os.path.getsize(arguments.model),
        'bytes_before': os.path.getsize(source.parameter_file(0)),
        'opset': model.opset_import[0].version,
        'inputs': session.input_names,
        'largest_deviation': _verify(arguments.model, session) if arguments.verify else None,
    }
    if arguments.json:
        json.dump(facts, output, indent=1)
        print(file=output)
        return
    print(f'{facts["file"]}: {facts["bytes"]:,} bytes, opset {facts["opset"]}; {source.parameter_file(0)} has {facts["bytes_before"]:,}',
          file=output)
    print('not verified' + (': ONNX Runtime is not installed (pip install onnxruntime)' if arguments.verify else '')
          if facts['largest_deviation'] is None else
          f'verified on a sample: ONNX Runtime gives the results of the packed network within {facts["largest_deviation"]:.1e} of the '
          'largest one', file=output)


def _packed_prefix(source, input_shape, folder):
    """The prefix of the packed form of a network: its own, or that of files converted into `folder`."""
    from ..deploy.converter import convert
    from ..deploy.packed_operator import NAME
    from ..graph import load_symbol

    nodes = json.loads(load_symbol(source.symbol_file).tojson())['nodes']
    if any(NAME in (node['op'], node.get('attrs', {}).get('op_type')) for node in nodes):
        return source.prefix
    prefix = os.path.join(folder, 'packed')
    report = convert(source.symbol_file, source.parameter_file(0), prefix, source.input_shape(input_shape), verify=False)
    if report.left:
        left = ', '.join(f'{one.node} ({one.operator}): {one.reason}' for one in report.left[:3])
        raise UserError(f'{source.prefix} cannot be written as one program: {left}')
    return prefix


def _verify(model, session):
    """The largest difference of ONNX Runtime's results from the session's, as a share of the largest result; None without ONNX Runtime."""
    try:
        import onnxruntime
    except ImportError:
        return None
    random = np.random.RandomState(0)
    inputs = [random.randn(2, *shape[1:]).astype(np.float32) for shape in session.input_shapes]
    expected = session(*inputs)
    expected = expected if isinstance(expected, list) else [expected]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    found = onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider']).run(
        None, dict(zip(session.input_names, inputs)))
    deviation = max(float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in zip(found, expected))
    if deviation > _TOLERANCE:
        raise UserError(f'{model} gives other results than the network: the difference is {deviation:.1e} of the largest one')
    return deviation
