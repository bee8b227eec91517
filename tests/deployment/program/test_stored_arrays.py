"""Arrays that the packed format stores once: which are equal, how they are numbered, and how often they may be used again."""

import mxnet as mx
import numpy as np
import pytest
from support.packed import window
from support.packed_networks import engine_of

import bmx_melius as bmx
import model_zoo
from bmx_melius.deployment.program import reference, stored_arrays
from bmx_melius.deployment.program.operations import REAL_KIND, Operation, ProgramError, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import checksum_of
from bmx_melius.deployment.runtime.engine import Runner


def with_checksum(words):
    words[3] = checksum_of(words[4:])
    return words


def affine(x, scale, shift):
    return Operation('affine', (x,), {}, {'scale': scale, 'shift': shift})


def affines(count, channels=50):
    scale, shift = np.random.RandomState(0).randn(2, channels).astype('f')
    return Program([Value(REAL_KIND, channels, 2, 2, False)], [affine(number, scale, shift) for number in range(count)], [count])


def test_equal_arrays_are_stored_once():
    one, many = len(affines(1).to_words()), len(affines(9).to_words())
    assert many - one == 8 * (3 + 1 + 2)  # per operation its head, its input and the numbers of two arrays
    program = Program.from_words(affines(9).to_words())
    assert all(np.shares_memory(operation.arrays['shift'], program.operations[0].arrays['shift']) for operation in program.operations)
    x = np.random.randn(1, 50, 2, 2).astype('f') / 100
    np.testing.assert_allclose(engine_of(program).run([x])[0], reference.run(affines(9), [x])[0], rtol=1e-4, atol=1e-6)


def test_arrays_that_differ_in_a_bit_are_stored_separately():
    scale = np.zeros(40, 'f')
    program = Program([Value(REAL_KIND, 40, 1, 1, True)], [affine(0, scale, -scale), affine(1, scale, scale)], [2])
    read = Program.from_words(program.to_words()).operations
    assert np.signbit(read[0].arrays['shift']).all() and not np.signbit(read[1].arrays['shift']).any()


def test_bit_arrays_of_as_many_words_and_another_size_are_no_equal_arrays():
    value = Value(REAL_KIND, 33, 1, 1, True)
    flips = [
        Operation('threshold', (number,), {}, {'threshold': np.zeros(n, 'f'), 'flip': np.zeros(n, bool)})
        for number, n in ((0, 33), (1, 34))
    ]
    wide = Operation('concat', (0, 0))
    program = Program([value], [flips[0], wide, Operation('slice', (2,), {'begin': 0, 'end': 34})], [3])
    program.operations.append(Operation('threshold', (3,), {}, flips[1].arrays))
    words = program.to_words()
    assert [operation.array_numbers for operation in Program.from_words(words).operations[::3]] == [{'threshold': 0, 'flip': 0}] * 2


@pytest.mark.parametrize(
    'number, message',
    [
        (3, 'word 123, operation 1 .affine., shift: .*3'),
        (-1, 'word 123, operation 1 .affine., shift: .*-1'),
    ],
)
def test_numbers_of_arrays_that_are_not_stored_are_refused(number, message):
    words = affines(2).to_words()
    assert words[-2] == 2
    words[-2] = number
    for read in (Program.from_words, lambda words: Runner(affines(2), words)):
        with pytest.raises(ProgramError, match=message):
            read(with_checksum(words))


def test_an_array_of_another_type_or_size_is_refused():
    flat = Value(REAL_KIND, 5, 1, 1, True)
    signs = Operation('threshold', (0,), {}, {'threshold': np.ones(5, 'f'), 'flip': np.ones(5, bool)})
    program = Program([flat], [signs, Operation('expand', (1,), {'low': 0}), affine(2, np.ones(5, 'f'), np.ones(5, 'f'))], [3])
    words = program.to_words()
    assert words[-3:-1].tolist() == [1, 1]
    words[-2] = 2  # the bits
    for read in (Program.from_words, lambda words: Runner(program, words)):
        with pytest.raises(ProgramError, match='word .*, operation 2 .affine., shift: .*2'):
            read(with_checksum(words))


