"""Forms of models that exporters seldom write: the packed network computes what ONNX Runtime, or NumPy, computes of the file."""

import numpy as np
import onnx
import onnxruntime
import pytest
from support.tiny_onnx import binary_network, make, node, signs

import bmx_melius as bmx
from bmx_melius.deployment.onnx.conversion import import_onnx
from bmx_melius.errors import UserError

pytestmark = pytest.mark.usefixtures('without_trial')

FLOAT = onnx.TensorProto.FLOAT
NUMBERS = {'zero': np.float32(0), 'one': np.float32(1), 'minus': np.float32(-1)}


def sign(source, name='s'):
    return [node('Less', f'{source} zero', f'{name}l'), node('Not', f'{name}l', f'{name}n'), node('Where', f'{name}n one minus', name)]


def packed(model, tmp_path, *arguments, **options):
    onnx.save(model, tmp_path / 'net.onnx')
    report = import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed', *arguments, **options)
    return report, bmx.Session(tmp_path / 'packed')


def images(*shape):
    return np.random.RandomState(5).normal(size=shape).astype(np.float32)


def reference(model, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider']).run(None, {'x': x})[0]


# --- shapes and types ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('lacks', ['shape', 'type'])
def test_outputs_need_no_shape_and_no_type(lacks, tmp_path):
    expected = reference(binary_network(), images(1, 4, 6, 6))
    model = binary_network()
    model.graph.output[0].type.tensor_type.ClearField('shape') if lacks == 'shape' else model.graph.output[0].ClearField('type')
    report, session = packed(model, tmp_path)
    assert report.binary_layers == 1
    np.testing.assert_allclose(session(images(1, 4, 6, 6)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('lacks', ['shape', 'type'])
def test_inputs_without_a_shape_or_type_need_a_given_shape(lacks, tmp_path):
    expected = reference(binary_network(), images(1, 4, 6, 6))
    model = binary_network()
    model.graph.input[0].type.tensor_type.ClearField('shape') if lacks == 'shape' else model.graph.input[0].ClearField('type')
    with pytest.raises(UserError, match=r'leaves the shape of its input x open \(it has none\): give it \(--input-shape\)'):
        packed(model, tmp_path)
    _, session = packed(model, tmp_path, (1, 4, 6, 6))
    np.testing.assert_allclose(session(images(1, 4, 6, 6)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('form', [np.atleast_1d, np.squeeze])
def test_numbers_may_be_in_arrays_of_one_element_and_lists_of_one_number_may_be_numbers(form, tmp_path):
    constants = {
        **NUMBERS,
        **{'low': form(np.float32([0])), 'high': form(np.float32([3])), 'value': form(np.float32([0])), 'weight': signs(8, 8, 3, 3)},
        **{'pads': np.array([0, 0, 1, 1, 0, 0, 1, 1]), 'begin': form([0]), 'end': form([4]), 'axis': form([1]), 'last': form([2])},
    }
    nodes = [
        *(node('Clip', 'x low high', 'c'), node('Round', 'c', 'q'), node('Pad', 'q pads value', 'p'), node('Conv', 'p weight', 'y0')),
        *(node('Slice', 'y0 begin end axis', 'y1'), node('GlobalAveragePool', 'y1', 'g'), node('Squeeze', 'g last', 'y')),
    ]
    x = 3 * images(1, 8, 6, 6)
    levels = np.pad(np.round(x.clip(0, 3)), [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(levels, (3, 3), axis=(2, 3))
    expected = np.einsum('bchwij,ocij->bohw', windows, constants['weight'])[:, :4].mean(axis=(2, 3))
    report, session = packed(make(nodes, constants, {'x': (1, 8, 6, 6)}), tmp_path)
    assert report.binary_layers == 1
    np.testing.assert_allclose(session(x).reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


# --- versions -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('version', [22, 23])
def test_versions_that_only_have_more_types_are_read_with_any_onnx_runtime(version, tmp_path):
    expected = reference(binary_network(), images(1, 4, 6, 6))
    model = binary_network()
    model.opset_import[0].version = version
    model.ir_version = version - 11  # 11 and 12, later than those that the packages read
    _, session = packed(model, tmp_path)
    np.testing.assert_allclose(session(images(1, 4, 6, 6)), expected, rtol=1e-5, atol=1e-5)


def test_an_operator_of_a_later_version_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match='RMSNormalization'):
        packed(make([node('RMSNormalization', 'x one')], NUMBERS, opset=23), tmp_path)


def test_a_version_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(UserError, match='uses version 24 of the operators of ONNX; 9 to 23 are read'):
        packed(make([node('Relu', 'x')], opset=24), tmp_path)


# --- products -----------------------------------------------------------------------------------------------------------------------------

WEIGHT = signs(6, 8)
LEFT = {  # of the sign s (N, 8) and the weight (6, 8), or its transpose
    'weight @ x.T': [node('Transpose', 's', 't', perm=[1, 0]), node('MatMul', 'weight t', 'u'), node('Transpose', 'u', perm=[1, 0])],
    'weight @ x.T without an order': [node('Transpose', 's', 't'), node('MatMul', 'weight t', 'u'), node('Transpose', 'u')],
    'Gemm of the weight and x': [node('Gemm', 'weight s', 'u', transB=1), node('Transpose', 'u', perm=[1, 0])],
    'Gemm of the transposed weight': [node('Gemm', 'turned s', 'u', transA=1, transB=1), node('Transpose', 'u', perm=[1, 0])],
    'bi,oi->bo': [node('Einsum', 's weight', equation='bi,oi->bo')],
    'b i, i o -> b o': [node('Einsum', 's turned', equation='b i, i o -> b o')],
    'oi,bi->bo': [node('Einsum', 'weight s', equation='oi,bi->bo')],
    'io,bi->bo': [node('Einsum', 'turned s', equation='io,bi->bo')],
    'bi,oi->ob': [node('Einsum', 's weight', 'u', equation='bi,oi->ob'), node('Transpose', 'u', perm=[1, 0])],
}


@pytest.mark.parametrize('kind', LEFT)
def test_a_product_with_a_weight_is_a_dense_layer_wherever_the_weight_stands(kind, tmp_path):
    constants = {**NUMBERS, 'weight': WEIGHT, 'turned': np.ascontiguousarray(WEIGHT.T)}
    model = make([*sign('x'), *LEFT[kind]], constants, {'x': (1, 8)})
    report, session = packed(model, tmp_path)
    x = images(3, 8)
    assert report.binary_layers == 1
    np.testing.assert_array_equal(session(x), np.where(x >= 0, 1, -1) @ WEIGHT.T)


@pytest.mark.parametrize('equation, name', [('bchw,oc->bohw', 'weight'), ('bchw,co->bohw', 'turned')])
def test_a_product_over_the_channels_of_a_map_is_a_convolution(equation, name, tmp_path):
    constants = {**NUMBERS, 'weight': WEIGHT, 'turned': np.ascontiguousarray(WEIGHT.T)}
    report, session = packed(make([*sign('x'), node('Einsum', f's {name}', equation=equation)], constants, {'x': (1, 8, 4, 5)}), tmp_path)
    x = images(2, 8, 4, 5)
    assert report.binary_layers == 1
    np.testing.assert_array_equal(session(x), np.einsum('bchw,oc->bohw', np.where(x >= 0, 1, -1), WEIGHT))


@pytest.mark.parametrize(
    'equation, inputs', [('bi,bi->b', 's s'), ('bi,ij->b', 's turned'), ('bi,oi->boi', 's weight'), ('ii,oi->io', 's weight')]
)
def test_other_sums_of_products_are_refused_by_name(equation, inputs, tmp_path):
    constants = {**NUMBERS, 'weight': WEIGHT, 'turned': np.ascontiguousarray(WEIGHT.T)}
    with pytest.raises(UserError, match='Einsum'):
        packed(make([*sign('x'), node('Einsum', inputs, 'e', equation=equation), node('Relu', 'e')], constants, {'x': (8, 8)}), tmp_path)


def test_a_cast_to_the_type_of_another_value_is_a_cast(tmp_path):
    nodes = [node('Less', 'x zero', 'l'), node('CastLike', 'l x', 'f'), node('Sub', 'half f', 's'), node('MatMul', 's turned')]
    constants = {**NUMBERS, 'half': np.float32(0.5), 'turned': np.ascontiguousarray(WEIGHT.T)}
    report, session = packed(make(nodes, constants, {'x': (1, 8)}), tmp_path)
    x = images(3, 8)
    assert report.binary_layers == 1
    np.testing.assert_allclose(session(x), np.where(x >= 0, 0.5, -0.5) @ WEIGHT.T, rtol=1e-6)


@pytest.mark.parametrize('way', ['SAME_UPPER', 'SAME_LOWER'])
@pytest.mark.parametrize(('kernel', 'dilations'), [((3, 3), (3, 3)), ((2, 3), (3, 1)), ((4, 2), (1, 2))])
def test_dilated_convolutions_that_keep_the_size_of_a_map_are_padded(way, kernel, dilations, tmp_path):
    """As PyTorch's exporter writes padding='same'; ONNX Runtime itself refuses it with dilation."""
    total = [(size - 1) * step for size, step in zip(kernel, dilations)]
    smaller, larger = [n // 2 for n in total], [n - n // 2 for n in total]
    explicit = {'pads': [*smaller, *larger] if way == 'SAME_UPPER' else [*larger, *smaller]}
    constants = {**NUMBERS, 'first': images(8, 4, 1, 1), 'weight': signs(8, 8, *kernel)}
    implied, spelled = (
        make([node('Conv', 'x first', 'a'), *sign('a'), node('Conv', 's weight', dilations=dilations, **pads)], constants)
        for pads in ({'auto_pad': way}, explicit)
    )
    report, session = packed(implied, tmp_path)
    x = images(2, 4, 6, 6)
    assert report.binary_layers == 1
    np.testing.assert_allclose(session(x), np.concatenate([reference(spelled, one[None]) for one in x]), rtol=1e-5, atol=1e-5)
