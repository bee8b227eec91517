"""Quantizers of QONNX and FINN: what replaces them computes what the definition of QONNX says, computed here in NumPy."""

import numpy as np
import onnx
import onnxruntime
import pytest
from support.tiny_onnx import make, node

from bmx_melius.deployment.onnx.model import read_model
from bmx_melius.errors import UserError

DOMAIN = 'finn.custom_op.general'
X = np.concatenate([np.arange(-40, 40) / 8, np.random.RandomState(0).normal(size=100) * 3]).astype(np.float32).reshape(1, 4, 9, 5)


def computed(tmp_path, kind, constants, opset=9, x=X, domain=DOMAIN, **attributes):
    """Return what ONNX Runtime makes of a quantizer after it was read, from an old model that does not declare its domain."""
    model = make([node(kind, ' '.join(['x', *constants]), domain=domain, **attributes)], constants, {'x': x.shape}, opset=opset)
    onnx.save(model, tmp_path / 'net.onnx')
    proto = read_model(tmp_path / 'net.onnx').proto
    assert not {each.domain for each in proto.graph.node} - {''}
    del proto.graph.output[:]
    proto.graph.output.append(onnx.ValueInfoProto(name='y'))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {'x': x})[0]


ROUNDINGS = {
    'ROUND': np.round,
    'half_even': np.round,
    'FLOOR': np.floor,
    'CEIL': np.ceil,
    'UP': lambda x: np.sign(x) * np.ceil(np.abs(x)),
    'DOWN': np.trunc,
    'HALF_UP': lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    'HALF_DOWN': lambda x: np.sign(x) * np.ceil(np.abs(x) - 0.5),
}


@pytest.mark.parametrize('opset', [9, 11, 17])
@pytest.mark.parametrize('mode', ROUNDINGS)
def test_integers_of_a_quantizer_are_rounded_as_its_mode_says(mode, opset, tmp_path):
    constants = {'scale': np.float32(0.25), 'zero': np.int64(2), 'bits': np.int32(3)}
    found = computed(tmp_path, 'Quant', constants, opset, signed=0, narrow=0, rounding_mode=mode)
    np.testing.assert_array_equal(found, (ROUNDINGS[mode](np.clip(X / np.float32(0.25) + 2, 0, 7)) - 2) * 0.25)


@pytest.mark.parametrize('signed, narrow, low, high', [(1, 0, -8, 7), (1, 1, -7, 7), (0, 0, 0, 15), (0, 1, 0, 14)])
def test_limits_of_a_quantizer_follow_from_its_bits(signed, narrow, low, high, tmp_path):
    constants = {'scale': np.float32(0.5), 'zero': np.uint8(0), 'bits': np.float32(4)}
    found = computed(tmp_path, 'IntQuant', constants, signed=signed, narrow=narrow, x=X * 4)
    np.testing.assert_array_equal(found, np.clip(np.round(X * 8), low, high) / 2)


def test_one_signed_bit_is_a_sign_of_which_that_of_0_is_1(tmp_path):
    constants = {'scale': np.float32(0.5), 'zero': np.float32(0), 'bits': np.float32(1)}
    expected = np.where(X >= 0, 0.5, -0.5)
    np.testing.assert_array_equal(computed(tmp_path, 'Quant', constants, signed=1, narrow=1), expected)
    np.testing.assert_array_equal(computed(tmp_path, 'BipolarQuant', {'scale': np.float32(0.5)}), expected)


@pytest.mark.parametrize('domain', ['', 'qonnx', 'finn'])
def test_quantizers_of_old_files_have_no_domain_or_a_short_one(domain, tmp_path):
    thresholds = np.float32([[-1, 0, 2]])
    found = computed(tmp_path, 'MultiThreshold', {'t': thresholds}, domain=domain, out_dtype='UINT2')
    np.testing.assert_array_equal(found, (X[..., None] >= thresholds[0]).sum(axis=-1))
    np.testing.assert_array_equal(computed(tmp_path, 'BipolarQuant', {'scale': np.float32(2)}, domain=domain), np.where(X >= 0, 2, -2))


def test_debug_markers_change_nothing(tmp_path):
    np.testing.assert_array_equal(computed(tmp_path, 'DebugMarker', {}, domain='qonnx.custom_op.general', export_debug_name='a'), X)


LAST = 'qonnx.custom_op.channels_last'


