"""Layers of few levels on both sides as exact sums of integers: what becomes one, with which numbers, and its thresholds."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon
from mxnet.gluon import nn
from support.conversions import names_of, programs
from support.engines import INSTRUCTION_SETS, Engine, needs_engine
from support.packed import chain, conv, operation, window

from bmx_melius.arithmetic import multiply_add
from bmx_melius.deployment.convert.integer_layers import with_integer_layers, with_thresholds_of_sums
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.layer_weights import int8_weight_of
from bmx_melius.deployment.runtime import engine
from bmx_melius.nn.methods.low_bit import LowBitConv2D

pytest_plugins = ['support.conversions', 'support.engines']  # fixtures

RANDOM = np.random.RandomState(0)
CHANNELS, SIZE = 8, 7
EPOCHS = 8  # of the trained network


def counted(levels, channels=CHANNELS):
    """Return the operation that counts levels - 1 thresholds."""
    thresholds = np.sort(RANDOM.normal(size=(levels - 1, channels)), axis=0).astype('f')
    arrays = {'threshold': thresholds, 'flip': RANDOM.rand(channels) < 0.3}
    return operation('multi_threshold', arrays=arrays, thresholds=levels - 1)


def affine(scale, shift, channels=CHANNELS):
    return operation('affine', arrays={'scale': np.full(channels, scale, 'f'), 'shift': np.full(channels, shift, 'f')})


def weight_of(levels, filters=16, inputs=CHANNELS, kernel=3):
    factors = RANDOM.uniform(0.1, 2, (filters, 1, 1, 1)) * RANDOM.choice((-1, 1), (filters, 1, 1, 1))
    return (RANDOM.choice(np.asarray(levels), (filters, inputs, kernel, kernel)) * factors).astype('f')


def maps(batch=2):
    return RANDOM.normal(size=(batch, CHANNELS, SIZE, SIZE)).astype('f')


def sums_of(program, x):
    """Return the sums of the only layer of integers of a program, int64, computed by NumPy's integers from the levels that it reads."""
    ((number, layer),) = [(i, o) for i, o in enumerate(program.operations, 1) if o.name == 'level_int8_conv']
    values = [x]
    for each in program.operations[: number - 1]:
        values.append(reference.apply(each, [values[source] for source in each.inputs]))
    u, a, weight = values[layer.inputs[0]].astype(np.int64), layer.attributes, int8_weight_of(layer).astype(np.int64)
    u = u if u.ndim == 4 else u[:, :, None, None]
    sides = ((0, 0), (0, 0), (a['pad_top'], a['pad_bottom']), (a['pad_left'], a['pad_right']))
    u = np.pad(u, sides, constant_values=int(layer.arrays['pad'][0]))
    room = [size - a[f'dilation_{n}'] * (a[f'kernel_{n}'] - 1) - 1 for size, n in zip(u.shape[2:], 'hw')]
    rows, columns = room[0] // a['stride_h'] + 1, room[1] // a['stride_w'] + 1
    found = np.zeros((len(u), a['out_channels'], rows, columns), np.int64)
    inputs, filters = weight.shape[1], a['out_channels'] // a['groups']
    for f, c, i, j in np.ndindex(weight.shape):
        top, left = i * a['dilation_h'], j * a['dilation_w']
        part = u[:, f // filters * inputs + c, top :: a['stride_h'], left :: a['stride_w']][:, :rows, :columns]
        found[:, f] += weight[f, c, i, j] * part
    return number, found + (layer.arrays['offset'] >> 8)[:, None, None]


LAYERS = {  # -> operations before the convolution, levels of its weight, its attributes
    '3 bits on both sides': ([counted(8), affine(1 / 7, 0)], range(-4, 4), dict(pad=1)),
    '4 bits on both sides': ([counted(16), affine(1 / 15, 0)], range(-8, 8), dict(pad=1, stride=2)),
    'signed inputs': ([counted(16), affine(0.3, 0), affine(1, -8 * 0.3)], range(-8, 8), dict(pad=(1, 0, 2, 1))),
    'odd multiples': ([counted(16), affine(1 / 15, 0)], range(-15, 16, 2), dict(dilation=2, pad=2)),
    'levels without zero, not padded': ([counted(8), affine(0.25, -1.1)], range(-8, 8), {}),
    'pooled levels': ([counted(12), affine(0.25, 0), operation('max_pool', **window(2, 2))], [-2, -1, 0, 1, 3], dict(pad=1)),
    'limits of levels': ([counted(8), affine(0.5, 0), operation('relu')], range(8), {}),
    'shuffled levels': ([counted(5), affine(0.5, -0.5), operation('shuffle', groups=2)], [-1, 1], dict(pad=1)),
}


@pytest.mark.parametrize('groups', [1, 2])
@pytest.mark.parametrize('form', LAYERS)
def test_a_layer_of_few_levels_on_both_sides_becomes_exact_sums_of_integers(form, groups):
    before, levels, where = LAYERS[form]
    attributes = {**window(3, **{'dilation': 1, **where}), 'groups': groups}
    layer = conv(weight_of(levels, inputs=CHANNELS // groups), bias=RANDOM.normal(size=16).astype('f'), **attributes)
    program, x = chain((CHANNELS, SIZE, SIZE), *before, layer), maps()
    made, number_of, bits = with_integer_layers(program)
    assert [o.name for o in made.operations][-2:] == ['level_int8_conv', 'affine'] and 'conv' not in names_of(made)
    assert list(bits.values())[-1] == before[0].attributes['thresholds'].bit_length()
    (expected,), (found,) = reference.run(program, [x]), reference.run(made, [x])
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    number, sums = sums_of(made, x)
    made.outputs = [number]
    assert (reference.run(made, [x])[0] == sums).all() and np.abs(sums).max() > 20
    assert number_of[len(program.operations)] == len(made.operations)


@needs_engine
@pytest.mark.parametrize('form', LAYERS)
def test_every_instruction_set_computes_the_sums_of_numpys_integers(form, open_engine):
    before, levels, where = LAYERS[form]
    layer = conv(weight_of(levels), **window(3, **{'dilation': 1, **where}))
    made, _, _ = with_integer_layers(chain((CHANNELS, SIZE, SIZE), *before, layer))
    x = maps(3)
    number, sums = sums_of(made, x)
    made.outputs = [number]
    for instruction_set in set(INSTRUCTION_SETS) & set(engine.instruction_sets()[1]):
        (found,) = Engine.of(open_engine(instruction_set), made).run([x])
        assert (found == sums).all(), instruction_set


def test_a_dense_layer_of_levels_reads_their_numbers():
    layer = conv(weight_of(range(-4, 4), 10, CHANNELS * SIZE * SIZE, 1))
    program = chain((CHANNELS, SIZE, SIZE), counted(8), affine(1 / 7, 0), operation('flatten'), layer)
    made, _, _ = with_integer_layers(program)
    x = maps()
    assert names_of(made) == ['multi_threshold', 'flatten', 'level_int8_conv', 'affine']
    np.testing.assert_allclose(reference.run(made, [x])[0], reference.run(program, [x])[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ('before', 'weight', 'attributes'),
    [
        ([counted(8), affine(0.25, -1.1)], weight_of(range(-8, 8)), window(3, pad=1)),  # no integer stands for the padding
        ([counted(8), affine(0.25, 0.5)], weight_of(range(-8, 8)), window(3, pad=1)),  # nor a byte
        ([counted(8), affine(0.25, 0)], RANDOM.normal(size=(16, CHANNELS, 3, 3)).astype('f'), window(3)),
        ([counted(8), affine(0.25, 0)], weight_of([-1, 0.3, 1.7]), window(3)),  # not multiples of a number
        ([affine(0.25, 0)], weight_of(range(-8, 8)), window(3)),  # real inputs
        ([counted(8), operation('sigmoid')], weight_of(range(-8, 8)), window(3)),
    ],
)
def test_other_layers_stay_as_they_are(before, weight, attributes):
    program = chain((CHANNELS, SIZE, SIZE), *before, conv(weight, dilation_h=1, dilation_w=1, **attributes))
    made, number_of, _ = with_integer_layers(program)
    assert names_of(made) == names_of(program) and number_of == {number: number for number in range(len(before) + 2)}


def test_sums_that_floats_cannot_hold_stay_as_they_are():
    for inputs, name in ((37_000, 'affine'), (38_000, 'conv')):  # times 15 15, less and more than 2^23
        weight = np.full((1, inputs, 1, 1), 15, 'f')
        weight[0, 0] = -1
        made, _, _ = with_integer_layers(chain((inputs,), counted(16, inputs), affine(1, 0, inputs), conv(weight)))
        assert names_of(made)[-1] == name


@given(seed=st.integers(0, 2**32 - 1), levels=st.integers(2, 16))
def test_thresholds_of_sums_are_reached_by_the_sums_whose_numbers_reach_the_thresholds(seed, levels):
    random, filters = np.random.RandomState(seed), 6
    weight = random.randint(-3, 4, (filters, 4, 1, 1))
    layer = conv((weight * random.uniform(0.1, 1, (filters, 1, 1, 1))).astype('f'), bias=random.normal(size=filters).astype('f'))
    made, _, _ = with_integer_layers(chain((4, 5, 5), counted(8, 4), affine(0.37, 0, 4), layer))
    if 'level_int8_conv' not in names_of(made):  # a filter of zeros only, and so on
        return
    scaling = made.operations[-1]
    scaling.arrays['scale'] *= random.choice((-1, 1, 1, 0), filters).astype('f')
    thresholds = random.normal(size=(levels - 1, filters)).astype('f') * 3
    sums = random.randint(-40, 40, thresholds.shape)  # some thresholds are numbers that occur, or next to them
    ties = multiply_add(sums, scaling.arrays['scale'], scaling.arrays['shift'])
    ties = (ties, np.nextafter(ties, np.float32(-99)), np.nextafter(ties, np.float32(99)))[random.randint(3)]
    thresholds = np.where(random.rand(*thresholds.shape) < 0.5, ties, thresholds).astype('f')
    thresholds[random.rand(*thresholds.shape) < 0.1] = random.choice((-np.inf, np.inf))
    arrays = {'threshold': thresholds, 'flip': random.rand(filters) < 0.5}
    made.operations.append(operation('multi_threshold', len(made.operations), arrays=arrays, thresholds=levels - 1))
    made.outputs = [len(made.operations)]
    exact, _ = with_thresholds_of_sums(made)
    assert names_of(exact) == ['multi_threshold', 'level_int8_conv', 'multi_threshold']
    found = exact.operations[-1].arrays['threshold']
    assert (np.isinf(found) | (found == np.rint(found))).all()
    x = random.normal(size=(2, 4, 5, 5)).astype('f')
    assert (reference.run(exact, [x])[0] == reference.run(made, [x])[0]).all()


def test_thresholds_after_a_maximum_of_scaled_sums_are_compared_with_the_maximum_of_the_sums():
    made, _, _ = with_integer_layers(chain((CHANNELS, SIZE, SIZE), counted(8), affine(1 / 7, 0), conv(np.abs(weight_of(range(1, 5))))))
    pool, last = operation('max_pool', len(made.operations), **window(2, 2)), counted(8, 16)
    made.operations += [pool, operation('multi_threshold', len(made.operations) + 1, arrays=last.arrays, thresholds=7)]
    made.outputs, x = [len(made.operations)], maps()
    exact, _ = with_thresholds_of_sums(made)
    assert names_of(exact) == ['multi_threshold', 'level_int8_conv', 'max_pool', 'multi_threshold']
    assert (reference.run(exact, [x])[0] == reference.run(made, [x])[0]).all()


# --- a trained network ----------------------------------------------------------------------------------------------------------------


def digits():
    """Return images and classes of scikit-learn's digits, float32 (n, 1, 8, 8) and int: those to train with, and every fifth one."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, classes = (found.images[:, None] / 8 - 1).astype('f'), found.target
    held_out = np.arange(len(images)) % 5 == 0
    return (images[~held_out], classes[~held_out]), (images[held_out], classes[held_out])


def test_a_network_of_several_bits_trained_on_digits_computes_with_integers_between_its_layers(convert):
    mx.random.seed(0)
    bits = 3

    def layer(filters):
        return LowBitConv2D(filters, 3, padding=1, activation_bits=bits, bits=bits, quantization='dorefa', pad_value=0)

    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), layer(32), nn.BatchNorm(), nn.MaxPool2D(2), layer(32), nn.BatchNorm())
    net.add(nn.Activation('relu'), nn.GlobalAvgPool2D(), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    (images, classes), (held_out, expected) = digits()
    trainer, loss = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.01}), gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(EPOCHS):
        trainer.set_learning_rate(0.01 * (1 - epoch / EPOCHS))
        order = np.random.RandomState(epoch).permutation(len(images))
        for part in np.array_split(order, len(order) // 64):
            with autograd.record():
                error = loss(net(mx.nd.array(images[part])), mx.nd.array(classes[part]))
            error.backward()
            trainer.step(len(part))
    report, prefix = convert(net, (2, 1, 8, 8))
    (program,) = programs(prefix)
    assert [name for name in names_of(program) if name in ('multi_threshold', 'level_int8_conv', 'max_pool')] == [
        *('multi_threshold', 'level_int8_conv', 'max_pool', 'multi_threshold', 'level_int8_conv')
    ]
    assert set(report.integer_bits.values()) == {(bits, bits)}
    assert f'2 layers of {bits}-bit weights x {bits}-bit inputs' in str(report)
    (logits,) = reference.run(program, [held_out])
    of_mxnet = net(mx.nd.array(held_out)).asnumpy().argmax(axis=1)
    assert (logits.argmax(axis=1) == expected).mean() > 0.95 and (logits.argmax(axis=1) == of_mxnet).mean() > 0.99
