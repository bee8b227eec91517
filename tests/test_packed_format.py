"""Version 2 of the packed format: padding of each side, arrays that are stored once, and files of version 1."""

import itertools
import json
import pathlib

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mxnet.gluon import nn
from packed import make_program, write_packed

import bmx_melius as bmx
import model_zoo
from bmx_melius.container import write_parameters
from bmx_melius.deployment.program import reference, stored_arrays
from bmx_melius.deployment.program.operations import PADDING, REAL_KIND, Operation, ProgramError, Value
from bmx_melius.deployment.program.program import VERSION, Program
from bmx_melius.deployment.program.words import checksum_of
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.engine import Runner
from model_zoo.padding import padded

# Written by version 1, with the outputs of its reference implementation: programs with all operations of that version.
VERSION_1 = np.load(pathlib.Path(__file__).parent / 'data' / 'packed_version_1.npz')
PROGRAMS = range(len(VERSION_1['exact']))
NETWORK = 0  # the number of the program of `make_program`
needs_engine = pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')


def arrays_of(name):
    names = itertools.takewhile(lambda key: key in VERSION_1.files, (f'{name}_{i}' for i in itertools.count()))
    return [VERSION_1[key] for key in names]


def assert_results_of_version_1(number, found, expected):
    if VERSION_1['exact'][number]:
        np.testing.assert_array_equal(found, expected)
    else:  # float products: NumPy's order of additions depends on the processor
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def engine_of(program):
    return Runner(program, program.to_words())


def with_checksum(words):
    words[3] = checksum_of(words[4:])
    return words


# --- version 1 ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('number', PROGRAMS)
def test_numpy_gives_the_results_of_version_1_for_its_programs(number):
    program = Program.from_words(VERSION_1[f'words{number}'])
    for found, expected in zip(reference.run(program, arrays_of(f'input{number}')), arrays_of(f'output{number}')):
        assert_results_of_version_1(number, found, expected)


@needs_engine
@pytest.mark.parametrize('number', PROGRAMS)
def test_the_engine_runs_programs_of_version_1_as_those_of_the_current_one(number):
    words, inputs = VERSION_1[f'words{number}'], arrays_of(f'input{number}')
    program = Program.from_words(words)
    for old, new, expected in zip(Runner(program, words).run(inputs), engine_of(program).run(inputs), arrays_of(f'output{number}')):
        np.testing.assert_array_equal(old, new)
        assert_results_of_version_1(number, old, expected)


def test_files_of_version_1_run_in_mxnet_in_a_session_and_are_written_in_the_current_version(tmp_path):
    prefix, (x,), expected = str(tmp_path / 'net'), arrays_of(f'input{NETWORK}'), arrays_of(f'output{NETWORK}')
    write_packed(prefix, Program.from_words(VERSION_1[f'words{NETWORK}']))
    graph = json.loads(pathlib.Path(f'{prefix}-symbol.json').read_text())
    words, structure = VERSION_1[f'words{NETWORK}'], VERSION_1[f'structure{NETWORK}']
    assert words[1] == structure[1] == 1 and VERSION == 2
    graph['nodes'][-1]['attrs'] = {'structure': ' '.join(map(str, structure.tolist()))}
    graph['nodes'][-2]['attrs']['__shape__'] = f'({len(words)},)'
    pathlib.Path(f'{prefix}-symbol.json').write_text(json.dumps(graph))
    write_parameters(f'{prefix}-0000.params', {'arg:net_program': words})

    block = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data0'], f'{prefix}-0000.params')
    for outputs in (bmx.Session(prefix)(x), [y.asnumpy() for y in block(mx.nd.array(x))]):
        for found, wanted in zip(outputs, expected):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert Program.from_words(words).to_words()[1] == VERSION


@pytest.mark.parametrize('version', [0, 3])
def test_other_versions_are_refused(version):
    words = make_program().to_words()
    words[1] = version
    message = f'format version {version}; this release reads versions 1 and 2: convert the network again'
    with pytest.raises(ProgramError, match=message):
        Program.from_words(words)
    if not engine.missing():
        with pytest.raises(ProgramError, match=message):
            Runner(make_program(), words)


# --- padding of each side -------------------------------------------------------------------------------------------------------------

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))
KERNELS = st.tuples(st.integers(1, 4), st.integers(1, 4))
STRIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))
PADS = st.tuples(*[st.integers(0, 3)] * 4)


def window(kernel, stride, pad, dilation=(1, 1)):
    pairs = {'kernel': kernel, 'stride': stride, 'dilation': dilation}
    return {**{f'{name}_{axis}': pair[i] for name, pair in pairs.items() for i, axis in enumerate('hw')}, **dict(zip(PADDING, pad))}


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


# --- arrays that are stored once ------------------------------------------------------------------------------------------------------


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
        (3, 'shift of operation 1 .affine. is stored array 3, of 2 so far'),
        (-1, 'shift of operation 1 .affine. is stored array -1, of 2 so far'),
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
        with pytest.raises(ProgramError, match='shift of operation 2 .affine. is stored array 2, which has another type or size'):
            read(with_checksum(words))


def test_an_array_with_nan_is_refused_where_it_is_compared_even_if_it_is_stored_elsewhere():
    scale = np.full(4, np.nan, 'f')
    program = Program(
        [Value(REAL_KIND, 4, 1, 1, True)], [affine(0, scale, scale), Operation('clip', (1,), {}, {'low': scale, 'high': scale})], [2]
    )
    with pytest.raises(ProgramError, match='operation 1 .clip. has a low that is not a number'):
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
    message = 'scale of operation 19 .affine.: 37888 words of repeated arrays so far; at most 36864 are possible'
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
    message = 'weight of operation 1 .binary_conv.: 16992 words of repeated arrays so far; at most 9696 are possible'
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
