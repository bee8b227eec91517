"""Conversion of real-valued layers to layers of 8-bit integers: exactness of what is folded, accuracy, and what it refuses."""

import dataclasses
import json
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn
from PIL import Image
from support.conversions import programs
from support.engines import needs_engine
from support.networks import of_size
from support.npy_files import header
from support.packed import conv, operation, window
from support.small_networks import initialized, randomize_statistics, sequence

import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.data.small_images import open_digits
from bmx_melius.deployment.convert.calibration import RANGES, LayerOptions, _share_told_apart, quantized
from bmx_melius.deployment.convert.calibration_images import calibration_batches
from bmx_melius.deployment.convert.equalization import ChannelStatistics, channel_factors
from bmx_melius.deployment.convert.quantization import quantize
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Operation, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.errors import UserError
from model_zoo import get_model

pytest_plugins = ['support.conversions']

REAL_LAYERS = ('conv', 'affine', 'relu', 'prelu', 'clip', 'avg_pool', 'global_avg_pool', 'multiply', 'sigmoid')
SPEC = bmx.InputSpec(size=32, resize=32)
SMALL = {'initial_layers': 'grouped_stem', 'block_numbers': (1, 2), 'transitions': (64,), 'growth_rate': 32, 'init_features': 32}
FAMILIES = {  # networks whose layers are all integers
    'meliusnet_flex': {**SMALL, 'groups': 4},
    **{name: of_size(name, 32) for name in ('binary_densenet28', 'resnet_e18', 'birealnet18', 'quicknet_small', 'reactnet18')},
}


def images(number, size=32, channels=3):
    return np.random.RandomState(number).randint(0, 256, (number, channels, size, size)).astype(np.uint8)


def converted(convert, net, shape, **options):
    report, prefix = convert(net, shape, **options)
    (program,) = programs(prefix)
    return report, prefix, program


@needs_engine
@pytest.mark.parametrize('name', FAMILIES)
def test_networks_compute_with_integers_from_the_pixels_to_the_logits(name, convert):
    net = initialized(get_model(name, classes=10, **FAMILIES[name]), (1, 3, 32, 32))
    randomize_statistics(net)
    calibration = images(8)
    report, prefix, program = converted(convert, net, (1, 3, 32, 32), input_spec=SPEC, calibration=calibration, verify=False)
    assert report.quantization.real == {} and report.quantization.images == 8
    names = [operation.name for operation in program.operations]
    assert not set(names[1:-1]) & set(REAL_LAYERS) and (names[0], names[-1]) == ('affine', 'affine')  # of the inputs and of the outputs
    session = bmx.Session(prefix, threads=2)
    found, inputs = session(calibration), SPEC.normalized(calibration)
    np.testing.assert_array_equal(found, session(inputs))
    np.testing.assert_array_equal(found, reference.run(program, [inputs])[0])
    assert report.quantization.correlation > 0.9


@needs_engine
def test_operations_that_remain_real_are_named(convert):
    net = initialized(get_model('real_to_binary18', classes=10, **of_size('real_to_binary18', 32)), (1, 3, 32, 32))
    report, *_ = converted(convert, net, (1, 3, 32, 32), input_spec=SPEC, calibration=images(4), verify=False)
    assert report.quantization.real['sigmoid'] == 16 and 'real numbers in ' in str(report) and 'sigmoid (16)' in str(report)


@pytest.mark.parametrize('ranges', RANGES)
def test_the_results_of_quantized_layers_are_close_to_those_of_float(ranges, convert):
    layers = [nn.Conv2D(16, 3, strides=2, padding=1), nn.BatchNorm(), nn.Activation('relu'), nn.Conv2D(32, 3, padding=1, groups=4)]
    net = initialized(
        sequence(*layers, nn.BatchNorm(), nn.MaxPool2D(), nn.Activation('relu'), nn.GlobalAvgPool2D(), nn.Dense(7)), (1, 3, 32, 32)
    )
    randomize_statistics(net)
    x = images(16)
    report, prefix, _ = converted(convert, net, (1, 3, 32, 32), input_spec=SPEC, calibration=x, ranges=ranges)
    expected = net(mx.nd.array(SPEC.normalized(x))).asnumpy()
    error = np.abs(bmx.Session(prefix)(x) - expected)
    assert error.max() < 0.05 * np.abs(expected).max()
    assert report.quantization.layers == 3 and report.quantization.correlation > 0.998 and report.quantization.ranges == ranges


