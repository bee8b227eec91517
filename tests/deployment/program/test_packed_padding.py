"""Padding of each side in the packed format: results of NumPy, MXNet and the engine, and the padding of TensorFlow."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mxnet.gluon import nn
from support.engines import needs_engine
from support.packed import window
from support.packed_networks import engine_of

import bmx_melius as bmx
import model_zoo
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Operation, ProgramError, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime.engine import Runner
from model_zoo.padding import padded

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))
KERNELS = st.tuples(st.integers(1, 4), st.integers(1, 4))
STRIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))
PADS = st.tuples(*[st.integers(0, 3)] * 4)


def run_both(value, operations, x):
    """Return the result of NumPy, after comparing it with that of the engine."""
    chained = [Operation(one.name, (number,), one.attributes, one.arrays) for number, one in enumerate(operations)]
    program = Program.from_words(Program([value], chained, [len(chained)]).to_words())
    (y,) = reference.run(program, [x])
    (found,) = engine_of(program).run([x])
    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)
    return y


def pad_by_numpy(x, pad, value=0.0):
    top, left, bottom, right = pad
    return np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=value)


@given(size=SIZES, kernel=KERNELS, stride=STRIDES, pad=PADS, pad_value=st.sampled_from((-1, 0, 1)), channels=st.sampled_from((3, 32, 40)))
def test_binary_convolution_pads_each_side(size, kernel, stride, pad, pad_value, channels):
    assume(size[0] + pad[0] + pad[2] >= kernel[0] and size[1] + pad[1] + pad[3] >= kernel[1])
    random = np.random.RandomState(0)
    weight, x = random.rand(5, *kernel, channels) < 0.5, random.randn(2, channels, *size).astype(np.float32)
    attributes = {**window(kernel, stride, pad), 'out_channels': 5, 'groups': 1, 'pad_value': pad_value, 'offset': 0, 'planes': 1}
    sign = Operation('threshold', (), {}, {'threshold': np.zeros(channels, 'f'), 'flip': np.zeros(channels, bool)})
    value = Value(REAL_KIND, channels, *size, False)
    y = run_both(value, [sign, Operation('binary_conv', (), attributes, {'weight': weight})], x)
    signs = pad_by_numpy(np.where(x >= 0, 1.0, -1.0), pad, pad_value)
    weight = np.where(weight, 1, -1).transpose(0, 3, 1, 2)
    expected = mx.nd.Convolution(mx.nd.array(signs), mx.nd.array(weight), kernel=kernel, stride=stride, num_filter=5, no_bias=True)
    np.testing.assert_array_equal(y, expected.asnumpy())


@given(size=SIZES, kernel=KERNELS, stride=STRIDES, pad=PADS, groups=st.sampled_from((1, 2)), before=st.booleans())
def test_float_convolution_pads_each_side(size, kernel, stride, pad, groups, before):
    """`before`: an operation before the convolution keeps it from being the first layer, which another step computes."""
    assume(size[0] + pad[0] + pad[2] >= kernel[0] and size[1] + pad[1] + pad[3] >= kernel[1])
    random = np.random.RandomState(0)
    weight, x = random.randn(6, 4 // groups, *kernel).astype('f'), random.randn(2, 4, *size).astype('f')
    attributes = {**window(kernel, stride, pad), 'out_channels': 6, 'groups': groups, 'has_bias': 0, 'half': 0}
    operations = [Operation('abs', ())] * before + [Operation('conv', (), attributes, {'weight': weight})]
    y = run_both(Value(REAL_KIND, 4, *size, False), operations, x)
    given_to_mxnet = mx.nd.array(pad_by_numpy(np.abs(x) if before else x, pad))
    expected = mx.nd.Convolution(
        given_to_mxnet, mx.nd.array(weight), kernel=kernel, stride=stride, num_filter=6, num_group=groups, no_bias=True
    )
    np.testing.assert_allclose(y, expected.asnumpy(), rtol=1e-4, atol=1e-4)


@given(
    size=SIZES, kernel=KERNELS, stride=STRIDES, pad=PADS, kind=st.sampled_from(('max', 'avg')), count_pad=st.booleans(), conv=st.booleans()
)
def test_pooling_pads_each_side(size, kernel, stride, pad, kind, count_pad, conv):
    """`conv`: the pooling follows a first layer, whose step computes both."""
    assume(size[0] + pad[0] + pad[2] >= kernel[0] and size[1] + pad[1] + pad[3] >= kernel[1])
    x = np.random.RandomState(0).randn(2, 3, *size).astype('f')
    attributes = {key: number for key, number in window(kernel, stride, pad).items() if not key.startswith('dilation')}
    attributes.update(ceil=0, **({'count_pad': int(count_pad)} if kind == 'avg' else {}))
    identity = {**window((1, 1), (1, 1), (0, 0, 0, 0)), 'out_channels': 3, 'groups': 1, 'has_bias': 0, 'half': 0}
    first = [Operation('conv', (), identity, {'weight': np.eye(3, dtype='f')[:, :, None, None]})] * conv
    try:
        y = run_both(Value(REAL_KIND, 3, *size, False), [*first, Operation(f'{kind}_pool', (), attributes)], x)
    except ProgramError as error:
        assert 'without an element' in str(error)
        assume(False)
    arguments = {'kernel': kernel, 'stride': stride}
    if kind == 'max':
        expected = mx.nd.Pooling(mx.nd.array(pad_by_numpy(x, pad, -1e30)), pool_type='max', **arguments)
    else:
        sums, counted = (mx.nd.Pooling(mx.nd.array(pad_by_numpy(one, pad)), pool_type='avg', **arguments) for one in (x, np.ones_like(x)))
        expected = sums if count_pad else sums / counted
    np.testing.assert_allclose(y, expected.asnumpy(), rtol=1e-5, atol=1e-5)


def operations_of(session):
    return [operation.name for operation in session._runner.program.operations]


@pytest.mark.parametrize('kind', ['float', 'binary', 'scaled', 'low-bit'])
def test_the_padding_of_tensorflow_needs_no_more_operations_than_other_padding(kind, tmp_path):
    layers = {
        'float': lambda padding: nn.Conv2D(8, 3, 2, padding, in_channels=4),
        'binary': lambda padding: bmx.BinaryConv2D(8, 3, strides=2, padding=padding, in_channels=4, pad_value=0, no_offset=True),
        'scaled': lambda padding: bmx.BinaryConv2D(8, 3, strides=2, padding=padding, in_channels=4, apply_scaling=True),
        'low-bit': lambda padding: bmx.BinaryConv2D(
            8, 3, strides=2, padding=padding, in_channels=4, pad_value=0, activation_bits=2, activation_method='hwgq'
        ),
    }
    found = {}
    for same in (False, True):
        net = nn.HybridSequential()
        net.add(nn.BatchNorm(in_channels=4), padded(layers[kind], 3, 2, same_padding=same), nn.Activation('relu'))
        net.initialize(mx.init.Normal(1))
        packed = bmx.deploy(net, (1, 4, 10, 10))
        for size in ((10, 10), (12, 6)):
            x = mx.nd.random.normal(shape=(2, 4, *size))
            np.testing.assert_allclose(packed(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)
        net.hybridize()
        net(x)
        net.export(str(tmp_path / 'net'))
        bmx.convert(*(str(tmp_path / name) for name in ('net-symbol.json', 'net-0000.params', 'packed')), (1, 4, 10, 10))
        found[same] = operations_of(bmx.Session(str(tmp_path / 'packed')))
    assert found[True] == found[False]


class Trimmed(mx.gluon.HybridBlock):
    """A convolution whose result several operations read, without the first row and column."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(4, 3, 2, 2, in_channels=3)

    def hybrid_forward(self, F, x):
        y = self.conv(x)
        y = F.relu(y) + F.abs(y)
        for _ in range(6):
            y = y + y
        return F.slice(y, begin=(0, 0, 1, 1), end=(None, None, None, None))


