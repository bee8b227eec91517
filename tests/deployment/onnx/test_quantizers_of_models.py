"""Imported quantizers of 8 bits: their integers equal ONNX Runtime's, also next to the numbers at which these change."""

import numpy as np
import pytest

import bmx_melius as bmx
from bmx_melius.deployment.onnx.conversion import import_onnx
from bmx_melius.deployment.runtime.packed_files import read_packed
from bmx_melius.errors import UserError

pytestmark = pytest.mark.usefixtures('without_trial')

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')
helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT = onnx.TensorProto.FLOAT
CHANNELS = 3
SCALE = np.float32(0.0437)  # whose reciprocal is not a float32 number


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def network(nodes, constants):
    """Return a model in which nodes compute q from x, followed by a binary convolution. The outputs are q and the convolution's."""
    random = np.random.RandomState(0)
    nodes = [
        *nodes,
        *(node('Conv', 'q first', 'a'), node('Less', 'a zero', 'less'), node('Not', 'less', 'at_least')),
        *(node('Where', 'at_least one minus_one', 's'), node('Conv', 's second', 'y')),
    ]
    constants = {
        **constants,
        'first': random.normal(size=(8, CHANNELS, 1, 1)).astype(np.float32),
        'second': np.where(random.rand(4, 8, 1, 1) < 0.5, -1, 1).astype(np.float32),
        **{'zero': np.float32(0), 'one': np.float32(1), 'minus_one': np.float32(-1)},
    }
    graph = helper.make_graph(
        nodes,
        'graph',
        [helper.make_tensor_value_info('x', FLOAT, (1, CHANNELS, 12, 1024))],
        [helper.make_tensor_value_info(name, FLOAT, (1, None, 12, 1024)) for name in 'qy'],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


def by_operators(*before, zero_point=0.0, low=-128.0, high=127.0, scaled='Div', scale=SCALE):
    """Return nodes and constants of a quantizer as Brevitas computes it, after nodes that compute v."""
    nodes = [
        *(before or (node('Identity', 'x', 'v'),)),
        *(node(scaled, 'v scale', 'scaled'), node('Add', 'scaled zero_point', 'shifted'), node('Round', 'shifted', 'rounded')),
        *(node('Max', 'rounded low', 'raised'), node('Min', 'raised high', 'limited')),
        *(node('Sub', 'limited zero_point', 'integers'), node('Mul', 'integers step', 'q')),
    ]
    step = 1 / scale if scaled == 'Mul' else scale
    numbers = {'scale': scale, 'step': step, 'zero_point': zero_point, 'low': low, 'high': high, 'two': 2, 'one_': 1}
    return nodes, {name: np.asarray(number, np.float32) for name, number in numbers.items()}


def linear(scale, zero_point, axis=1, clip=None):
    """Return nodes and constants of QuantizeLinear and DequantizeLinear, with a Clip between them for limits (low, high)."""
    nodes = [
        node('QuantizeLinear', 'x scale zero_point', 'bytes', axis=axis),
        *([node('Clip', 'bytes low high', 'clipped')] if clip else []),
        node('DequantizeLinear', f'{"clipped" if clip else "bytes"} scale zero_point', 'q', axis=axis),
    ]
    limits = dict(zip(('low', 'high'), np.array(clip, zero_point.dtype))) if clip else {}
    return nodes, {'scale': scale, 'zero_point': zero_point, **limits}


BY_CHANNEL = np.array([0.0437, 0.02, 0.0061], np.float32)
DOUBLED = node('Mul', 'x two', 'doubled'), node('Sub', 'doubled one_', 'v')
QUANTIZERS = {
    'division': by_operators(),
    'division and a zero point': by_operators(zero_point=113.0, low=0.0, high=255.0),
    'division by a power of two': by_operators(scale=np.float32(2**-7)),
    'division by a number for each channel': by_operators(scale=BY_CHANNEL.reshape(1, -1, 1, 1)),
    'multiplication': by_operators(scaled='Mul', scale=np.float32(1 / SCALE)),
    'multiplication and a zero point': by_operators(scaled='Mul', scale=np.float32(1 / SCALE), zero_point=3.0),
    'pixels from -1 to 1, divided': by_operators(*DOUBLED),
    'pixels from -1 to 1, multiplied': by_operators(*DOUBLED, scaled='Mul', scale=np.float32(1 / SCALE)),
    'QuantizeLinear to int8': linear(SCALE, np.int8(0)),
    'QuantizeLinear to uint8': linear(SCALE, np.uint8(113)),
    'QuantizeLinear with Clip': linear(SCALE, np.int8(0), clip=(-100, 90)),
    'QuantizeLinear by channel': linear(BY_CHANNEL, np.array([0, 113, 7], np.uint8)),
}


def numbers_beside_ties(constants):
    """Return float32 numbers, as an input of the network: those at which integers change, the numbers beside these, and pixels."""
    scale, zero_point = (np.asarray(constants[name], np.float64).reshape(-1, 1) for name in ('scale', 'zero_point'))
    step = constants['step'].reshape(-1, 1) if 'step' in constants else scale
    ties = (np.arange(-300, 301) + 0.5 - zero_point) * step.astype(np.float64)
    pixels = np.broadcast_to(np.arange(256) / 255, (len(ties), 256))
    rows = np.concatenate([ties, (ties + 1) / 2, pixels], axis=1)
    bits = np.broadcast_to(rows, (CHANNELS, rows.shape[1])).astype(np.float32).view(np.int32)
    near = np.concatenate([bits + offset for offset in range(-4, 4)], axis=1).view(np.float32)
    near[np.isnan(near)] = 0  # beside 0
    return np.resize(near, (CHANNELS, 12 * 1024)).reshape(1, CHANNELS, 12, 1024)


def imported(model, folder):
    """Import a model; return the prefix of the packed files."""
    onnx.save(model, str(folder / 'model.onnx'))
    import_onnx(folder / 'model.onnx', folder / 'packed')
    return str(folder / 'packed')


def quantized(model, x):
    """Return q of ONNX Runtime."""
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider']).run(['q'], {'x': x})[0]


def operations_of(prefix):
    return [operation.name for operation in read_packed(prefix)[0].operations]


@pytest.mark.parametrize('name', QUANTIZERS)
def test_integers_are_those_of_onnx_runtime_beside_ties(name, tmp_path):
    nodes, constants = QUANTIZERS[name]
    model, x = network(nodes, constants), numbers_beside_ties(constants)
    assert len(np.unique(x)) > 6000
    expected = quantized(model, x)
    assert len(np.unique(expected)) > 100
    found, _ = bmx.Session(imported(model, tmp_path))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)  # the smallest step is 0.006