def program_of(channels, *operations):
    made = [Operation(o.name, (number,), o.attributes, o.arrays) for number, o in enumerate(operations)]
    return Program([Value(REAL_KIND, channels, 1, 1, False)], made, [len(made)])


def random_conv(random, filters, channels, *inputs, kernel=3, **attributes):
    weight = (random.randn(filters, channels, kernel, kernel) / np.sqrt(channels * kernel * kernel)).astype(np.float32)
    return conv(weight, *inputs, bias=random.randn(filters).astype(np.float32) / 4, **{**window(kernel, pad=kernel // 2), **attributes})


def affine(random, channels, *inputs):
    factors = random.choice((-1.5, -0.5, 0.7, 1.2), channels).astype(np.float32)
    return operation('affine', *inputs, arrays={'scale': factors, 'shift': random.uniform(-3, 3, channels).astype(np.float32)})


def numbers(channels, value):
    return np.full(channels, value, np.float32)


LIMITS = {'low': numbers(16, 0), 'high': numbers(16, 0.8)}
BODIES = {  # operations after a convolution, value 1, of 16 channels, and before another one
    'relu': lambda r: [operation('relu', 1)],
    'clip': lambda r: [operation('clip', 1, arrays=LIMITS)],
    'clip after a normalization': lambda r: [affine(r, 16, 1), operation('clip', 2, arrays=LIMITS)],
    'maxima after factors of both signs': lambda r: [affine(r, 16, 1), operation('max_pool', 2, **window(2, 2))],
    'maxima and relu': lambda r: [operation('max_pool', 1, **window(3, 2, 1)), operation('relu', 2)],
    'means with padding': lambda r: [affine(r, 16, 1), operation('avg_pool', 2, **window(3, 2, 1), count_pad=1)],
    'means without padding': lambda r: [affine(r, 16, 1), operation('avg_pool', 2, **window(3, 2, 1))],
    'means of means': lambda r: [operation('avg_pool', 1, **window(2, 2)), operation('avg_pool', 2, **window(2, 1))],
    'prelu': lambda r: [operation('prelu', 1, arrays={'slope': r.choice((-0.5, 0.25, 1.5), 16).astype(np.float32)})],
    'concatenation of different scales': lambda r: [affine(r, 16, 1), operation('concat', 1, 2), operation('slice', 3, begin=8, end=24)],
    'a sum of different scales': lambda r: [affine(r, 16, 1), operation('add', 1, 2)],
    'a sum of relus': lambda r: [operation('relu', 1), affine(r, 16, 1), operation('relu', 3), operation('add', 2, 4)],
    'a shuffle': lambda r: [affine(r, 16, 1), operation('relu', 2), operation('shuffle', 3, groups=4)],
}


@pytest.mark.parametrize('pixels', [False, True], ids=['real inputs', 'pixels'])
@pytest.mark.parametrize('body', BODIES)
def test_each_operation_gives_nearly_what_it_gives_on_real_numbers(body, pixels):
    random = np.random.RandomState(1)
    operations = [random_conv(random, 16, 3, 0), *BODIES[body](random)]
    last = len(operations)
    operations += [random_conv(random, 12, 16, last), operation('global_avg_pool', last + 1)]
    program = Program([Value(REAL_KIND, 3, 12, 12, False)], operations, [last + 2, last])
    x = SPEC.normalized(images(24, 12)) if pixels else random.randn(24, 3, 12, 12).astype(np.float32)
    result, report = quantized(program, LayerOptions(calibration=[x], ranges='minmax'), SPEC if pixels else None)
    assert report.layers == 2 and report.real == {}
    for found, expected in zip(reference.run(result.program, [x]), reference.run(program, [x])):
        assert np.abs(found - expected).max() < 0.08 * np.abs(expected).max()


NEGATED = operation('affine', 1, arrays={'scale': np.resize([-1, 2, 0.5, -0.5], 16).astype(np.float32), 'shift': numbers(16, 0)})
MOVES = {  # operations between two convolutions, of value 1 or of others after it
    'directly': [],
    'relu': [operation('relu', 1)],
    'maxima': [operation('max_pool', 1, **window(2, 2)), operation('relu', 2)],
    'a shuffle': [operation('relu', 1), operation('shuffle', 2, groups=4)],
    'a normalization': [NEGATED, operation('relu', 2), operation('shuffle', 3, groups=2)],
    'limits': [NEGATED, operation('clip', 2, arrays={'low': numbers(16, 0), 'high': numbers(16, 3)})],
}


@pytest.mark.parametrize('ranges', RANGES)
@pytest.mark.parametrize('moves', MOVES)
def test_channels_with_small_numbers_are_rounded_as_finely_as_others(moves, ranges, monkeypatch):
    random = np.random.RandomState(2)
    first, second = random_conv(random, 16, 3, 0), MOVES[moves]
    for array in first.arrays.values():
        array *= np.resize([4, 0.02, 1, 0.1], 16).reshape(-1, *(1,) * (array.ndim - 1)).astype(np.float32)
    last = 1 + len(second)
    operations = [first, *second, random_conv(random, 16, 1, last, groups=16)]
    program = Program([Value(REAL_KIND, 3, 12, 12, False)], operations, [last + 1])
    x = random.randn(24, 3, 12, 12).astype(np.float32)
    (expected,) = reference.run(program, [x])

    def error():
        result, report = quantized(program, LayerOptions(calibration=[x], ranges=ranges))
        (found,) = reference.run(result.program, [x])
        assert report.layers == 2 and report.real == {}
        changes, deviations = np.abs(found - expected).mean(axis=(0, 2, 3)), expected.std(axis=(0, 2, 3))
        varying = deviations > 1e-4  # others are zero after the activation
        return (changes[varying] / deviations[varying]).mean()

    equalized = error()
    monkeypatch.setattr(
        'bmx_melius.deployment.convert.calibration.channel_factors', lambda statistics, layers: np.ones(len(statistics.power))
    )
    assert equalized < 0.03 and equalized < error() / 2


def test_channels_that_are_zero_or_not_read_leave_the_factors_finite():
    random = np.random.RandomState(4)
    statistics = ChannelStatistics(np.zeros(8), np.array([0, 1, 2, 0, 5, 1, 1, 1]), np.array([0, 1, 2, 0, 5, 1, 1, 1]) / 3)
    layer = random_conv(random, 4, 8)
    layer.arrays['weight'][:, 2] = 0
    factors = channel_factors(statistics, [layer])
    assert factors.max() == 1 and factors.min() > 0
    np.testing.assert_array_equal(channel_factors(ChannelStatistics(*np.zeros((3, 8))), [layer]), np.ones(8))


def test_a_normalization_of_pixels_with_negative_factors_is_followed_by_maxima_of_the_right_numbers():
    random = np.random.RandomState(0)
    operations = [affine(random, 3, 0), operation('max_pool', 1, **window(2, 2)), random_conv(random, 8, 3, 2)]
    program = Program([Value(REAL_KIND, 3, 12, 12, False)], operations, [3])
    x = SPEC.normalized(images(8, 12))
    result, _ = quantized(program, LayerOptions(calibration=[x], ranges='minmax'), SPEC)
    (found,), (expected,) = reference.run(result.program, [x]), reference.run(program, [x])
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


def test_limits_that_differ_between_channels_stay_real():
    random = np.random.RandomState(0)
    limits = {'low': -np.arange(16, dtype=np.float32), 'high': numbers(16, 1)}
    program = Program([Value(REAL_KIND, 3, 8, 8, False)], [random_conv(random, 16, 3, 0), operation('clip', 1, arrays=limits)], [2])
    result, report = quantized(program, LayerOptions(calibration=[random.randn(4, 3, 8, 8).astype(np.float32)]))
    assert report.real == {'clip': 1}


def test_results_of_16_bits_reach_four_times_beyond_the_calibration_images():
    random = np.random.RandomState(0)
    program = Program([Value(REAL_KIND, 3, 8, 8, False)], [random_conv(random, 8, 3, 0)], [1])
    x = random.standard_t(3, (8, 3, 8, 8)).astype(np.float32)
    for ranges in RANGES:
        result, _ = quantized(program, LayerOptions(calibration=[x], ranges=ranges))
        (scale,) = (each.arrays['scale'] for each in result.program.operations[-1:])
        assert scale.max() * 32766 == pytest.approx(4 * np.abs(reference.run(program, [x])[0]).max(), rel=1e-4)


def test_a_comparison_of_integers_is_that_of_the_numbers_they_stand_for():
    """Sums of a binary layer, normalized with factors of both signs and 0, limited, and compared."""
    generator, channels = np.random.RandomState(0), 64
    factor, summand = generator.choice((-1.5, 0.75, 0, 2), channels), generator.randint(-8, 9, channels) / 4
    threshold = generator.randint(-40, 41, channels) / 4
    threshold[:3] = -np.inf, np.inf, 0
    weight = generator.rand(channels, 1, 1, channels) < 0.5
    window = {**{f'{n}_{a}': 1 for n in ('kernel', 'stride', 'dilation') for a in 'hw'}, 'groups': 1, 'out_channels': channels}
    sides = dict.fromkeys(('pad_top', 'pad_left', 'pad_bottom', 'pad_right'), 0)
    binary = Operation('binary_conv', (), {**window, **sides, 'pad_value': -1, 'offset': 0, 'planes': 1}, {'weight': weight})
    for limited in ([], [Operation('relu', ())]):
        compared = program_of(
            channels,
            Operation('threshold', (), {}, {'threshold': np.zeros(channels, np.float32), 'flip': np.zeros(channels, bool)}),
            binary,
            Operation('affine', (), {}, {'scale': factor.astype(np.float32), 'shift': summand.astype(np.float32)}),
            *limited,
            Operation('threshold', (), {}, {'threshold': threshold.astype(np.float32), 'flip': generator.rand(channels) < 0.5}),
            Operation('expand', (), {'low': 0}),
        )
        integers = quantize(compared, {}).program
        assert [operation.name for operation in integers.operations] == ['threshold', 'binary_conv', 'threshold', 'expand']
        x = generator.randn(200, channels, 1, 1).astype(np.float32)
        np.testing.assert_array_equal(reference.run(integers, [x])[0], reference.run(compared, [x])[0])


@pytest.mark.parametrize(
    'calibration,message',
    [
        (np.zeros((0, 3, 8, 8), np.float32), 'there are no images'),
        (np.zeros((2, 3, 8, 8), np.float64), 'must be an array (N, channels, height, width) of float32 or uint8'),
        (np.zeros((2, 3), np.uint8), 'must be an array (N, channels, height, width) of float32 or uint8'),
        (np.zeros((2, 3, 0, 8), np.float32), 'there are no images'),
        (np.full((2, 3, 8, 8), np.nan, np.float32), 'the calibration images have values that are not finite'),
        (np.full((2, 3, 8, 8), 1e-41, np.float32), 'have no number larger than 1e-41, which is nearly 0'),
        (np.zeros((2, 4, 8, 8), np.float32), '(batch, 3, height, width)'),
        (np.zeros((2, 3, 8, 8), np.uint8), 'normalization of the network is not known'),
        ('nothing', 'is not known: the network has no description'),
        (np.float32(1), 'must be an array of NumPy or a path, not float32'),
        (np.int64(1), 'must be an array of NumPy or a path, not int64'),
        (1.0, 'must be an array of NumPy or a path, not float'),
        ([1.0], 'must be an array of NumPy or a path, not list'),
        (b'a', 'must be an array of NumPy or a path, not bytes'),
        (np.array(1, np.float32), 'must be an array (N, channels, height, width) of float32 or uint8'),
    ],
)
def test_calibration_images_that_do_not_fit_are_refused_in_one_line(calibration, message, small, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), calibration=calibration)
    assert not list(tmp_path.glob('x*'))


@needs_engine
@pytest.mark.parametrize(
    'x', [np.zeros((1, 3, 8, 8), np.float32), np.full((3, 3, 8, 8), 7, np.float32)], ids=['one image', 'constant images']
)
def test_a_single_or_constant_image_is_enough(x, small, tmp_path):
    report = bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), calibration=x)
    assert np.isfinite(bmx.Session(tmp_path / 'x')(x)).all() and report.quantization.layers == 1