def test_layers_with_the_channels_last_equal_those_with_the_channels_second(tmp_path):
    weight, norm = np.random.RandomState(2).normal(size=(3, 3, 2, 4)).astype(np.float32), np.float32([[1, 2, 3, 4, 5]] * 4)
    x = X.reshape(1, 9, 5, 4)
    found = computed(tmp_path, 'Conv', {'w': weight}, x=x, domain=LAST, kernel_shape=[3, 2], strides=[2, 1])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2), axis=(1, 2))[:, ::2]  # (1, 4, 4, 4, 3, 2)
    np.testing.assert_allclose(found, np.einsum('nhwcij,oijc->nhwo', windows, weight), rtol=1e-5, atol=1e-5)
    found = computed(tmp_path, 'MaxPool', {}, x=x, domain=LAST, kernel_shape=[3, 2], strides=[2, 1])
    np.testing.assert_array_equal(found, windows.max(axis=(-2, -1)))
    x = X.reshape(1, 4, 9, 5)
    found = computed(tmp_path, 'BatchNormalization', dict(zip(['gamma', 'beta', 'mean', 'var'], norm)), x=x, domain=LAST, epsilon=0.0)
    np.testing.assert_allclose(found, (x - norm[0]) / np.sqrt(norm[0]) * norm[0] + norm[0], rtol=1e-5, atol=1e-5)


def test_truncation_keeps_the_upper_bits(tmp_path):
    x = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4) / 4
    constants = {'scale': np.float32(0.25), 'zero': np.int8(0), 'before': np.int8(6), 'after': np.int8(4)}
    np.testing.assert_array_equal(
        computed(tmp_path, 'Trunc', constants, x=x, rounding_mode='FLOOR'), np.arange(64).reshape(x.shape) // 4 / 4
    )
    second = {'scale': np.float32(0.25), 'zero': np.float32(0), 'before': np.float32(6), 'to': np.float32(1), 'after': np.float32(3)}
    found = computed(tmp_path, 'Trunc', second, x=x, rounding_mode='FLOOR', signed=0, narrow=0)
    np.testing.assert_array_equal(found, (np.arange(64).reshape(x.shape) // 4).clip(0, 7))


@pytest.mark.parametrize(
    'layout, shape', [('NCHW', (1, 4, 9, 5)), ('', (1, 4, 9, 5)), ('NHWC', (1, 9, 5, 4)), ('NC', (45, 4)), ('', (45, 4))]
)
def test_thresholds_are_counted_for_each_channel(layout, shape, tmp_path):
    thresholds = np.sort(np.random.RandomState(1).normal(size=(4, 7)), axis=1).astype(np.float32)
    axis = 1 if layout != 'NHWC' else 3
    x = X.reshape(shape)
    columns = thresholds.T.reshape(7, *(4 if a == axis else 1 for a in range(len(shape))))
    found = computed(tmp_path, 'MultiThreshold', {'t': thresholds}, x=x, out_dtype='INT4', out_scale=0.5, out_bias=-1.0, data_layout=layout)
    np.testing.assert_array_equal(found, 0.5 * (x >= columns).sum(axis=0) - 1)
    found = computed(tmp_path, 'MultiThreshold', {'t': thresholds[:1]}, x=x, out_dtype='UINT4')
    np.testing.assert_array_equal(found, (x[..., None] >= thresholds[0]).sum(axis=-1))


@pytest.mark.parametrize(
    'kind, constants, attributes, message',
    [
        ('QuantAvgPool2d', {}, {}, 'not supported; BipolarQuant, Quant, IntQuant, Trunc, MultiThreshold are'),
        ('MultiThreshold', {'t': np.zeros((1, 255), np.float32)}, {}, 'compares with 255 thresholds; up to 15'),
        ('MultiThreshold', {'t': np.zeros((4, 3), np.float32)}, {'data_layout': 'HW'}, 'does not say which axis has the channels'),
        ('Quant', {'s': np.float32(1), 'z': np.float32(0), 'b': np.float32(4)}, {'rounding_mode': 'ODD'}, 'rounds by ODD'),
        ('Trunc', {name: np.float32(0) for name in 'szabc'}, {}, 'truncates from a scale of 0'),
        ('BipolarQuant', {}, {}, 'has 1 inputs, not 2'),
        ('AveragePool', {}, {'domain': LAST}, 'with the channels last that is not supported; Conv, MaxPool, BatchNormalization are'),
    ],
)
def test_what_is_not_supported_is_named(kind, constants, attributes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        computed(tmp_path, kind, constants, **attributes)


def test_an_input_of_bytes_is_dequantized_in_float32(tmp_path):
    constants = {'scale': np.float32(0.5), 'zero': np.uint8(100)}
    model = make([node('DequantizeLinear', 'x scale zero')], constants, {'x': (1, 3)})
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save(model, tmp_path / 'net.onnx')
    read = read_model(tmp_path / 'net.onnx')
    assert read.integer_inputs == ('x',)
    del read.proto.graph.output[:]
    read.proto.graph.output.append(onnx.ValueInfoProto(name='y'))
    session = onnxruntime.InferenceSession(read.proto.SerializeToString(), providers=['CPUExecutionProvider'])
    np.testing.assert_array_equal(session.run(None, {'x': np.float32([[0, 101, 255]])})[0], [[-50, 0.5, 77.5]])
