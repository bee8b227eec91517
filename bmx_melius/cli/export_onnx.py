"""``bmx-melius export-onnx``: convert an exported or packed network to an ONNX model."""

import json
import os
import tempfile

import numpy as np

from ..files.exported import Exported
from ..files.io import replacing, require_writable
from .options import add_input_shapes, add_json_flag, packed_prefix, print_json

_EXAMPLES = """\
examples:
  bmx-melius export-onnx params/meliusnet22 meliusnet22.onnx
  bmx-melius export-onnx packed packed.onnx --no-verify
  bmx-melius export-onnx packed packed.onnx --qonnx

Any ONNX runtime can run the model, in float arithmetic: signs and sums equal the network's, but no runtime uses bit operations for
them, and a binary weight takes one byte in the file and four in memory. For speed and size, deploy the packed network. Batch, height and
width are not fixed. With --qonnx only tools for QONNX can run it, a binary weight takes four bytes, and shapes are fixed.

Its metadata (metadata_props) holds class_names, mean, std, size, resize and channels, in JSON, if PREFIX-summary.json or the packed files
have them; mean and std refer to pixels from 0 to 255.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'export-onnx',
        help='write a network as an ONNX model',
        epilog=_EXAMPLES,
        description='Write an exported or packed network as an ONNX model of standard operators (opset 13).',
    )
    parser.add_argument('prefix', metavar='PREFIX', help='prefix of PREFIX-symbol.json and PREFIX-0000.params, exported or packed')
    parser.add_argument('model', metavar='FILE.onnx', help='the file to write')
    add_input_shapes(
        parser, 'shape of the input of a network that is not packed, as for convert (default: the shape in PREFIX-summary.json)'
    )
    parser.add_argument(
        '--no-verify',
        dest='verify',
        action='store_false',
        help='do not compare each operation on a sample; the comparison needs ONNX Runtime',
    )
    parser.add_argument(
        '--qonnx',
        action='store_true',
        help='write signs and binary weights as BipolarQuant of QONNX, and fixed shapes with batch 1, as FINN and hls4ml read them',
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Write the model and print its properties."""
    from ..deployment.onnx.export import to_onnx
    from ..deployment.onnx.model_borders import with_borders
    from ..deployment.onnx.qonnx_export import to_qonnx
    from ..deployment.runtime.packed_files import read_packed

    require_writable(arguments.model)
    source = Exported(arguments.prefix)
    with tempfile.TemporaryDirectory() as folder:
        packed = packed_prefix(source, arguments.input_shape, folder)
        program, _, input_names, output_order, borders = read_packed(packed)
    model = (to_qonnx if arguments.qonnx else to_onnx)(program, input_names, output_order)
    for key, value in _metadata(source.description()).items():
        model.metadata_props.add(key=key, value=value)
    deviation = _verify(model, program) if arguments.verify else None
    with_borders(model, program, output_order, borders)
    with replacing(arguments.model) as temporary, open(temporary, 'wb') as file:
        file.write(model.SerializeToString())
    facts = {
        'file': arguments.model,
        'bytes': os.path.getsize(arguments.model),
        'bytes_before': os.path.getsize(source.parameter_file(0)),
        'opset': model.opset_import[0].version,
        'qonnx': arguments.qonnx,
        'inputs': input_names,
        'largest_deviation': deviation,
    }
    if arguments.json:
        print_json(facts, output)
        return
    print(
        f'{facts["file"]}: {facts["bytes"]:,} bytes, opset {facts["opset"]}{" with QONNX" if arguments.qonnx else ""}; '
        f'{source.parameter_file(0)} has {facts["bytes_before"]:,}',
        file=output,
    )
    if deviation is not None:
        print(
            'verified on a sample: given the same input, every sign and every integer in ONNX Runtime is the same as in the program; other '
            f'values differ by at most {deviation:.1e} of the magnitudes they are summed from',
            file=output,
        )
    else:
        print('not verified' + (': ONNX Runtime is not installed (pip install onnxruntime)' if arguments.verify else ''), file=output)


def _metadata(description):
    """Return the metadata of the model by key, in JSON: the class names, and the preprocessing as in PREFIX-summary.json."""
    spec, names = description.input_spec(), description.class_names()
    content = {**(spec.to_json() if spec else {}), **({'class_names': names} if names else {})}
    return {key: json.dumps(value, ensure_ascii=False) for key, value in content.items()}


def _verify(model, program):
    """Return the largest deviation of an operation on a sample (`onnx.export.verify`), or None without ONNX Runtime."""
    from ..deployment.onnx.export import verify

    random = np.random.RandomState(0)
    batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 2
    sizes = [(batch, value.channels) if value.flat else (batch, value.channels, value.height, value.width) for value in program.inputs]
    try:
        return verify(model, program, [random.randn(*size).astype(np.float32) for size in sizes])
    except ImportError:
        return None