def strange_images(kind):
    x = np.random.RandomState(0).normal(size=(16, 3, 32, 32)).astype(np.float32)
    if kind == 'one large number':
        x[3, 1, 5, 7] = 1e15
    return x * np.float32(1e-25) if kind == 'numbers that are nearly 0' else x


@needs_engine
@pytest.mark.parametrize('kind', ['one large number', 'numbers that are nearly 0'])
def test_images_after_which_the_outputs_are_others_are_refused_unless_allowed(kind, export, tmp_path, run):
    net = initialized(get_model('birealnet18', classes=10, **of_size('birealnet18', 32)), (1, 3, 32, 32))
    randomize_statistics(net)
    symbol, params = export(net)
    np.save(tmp_path / 'x.npy', strange_images(kind))
    arguments = ['convert', symbol, params, tmp_path / 'int8', '--input-shape', '1,3,32,32', '--no-verify', '--int8', tmp_path / 'x.npy']
    status, _, error = run(*arguments)
    assert status == 2 and 'less than 0.5; nothing was written' in error and error.count('\n') == 1
    assert 'if the network is used on images of another range' in error
    assert not list(tmp_path.glob('int8*'))
    status, output, _ = run(*arguments, '--min-correlation', '-1')
    assert status == 0 and 'correlation of outputs: ' in output and (tmp_path / 'int8-0000.params').exists()