def test_a_quantizer_of_qonnx_is_that_of_its_operators(tmp_path):
    nodes, constants = by_operators()
    model = network([node('Quant', 'x scale zero_point bits', 'q', domain='qonnx.custom_op.general')], {**constants, 'bits': np.float32(8)})
    model.opset_import.append(helper.make_opsetid('qonnx.custom_op.general', 1))
    x = numbers_beside_ties(constants)
    expected = quantized(network(nodes, constants), x)
    found, _ = bmx.Session(imported(model, tmp_path))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('name, divides', [('division', True), ('division by a power of two', False), ('multiplication', False)])
def test_what_a_reciprocal_computes_exactly_is_not_divided(name, divides, tmp_path):
    operations = operations_of(imported(network(*QUANTIZERS[name]), tmp_path))
    assert ('divide' in operations) == divides
    assert operations.count('round') == 1


def test_a_division_that_nothing_rounds_is_a_product(tmp_path):
    operations = operations_of(imported(network([node('Div', 'x scale', 'q')], {'scale': SCALE}), tmp_path))
    assert 'affine' in operations and 'divide' not in operations


@pytest.mark.parametrize(
    'nodes, message',
    [
        (
            linear(np.full(12, SCALE), np.zeros(12, np.uint8), axis=2),
            'its scales are not float32 numbers, one in all or one for each channel',
        ),
        (
            ([node('Cast', 'x', 'whole', to=onnx.TensorProto.INT32), node('DequantizeLinear', 'whole scale', 'q')], {'scale': SCALE}),
            r'\(Cast\): there is no packed form',
        ),
    ],
)
def test_a_quantizer_without_a_packed_form_is_refused_with_its_name(nodes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        imported(network(*nodes), tmp_path)
