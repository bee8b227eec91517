"""Conversion of the operators of other binary methods: their layers become one packed operator with MXNet's results."""

import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent
from support.conversions import names_of, next_to, programs
from support.method_layers import BLOCKS, Constants, Gate, LearnedScales, MapScale, Residual, Shift, binary_conv
from support.small_networks import sequence

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.program import reference
from bmx_melius.nn.methods.bwn import BWNConv2D
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.low_bit import LowBitConv2D
from bmx_melius.nn.methods.lq_net import LQActivation, LQConv2D
from bmx_melius.nn.methods.syq import SYQConv2D
from bmx_melius.nn.methods.ttq import TTQConv2D, TTQWeights

pytest_plugins = ['support.conversions']  # its fixtures

CHANNELS, SIZE = 32, 8
SHAPE = (2, CHANNELS, SIZE, SIZE)
BASIS = [0.9, 0.4]  # of activations of LQ-Net: the levels 0, 0.4, 0.9 and 1.3


@pytest.mark.parametrize('method', BLOCKS)
def test_a_layer_of_another_method_becomes_one_operator_with_mxnets_results(method, pack_whole):
    _, report = pack_whole(BLOCKS[method](CHANNELS, SIZE), SHAPE)
    assert report.verification.binary_layers == report.binary_layers == 1


@pytest.mark.parametrize('form', ['map', 'reshape', 'expand'])
@pytest.mark.parametrize('shape', [SHAPE, (2, CHANNELS, 1, 1)])
def test_gates_scale_the_channels(form, shape, pack_whole):
    pack_whole(sequence(binary_conv(CHANNELS), Gate(CHANNELS, form)), shape)


# --- constants for positions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('together', [True, False])
def test_factors_of_channels_rows_and_columns_are_not_multiplied_out(together, pack_whole):
    net = sequence(nn.BatchNorm(), binary_conv(CHANNELS, no_offset=True), LearnedScales(CHANNELS, SIZE, SIZE, together))
    program, _ = pack_whole(net, SHAPE)
    assert names_of(program) == ['threshold', 'binary_conv', 'affine', 'scale_map']
    assert program.operations[-1].arrays['factor'].shape == (1, SIZE, SIZE)


@pytest.mark.parametrize('adds', [False, True])
@pytest.mark.parametrize('shape', [(1, CHANNELS, SIZE, SIZE), (1, 1, SIZE, SIZE), (1, 1, SIZE, 1), (1, 1, 1, SIZE), (1, CHANNELS, 1, SIZE)])
def test_constants_for_positions_are_packed(shape, adds, pack_whole):
    program, _ = pack_whole(sequence(nn.BatchNorm(), binary_conv(CHANNELS), MapScale(shape, adds)), SHAPE)
    constants = program.operations[-1].arrays['summand' if adds else 'factor']
    assert constants.shape == shape[1:]


def test_constants_for_positions_bind_the_size_of_the_input(pack):
    _, prefix = pack(sequence(binary_conv(CHANNELS), MapScale((1, 1, SIZE, 1))), SHAPE)
    session = bmx.Session(prefix)
    session(np.zeros((1, CHANNELS, SIZE, 5), np.float32))  # columns share their constants
    words = r'operation \d \(scale_map\): scale_map has constants for a map of 8 x 1, not of 9 x 8: give inputs of the size at conversion'
    x = np.zeros((1, CHANNELS, 9, 8), np.float32)
    with pytest.raises(UserError, match=words):
        session(x)
    with pytest.raises(UserError, match=words):
        reference.run(programs(prefix)[0], [x])


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
    net = sequence(*(make() for make in before), binary_conv(CHANNELS))
    _, prefix = pack(net, (1, CHANNELS, 16, 16))
    (program,) = programs(prefix)
    assert names_of(program) == ['threshold', 'binary_conv']
    x = next_to(program.operations[0].arrays['threshold'], (16, 16))
    signs = net[: len(before)](nd.array(x)).asnumpy() >= 0
    bits = reference.apply(program.operations[0], [x])
    np.testing.assert_array_equal(bits, signs)
    assert 0 < bits.mean() < 1
    np.testing.assert_array_equal(bmx.Session(prefix)(x), net(nd.array(x)).asnumpy())


