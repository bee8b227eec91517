"""Operators of MXNet as operations: the attributes are written as by MXNet, with and without attributes that have defaults."""

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmx_melius.deployment.convert.rules import rule_of
from bmx_melius.files.symbol_json import VARIABLE, SymbolJson
from bmx_melius.graph.mxnet_operators import READ_AS, operator_name, read_operation
from bmx_melius.graph.operations import (
    Activation,
    AxisMaps,
    AxisSlice,
    BatchNormalization,
    BilinearResizing,
    Clip,
    Concatenation,
    Convolution,
    ConvolutionV1,
    DeformableConvolution,
    Dense,
    Dropout,
    Elementwise,
    ExpandDims,
    Flatten,
    GlobalPooling,
    GroupNormalization,
    HardSigmoid,
    Identity,
    InstanceNormalization,
    LayerNormalization,
    Operation,
    Padding,
    Pooling,
    PositionSelection,
    Reduction,
    Reshape,
    Rounding,
    ScalarArithmetic,
    Slice,
    Split,
    Squeeze,
    SwapAxes,
    Transpose,
    TransposedConvolution,
    Unknown,
    Upsampling,
    Window,
    key_of,
)

x = mx.sym.var('x')
ONE, NONE = (1, 1), ((0, 0), (0, 0))  # strides or dilations of 1, and padding of a map without any

