"""Conversion of the operators of other binary methods: their layers become one packed operator with MXNet's results."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.method_layers import BLOCKS, Constants, Gate, LearnedScales, MapScale, Residual, Shift, binary_conv, sequence
from support.small_networks import randomize_statistics

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.runtime.packed_files import read_packed
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.lq_net import LQActivation, LQConv2D
from bmx_melius.nn.methods.syq import SYQConv2D

CHANNELS, SIZE = 32, 8
SHAPE = (2, CHANNELS, SIZE, SIZE)
BASIS = [0.9, 0.4]  # of activations of LQ-Net: the levels 0, 0.4, 0.9 and 1.3


@pytest.fixture
def pack(tmp_path):
    """Convert a block with random parameters; return the block, the prefix of the packed files, and the report."""

    def call(net, shape=SHAPE, **values):
        """`values`: what is assigned to the parameters whose names end with these keys."""
        net.initialize(mx.init.Normal(0.5))
        net.hybridize()
        net(nd.zeros(shape))
        randomize_statistics(net)
        for name, parameter in net.collect_params().items():
            for suffix in values:
                if name.endswith(suffix):
                    parameter.set_data(nd.array(values[suffix]))
        net.export(str(tmp_path / 'net'))
        files = tmp_path / 'net-symbol.json', tmp_path / 'net-0000.params'
        return net, tmp_path / 'packed', bmx.convert(*files, tmp_path / 'packed', shape)

    return call


def check(packed, shape=SHAPE, x=None):
    """Compare the packed network, which must be one operator, with MXNet's; return its program."""
    net, prefix, report = packed
    assert report.packed_operators == 1 and not report.left
    x = nd.random.normal(shape=(3, *shape[1:])) if x is None else x
    expected, program = net(x).asnumpy(), read_packed(prefix)[0]
    tolerance = dict(rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(bmx.Session(prefix)(x.asnumpy()), expected, **tolerance)
    as_map = (lambda array: array[:, :, None]) if len(shape) == 3 else (lambda array: array)
    np.testing.assert_allclose(reference.run(program, [as_map(x.asnumpy())])[0], as_map(expected), **tolerance)
    np.testing.assert_allclose(
        mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')(x).asnumpy(), expected, **tolerance
    )
    return program


def names(program):
    return [operation.name for operation in program.operations]


@pytest.mark.parametrize('method', BLOCKS)
def test_a_layer_of_another_method_becomes_one_operator_with_mxnets_results(method, pack):
    packed = pack(BLOCKS[method](CHANNELS, SIZE))
    assert packed[2].verification.binary_layers == packed[2].binary_layers == 1
    check(packed)


@pytest.mark.parametrize('form', ['map', 'reshape', 'expand'])
@pytest.mark.parametrize('shape', [SHAPE, (2, CHANNELS, 1, 1)])
def test_gates_scale_the_channels(form, shape, pack):
    check(pack(sequence(binary_conv(CHANNELS), Gate(CHANNELS, form)), shape), shape)


FUNCTIONS = {
    'prelu': nn.PReLU,
    'prelu of each channel': lambda: nn.PReLU(in_channels=CHANNELS),
    'leaky': lambda: nn.LeakyReLU(0.3),
    'sigmoid': lambda: nn.Activation('sigmoid'),
    'swish': nn.Swish,
    'hard sigmoid': lambda: nn.HybridLambda(lambda F, x: F.hard_sigmoid(x, alpha=0.3, beta=0.25)),
    'hard swish': lambda: nn.HybridLambda(lambda F, x: x * F.clip(x + 3, 0, 6) / 6),
    'relu6': lambda: nn.HybridLambda(lambda F, x: F.minimum(F.relu(x), 6)),
    'hard tanh': lambda: nn.HybridLambda(lambda F, x: F.clip(x, -1, 1)),
    'maximum': lambda: nn.HybridLambda(lambda F, x: F.maximum(x, -0.5)),
    'abs and square': lambda: nn.HybridLambda(lambda F, x: F.abs(-x) + F.square(x)),
    'differences': lambda: nn.HybridLambda(lambda F, x: (x - F.relu(x)) * (F.sigmoid(x) - x)),
    'means': lambda: nn.HybridLambda(
        lambda F, x: F.broadcast_mul(
            F.broadcast_mul(F.mean(x, axis=1, keepdims=True), x), F.mean(x, axis=(0, 1), exclude=True, keepdims=True)
        )
    ),
    'spatial mean': lambda: nn.HybridLambda(lambda F, x: F.mean(x, axis=(2, 3))),
}


@pytest.mark.parametrize('name', FUNCTIONS)
def test_functions_after_a_binary_convolution_are_packed(name, pack):
    net = sequence(nn.BatchNorm(), binary_conv(CHANNELS, no_offset=True), nn.BatchNorm(), FUNCTIONS[name]())
    check(pack(net))


@pytest.mark.parametrize('name', ['prelu', 'sigmoid', 'swish', 'hard sigmoid', 'maximum', 'abs and square'])
def test_functions_of_vectors_are_packed(name, pack):
    check(pack(sequence(nn.Dense(8), FUNCTIONS[name](), bmx.QActivation(), bmx.QDense(5)), (2, 6)), (2, 6))


# --- constants for positions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('together', [True, False])
def test_factors_of_channels_rows_and_columns_are_not_multiplied_out(together, pack):
    net = sequence(nn.BatchNorm(), binary_conv(CHANNELS, no_offset=True), LearnedScales(CHANNELS, SIZE, SIZE, together))
    program = check(pack(net))
    assert names(program) == ['threshold', 'binary_conv', 'affine', 'scale_map']
    assert program.operations[-1].arrays['factor'].shape == (1, SIZE, SIZE)


@pytest.mark.parametrize('adds', [False, True])
@pytest.mark.parametrize('shape', [(1, CHANNELS, SIZE, SIZE), (1, 1, SIZE, SIZE), (1, 1, SIZE, 1), (1, 1, 1, SIZE), (1, CHANNELS, 1, SIZE)])
def test_constants_for_positions_are_packed(shape, adds, pack):
    program = check(pack(sequence(nn.BatchNorm(), binary_conv(CHANNELS), MapScale(shape, adds))))
    constants = program.operations[-1].arrays['summand' if adds else 'factor']
    assert constants.shape == shape[1:]


def test_constants_for_positions_bind_the_size_of_the_input(pack, monkeypatch):
    _, prefix, _ = pack(sequence(binary_conv(CHANNELS), MapScale((1, 1, SIZE, 1))))
    session = bmx.Session(prefix)
    session(np.zeros((1, CHANNELS, SIZE, 5), np.float32))  # columns share their constants
    words = r'operation \d \(scale_map\): scale_map has constants for a map of 8 x 1, not of 9 x 8: give inputs of the size at conversion'
    x = np.zeros((1, CHANNELS, 9, 8), np.float32)
    with pytest.raises(UserError, match=words):
        session(x)
    with pytest.raises(UserError, match=words):
        reference.run(read_packed(prefix)[0], [x])


# --- thresholds -----------------------------------------------------------------------------------------------------------------------


class Scalar(Constants):
    """The same learned number added to everything, on the other side of a difference."""

    def __init__(self):
        super().__init__(number=(1,))

    def hybrid_forward(self, F, x, number):
        return F.broadcast_sub(F.reshape(number, shape=(1, 1, 1, 1)), x)


@pytest.mark.parametrize(
    'before',
    [
        [lambda: Shift(CHANNELS)],
        [nn.BatchNorm, lambda: Shift(CHANNELS)],
        [nn.BatchNorm, lambda: Shift(CHANNELS), lambda: Shift(CHANNELS)],
        [nn.BatchNorm, Scalar],
    ],
)
def test_inputs_next_to_a_shifted_threshold_get_mxnets_sign(before, pack):
    shape = (1, CHANNELS, 16, 16)
    net, prefix, _ = pack(sequence(*(make() for make in before), binary_conv(CHANNELS)), shape)
    program = read_packed(prefix)[0]
    assert names(program) == ['threshold', 'binary_conv']
    threshold = program.operations[0].arrays['threshold'][None, :, None, None]
    steps = np.arange(-128, 128, dtype=np.float32).reshape(1, 1, 16, 16)
    x = (threshold + steps * np.spacing(np.abs(threshold))).astype(np.float32)
    bits = np.zeros(x.shape, bool)

    signs = sequence(*net._children.values())[: len(before)](nd.array(x)).asnumpy() >= 0
    bits = reference.apply(program.operations[0], [x])
    np.testing.assert_array_equal(bits, signs)
    assert 0 < bits.mean() < 1
    np.testing.assert_array_equal(bmx.Session(prefix)(x), net(nd.array(x)).asnumpy())


def test_a_shifted_value_that_is_read_elsewhere_too_is_compared_itself(pack):
    shifts = nn.PReLU(in_channels=CHANNELS), Shift(CHANNELS), Residual(sequence(Shift(CHANNELS), binary_conv(CHANNELS)))
    program = check(pack(sequence(*shifts)))
    assert names(program) == ['prelu', 'affine', 'threshold', 'binary_conv', 'add']
    assert program.operations[2].inputs == program.operations[4].inputs[1:]


# --- several bases --------------------------------------------------------------------------------------------------------------------


class Bases(Constants):
    """ABC-Net: sums of scaled binary convolutions of several thresholds of the same input (arXiv:1711.11294)."""

    def __init__(self, channels, bases, stacked):
        super().__init__(
            **{f'shift{i}': (1, channels, 1, 1) for i in range(bases)}, **{f'scale{i}': (1, channels, 1, 1) for i in range(bases)}
        )
        self.stacked = stacked
        self.convs = nn.HybridSequential()
        self.convs.add(*(binary_conv(channels, no_offset=True) for _ in range(bases)))

    def hybrid_forward(self, F, x, **parameters):
        results = []
        for i, conv in enumerate(self.convs):
            y = conv(F.broadcast_add(x, parameters[f'shift{i}']))
            results.append(F.broadcast_mul(y, parameters[f'scale{i}']))
        if not self.stacked:
            return F.add_n(*results)
        joined = F.concat(*results, dim=1)
        parts = F.split(joined, num_outputs=len(results), axis=1)
        return parts[0] + F.slice_axis(joined, axis=1, begin=CHANNELS, end=2 * CHANNELS)


@pytest.mark.parametrize('stacked', [False, True])
def test_sums_of_several_binary_bases_are_packed(stacked, pack):
    packed = pack(sequence(nn.BatchNorm(), Residual(Bases(CHANNELS, 2, stacked))))
    assert packed[2].binary_layers == 2
    check(packed)


# --- two bits -------------------------------------------------------------------------------------------------------------------------


def lq_activation():
    """Return an activation whose parameter is called lqactivation0_basis."""
    return LQActivation(2, 'round', prefix='lqactivation0_')


def low_bit_net(activation_bits, layer, norm=True):
    """A normalization, an activation rounded to few levels, and a layer."""
    activation = bmx.QActivation(activation_bits, 'round') if activation_bits else bmx.QActivation()
    return sequence(*[nn.BatchNorm()] * norm, activation, layer)


@pytest.mark.parametrize(
    'activation_bits, layer, shape',
    [
        (2, lambda: bmx.QConv2D(16, 3, padding=1, bits=2, quantization='dorefa', pad_value=0), SHAPE),
        (2, lambda: bmx.QConv2D(16, 3, padding=1, bits=2, quantization='dorefa'), SHAPE),
        (2, lambda: bmx.QConv2D(16, 5, strides=2, padding=3, bits=2, quantization='dorefa', pad_value=1, use_bias=True), (1, 5, 9, 6)),
        (2, lambda: bmx.QConv2D(8, 3, padding=1), (1, 7, 9, 6)),
        (2, lambda: bmx.QConv2D(8, 3, pad_value=0, no_offset=True), SHAPE),
        (1, lambda: bmx.QConv2D(8, 3, groups=2, bits=2, quantization='dorefa'), SHAPE),
        (0, lambda: bmx.QConv2D(8, 3, padding=1, groups=4, bits=2, quantization='dorefa'), SHAPE),
        (0, lambda: bmx.QConv2D(8, 3, padding=1, bits=1, quantization='dorefa', pad_value=0), SHAPE),
        (2, lambda: bmx.QDense(9, bits=2, quantization='dorefa'), (3, 70)),
        (2, lambda: bmx.QDense(9, bits=2, quantization='dorefa', no_offset=True), (3, 10, 2, 3)),
        (2, lambda: bmx.QConv1D(16, 3, padding=1, bits=2, quantization='dorefa', pad_value=0), (1, 40, 9)),
        (2, lambda: bmx.QConv2D(8, 3, padding=1, quantization='scaled_sign'), (1, 7, 9, 6)),
        (2, lambda: bmx.QDense(9, quantization='scaled_sign'), (3, 70)),
        (0, lambda: bmx.QConv2D(8, 3, padding=1, groups=4, quantization='scaled_sign', pad_value=1, no_offset=True), SHAPE),
        (0, lambda: bmx.QDense(9, quantization='scaled_sign'), (3, 70)),
    ],
)
def test_layers_of_two_bits_become_sums_of_binary_convolutions(activation_bits, layer, shape, pack):
    program = check(pack(low_bit_net(activation_bits, layer()), shape), shape)
    assert 'conv' not in names(program) and 'binary_conv' in names(program)


@pytest.mark.parametrize(
    'layer, convolutions',
    [
        (lambda: HWGQConv2D(16, 3, 1, 1), 1),
        (lambda: HWGQConv2D(16, (3, 1), 2, 1, pad_value=-1, no_offset=False), 2),
        (lambda: LQConv2D(16, 3, 2, 1), 2),
        (lambda: LQConv2D(16, 3, 1, 1, pad_value=0.5), 3),
        (lambda: SYQConv2D(16, 1), 1),
        (lambda: SYQConv2D(16, 3, 1, 1), 9),
        (lambda: SYQConv2D(16, 3, 2, (2, 3), (1, 2)), 9),
        (lambda: SYQConv2D(16, (2, 3), 1, 1, pad_value=-1, no_offset=False), 2 * 6),
        (lambda: SYQConv2D(16, (1, 5), 1, (0, 2)), 5),
        (lambda: SYQConv2D(16, 3, 1, 1, activation_method='sign', activation_bits=1, groups=2), 9),
        (lambda: bmx.BinaryConv2D(16, 3, padding=1, quantization='scaled_sign'), 1),
    ],
)
def test_layers_of_low_bit_methods_become_sums_of_binary_convolutions(layer, convolutions, pack):
    layer = layer()
    scales = {}
    if isinstance(layer, SYQConv2D):
        kernel = layer.qconv._kwargs['kernel']
        scales['scale'] = np.random.uniform(-2, 2, (1, 1, *kernel))
    packed = pack(sequence(nn.BatchNorm(), layer), lqactivation0_basis=BASIS, **scales)
    program = check(packed)
    assert names(program).count('binary_conv') == convolutions and 'conv' not in names(program)
    assert packed[2].verification.largest_deviation < 1e-6


def test_equal_scales_of_mirrored_positions_need_fewer_convolutions(pack):
    scale = np.array([[1, 2, 1], [3, 4, 3], [1, 2, 1]]).reshape(1, 1, 3, 3)
    program = check(pack(sequence(nn.BatchNorm(), SYQConv2D(16, 3, 1, 1)), scale=scale))
    assert names(program).count('binary_conv') == 4


@pytest.mark.parametrize('activation', [lambda: bmx.QActivation(2, 'round'), lq_activation])
def test_a_value_of_two_bits_may_be_read_by_other_operators(activation, pack):
    conv = bmx.QConv2D(CHANNELS, 3, padding=1, bits=2, quantization='dorefa', pad_value=0)
    check(pack(sequence(nn.BatchNorm(), activation(), Residual(conv)), lqactivation0_basis=BASIS))


@pytest.mark.parametrize('before', [[], [nn.BatchNorm], [nn.BatchNorm, lambda: Shift(CHANNELS)]])
@pytest.mark.parametrize(
    'activation, planes',
    [(lambda: bmx.QActivation(2, 'round'), [3]), (lambda: bmx.QActivation(2, 'hwgq'), [3]), (lq_activation, [2, 1])],
)
def test_inputs_next_to_a_level_are_rounded_as_in_mxnet(activation, planes, before, pack):
    shape = (1, CHANNELS, 16, 16)
    layers = *(make() for make in before), activation()
    net, prefix, report = pack(
        sequence(*layers, bmx.QConv2D(8, 3, padding=1, pad_value=0, no_offset=True)), shape, lqactivation0_basis=BASIS
    )
    assert report.verification.bits == 3 * np.prod(shape)
    thresholds = [operation for operation in read_packed(prefix)[0].operations if operation.name == 'threshold']
    assert [len(threshold.arrays['threshold']) // CHANNELS for threshold in thresholds] == planes
    quantized = sequence(*net._children.values())[: len(layers)]
    levels = np.unique(quantized(nd.random.normal(shape=shape) * 3).asnumpy())
    assert len(levels) == 4
    for numbers in np.concatenate([threshold.arrays['threshold'] for threshold in thresholds]).reshape(3, 1, CHANNELS, 1, 1):
        steps = np.arange(-128, 128, dtype=np.float32).reshape(1, 1, 16, 16)
        x = (numbers + steps * np.maximum(np.spacing(np.abs(numbers)), np.finfo(np.float32).tiny)).astype(np.float32)
        found = np.concatenate(
            [
                reference.apply(threshold, [np.concatenate([x] * count, axis=1)]).reshape(count, *shape)
                for threshold, count in zip(thresholds, planes)
            ]
        )
        expected = np.searchsorted(levels, quantized(nd.array(x)).asnumpy())
        np.testing.assert_array_equal(found.sum(axis=0), expected)
        assert len(np.unique(expected)) > 1


@pytest.mark.parametrize(
    'layer, words',
    [
        (lambda: bmx.QConv2D(8, 3, bits=3, quantization='dorefa'), 'its weights have 3 bits by dorefa'),
        (lambda: bmx.QConv2D(8, 3, bits=2, quantization='round'), 'its weights have 2 bits by round'),
        (lambda: bmx.QConv2D(8, 3, groups=2, bits=2, quantization='dorefa'), 'it reads numbers of several bits in groups'),
        (lambda: bmx.QConv2D(8, 3, bits=2, quantization='ternary'), 'its weights have 2 bits by ternary'),
    ],
)
def test_layers_of_few_bits_that_have_no_planes_stay_with_the_reason(layer, words, pack):
    _, _, report = pack(sequence(nn.BatchNorm(), binary_conv(CHANNELS), nn.BatchNorm(), bmx.QActivation(2, 'round'), layer()))
    assert words in str(report)


@pytest.mark.parametrize(
    'layer, values, words',
    [
        (lambda: SYQConv2D(8, 3), {'scale': np.arange(9).reshape(1, 1, 3, 3)}, 'with a padding of half the kernel it can be packed'),
        (lambda: LQConv2D(8, 3, 1, 1), {'lqactivation0_basis': [-0.5, 1]}, 'if the levels rise from 0'),
        (lambda: LQConv2D(8, 3, 1, 1), {'lqactivation0_basis': [1e16, 1e17]}, 'if the levels rise from 0'),
    ],
)
def test_parameters_that_have_no_planes_leave_the_layer_with_the_reason(layer, values, words, pack):
    _, _, report = pack(sequence(nn.BatchNorm(), binary_conv(CHANNELS), nn.BatchNorm(), layer()), **values)
    assert words in str(report)


# --- 1-D maps -------------------------------------------------------------------------------------------------------------------------


def line_network(classes=5):
    """A network of 1-D convolutions with the layers of several methods."""

    class Pooled(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            y = F.Pooling(x, kernel=(3,), stride=(2,), pad=(1,), pool_type='max')
            return F.broadcast_mul(y, F.sigmoid(F.mean(y, axis=1, keepdims=True)))

    block = sequence(nn.BatchNorm(), bmx.QActivation(), bmx.QConv1D(CHANNELS, 3, padding=1), nn.BatchNorm(), nn.PReLU(in_channels=CHANNELS))
    net = sequence(nn.Conv1D(CHANNELS, 5, padding=2), Residual(block), Pooled(), nn.AvgPool1D(2))
    if classes:
        net.add(nn.GlobalAvgPool1D(), nn.Dense(classes))
    return net


@pytest.mark.parametrize('classes', [0, 5])
def test_networks_of_one_dimensional_convolutions_are_packed_as_maps_of_height_1(classes, pack):
    shape = (2, 7, 40)
    net, prefix, report = pack(line_network(classes), shape)
    assert report.packed_operators == report.binary_layers == 1 and not report.left
    x = nd.random.normal(shape=(3, 7, 52))
    expected, session = net(x).asnumpy(), bmx.Session(prefix)
    assert session.input_shapes == [(None, 7, 40)]
    imported = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')
    for found in (session(x.asnumpy()), imported(x).asnumpy()):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    with pytest.raises(UserError, match=r'input 0 must have the shape \(batch, 7, width\), not \(3, 7, 1, 52\)'):
        session(x.asnumpy()[:, :, None])


def test_signs_of_normalized_lines_are_those_of_mxnet_next_to_the_threshold(pack):
    shape = (1, CHANNELS, 256)
    net, prefix, _ = pack(sequence(nn.BatchNorm(), bmx.QActivation(), bmx.QConv1D(8, 3)), shape)
    program = read_packed(prefix)[0]
    threshold = program.operations[0].arrays['threshold'][None, :, None]
    x = (threshold + np.arange(-128, 128, dtype=np.float32) * np.spacing(np.abs(threshold))).astype(np.float32)
    np.testing.assert_array_equal(bmx.Session(prefix)(x), net(nd.array(x)).asnumpy())
