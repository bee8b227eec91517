"""Operators of MXNet as operations: the attributes are those that MXNet writes, with and without the ones that have defaults."""

import mxnet as mx
import pytest

from bmx_melius.files.symbol_json import SymbolJson
from bmx_melius.graph.mxnet_operators import read_operation
from bmx_melius.graph.operations import (
    Convolution,
    DeformableConvolution,
    Dense,
    GlobalPooling,
    Pooling,
    TransposedConvolution,
    Unknown,
    Upsampling,
    Window,
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
    (mx.sym.Convolution_v1(x, num_filter=2, kernel=(3, 3)), Convolution(Window((3, 3), ONE, NONE, ONE))),
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
]


def last_node(symbol):
    """Return operator and attributes of the last node of a symbol."""
    node = SymbolJson.of(symbol).nodes[-1]
    return node['op'], node['attrs']


@pytest.mark.parametrize('symbol, expected', CASES, ids=[f'{last_node(symbol)[0]}-{i}' for i, (symbol, _) in enumerate(CASES)])
def test_an_operator_is_read(symbol, expected):
    assert read_operation(*last_node(symbol)) == expected


@pytest.mark.parametrize(
    'name, attributes, words',
    [
        ('softmax', {}, 'no class describes this operator'),
        ('Convolution', {}, 'kernel'),
        ('Convolution', {'kernel': '(3, x)'}, "'x'"),
        ('Convolution', {'kernel': '(3, None)'}, 'kernel is (3, None)'),
        ('Convolution', {'kernel': '(3, 3)', 'stride': '(2,)'}, 'a kernel of 2 axes has strides for 1'),
        ('Pooling', {'kernel': '(3, 3)', 'pad': '(1, 1, 1)'}, 'a kernel of 2 axes has pads for 3'),
        ('Convolution', {'kernel': '(3, 3)', 'num_group': 'two'}, "'two'"),
        ('Pooling', {'global_pool': 'perhaps'}, "'perhaps' is not a truth value"),
        ('UpSampling', {'scale': '2'}, 'sample_type'),
    ],
)
def test_what_cannot_be_read_is_unknown_with_the_reason(name, attributes, words):
    operation = read_operation(name, attributes)
    assert isinstance(operation, Unknown) and operation.name == name and words in operation.reason