def test_images_are_told_apart_by_outputs_that_differ_also_where_one_is_large():
    random = np.random.RandomState(0)
    x = random.normal(size=(31, 10)) + 100 * np.arange(10)
    same = np.broadcast_to(x[0], x.shape)
    assert (_share_told_apart(x, x + 3, False), _share_told_apart(x, same, False)) == (1, 0)
    large, other = x.copy(), same.copy()
    large[3] = other[3] = 1e9 * np.arange(10)
    assert np.corrcoef(large.ravel(), other.ravel())[0, 1] > 0.999 and _share_told_apart(large, other, False) == pytest.approx(1 / 31)
    assert (_share_told_apart(same, x, True), _share_told_apart(same, same, False)) == (1, 0)
    assert _share_told_apart(same + x / 1e6, same, False) == 1  # no integers are as near


@needs_engine
def test_the_lowest_correlation_is_a_number_from_minus_one_to_one(small, tmp_path, run):
    x = np.random.RandomState(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
    with pytest.raises(UserError, match='less than 1; nothing was written'):
        bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), calibration=x, min_correlation=1)
    for wrong in (2, -1.5, np.nan, 'much', None):
        with pytest.raises(UserError, match='min_correlation is a number from -1 to 1'):
            bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), calibration=x, min_correlation=wrong)
    status, _, error = run('convert', *small, tmp_path / 'x', '--input-shape', '1,3,8,8', '--min-correlation', '0.9')
    assert status == 2 and '--min-correlation is for --int8 IMAGES' in error


