"""Arrays that the packed format stores once: which are equal, how they are numbered, and how often they may be used again."""

import mxnet as mx
import numpy as np
import pytest
from support.conversions import program_of
from support.packed import binary_conv, chain, operation, sign, window
from support.packed_networks import engine_of

import bmx_melius as bmx
import model_zoo
from bmx_melius.deployment.program import reference, stored_arrays
from bmx_melius.deployment.program.operations import REAL_KIND, ProgramError, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import checksum_of
from bmx_melius.deployment.runtime.engine import Runner


def with_checksum(words):
    words[3] = checksum_of(words[4:])
    return words


def affine(x, scale, shift):
    return operation('affine', x, arrays={'scale': scale, 'shift': shift})


def affines(count, channels=50):
    scale, shift = np.random.RandomState(0).randn(2, channels).astype('f')
    return Program([Value(REAL_KIND, channels, 2, 2, False)], [affine(number, scale, shift) for number in range(count)], [count])


def test_equal_arrays_are_stored_once():
    one, many = len(affines(1).to_words()), len(affines(9).to_words())
    assert many - one == 8 * (3 + 1 + 2)  # per operation its head, its input and the numbers of two arrays
    program = Program.from_words(affines(9).to_words())
    assert all(np.shares_memory(one.arrays['shift'], program.operations[0].arrays['shift']) for one in program.operations)
    x = np.random.randn(1, 50, 2, 2).astype('f') / 100
    np.testing.assert_allclose(engine_of(program).run([x])[0], reference.run(affines(9), [x])[0], rtol=1e-4, atol=1e-6)


def test_arrays_that_differ_in_a_bit_are_stored_separately():
    scale = np.zeros(40, 'f')
    program = Program([Value(REAL_KIND, 40, 1, 1, True)], [affine(0, scale, -scale), affine(1, scale, scale)], [2])
    read = Program.from_words(program.to_words()).operations
    assert np.signbit(read[0].arrays['shift']).all() and not np.signbit(read[1].arrays['shift']).any()


def test_bit_arrays_of_as_many_words_and_another_size_are_no_equal_arrays():
    value = Value(REAL_KIND, 33, 1, 1, True)
    operations = sign(33, 0), operation('concat', 0, 0), operation('slice', 2, begin=0, end=34), sign(34, 3)
    words = Program([value], list(operations), [3]).to_words()
    assert [one.array_numbers for one in Program.from_words(words).operations[::3]] == [{'threshold': 0, 'flip': 0}] * 2


@pytest.mark.parametrize('number', [3, -1])
def test_numbers_of_arrays_that_are_not_stored_are_refused(number):
    words = affines(2).to_words()
    assert words[-2] == 2
    words[-2] = number
    for read in (Program.from_words, lambda words: Runner(affines(2), words)):
        with pytest.raises(ProgramError, match=f'word 123, operation 1 .affine., shift: .*{number}'):
            read(with_checksum(words))


def test_an_array_of_another_type_or_size_is_refused():
    flat = Value(REAL_KIND, 5, 1, 1, True)
    signs = operation('threshold', 0, arrays={'threshold': np.ones(5, 'f'), 'flip': np.ones(5, bool)})
    program = Program([flat], [signs, operation('expand', 1), affine(2, np.ones(5, 'f'), np.ones(5, 'f'))], [3])
    words = program.to_words()
    assert words[-3:-1].tolist() == [1, 1]
    words[-2] = 2  # the bits
    for read in (Program.from_words, lambda words: Runner(program, words)):
        with pytest.raises(ProgramError, match='word .*, operation 2 .affine., shift: .*2'):
            read(with_checksum(words))


def test_an_array_with_nan_is_refused_where_it_is_compared_even_if_it_is_stored_elsewhere():
    scale = np.full(4, np.nan, 'f')
    program = Program(
        [Value(REAL_KIND, 4, 1, 1, True)], [affine(0, scale, scale), operation('clip', 1, arrays={'low': scale, 'high': scale})], [2]
    )
    with pytest.raises(ProgramError, match='operation 1 .clip., low: it contains NaN'):
        program.to_words()


