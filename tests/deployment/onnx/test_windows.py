"""Models whose attention is within windows of a map, and that roll parts of channels: packed networks compute what ONNX Runtime does."""

import numpy as np
import onnxruntime
import pytest
from support.exported_c import compile_networks, exported, needs_gcc
from support.tiny_onnx import helper, make, node, signs

import bmx_melius as bmx
from bmx_melius.deployment.onnx import export
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.packed_files import read_packed
from bmx_melius.errors import UserError

pytestmark = pytest.mark.usefixtures('without_trial')

RANDOM = np.random.RandomState(0)
CHANNELS, HEIGHT, WIDTH = 16, 4, 6  # of a map, with windows of 2 x 3 positions
WINDOWS, TOKENS, HEADS = 4, 6, 2


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


CONSTANTS = {
    'nought': np.float32(0),
    'one': np.float32(1),
    'minus': np.float32(-1),
    'first': normal(CHANNELS, 4, 1, 1),
    'weight': np.ascontiguousarray(signs(CHANNELS, CHANNELS)),
    'scale': normal(CHANNELS),
    'shift': normal(CHANNELS),
    'wide': normal(CHANNELS, 3 * CHANNELS) / 16,
    'of_heads': normal(1, HEADS, 1, 1),
    'steps': np.float32([0.2, 0.13]).reshape(1, HEADS, 1, 1),
    'three': np.float32(3),
    'mixed': normal(1, CHANNELS, HEIGHT, WIDTH),
    'split': np.array([-1, 2, 2, 2, 3, CHANNELS]),
    'windows': np.array([-1, TOKENS, CHANNELS]),
    'merged': np.array([-1, WINDOWS, CHANNELS]),
    'back': np.array([-1, WINDOWS, CHANNELS]),
    'repeated': np.array([1, WINDOWS, WINDOWS, CHANNELS]),
    'times': np.array([1, WINDOWS, 1, 1]),
    'same': np.zeros(WINDOWS, np.int64),
    'heads': np.array([0, 0, 3, HEADS, CHANNELS // HEADS]),
    'joined': np.array([0, 0, CHANNELS]),
    'parts': np.array([TOKENS, WINDOWS]),
    'apart': np.array([-1, 2, 2, 2, 3, CHANNELS]),
    'map': np.array([-1, CHANNELS, HEIGHT, WIDTH]),
    'lines': np.array([-1, CHANNELS, HEIGHT * WIDTH]),
    'by_window': np.array([-1, WINDOWS, 2, 2, CHANNELS]),
    'larger': np.float32([1, 1, 2, 3]),
    **{f'axis{number}': np.array([number]) for number in range(4)},
    **{f'number{number}': np.array(number) for number in range(3)},
    'start': np.array([0]),
    'zero_row': np.zeros((1, CHANNELS, 1, WIDTH), np.float32),
    'nothing': np.zeros(0, np.int64),
    'fifth': np.array([5]),
    'place': np.array([1]),
    'end': np.array([1 << 40]),
    'quarters': np.array([4, 4, 4, 4]),
    'indices': np.array([2, 3, 0, 1]),
}
BEGIN = [  # b: a map
    *(node('Conv', 'x first', 'a'), node('Less', 'a nought', 'less'), node('Where', 'less minus one', 's'), node('Add', 'a s', 'b')),
]
SPLIT = [  # w: its windows (4, 6, 16)
    *(node('Transpose', 'b', 'b_last', perm=[0, 2, 3, 1]), node('Reshape', 'b_last split', 'six')),
    *(node('Transpose', 'six', 'by_rows', perm=[0, 1, 3, 2, 4, 5]), node('Reshape', 'by_rows windows', 'w')),
]
MERGED = [  # m: a token for each window (1, 4, 16)
    node('AveragePool', 'b', 'pooled', kernel_shape=[2, 3], strides=[2, 3]),
    *(node('Transpose', 'pooled', 'pooled_last', perm=[0, 2, 3, 1]), node('Reshape', 'pooled_last merged', 'm')),
    node('Unsqueeze', 'm axis1', 'wider'),
]
REPEATED = {  # r: all of them for each window (4, 4, 16)
    'expanded': [node('Expand', 'wider repeated', 'each'), node('Reshape', 'each back', 'r')],
    'tiled': [node('Tile', 'wider times', 'each'), node('Reshape', 'each back', 'r')],
    'gathered': [node('Gather', 'm same', 'r', axis=0)],
}


def binary_layer(source, output):
    inner = [node('Less', f'{source} nought', f'{output}_less'), node('Where', f'{output}_less minus one', f'{output}_signs')]
    return [*inner, node('MatMul', f'{output}_signs weight', output)]


SCALED = (node('Mul', 'shares of_heads', 'p'),)
QUANTIZED = (  # to four levels, with another step for each head
    *(node('Div', 'shares steps', 'quotient'), node('Add', 'quotient of_heads', 'moved_by_zero'), node('Round', 'moved_by_zero', 'whole')),
    *(node('Clip', 'whole nought three', 'levels'), node('Mul', 'levels steps', 'p')),
)


def attention(tokens, output, quantizer=SCALED):
    """Return the nodes of attention with two heads between the tokens of each window."""
    return [
        *(node('LayerNormalization', f'{tokens} scale shift', 'n', axis=-1), *binary_layer('n', 'd'), node('MatMul', 'd wide', 'qkv')),
        *(node('Reshape', 'qkv heads', 'five'), node('Transpose', 'five', 'moved', perm=[2, 0, 3, 1, 4])),
        *(node('Gather', f'moved number{i}', name, axis=0) for i, name in enumerate('qkv')),
        *(node('Transpose', 'k', 'k_columns', perm=[0, 1, 3, 2]), node('MatMul', 'q k_columns', 'scores')),
        *(node('Softmax', 'scores', 'shares', axis=-1), *quantizer, node('MatMul', 'p v', 'o')),
        *(node('Transpose', 'o', 'o_tokens', perm=[0, 2, 1, 3]), node('Reshape', 'o_tokens joined', output)),
    ]


def reverse(windows, output):
    """Return the nodes that make a map of windows."""
    moved = [node('Reshape', f'{windows} apart', 'six_again'), node('Transpose', 'six_again', 'in_rows', perm=[0, 5, 1, 3, 2, 4])]
    return [*moved, node('Reshape', 'in_rows map', output)]


def roll(source, axis, output):
    """Return the nodes of torch.roll by -1 as PyTorch exports it."""
    parts = [
        node('Slice', f'{source} place end axis{axis}', f'{output}_1'),
        node('Slice', f'{source} start place axis{axis}', f'{output}_2'),
    ]
    return [*parts, node('Concat', f'{output}_1 {output}_2', output, axis=axis)]


NEAREST = {'mode': 'nearest', 'coordinate_transformation_mode': 'asymmetric', 'nearest_mode': 'floor'}
MEANS = [  # large: the means over windows of their merged tokens, enlarged
    *(node('Reshape', 'u by_window', 'five_axes'), node('ReduceMean', 'five_axes', 'mean', axes=[1], keepdims=0)),
    node('Transpose', 'mean', 'small', perm=[0, 3, 1, 2]),
    helper.make_node('Resize', ['small', '', 'larger'], ['large'], **NEAREST),
]
NETWORKS = {
    **{
        f'windows with merged tokens, {way}': [
            *(*BEGIN, *SPLIT, *MERGED, *repeated, node('Concat', 'w r', 't', axis=1), *attention('t', 'c'), node('Add', 'c d', 'e')),
            helper.make_node('Split', ['e', 'parts'], ['first_part', 'u'], axis=1),
            *reverse('first_part', 'z'),
            *MEANS,
            *(node('Mul', 'z mixed', 'z2'), node('Add', 'z2 large', 'y')),
        ]
        for way, repeated in REPEATED.items()
    },
    'windows alone': [*BEGIN, *SPLIT, *attention('w', 'c'), *reverse('c', 'y')],
    'windows with shares of few levels': [*BEGIN, *SPLIT, *attention('w', 'c', QUANTIZED), *reverse('c', 'y')],
    'windows in another order': [
        *(*BEGIN, *SPLIT, node('Gather', 'w indices', 't', axis=0), *attention('t', 'c'), *reverse('c', 'z'), node('Add', 'z b', 'y')),
    ],
}
ROLLED = {
    'rows and columns of parts of the channels': [
        helper.make_node('Split', ['b', 'quarters'], ['part0', 'part1', 'part2', 'part3'], axis=1),
        *roll('part0', 2, 'rolled0'),
        *roll('part1', 3, 'rolled1'),
        *roll('part2', 2, 'half_rolled2'),
        *roll('half_rolled2', 3, 'rolled2'),
        node('Concat', 'rolled0 rolled1 rolled2 part3', 'y0', axis=1),
    ],
}


def of_sequences(nodes):
    """Return nodes with a product of two values, for which a model is one of sequences, behind those that make y0."""
    lines = [node('Reshape', 'y0 lines', 'channels'), node('Transpose', 'channels', 'positions', perm=[0, 2, 1])]
    return [*nodes, *lines, *binary_layer('positions', 'dense'), node('MatMul', 'dense channels', 'y')]


def of_maps(nodes):
    return [*nodes, node('Less', 'y0 nought', 'l'), node('Where', 'l minus one', 'f'), node('Conv', 'f kernel', 'y')]


CASES = {**NETWORKS, **{f'{name}, {of.__name__}': of([*BEGIN, *nodes]) for name, nodes in ROLLED.items() for of in (of_maps, of_sequences)}}


def model_of(nodes, batch=1):
    constants = {**CONSTANTS, 'kernel': signs(CHANNELS, CHANNELS, 3, 3)}
    used = {name for each in nodes for name in each.input}
    return make(nodes, {name: array for name, array in constants.items() if name in used}, {'x': (batch, 4, HEIGHT, WIDTH)})


@pytest.fixture(params=CASES)
def network(request, tmp_path):
    """The model of a case and the prefix of what it is imported as, with each node compared with ONNX Runtime."""
    model = model_of(CASES[request.param])
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    report = bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed')
    assert report.binary_layers == 1 and report.conversion.verification.largest_deviation < 1e-5
    return model, tmp_path / 'packed'


def test_each_image_has_the_result_of_onnx_runtime(network):
    model, prefix = network
    x = normal(3, 4, HEIGHT, WIDTH)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    expected = np.concatenate([session.run(None, {'x': image[None]})[0] for image in x])
    y = bmx.Session(prefix)(x)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize('case', ['windows with merged tokens, expanded', 'windows with merged tokens, tiled', 'windows alone'])
def test_the_windows_of_two_images_stay_apart(case, tmp_path):
    model, x = model_of(CASES[case], batch=2), normal(2, 4, HEIGHT, WIDTH)
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed')
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    (expected,) = session.run(None, {'x': x})
    np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(x), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@needs_gcc
def test_c_has_the_bits_of_the_engine_and_onnx_its_results(network, tmp_path):
    engine.require_engine()
    program, x = read_packed(network[1])[0], normal(1, 4, HEIGHT, WIDTH)
    y = bmx.Session(network[1])(x)
    (expected,) = reference.run(program, [x])
    np.testing.assert_allclose(y, expected.reshape(y.shape), rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    compiled = compile_networks(tmp_path, {'net': exported(program, 'net')})
    np.testing.assert_array_equal(compiled.run('net', [x])[0].reshape(y.shape), y)
    assert export.verify(export.to_onnx(program, ['x']), program, [x]) < export.TOLERANCE


def test_parts_of_channels_that_are_rolled_are_gathered_and_not_convolved(tmp_path):
    for case in CASES:
        if case.startswith('rows and columns'):
            (tmp_path / 'net.onnx').write_bytes(model_of(CASES[case]).SerializeToString())
            bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed')
            names = [operation.name for operation in read_packed(tmp_path / 'packed')[0].operations]
            assert names.count('gather') >= 3 and names.count('conv') == 1 + ('binary_conv' not in names), case


def write(nodes, path):
    path.write_bytes(model_of(nodes).SerializeToString())
    return path


def test_a_row_of_constants_beside_those_of_two_maps_is_refused_with_a_message(tmp_path):
    rows = [node('Concat', 'b a zero_row', 'longer', axis=2), node('Slice', 'longer fifth end axis2', 'y0')]
    with pytest.raises(UserError, match='it concatenates constants'):
        bmx.import_onnx(write(of_maps([*BEGIN, *rows]), tmp_path / 'net.onnx'), tmp_path / 'packed')


def test_the_choice_of_no_token_is_imported(tmp_path):
    none = [node('Gather', 'c nothing', 'none', axis=1), node('Concat', 'c none', 'all', axis=1)]
    nodes = [*BEGIN, *SPLIT, *attention('w', 'c'), *none, *reverse('all', 'y')]
    report = bmx.import_onnx(write(nodes, tmp_path / 'net.onnx'), tmp_path / 'packed')
    assert report.conversion.verification.largest_deviation < 1e-5