@pytest.mark.parametrize(
    'content,message',
    [
        (b'', 'cannot be read as an .npy file'),
        (header('(2, 3, 8, 8)') + bytes(1535), 'cannot be read as an .npy file: it is truncated'),
        (b'PK', 'is an archive of arrays'),
    ],
    ids=['empty', 'truncated', 'archive'],
)
def test_files_that_hold_no_array_are_refused_in_one_line(content, message, small, tmp_path):
    (tmp_path / 'a.npy').write_bytes(content)
    with pytest.raises(UserError, match=message):
        bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), calibration=tmp_path / 'a.npy')


def test_calibration_takes_training_images(tmp_path):
    spec = bmx.InputSpec(size=8, resize=8, channels=1, mean=(0,), std=(1,))
    pixels = np.concatenate(calibration_batches('digits', spec))
    known = {spec.crop(image).asnumpy().tobytes() for image, _ in open_digits().train}
    assert len(pixels) == 256 and all(image.astype(np.uint8).tobytes() in known for image in pixels)

    for part, brightness in (('train', 200), ('val', 50)):
        (tmp_path / part / 'a').mkdir(parents=True)
        Image.fromarray(np.full((8, 8), brightness, np.uint8)).save(tmp_path / part / 'a' / 'x.png')
    (found,) = calibration_batches(tmp_path, spec)
    np.testing.assert_array_equal(found, np.full((1, 1, 8, 8), 200))