CASES = [
    (
        mx.sym.Convolution(x, num_filter=2, kernel=(3,), stride=(2,), pad=(1,), dilate=(4,)),
        Convolution(Window((3,), (2,), ((1, 1),), (4,))),
    ),
    (mx.sym.Convolution(x, num_filter=2, kernel=(3, 2)), Convolution(Window((3, 2), ONE, NONE, ONE), groups=1, layout=None)),
    (
        mx.sym.Convolution(x, num_filter=4, kernel=(3, 2), stride=(2, 1), pad=(1, 0), dilate=(1, 3), num_group=2, layout='NHWC'),
        Convolution(Window((3, 2), (2, 1), ((1, 1), (0, 0)), (1, 3)), 2, 'NHWC'),
    ),
    (
        mx.sym.Convolution(x, num_filter=2, kernel=(3, 2, 1), pad=(2, 1, 0)),
        Convolution(Window((3, 2, 1), (1, 1, 1), ((2, 2), (1, 1), (0, 0)), (1, 1, 1))),
    ),
    (mx.sym.Convolution_v1(x, num_filter=2, kernel=(3, 3)), ConvolutionV1(Window((3, 3), ONE, NONE, ONE))),
    (
        mx.sym.contrib.DeformableConvolution(x, num_filter=2, kernel=(3, 3), num_group=2),
        DeformableConvolution(Window((3, 3), ONE, NONE, ONE), 2, modulated=False),
    ),
    (
        mx.sym.contrib.ModulatedDeformableConvolution(x, num_filter=2, kernel=(3, 3)),
        DeformableConvolution(Window((3, 3), ONE, NONE, ONE), modulated=True),
    ),
    (mx.sym.Deconvolution(x, num_filter=2, kernel=(3,)), TransposedConvolution(Window((3,), (1,), ((0, 0),), (1,)))),
    (
        mx.sym.Deconvolution(x, num_filter=2, kernel=(3, 2), stride=(2, 1), pad=(1, 0), adj=(1, 0), num_group=2),
        TransposedConvolution(Window((3, 2), (2, 1), ((1, 1), (0, 0)), ONE), 2, None, (1, 0), ()),
    ),
    (
        mx.sym.Deconvolution(x, num_filter=2, kernel=(3, 2), target_shape=(9, 8), layout='NCHW'),
        TransposedConvolution(Window((3, 2), ONE, NONE, ONE), 1, 'NCHW', (), (9, 8)),
    ),
    (mx.sym.Pooling(x, kernel=(2, 3)), Pooling('max', Window((2, 3), ONE, NONE, ONE), 'valid', True, None)),
    (
        mx.sym.Pooling(x, kernel=(3,), stride=(2,), pad=(1,), pool_type='sum', pooling_convention='same', layout='NCW'),
        Pooling('sum', Window((3,), (2,), ((1, 1),), (1,)), 'same', True, 'NCW'),
    ),
    (
        mx.sym.Pooling(x, kernel=(3, 2, 1), pool_type='avg', count_include_pad=False, pooling_convention='full'),
        Pooling('avg', Window((3, 2, 1)), 'full', False),
    ),
    (mx.sym.Pooling(x, kernel=(2, 2), pool_type='avg', count_include_pad=True), Pooling('avg', Window((2, 2)), counts_padding=True)),
    (mx.sym.Pooling(x, global_pool=True), GlobalPooling('max')),
    (mx.sym.Pooling(x, global_pool=True, kernel=(7, 7), pool_type='lp', p_value=2, layout='NHWC'), GlobalPooling('lp', 'NHWC')),
    (mx.sym.UpSampling(x, scale=3, sample_type='nearest'), Upsampling('nearest', 3)),
    (mx.sym.UpSampling(x, x, scale=2, sample_type='bilinear', num_filter=4), Upsampling('bilinear', 2)),
    (mx.sym.FullyConnected(x, num_hidden=2), Dense(flattens=True)),
    (mx.sym.FullyConnected(x, num_hidden=2, flatten=False), Dense(flattens=False)),
    (x + x, Elementwise('add')),
    (x - x, Elementwise('subtract')),
    (x * x, Elementwise('multiply')),
    (x / x, Elementwise('divide')),
    (mx.sym.maximum(x, x), Elementwise('maximum')),
    (mx.sym.minimum(x, x), Elementwise('minimum')),
    (mx.sym.broadcast_add(x, x), Elementwise('add', repeats=True)),
    (mx.sym.broadcast_sub(x, x), Elementwise('subtract', repeats=True)),
    (mx.sym.broadcast_mul(x, x), Elementwise('multiply', repeats=True)),
    (mx.sym.broadcast_div(x, x), Elementwise('divide', repeats=True)),
    (mx.sym.np.true_divide(x.as_np_ndarray(), x.as_np_ndarray()), Elementwise('true_divide', repeats=True)),
    (mx.sym.broadcast_maximum(x, x), Elementwise('maximum', repeats=True)),
    (mx.sym.broadcast_minimum(x, x), Elementwise('minimum', repeats=True)),
    (mx.sym.add_n(x, x, x), Elementwise('sum')),
    (mx.sym.abs(x), Elementwise('abs')),
    (mx.sym.negative(x), Elementwise('negative')),
    (mx.sym.square(x), Elementwise('square')),
    (x + 1.5, ScalarArithmetic('add', 1.5)),
    (x - 2, ScalarArithmetic('subtract', 2)),
    (2 - x, ScalarArithmetic('subtract_from', 2)),
    (x * 1e-7, ScalarArithmetic('multiply', 1e-7)),
    (x / 4, ScalarArithmetic('divide', 4)),
    (mx.sym.maximum(x, -1), ScalarArithmetic('maximum', -1)),
    (mx.sym.minimum(x, 6), ScalarArithmetic('minimum', 6)),
    (mx.sym.relu(x), Activation('relu')),
    (mx.sym.sigmoid(x), Activation('sigmoid')),
    (mx.sym.tanh(x), Activation('tanh')),
    (mx.sym.softsign(x), Activation('softsign')),
    (mx.sym.Activation(x, act_type='softrelu'), Activation('softrelu')),
    (mx.sym.LeakyReLU(x), Activation('leaky', 0.25)),
    (mx.sym.LeakyReLU(x, act_type='elu', slope=0.5), Activation('elu', 0.5)),
    (mx.sym.LeakyReLU(x, act_type='gelu'), Activation('gelu')),
    (mx.sym.LeakyReLU(x, x, act_type='prelu'), Activation('prelu')),
    (mx.sym.clip(x, -1, 6), Clip(-1, 6)),
    (mx.sym.hard_sigmoid(x), HardSigmoid(0.2, 0.5)),
    (mx.sym.hard_sigmoid(x, alpha=0.25, beta=0.125), HardSigmoid(0.25, 0.125)),
    (mx.sym.np.around(x.as_np_ndarray()), Rounding(0)),
    (mx.sym.np.around(x.as_np_ndarray(), 2), Rounding(2)),
    (mx.sym.BatchNorm(x), BatchNormalization(1, 1e-3, True, False)),
    (mx.sym.BatchNorm(x, axis=-1, eps=2e-5, fix_gamma=False, output_mean_var=True), BatchNormalization(-1, 2e-5, False, True)),
    (mx.sym.LayerNorm(x), LayerNormalization(-1, 1e-5)),
    (mx.sym.LayerNorm(x, axis=1, eps=1e-3), LayerNormalization(1, 1e-3)),
    (mx.sym.GroupNorm(x), GroupNormalization(1, 1e-5)),
    (mx.sym.GroupNorm(x, num_groups=4, eps=1e-3), GroupNormalization(4, 1e-3)),
    (mx.sym.InstanceNorm(x), InstanceNormalization(1e-3)),
    (mx.sym.InstanceNorm(x, eps=1e-5), InstanceNormalization(1e-5)),
    (mx.sym.mean(x), Reduction('mean', (), False, False)),
    (mx.sym.mean(x, axis=1, keepdims=True), Reduction('mean', (1,), True, False)),
    (mx.sym.max(x, axis=(0, -3), exclude=True), Reduction('max', (0, -3), False, True)),
    (mx.sym.identity(x), Identity()),
    (mx.sym.BlockGrad(x), Identity()),
    (mx.sym.Dropout(x), Dropout(always=False)),
    (mx.sym.Dropout(x, mode='always'), Dropout(always=True)),
    (mx.sym.concat(x, x), Concatenation(1)),
    (mx.sym.concat(x, x, dim=-2), Concatenation(-2)),
    (mx.sym.slice_axis(x, axis=-3, begin=2, end=None), AxisSlice(-3, 2, None)),
    (mx.sym.slice_axis(x, axis=1, begin=-4, end=-1), AxisSlice(1, -4, -1)),
    (mx.sym.slice(x, begin=(0, None, 1), end=(None, None, 3)), Slice((0, None, 1), (None, None, 3), ())),
    (mx.sym.slice(x, begin=(0,), end=(4,), step=(2,)), Slice((0,), (4,), (2,))),
    (mx.sym.split(x, num_outputs=2), Split(1, False)),
    (mx.sym.split(x, num_outputs=2, axis=2, squeeze_axis=True), Split(2, True)),
    (mx.sym.reshape(x, (0, -1)), Reshape()),
    (mx.sym.flatten(x), Flatten()),
    (mx.sym.expand_dims(x, axis=-1), ExpandDims(-1)),
    (mx.sym.squeeze(x, axis=1), Squeeze()),
    (mx.sym.transpose(x), Transpose(())),
    (mx.sym.transpose(x, axes=(0, 2, 1)), Transpose((0, 2, 1))),
    (mx.sym.swapaxes(x, 1, 2), SwapAxes(1, 2)),
    (mx.sym.pad(x, mode='edge', pad_width=(0, 0, 0, 0, 1, 2, 3, 4)), Padding('edge', ((0, 0), (0, 0), (1, 2), (3, 4)), 0)),
    (
        mx.sym.pad(x, mode='constant', constant_value=1.5, pad_width=(0, 0, 0, 1, 0, 0, 0, 0)),
        Padding('constant', ((0, 0), (0, 1), (0, 0), (0, 0)), 1.5),
    ),
    (mx.sym.contrib.BilinearResize2D(x, height=2, width=3), BilinearResizing('size', True)),
    (mx.sym.contrib.BilinearResize2D(x, x, mode='like', align_corners=False), BilinearResizing('like', False)),
]


