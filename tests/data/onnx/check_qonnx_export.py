"""Execute models of ``export-onnx --qonnx`` by the package qonnx: ``python check_qonnx_export.py [PREFIX ...]``.

The environment is in ``requirements-qonnx.txt`` (Python 3.11), with Pillow. Without prefixes of packed networks, the models of this folder
are imported and exported. Compared with the interpreter of programs, on random inputs: all bits and sums of signs, which must be equal, and
outputs; the same after the cleanup and the inference of data types that FINN begins with.
"""

import gzip
import os
import pathlib
import sys
import tempfile

import numpy as np
import onnx
import qonnx
from qonnx.core.datatype import DataType
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.core.onnx_exec import execute_onnx
from qonnx.transformation.infer_datatypes import InferDataTypes
from qonnx.util.cleanup import cleanup_model

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))
import bmx_melius as bmx  # noqa: E402
from bmx_melius.deployment.onnx.export import value_names  # noqa: E402
from bmx_melius.deployment.onnx.qonnx_export import to_qonnx  # noqa: E402
from bmx_melius.deployment.program import reference  # noqa: E402
from bmx_melius.deployment.runtime.packed_files import read_packed  # noqa: E402

NAMES = (
    *(
        'birealnet18',
        'reactnet18',
        'irnet-resnet20',
        'xnornet-nin',
        'bitorch-meliusnet',
        'bitorch-quicknet',
        'larq-quicknet',
        'dorefa-w1a2',
    ),
    *('padded-with-one', 'padded-with-minus-one', 'geometry', 'ttq', 'brevitas-cnv-w1a1', 'brevitas-tfc-w1a1', 'finn-thresholds-opset11'),
    *('transformer', 'tokens', 'mixer', 'mixer-rms-dynamo'),
)
INPUTS = 3


def check(prefix):
    """Return how many bits and sums were compared, and the largest difference of an output, of the largest one."""
    program, _, input_names, order, _ = read_packed(prefix)
    model = ModelWrapper(to_qonnx(program, input_names, order))
    cleaned = cleanup_model(ModelWrapper(to_qonnx(program, input_names, order))).transform(InferDataTypes())
    names, kinds = value_names(program, input_names), program.values()
    bipolar = sum(
        cleaned.get_tensor_datatype(node.output[0]) == DataType['BIPOLAR'] for node in cleaned.get_nodes_by_op_type('BipolarQuant')
    )
    quantizers = len(cleaned.get_nodes_by_op_type('BipolarQuant'))
    assert bipolar == quantizers, f'{bipolar} of {quantizers} quantizers are BIPOLAR after the inference of data types'
    random, compared, largest = np.random.RandomState(0), 0, 0.0
    for _ in range(INPUTS):
        values = [random.normal(size=(1, *value.shape)).astype(np.float32) for value in program.inputs]
        fed = dict(zip(input_names, values))
        computed = execute_onnx(model, fed, return_full_exec_context=True)
        for number, operation in enumerate(program.operations, len(values)):
            # each operation on qonnx's own inputs of it: a float layer is rounded in another order
            given = [computed[names[source]] for source in operation.inputs]
            given = [x > 0 if kinds[source].kind == 'bits' else x for x, source in zip(given, operation.inputs)]
            expected, found = reference.apply(operation, given), computed[names[number]]
            if kinds[number].kind == 'bits' or operation.row.products == 'binary':
                expected = np.where(expected, 1, -1) if kinds[number].kind == 'bits' else expected
                assert np.array_equal(found, expected), f'{names[number]} differs'
                compared += found.size
        outputs = [computed[output.name] for output in model.graph.output]
        again = execute_onnx(cleaned, dict(zip([entry.name for entry in cleaned.graph.input], values)))
        session = bmx.Session(prefix)
        results = session(*(x.reshape(1, *shape[1:]) for x, shape in zip(values, session.input_shapes)))
        for found, same, ours in zip(outputs, again.values(), results if isinstance(results, list) else [results]):
            assert np.array_equal(found, same), 'the cleanup changes the outputs'
            largest = max(largest, float(np.abs(found.reshape(-1) - ours.reshape(-1)).max() / np.abs(ours).max()))
    return compared, quantizers, largest


def main(prefixes):
    print(f'qonnx {qonnx.__version__ if hasattr(qonnx, "__version__") else "1.0.0"}, onnx {onnx.__version__}, numpy {np.__version__}')
    with tempfile.TemporaryDirectory() as folder:
        for name in () if prefixes else NAMES:
            source = os.path.join(folder, f'{name}.onnx')
            pathlib.Path(source).write_bytes(gzip.decompress((HERE / f'{name}.onnx.gz').read_bytes()))
            bmx.import_onnx(source, os.path.join(folder, name), zero_is_positive=True)
            prefixes = [*prefixes, os.path.join(folder, name)]
        for prefix in prefixes:
            compared, quantizers, largest = check(prefix)
            outputs = f'outputs within {largest:.1e} of the largest one'
            print(f'{os.path.basename(prefix)}: {quantizers} BipolarQuant, {compared:,} bits and sums equal; {outputs}')


if __name__ == '__main__':
    main(sys.argv[1:])