def test_half_precision_and_integers_exclude_each_other(small, tmp_path):
    with pytest.raises(UserError, match='not both'):
        bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), half=True, calibration=np.zeros((1, 3, 8, 8), np.float32))


def test_a_network_that_stays_in_mxnet_in_part_is_refused(export, tmp_path):
    net = initialized(sequence(bmx.BinaryConv2D(8, 3), nn.HybridLambda('arctan')), (1, 32, 8, 8))
    with pytest.raises(UserError, match='remains an operator of MXNet'):
        bmx.convert(*export(net), tmp_path / 'x', (1, 32, 8, 8), calibration=np.zeros((1, 32, 8, 8), np.float32))


def test_pixels_need_a_known_normalization(prefix_of_small):
    with pytest.raises(UserError, match='no description of the normalization of pixels'):
        bmx.Session(prefix_of_small)(np.zeros((1, 3, 8, 8), np.uint8))


@pytest.fixture
def prefix_of_small(small, tmp_path):
    bmx.convert(*small, tmp_path / 'small', (1, 3, 8, 8))
    return tmp_path / 'small'


@needs_engine
def test_the_command_reads_images_from_an_array_in_a_file(export, tmp_path, capsys):
    net = initialized(get_model('meliusnet_flex', classes=10, **SMALL), (1, 3, 32, 32))
    symbol, params = export(net)
    np.save(tmp_path / 'images.npy', images(4))
    size = ['--input-size', '32', '--resize', '32']
    arguments = ['convert', str(symbol), str(params), str(tmp_path / 'int8'), *size, '--int8', str(tmp_path / 'images.npy'), '--json']
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['quantization']['images'] == 4 and found['size_after'] < found['size_before'] / 8


@needs_engine
def test_the_report_says_where_8_bit_layers_take_longer_than_float_layers():
    program = program_of(3, random_conv(np.random.RandomState(0), 4, 3, 0))
    _, report = quantized(program, LayerOptions(calibration=[np.random.RandomState(1).randn(4, 3, 8, 8).astype(np.float32)]))
    assert all(0 < time < 1e3 for time in report.milliseconds)
    slower, as_fast = (str(dataclasses.replace(report, milliseconds=[2.0, time])) for time in (2.11, 2.09))
    assert 'do not pay on this processor: 2.11 ms an image, with float layers 2' in slower and 'pay' not in as_fast


def test_an_unknown_way_of_choosing_ranges_is_named():
    with pytest.raises(UserError, match="not by 'median'"):
        LayerOptions(ranges='median')


def test_ranges_without_images_are_refused(small, tmp_path, run):
    status, _, error = run('convert', *small, tmp_path / 'x', '--input-shape', '1,3,8,8', '--int8-ranges', 'mse')
    assert status == 2 and '--int8-ranges is for --int8 IMAGES' in error
    with pytest.raises(UserError, match="not by 'median'"):
        bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), ranges='median')


@needs_engine
def test_layers_named_in_keep_float_stay_float(convert):
    net = initialized(get_model('meliusnet_flex', classes=10, **SMALL), (1, 3, 32, 32))
    randomize_statistics(net)
    calibration = images(8)
    report, *_ = converted(convert, net, (1, 3, 32, 32), input_spec=SPEC, calibration=calibration, verify=False)
    found = report.quantization
    assert len(found.changes) == found.layers == 5 and all(0 < change < 1 for change in found.changes.values())
    kept = [name for name in found.changes if 'stem_conv1' in name or 'dense' in name]
    assert all(f'{name} ({found.changes[name]:.2%})' in str(report) for name in kept)

    _, _, floats = converted(convert, net, (1, 3, 32, 32), input_spec=SPEC, verify=False)
    report, prefix, program = converted(
        convert, net, (1, 3, 32, 32), input_spec=SPEC, calibration=calibration, verify=False, keep_float=kept
    )
    weights = [operation.arrays['weight'] for operation in program.operations if operation.name == 'conv']
    expected = [operation.arrays['weight'] for operation in floats.operations if operation.name == 'conv']
    places = [position for position, name in enumerate(report.quantization.changes) if name in kept]
    assert len(weights) == 2 and report.quantization.layers == 3 and report.quantization.real['conv'] == 2
    for weight, place in zip(weights, places):
        np.testing.assert_array_equal(weight, expected[place])
    assert report.quantization.changes == found.changes and report.quantization.keep_float == kept
    assert f'float32: {kept[0]}, {kept[1]}' in str(report)
    inputs = SPEC.normalized(calibration)
    np.testing.assert_allclose(bmx.Session(prefix)(inputs), reference.run(program, [inputs])[0], rtol=1e-4, atol=1e-4)