def test_a_shifted_value_that_is_read_elsewhere_too_is_compared_itself(pack_whole):
    shifts = nn.PReLU(in_channels=CHANNELS), Shift(CHANNELS), Residual(sequence(Shift(CHANNELS), binary_conv(CHANNELS)))
    program, _ = pack_whole(sequence(*shifts), SHAPE)
    assert names_of(program) == ['prelu', 'affine', 'threshold', 'binary_conv', 'add']
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
def test_sums_of_several_binary_bases_are_packed(stacked, pack_whole):
    _, report = pack_whole(sequence(nn.BatchNorm(), Residual(Bases(CHANNELS, 2, stacked))), SHAPE)
    assert report.binary_layers == 2


# --- two bits -------------------------------------------------------------------------------------------------------------------------


def lq_activation():
    """Return an activation whose parameter is called lqactivation0_basis."""
    return LQActivation(2, 'round', prefix='lqactivation0_')


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
def test_layers_of_two_bits_become_sums_of_binary_convolutions(activation_bits, layer, shape, pack_whole):
    activation = bmx.QActivation(activation_bits, 'round') if activation_bits else bmx.QActivation()
    program, _ = pack_whole(sequence(nn.BatchNorm(), activation, layer()), shape)
    assert 'conv' not in names_of(program) and 'binary_conv' in names_of(program)


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
        (lambda: DoReFaConv2D(16, 3, 1, 1, bits=1), 1),
        (lambda: DoReFaConv2D(16, 3, 2, 1, bits=1, activation_bits=2), 1),
        (lambda: DoReFaConv2D(16, 3, 1, 1, bits=1, activation_bits=3), 1),
        (lambda: LowBitConv2D(16, 3, 1, 1, activation_bits=3, pad_value=-1, no_offset=False), 2),
        (lambda: LowBitConv2D(16, 3, 1, 1, activation_bits=4, pad_value=-1, no_offset=False), 2),  # -1 is no level: no sum of integers
    ],
)
def test_layers_of_low_bit_methods_become_sums_of_binary_convolutions(layer, convolutions, pack_whole):
    layer = layer()
    scales = {}
    if isinstance(layer, SYQConv2D):
        kernel = layer.qconv._kwargs['kernel']
        scales['scale'] = np.random.uniform(-2, 2, (1, 1, *kernel))
    program, report = pack_whole(sequence(nn.BatchNorm(), layer), SHAPE, lqactivation0_basis=BASIS, **scales)
    assert names_of(program).count('binary_conv') == convolutions and 'conv' not in names_of(program)
    assert report.verification.largest_deviation < 2e-6  # of MXNet, whose sums of 12 convolutions round by 1.1e-6 with AVX2


@pytest.mark.parametrize('activation, convolutions', [(lambda: bmx.QActivation(), 3), (lambda: bmx.QActivation(2, 'round'), 3)])
def test_ternary_weights_with_trained_scales_become_planes_and_a_mean(activation, convolutions, pack_whole):
    layer = TTQWeights(16, 3, padding=1, bits=2, quantization='ternary', pad_value=0, no_offset=True)
    program, report = pack_whole(sequence(nn.BatchNorm(), activation(), layer), SHAPE, positive=[[[[1.5]]]], negative=[[[[0.25]]]])
    assert names_of(program).count('binary_conv') == convolutions and names_of(program).count('level_conv') == 1  # of the sums
    assert report.verification.largest_deviation < 1e-6


def test_equal_scales_of_mirrored_positions_need_fewer_convolutions(pack_whole):
    scale = np.array([[1, 2, 1], [3, 4, 3], [1, 2, 1]]).reshape(1, 1, 3, 3)
    program, _ = pack_whole(sequence(nn.BatchNorm(), SYQConv2D(16, 3, 1, 1)), SHAPE, scale=scale)
    assert names_of(program).count('binary_conv') == 4


@pytest.mark.parametrize('activation', [lambda: bmx.QActivation(2, 'round'), lq_activation])
def test_a_value_of_two_bits_may_be_read_by_other_operators(activation, pack_whole):
    conv = bmx.QConv2D(CHANNELS, 3, padding=1, bits=2, quantization='dorefa', pad_value=0)
    pack_whole(sequence(nn.BatchNorm(), activation(), Residual(conv)), SHAPE, lqactivation0_basis=BASIS)