def last_node(symbol):
    """Return operator and attributes of the last node of a symbol."""
    node = SymbolJson.of(symbol).nodes[-1]
    return node['op'], node['attrs']


ATTRIBUTES = sorted({attribute for symbol, _ in CASES for attribute in last_node(symbol)[1]})
OPERATIONS = {last_node(symbol)[0]: (last_node(symbol)[1], expected) for symbol, expected in CASES}


@pytest.mark.parametrize('symbol, expected', CASES, ids=[f'{last_node(symbol)[0]}-{i}' for i, (symbol, _) in enumerate(CASES)])
def test_an_operator_is_read(symbol, expected):
    name, attributes = last_node(symbol)
    assert read_operation(name, attributes) == expected
    operation_class, kind = key_of(expected)
    assert {(operation_class, kind), (operation_class, None)} & {*READ_AS[name]}


OTHERS = [case for case in CASES if not getattr(case[1], 'modulated', False)]  # graphs of other frameworks have no such convolution


@pytest.mark.parametrize('symbol, expected', OTHERS, ids=[type(expected).__name__ for _, expected in OTHERS])
def test_an_operation_has_the_name_of_an_operator_that_computes_it(symbol, expected):
    _, attributes = last_node(symbol)
    assert read_operation(operator_name(expected), attributes) == expected