@needs_engine
def test_a_network_that_is_not_trained_and_changes_with_each_rounding_error_is_named_as_such(convert, tmp_path):
    mx.random.seed(0)
    net = initialized(get_model('binary_mobilenet_vww'), (1, 3, 96, 96), mx.init.Xavier())
    inputs = np.random.RandomState(0).normal(size=(16, 3, 96, 96)).astype(np.float32)
    message = 'Changes of the images by 0.1% have the same effect on float layers.* have not been trained .* Train the network first'
    with pytest.raises(UserError, match=message) as caught:
        converted(convert, net, (1, 3, 96, 96), calibration=inputs, verify=False)
    told = float(re.search(r'a correlation of (-?[.0-9]+):', str(caught.value))[1])
    _, prefix, _ = converted(convert, net, (1, 3, 96, 96), verify=False)
    changed = inputs * (1 + 1e-3 * np.random.RandomState(0).normal(size=inputs.shape))
    outputs = [bmx.Session(prefix)(x.astype(np.float32)).reshape(-1) for x in (inputs, changed)]
    assert told == pytest.approx(np.corrcoef(outputs)[0, 1], abs=1e-3) and told < 0.5


@needs_engine
def test_a_network_whose_layers_all_stay_float_has_the_results_of_the_float_network(convert):
    net = initialized(get_model('meliusnet_flex', classes=10, **SMALL), (1, 3, 32, 32))
    randomize_statistics(net)
    inputs = np.random.RandomState(1).randn(4, 3, 32, 32).astype(np.float32)
    report, *_ = converted(convert, net, (1, 3, 32, 32), calibration=inputs, verify=False)
    names = list(report.quantization.changes)
    _, prefix, _ = converted(convert, net, (1, 3, 32, 32), verify=False)
    expected = bmx.Session(prefix)(inputs)
    report, prefix, _ = converted(convert, net, (1, 3, 32, 32), calibration=inputs, verify=False, keep_float=names)
    assert report.quantization.layers == 0 and set(report.quantization.signs.values()) == {0}
    np.testing.assert_allclose(bmx.Session(prefix)(inputs), expected, rtol=1e-4, atol=1e-4)


@needs_engine
def test_unknown_layers_in_keep_float_are_named_beside_the_known_ones(export, small, tmp_path, run):
    with pytest.raises(UserError, match=r'no real-valued layer is named stem, head; these are \S+_fwd$'):
        bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), calibration=np.zeros((1, 3, 8, 8), np.float32), keep_float=['stem', 'head'])
    with pytest.raises(UserError, match='give calibration'):
        bmx.convert(*small, tmp_path / 'x', (1, 3, 8, 8), keep_float=['stem'])
    status, _, error = run('convert', *small, tmp_path / 'x', '--input-shape', '1,3,8,8', '--keep-float', 'stem')
    assert status == 2 and '--keep-float is for --int8 IMAGES' in error
    np.save(tmp_path / 'images.npy', np.zeros((1, 3, 8, 8), np.float32))
    arguments = ['--input-shape', '1,3,8,8', '--int8', tmp_path / 'images.npy', '--keep-float', 'stem, head']
    status, _, error = run('convert', *small, tmp_path / 'x', *arguments)
    assert status == 2 and 'no real-valued layer is named stem, head; these are ' in error and not list(tmp_path.glob('x*'))