@pytest.mark.parametrize('before', [[], [nn.BatchNorm], [nn.BatchNorm, lambda: Shift(CHANNELS)]])
@pytest.mark.parametrize(
    'activation, planes',
    [
        (lambda: bmx.QActivation(2, 'round'), [3]),
        (lambda: bmx.QActivation(3, 'round'), [7]),
        (lambda: bmx.QActivation(2, 'hwgq'), [3]),
        (lq_activation, [2, 1]),
    ],
)
def test_inputs_next_to_a_level_are_rounded_as_in_mxnet(activation, planes, before, pack):
    shape = (1, CHANNELS, 16, 16)
    net = sequence(*(make() for make in before), activation(), bmx.QConv2D(8, 3, padding=1, pad_value=0, no_offset=True))
    report, prefix = pack(net, shape, lqactivation0_basis=BASIS)
    assert report.verification.bits == sum(planes) * np.prod(shape)
    thresholds = [operation for operation in programs(prefix)[0].operations if operation.name == 'threshold']
    assert [len(threshold.arrays['threshold']) // CHANNELS for threshold in thresholds] == planes
    quantized = net[: len(before) + 1]
    levels = np.unique(quantized(nd.random.normal(shape=shape) * 3).asnumpy())
    assert len(levels) == 1 + sum(planes)
    for numbers in np.concatenate([threshold.arrays['threshold'] for threshold in thresholds]).reshape(sum(planes), CHANNELS):
        x = next_to(numbers, (16, 16))
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
    'layer, bits',
    [
        (lambda: bmx.QConv2D(8, 3, bits=3, quantization='dorefa'), 3),
        (lambda: bmx.QConv2D(8, 3, bits=2, quantization='round'), 2),
        (lambda: bmx.QConv2D(8, 3, groups=2, bits=2, quantization='dorefa'), 2),
        (lambda: bmx.QConv2D(8, 3, bits=2, quantization='ternary'), 2),
    ],
)
def test_layers_of_few_bits_on_both_sides_that_have_no_planes_are_sums_of_integers(layer, bits, pack_whole):
    net = sequence(nn.BatchNorm(), binary_conv(CHANNELS), nn.BatchNorm(), bmx.QActivation(2, 'round'), layer())
    program, report = pack_whole(net, SHAPE)
    assert names_of(program)[-2:] == ['level_int8_conv', 'affine'] and list(report.integer_bits.values()) == [(bits, 2)]
    assert f'1 layer of {bits}-bit weights x 2-bit inputs' in str(report) and report.binary_layers == 1


def test_weights_of_one_bit_with_a_number_for_each_position_are_stored_as_such(pack_whole):
    net = sequence(nn.BatchNorm(), binary_conv(CHANNELS), nn.BatchNorm(), bmx.QActivation(2, 'round'), SYQConv2D(8, 3))
    program, report = pack_whole(net, SHAPE, scale=np.arange(9).reshape(1, 1, 3, 3))
    assert names_of(program)[-1] == 'level_conv' and list(report.level_bits.values()) == [1]
    assert '1 layer with 1 bit' in str(report) and report.binary_layers == 1


@pytest.mark.parametrize(
    'layer, words',
    [
        (lambda: bmx.BinaryConv2D(8, 3, activation_method='round', activation_bits=5), 'it quantizes to 5 bits by round'),
    ],
)
def test_activations_of_few_bits_that_have_no_planes_stay_with_the_reason(layer, words, pack):
    report, _ = pack(sequence(nn.BatchNorm(), binary_conv(CHANNELS), nn.BatchNorm(), layer()), SHAPE)
    assert words in str(report)


@pytest.mark.parametrize('bits', [3, 4])
@pytest.mark.parametrize('pad_value', [0, -1])
def test_activations_of_several_bits_before_weights_of_several_bits_are_packed(bits, pad_value, pack_whole):
    layer = LowBitConv2D(8, 3, padding=1, activation_bits=bits, bits=bits, quantization='dorefa', pad_value=pad_value)
    net = sequence(nn.BatchNorm(), binary_conv(CHANNELS), nn.BatchNorm(), layer)
    program, report = pack_whole(net, SHAPE)
    if pad_value:  # which no number of levels stands for
        assert names_of(program)[-1] == 'level_conv' and list(report.level_bits.values()) == [bits]
    else:
        assert names_of(program)[-2:] == ['level_int8_conv', 'affine'] and list(report.integer_bits.values()) == [(bits, bits)]
    assert report.verification.bits == 2 * np.prod(SHAPE) and report.verification.largest_deviation < 1e-6