def test_the_words_of_repeated_arrays_are_limited_and_the_writer_keeps_the_limit(monkeypatch):
    monkeypatch.setattr(stored_arrays, 'REPEATED_WORDS', 100)
    monkeypatch.setattr(stored_arrays, 'REPEATED_PER_STORED', 1)
    words = affines(9).to_words()
    monkeypatch.setattr(stored_arrays, 'REPEATED_WORDS', 99)
    with pytest.raises(ProgramError, match='words of repeated arrays so far; at most 199 are possible'):
        Program.from_words(words)
    assert len(words) < len(affines(9).to_words())


def test_numbers_count_equal_arrays_that_are_stored_again_because_of_the_limit(monkeypatch):
    monkeypatch.setattr(stored_arrays, 'REPEATED_WORDS', 6)
    monkeypatch.setattr(stored_arrays, 'REPEATED_PER_STORED', 0)
    ones, two = np.ones(5, 'f'), np.full(1, 2, 'f')
    values = [Value(REAL_KIND, 5, 1, 1, True), Value(REAL_KIND, 1, 1, 1, True)]
    operations = [affine(0, ones, ones), affine(2, ones, ones), affine(1, two, -two), affine(4, -two, two)]
    words = Program(values, operations, [3, 5]).to_words()
    for found, expected in zip(Program.from_words(words).operations, operations):
        for name, array in found.arrays.items():
            np.testing.assert_array_equal(array, expected.arrays[name])


def many_planes(planes, out_channels=32):
    """Return a program whose convolution has `planes` planes of a channel, so that each word of its weights is used for all of them."""
    weight = np.ones((out_channels, 3, 3, 1), bool)
    convolution = binary_conv(weight, 1, planes=planes, **window(3, pad=1))
    return Program([Value(REAL_KIND, planes, 2, 2, False)], [sign(planes, 0), convolution], [2])


@pytest.mark.parametrize(
    'program, message',
    [
        (affines(40, channels=1 << 10), 'operation 19 .affine., scale: 37888 '),
        (many_planes(60), 'operation 1 .binary_conv., weight: 16992 '),
    ],
    ids=['arrays', 'planes'],
)
def test_both_readers_limit_the_words_that_are_used_again(program, message, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(stored_arrays, 'REPEATED_WORDS', 1 << 30)
        words = program.to_words()
    for read in (Program.from_words, lambda words: Runner(program, words)):
        with pytest.raises(ProgramError, match=message):
            read(words)


def test_the_writer_stores_arrays_again_where_the_limit_requires_it(monkeypatch):
    many_planes(17, 4096).to_words()
    program = affines(40, channels=1 << 10)
    kept = program.to_words()
    monkeypatch.setattr(stored_arrays, 'REPEATED_WORDS', 1 << 30)
    assert 2 << 10 < len(kept) - len(program.to_words()) < 20 << 10
    Runner(program, kept)


def test_the_weights_of_bit_planes_are_stored_once():
    for planes in (1, 3):
        channels, random = 20 * planes, np.random.RandomState(0)
        weight = random.rand(7, 3, 3, 20) < 0.5
        compare = operation('threshold', arrays={'threshold': random.randn(channels).astype('f'), 'flip': np.zeros(channels, bool)})
        program = chain((channels, 5, 5), compare, binary_conv(weight, planes=planes, **window(3, pad=1)))
        x = random.randn(2, channels, 5, 5).astype('f')
        (y,) = engine_of(program).run([x])
        np.testing.assert_array_equal(y, reference.run(program, [x])[0])
        whole = chain((channels, 5, 5), compare, binary_conv(np.tile(weight, planes), **window(3, pad=1)))
        np.testing.assert_array_equal(y, reference.run(whole, [x])[0])
        assert (len(program.to_words()) < len(whole.to_words())) == (planes > 1)
    with pytest.raises(ProgramError, match='binary_conv cannot split the 60 channels of a group into 7 planes'):
        chain((60, 5, 5), compare, binary_conv(weight, planes=7))


def test_a_network_with_several_binary_bases_stores_each_once():
    net = model_zoo.get_model('resnet18_abcnet', classes=3, initial_layers='thumbnail', init_features=8)
    net.initialize(mx.init.Xavier())
    packed = bmx.deploy(net, (1, 3, 16, 16))
    convolutions = [one for one in program_of(packed).operations if one.name == 'binary_conv']
    stored = sum(not one.array_numbers['weight'] for one in convolutions)
    assert len(convolutions) == 5 * stored > 0
    x = mx.nd.random.normal(shape=(2, 3, 16, 16))
    assert packed(x).shape == net(x).shape