def test_operations_before_removed_rows_are_added_once():
    net = Trimmed()
    net.initialize(mx.init.Normal(1))
    packed = bmx.deploy(net, (1, 3, 8, 6))
    x = mx.nd.random.normal(shape=(2, 3, 9, 7))
    np.testing.assert_allclose(packed(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-3)
    words = next(parameter.data().asnumpy() for name, parameter in packed.collect_params().items() if name.endswith('_program'))
    names = [operation.name for operation in Program.from_words(words).operations]
    assert (names.count('conv'), names.count('add')) == (1, 7)


@needs_engine
def test_the_check_of_sizes_is_not_computed_in_a_run():
    net = model_zoo.get_model('quicknet_small', classes=3, same_padding=True)
    net.initialize()
    lowered = bmx.deploy(net, (1, 3, 64, 64))
    words = next(parameter.data().asnumpy() for name, parameter in lowered.collect_params().items() if name.endswith('_program'))
    program = Program.from_words(words)
    assert [operation.name for operation in program.operations].count('global_avg_pool') == 2  # one of them is part of the check
    steps = [name for name, *_ in Runner(program, words).profile([np.zeros((1, 3, 64, 64), np.float32)])]
    assert sum('global_avg_pool' in name for name in steps) == 1 and not any('slice' in name or 'concat' in name for name in steps)
    with pytest.raises(ProgramError, match='concat of'):
        Runner(program, words).run([np.zeros((1, 3, 64, 72), np.float32)])