def test_an_array_with_nan_is_refused_where_it_is_compared_even_if_it_is_stored_elsewhere():
    scale = np.full(4, np.nan, 'f')
    program = Program(
        [Value(REAL_KIND, 4, 1, 1, True)], [affine(0, scale, scale), Operation('clip', (1,), {}, {'low': scale, 'high': scale})], [2]
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
    for operation, expected in zip(Program.from_words(words).operations, operations):
        for name, array in operation.arrays.items():
            np.testing.assert_array_equal(array, expected.arrays[name])


def test_both_readers_limit_the_words_of_repeated_arrays(monkeypatch):
    program = affines(40, channels=1 << 10)
    with monkeypatch.context() as context:
        context.setattr(stored_arrays, 'REPEATED_WORDS', 1 << 30)
        words = program.to_words()
    message = 'operation 19 .affine., scale: 37888 '
    for read in (Program.from_words, lambda words: Runner(program, words)):
        with pytest.raises(ProgramError, match=message):
            read(words)
    kept = program.to_words()
    assert 2 << 10 < len(kept) - len(words) < 20 << 10  # the writer stores arrays again where the limit requires it
    Runner(program, kept)


def many_planes(planes, out_channels=32):
    """Return a program whose convolution has `planes` planes of a channel, so that each word of its weights is used for all of them."""
    attributes = {**window((3, 3), (1, 1), (1, 1, 1, 1)), 'out_channels': out_channels, 'groups': 1, 'pad_value': -1, 'offset': 0}
    sign = Operation('threshold', (0,), {}, {'threshold': np.zeros(planes, 'f'), 'flip': np.zeros(planes, bool)})
    convolution = Operation('binary_conv', (1,), {**attributes, 'planes': planes}, {'weight': np.ones((out_channels, 3, 3, 1), bool)})
    return Program([Value(REAL_KIND, planes, 2, 2, False)], [sign, convolution], [2])


def test_both_readers_limit_the_words_that_planes_use_again(monkeypatch):
    many_planes(17, 4096).to_words()
    program = many_planes(60)
    with monkeypatch.context() as context:
        context.setattr(stored_arrays, 'REPEATED_WORDS', 1 << 30)
        words = program.to_words()
    message = 'operation 1 .binary_conv., weight: 16992 '
    for read in (Program.from_words, lambda words: Runner(program, words)):
        with pytest.raises(ProgramError, match=message):
            read(words)


def test_the_weights_of_bit_planes_are_stored_once():
    sizes = {}
    for planes in (1, 3):
        channels = 20 * planes
        attributes = {
            **window((3, 3), (1, 1), (1, 1, 1, 1)),
            'out_channels': 7,
            'groups': 1,
            'pad_value': -1,
            'offset': 0,
            'planes': planes,
        }
        random = np.random.RandomState(0)
        weight = random.rand(7, 3, 3, 20) < 0.5
        sign = Operation('threshold', (0,), {}, {'threshold': random.randn(channels).astype('f'), 'flip': np.zeros(channels, bool)})
        program = Program(
            [Value(REAL_KIND, channels, 5, 5, False)], [sign, Operation('binary_conv', (1,), attributes, {'weight': weight})], [2]
        )
        x = random.randn(2, channels, 5, 5).astype('f')
        (y,) = engine_of(program).run([x])
        np.testing.assert_array_equal(y, reference.run(program, [x])[0])
        whole = {**attributes, 'planes': 1}, {'weight': np.tile(weight, planes)}
        program.operations[1] = Operation('binary_conv', (1,), *whole)
        np.testing.assert_array_equal(y, reference.run(program, [x])[0])
        sizes[planes] = len(program.to_words())
    attributes['planes'] = 7
    program.operations[1] = Operation('binary_conv', (1,), attributes, {'weight': weight})
    with pytest.raises(ProgramError, match='binary_conv cannot split the 60 channels of a group into 7 planes'):
        program.values()


def test_a_network_with_several_binary_bases_stores_each_once():
    net = model_zoo.get_model('resnet18_abcnet', classes=3, initial_layers='thumbnail', init_features=8)
    net.initialize(mx.init.Xavier())
    packed = bmx.deploy(net, (1, 3, 16, 16))
    words = next(parameter.data().asnumpy() for name, parameter in packed.collect_params().items() if name.endswith('_program'))
    convolutions = [operation for operation in Program.from_words(words).operations if operation.name == 'binary_conv']
    stored = sum(not operation.array_numbers['weight'] for operation in convolutions)
    assert len(convolutions) == 5 * stored > 0
    x = mx.nd.random.normal(shape=(2, 3, 16, 16))
    assert packed(x).shape == net(x).shape