@pytest.mark.parametrize(
    'layer, bits, values',
    [
        (lambda: BWNConv2D(16, 3, padding=1), 1, {}),
        (lambda: TTQConv2D(16, 3, padding=1), 2, dict(positive=[[[[1.5]]]], negative=[[[[0.25]]]])),
        (lambda: bmx.QConv2D(16, 3, padding=1, bits=2, quantization='dorefa', pad_value=0), 2, {}),
        (lambda: bmx.QConv2D(16, 3, padding=1, bits=4, quantization='dorefa', pad_value=0, groups=4), 4, {}),
        (lambda: bmx.QConv2D(16, 3, padding=1, bits=3, quantization='round', pad_value=0), 3, {}),
        (lambda: bmx.QConv2D(16, 3, padding=1, bits=2, quantization='dorefa'), 2, {}),  # which pads with -1
        (lambda: bmx.QDense(16, bits=3, quantization='dorefa'), 3, {}),
    ],
)
def test_weights_of_few_bits_that_read_real_numbers_are_stored_with_their_bits(layer, bits, values, pack_whole):
    net = sequence(nn.Conv2D(CHANNELS, 3), nn.BatchNorm(), nn.Activation('relu'), layer(), nn.BatchNorm(axis=1))
    program, report = pack_whole(net, SHAPE, **values)
    (found,) = [operation for operation in program.operations if operation.row.weight_levels]
    assert found.attributes['bits'] == bits and found.attributes['has_bias'] and list(report.level_bits.values()) == [bits]
    assert report.verification.largest_deviation < 1e-5


def test_a_cancelled_gradient_of_real_activations_leaves_no_operation(pack_whole):
    names = []
    for threshold in (1.3, None):
        layer = bmx.BinaryConv2D(16, 3, padding=1, activation_bits=32, activation_method='relu', threshold=threshold)
        program, _ = pack_whole(sequence(nn.BatchNorm(), layer, nn.BatchNorm(), binary_conv(16)), SHAPE)
        names.append(names_of(program))
    assert names[0] == names[1] and names[0][-2:] == ['threshold', 'binary_conv']


def test_an_activation_of_three_bits_that_layers_of_one_and_of_two_bits_read_has_planes_for_the_former(pack):
    two = bmx.QConv2D(CHANNELS, 3, padding=1, bits=2, quantization='dorefa', pad_value=0)
    one = bmx.QConv2D(CHANNELS, 3, padding=1, pad_value=0, no_offset=True)
    both = HybridConcurrent(axis=1)
    both.add(one, two)
    report, _ = pack(sequence(nn.BatchNorm(), bmx.QActivation(3, 'round'), both), SHAPE)
    assert list(report.integer_bits.values()) == [(2, 3)] and report.binary_layers == 1


def test_an_activation_of_four_bits_is_counted_for_layers_of_one_bit_whose_planes_would_take_longer(pack_whole):
    program, report = pack_whole(sequence(nn.BatchNorm(), DoReFaConv2D(16, 3, 1, 1, bits=1, activation_bits=4)), SHAPE)
    assert list(report.integer_bits.values()) == [(1, 4)]
    assert {'multi_threshold', 'level_int8_conv'} < {*names_of(program)} and 'binary_conv' not in names_of(program)
    assert report.verification.largest_deviation < 2e-6


@pytest.mark.parametrize(
    'layer, values, words',
    [
        (lambda: LQConv2D(8, 3, 1, 1), {'lqactivation0_basis': [-0.5, 1]}, 'if the levels rise from 0'),
        (lambda: LQConv2D(8, 3, 1, 1), {'lqactivation0_basis': [1e16, 1e17]}, 'if the levels rise from 0'),
    ],
)
def test_parameters_that_have_no_planes_leave_the_layer_with_the_reason(layer, values, words, pack):
    report, _ = pack(sequence(nn.BatchNorm(), binary_conv(CHANNELS), nn.BatchNorm(), layer()), SHAPE, **values)
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
def test_networks_of_one_dimensional_convolutions_are_packed_as_maps_of_height_1(classes, pack_whole, tmp_path):
    _, report = pack_whole(line_network(classes), (2, 7, 40), sizes=[(52,)])
    assert report.binary_layers == 1
    with pytest.raises(UserError, match=r'input 0 must have the shape \(batch, 7, width\), not \(3, 7, 1, 52\)'):
        bmx.Session(tmp_path / 'packed')(np.zeros((3, 7, 1, 52), np.float32))


def test_signs_of_normalized_lines_are_those_of_mxnet_next_to_the_threshold(pack):
    net = sequence(nn.BatchNorm(), bmx.QActivation(), bmx.QConv1D(8, 3))
    _, prefix = pack(net, (1, CHANNELS, 256))
    x = next_to(programs(prefix)[0].operations[0].arrays['threshold'], (256,))
    np.testing.assert_array_equal(bmx.Session(prefix)(x), net(nd.array(x)).asnumpy())