@pytest.mark.parametrize(
    'operation, name',
    [
        (AxisMaps((2, 3)), 'map_axes'),
        (PositionSelection((1, 0)), 'select_positions'),
        (Convolution(Window((3, 3), pads=((0, 1), (0, 1)))), 'Convolution'),
        (TransposedConvolution(Window((2, 2)), output_padding=[1, 1]), 'Deconvolution'),
        (GlobalPooling('avg'), 'Pooling'),
        (Elementwise('add'), 'elemwise_add'),
        (Elementwise('add', repeats=True), 'broadcast_add'),
        (ScalarArithmetic('maximum', 0.5), '_maximum_scalar'),
        (Activation('relu'), 'relu'),
        (Activation('softrelu'), 'Activation'),
        (Activation('gelu'), 'LeakyReLU'),
        (Reduction('max', (2, 3)), 'max'),
        (Identity(), 'identity'),
        (Reshape(), 'Reshape'),
    ],
)
def test_operations_of_other_frameworks_have_rules_and_the_first_name_of_an_operator(operation, name):
    assert operator_name(operation) == name and rule_of(operation)


def test_an_operator_without_a_class_is_unknown_without_a_reason():
    assert read_operation('softmax', {'axis': 'any'}) == Unknown('softmax', '')
    assert operator_name(Unknown('softmax')) == 'softmax'


@pytest.mark.parametrize('name', READ_AS)
def test_operators_are_read_also_by_other_names(name):
    attributes, expected = OPERATIONS[name if name in OPERATIONS else name_in_mxnet(name)]
    assert read_operation(name, attributes) == expected


def name_in_mxnet(alias):
    """Return the name under which MXNet writes an operator to a symbol."""
    described = SymbolJson()
    described.add(VARIABLE, 'x')
    attributes = {'num_args': '2'} if alias == 'ElementWiseSum' else {}
    described.heads = [[described.add(alias, 'y', [[0, 0, 0]] * 2, attributes), 0, 0]]
    return last_node(mx.sym.load_json(described.text()))[0]


@pytest.mark.parametrize(
    'name, attributes, words',
    [
        ('Convolution', {}, 'kernel'),
        ('Convolution', {'kernel': '(3, x)'}, "'x'"),
        ('Convolution', {'kernel': '(3, None)'}, 'kernel is (3, None)'),
        ('Convolution', {'kernel': '(3, 3)', 'stride': '(2,)'}, 'a kernel of 2 axes has strides for 1'),
        ('Pooling', {'kernel': '(3, 3)', 'pad': '(1, 1, 1)'}, 'a kernel of 2 axes has pads for 3'),
        ('Convolution', {'kernel': '(3, 3)', 'num_group': 'two'}, "'two'"),
        ('Pooling', {'global_pool': 'perhaps'}, "'perhaps' is not a truth value"),
        ('UpSampling', {'scale': '2'}, 'sample_type'),
        ('clip', {'a_min': '0', 'a_max': 'much'}, "'much'"),
        ('_plus_scalar', {'scalar': ''}, 'could not convert'),
        ('slice_axis', {'axis': '1'}, 'begin'),
        ('transpose', {'axes': '(0, None)'}, 'axes is (0, None)'),
        ('Pad', {'mode': 'constant', 'pad_width': '(0, 0, 1)'}, 'pad_width has 3 numbers'),
    ],
)
def test_what_cannot_be_read_is_unknown_with_the_reason(name, attributes, words):
    operation = read_operation(name, attributes)
    assert isinstance(operation, Unknown) and operation.name == name and words in operation.reason


@given(st.data())
def test_no_attributes_raise_an_error(data):
    name = data.draw(st.sampled_from(sorted(OPERATIONS)))
    odd = st.one_of(st.text(), st.sampled_from(['', 'None', '()', '(1, None)', '(0, 0)', 'nan', '-1', '1e999', 'True']))
    attributes = {**OPERATIONS[name][0], **data.draw(st.dictionaries(st.sampled_from(ATTRIBUTES), odd))}
    assert isinstance(read_operation(name, attributes), Operation)
