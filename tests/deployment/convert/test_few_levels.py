"""Levels found in the weights of float convolutions: which forms are found, that they are the weights, and what they are not taken for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import INSTRUCTION_SETS, Engine, assert_same_bits, needs_engine
from support.packed import chain, conv, operation

from bmx_melius.deployment.convert.calibration import LayerOptions, quantized
from bmx_melius.deployment.convert.few_levels import weight_levels, with_levels
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.layer_weights import int8_weight_of, weight_of
from bmx_melius.deployment.program.operations import OPERATIONS, Operation
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

pytest_plugins = ['support.engines']  # its fixtures

RANDOM = np.random.RandomState(0)
SHAPE = (16, 8, 3, 3)
FACTORS = RANDOM.normal(size=(16, 1, 1, 1))  # of filters, of either sign


def of_levels(levels, shape=SHAPE):
    return RANDOM.choice(np.asarray(levels, np.float64), shape)


def packed(weight, half=False):
    """Return the convolution with a weight as `with_levels` makes it."""
    (operation,) = with_levels(chain((weight.shape[1], 5, 5), conv(weight.astype(np.float32))), half).operations
    return operation


FORMS = {  # -> weights, bits
    'signs': (of_levels([-1, 1]), 1),
    'three levels': (of_levels([-1, 0, 1]), 2),
    'signed integers of 3 bits': (of_levels(range(-4, 4)), 3),
    'signed integers of 4 bits': (of_levels(range(-8, 8)), 4),
    'odd integers of 4 bits': (of_levels(range(-15, 16, 2)) / 15, 4),
    'unsigned integers of 4 bits': (of_levels(range(16)), 4),
    'two magnitudes': (of_levels([-0.3, 0, 1.7]), 2),
    'levels without a grid': (of_levels([-1.1, -0.3, 0.2, 0.7, 1.9]), 3),
    'signs with a magnitude for each position': (of_levels([-1, 1]) * RANDOM.uniform(0.1, 2, (1, 1, 3, 3)), 1),
}


@pytest.mark.parametrize('form', FORMS)
def test_weights_of_few_levels_times_numbers_of_filters_take_the_bits_of_their_levels(form):
    weight, bits = FORMS[form]
    weight = (weight * FACTORS).astype(np.float32)
    operation = packed(weight)
    assert operation.name == 'level_conv' and operation.attributes['bits'] == bits
    assert operation.attributes['by_position'] == (form == 'signs with a magnitude for each position')
    np.testing.assert_allclose(weight_of(operation), weight, rtol=0, atol=np.abs(weight).max() * 2.0**-20)


def test_multiples_are_stored_as_integers_so_that_sums_of_integers_are_exact():
    weight = (of_levels(range(-8, 8)) * FACTORS).astype(np.float32)
    assert (packed(weight).arrays['levels'] == np.arange(-8, 8)).all()


def test_a_filter_of_zeros_needs_no_level():
    weight = of_levels([-1, 1])
    weight[3] = 0
    operation = packed(weight)
    assert operation.attributes['bits'] == 1
    np.testing.assert_array_equal(weight_of(operation), weight)


@pytest.mark.parametrize(
    'weight',
    [
        RANDOM.normal(size=SHAPE),
        of_levels(range(-9, 9)),
        of_levels([-1, 1]) * RANDOM.uniform(0.1, 2, (16, 1, 3, 3)),  # magnitudes that are no product
        of_levels([-1, 1]) * (1 + 1e-5 * RANDOM.uniform(size=SHAPE)),  # as far as two weights are taken for one level before bit planes
        np.where(of_levels([0, 1]) > 0, RANDOM.normal(size=(16, 1, 1, 1)), RANDOM.normal(size=(16, 1, 1, 1))),
    ],
)
def test_other_weights_stay_as_they_are(weight):
    weight = weight.astype(np.float32)
    operation = packed(weight)
    assert operation.name == 'conv' and (operation.arrays['weight'] == weight).all()


def test_layers_whose_levels_would_take_more_memory_stay_as_they_are():
    assert packed(of_levels([-1, 1], (64, 1, 1, 1))).name == packed(of_levels([-1, 1], (2, 2, 1, 1))).name == 'conv'
    few = of_levels(range(16), (64, 3, 1, 1))  # 4 3 + 32 bits a filter, and 512: 3,328, and 3,072 as float16
    assert packed(few).name == 'level_conv' and packed(few, half=True).name == 'conv'


@given(st.lists(st.integers(-15, 15), min_size=1, max_size=16, unique=True), st.integers(0, 2**32 - 1))
def test_what_is_found_is_the_weight_but_for_rounding_errors(levels, seed):
    random = np.random.RandomState(seed)
    weight = (random.choice(levels, SHAPE) * random.normal(size=(16, 1, 1, 1)) * 10.0 ** random.randint(-20, 20)).astype(np.float32)
    found = weight_levels(weight)
    if found is None:  # filters of which only one has a multiple, and of which the turned one has another
        assert len(np.unique(np.abs(levels))) > 8
        return
    weights = found.levels[0][found.numbers].reshape(SHAPE) * found.scale[:, None, None, None]
    largest = np.abs(weight).max(axis=(1, 2, 3), keepdims=True)
    assert (np.abs(weights - weight) <= largest * 2.0**-20).all()


def test_a_convolution_of_levels_computes_what_the_float_convolution_computes():
    weight, bias = (of_levels(range(-8, 8)) * FACTORS).astype(np.float32), RANDOM.normal(size=16).astype(np.float32)
    program = chain((8, 6, 6), conv(weight, bias=bias, pad_top=1, pad_left=1, groups=1))
    x = RANDOM.normal(size=(2, 8, 6, 6)).astype(np.float32)
    (expected,), (found,) = reference.run(program, [x]), reference.run(with_levels(program, half=False), [x])
    np.testing.assert_allclose(found, expected, rtol=0, atol=np.abs(expected).max() * 1e-6)


# --- with 8 bits ----------------------------------------------------------------------------------------------------------------------


def in_8_bits(program, x):
    """Return the program of 8-bit layers, calibrated on one batch."""
    return quantized(program, LayerOptions(calibration=[x], min_correlation=-1))[0].program


def as_int8_conv(operation):
    """Return the ordinary 8-bit layer with the expanded weight of one of few levels."""
    if not (operation.row.weight_levels and operation.row.products == 'int8'):
        return operation
    attributes = {name: value for name, value in operation.attributes.items() if name in OPERATIONS['int8_conv'].attributes}
    arrays = {'weight': int8_weight_of(operation), **{name: operation.arrays[name] for name in ('pad', 'multiplier', 'offset')}}
    return Operation('int8_conv', operation.inputs, attributes, arrays)


@needs_engine
@pytest.mark.parametrize('form', FORMS)
def test_in_8_bits_weights_of_few_levels_stay_packed_and_compute_what_an_ordinary_layer_does(form, open_engine):
    weight, bits = FORMS[form]
    layer = conv((weight * FACTORS).astype(np.float32), bias=RANDOM.normal(size=16).astype('f'), groups=1, pad_top=1, pad_right=1)
    program, x = chain((8, 6, 6), layer, operation('relu')), RANDOM.normal(size=(4, 8, 6, 6)).astype('f')
    made = in_8_bits(with_levels(program, half=False), x)
    (packed_layer,) = [each for each in made.operations if each.row.products]
    assert packed_layer.name == 'level_int8_conv' and packed_layer.attributes['bits'] == bits
    ordinary = Program(made.inputs, [as_int8_conv(each) for each in made.operations], made.outputs)
    (expected,) = reference.run(ordinary, [x])
    assert (reference.run(made, [x])[0] == expected).all()
    for instruction_set in set(INSTRUCTION_SETS) & set(engine.instruction_sets()[1]):
        library = open_engine(instruction_set)
        assert (Engine.of(library, made).run([x])[0] == Engine.of(library, ordinary).run([x])[0]).all()
    (real,) = reference.run(program, [x])
    assert np.abs(expected - real).max() < 0.02 * np.abs(real).max()


# --- weights that the engine keeps as codes ---------------------------------------------------------------------------------------------

LARGE = {  # bits, channels, filters, kernel, height, width: weights that the engine keeps as codes, and in 8 bits only from the second on
    'floats of an odd number of filters': (4, 288, 481, 1, 1, 1),
    'one pixel': (4, 768, 700, 1, 1, 1),
    'a sequence': (2, 1024, 570, 1, 1, 67),
    'windows': (1, 128, 510, 3, 5, 4),
    'one window': (2, 256, 250, 3, 3, 3),
    'many lanes without a filter': (2, 1024, 520, 1, 1, 3),  # no codes in 8 bits
    'too many levels': (0, 1024, 520, 1, 1, 3),
}


def large_layer(bits, channels, filters, kernel, height, width):
    """Return a program of one layer, whose outputs are as many as its inputs but for `one window`, and its inputs."""
    weight = of_levels(range(-(2 ** (bits or 6)), 2 ** (bits or 6), 2), (filters, channels, kernel, kernel)).astype('f')
    pad = kernel // 2 if height > 3 else 0
    layer = conv(weight, bias=RANDOM.normal(size=filters).astype('f'), groups=1, pad_top=pad, pad_left=pad, pad_right=pad)
    return chain((channels, height, width), layer), RANDOM.normal(size=(2, channels, height, width)).astype('f')


@pytest.mark.parametrize('case', LARGE)
def test_large_layers_of_few_levels_compute_the_same_bits_in_floats_with_all_instruction_sets(case, library, reference_library):
    program, x = large_layer(*LARGE[case])
    (expected,) = Engine.of(reference_library, program).run([x])  # whose kernels have no codes
    for threads in (1, 3):
        assert_same_bits(Engine.of(library, program).run([x], threads)[0], expected)


@pytest.mark.parametrize('case', LARGE)
def test_large_layers_of_few_levels_compute_what_the_interpreter_does_in_8_bits(case, library):
    program, x = large_layer(*LARGE[case])
    program = in_8_bits(with_levels(program, half=False), x)
    (expected,) = reference.run(program, [x])
    for threads in (1, 3):
        assert_same_bits(Engine.of(library, program).run([x], threads)[0], expected)


def test_large_layers_of_few_levels_after_one_another_compute_what_the_interpreter_does_in_8_bits(library):
    layers = []
    for bits, channels, filters in ((4, 768, 704), (2, 704, 768), (1, 768, 704)):
        weight = of_levels(range(1 - 2**bits, 2**bits, 2), (filters, channels, 1, 1)).astype('f')
        layers += [conv(weight, bias=RANDOM.normal(size=filters).astype('f'), groups=1), operation('relu')]
    x = RANDOM.normal(size=(2, 768, 1, 5)).astype('f')
    program = in_8_bits(with_levels(chain((768, 1, 5), *layers), half=False), x)
    (expected,) = reference.run(program, [x])
    assert_same_bits(Engine.of(library, program).run([x])[0], expected)


def test_multiples_lose_nothing_in_8_bits():
    weight = (of_levels(range(-8, 8)) * FACTORS).astype(np.float32)
    (layer,) = [
        each
        for each in in_8_bits(chain((8, 5, 5), packed(weight)), RANDOM.normal(size=(2, 8, 5, 5)).astype('f')).operations
        if each.row.products
    ]
    assert (layer.arrays['levels'] == np.arange(-8, 8)).all()
