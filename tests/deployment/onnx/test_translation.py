"""Tiny models: what is packed of them computes what ONNX Runtime does, and what is refused is refused for the reason that holds."""

import numpy as np
import onnx
import onnxruntime
import pytest
from support.tiny_onnx import helper, make, node, signs

import bmx_melius as bmx
from bmx_melius import UserError

pytestmark = pytest.mark.usefixtures('without_trial')

RANDOM = np.random.RandomState(0)
NUMBERS = {'zero': np.float32(0), 'one': np.float32(1), 'minus': np.float32(-1), 'sixth': np.float32(0.1234567)}


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def sign(x, output):
    """Operators of a sign that is never 0: where(x < sixth, -1, 1)."""
    return [node('Less', f'{x} sixth', f'{output}_less'), node('Where', f'{output}_less minus one', output)]


def begin(channels=8):
    """A real convolution of x, and signs s of it."""
    return [node('Conv', 'x first', 'a', pads=[1] * 4), *sign('a', 's')], {'first': normal(channels, 4, 3, 3), **NUMBERS}


def run(model, *inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {entry.name: x for entry, x in zip(session.get_inputs(), inputs)})


@pytest.fixture
def imported(tmp_path):
    """Import a model; compare the packed network with ONNX Runtime, unless its values are not the same on purpose. Return the report."""

    def call(model, layers, same=True, x=None):
        path = tmp_path / 'net.onnx'
        path.write_bytes(model.SerializeToString())
        report = bmx.import_onnx(path, tmp_path / 'packed', zero_is_positive=True)
        assert report.binary_layers == layers
        if same:
            x = normal(1, 4, 6, 6) if x is None else x
            results, packed_x = run(model, x), np.moveaxis(x, -1, 1) if 'channels second' in str(report.notes) else x
            computed = bmx.Session(tmp_path / 'packed')(packed_x)
            for y, expected in zip(computed if isinstance(computed, list) else [computed], results):
                np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
        return report

    return call


def refused(model, tmp_path, words):
    path = tmp_path / 'net.onnx'
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=words):
        bmx.import_onnx(path, tmp_path / 'packed', zero_is_positive=True)


AFTER_TIES = {
    'MaxPool': [node('MaxPool', 't', 'm', kernel_shape=[2, 2], strides=[2, 2]), node('Conv', 'm weight', 'y')],
    'Concat': [node('Concat', 't s', 'm', axis=1), node('Conv', 'm wide', 'y')],
    'Flatten': [node('Flatten', 't', 'm'), node('Gemm', 'm dense', transB=1)],
    'Add': [node('Add', 't c', 'm'), node('Conv', 't weight', 'd'), node('Add', 'd m')],
}


@pytest.mark.parametrize('after', AFTER_TIES)
def test_signs_of_sums_of_signs_are_positive_at_zero_whatever_reads_them(after, imported):
    nodes, constants = begin()
    constants.update(weight=signs(8, 8, 1, 1), wide=signs(8, 16, 1, 1), dense=signs(3, 8 * 36))
    nodes += [node('Conv', 's weight', 'c'), node('Sign', 'c', 't'), *AFTER_TIES[after]]
    report = imported(make(nodes, constants), 2, same=False)
    assert 'taken as the higher level where it is between both' in ' '.join(report.notes)
    assert '% of the signs t are between both in a random sample' in ' '.join(report.notes)


@pytest.mark.parametrize('shape', [(1,), (), (3,), (1, 3), (1, 1)])
@pytest.mark.parametrize('beta', [1.0, 0.5])
def test_what_a_dense_layer_adds_has_any_shape_that_is_the_same_for_all_images(shape, beta, imported):
    nodes, constants = begin()
    constants.update(dense=signs(3, 8 * 36), c=normal(*shape) if shape else np.float32(0.7))
    nodes += [node('Flatten', 's', 'f'), node('Gemm', 'f dense c', transB=1, alpha=0.5, beta=beta)]
    imported(make(nodes, constants), 1)


def test_a_dense_layer_that_adds_something_else_to_each_image_is_refused(tmp_path):
    constants = {'first': normal(8, 4), **NUMBERS, 'dense': signs(3, 8), 'c': normal(2, 1)}
    nodes = [node('Gemm', 'x first', 'a', transB=1), *sign('a', 's'), node('Gemm', 's dense c', transB=1)]
    refused(make(nodes, constants, {'x': (2, 4)}), tmp_path, 'differs between the images of a batch')


def test_small_filters_beside_large_ones_keep_the_numbers_of_their_positions(imported):
    nodes, constants = begin()
    positions = np.concatenate([np.ones((4, 1, 3, 3)), 1e-7 * np.arange(1, 10).reshape(1, 1, 3, 3).repeat(4, 0)])
    constants.update(weight=(signs(8, 8, 3, 3) * positions).astype(np.float32), factor=np.float32([1] * 4 + [1e7] * 4).reshape(1, 8, 1, 1))
    imported(make([*nodes, node('Conv', 's weight', 'c', pads=[1] * 4), node('Mul', 'c factor')], constants), 1)


LEVELS = {  # of an input: comparisons with ascending numbers, and the levels
    'signs': ([0.1], [-1, 1]),
    'two': ([0.1], [-0.7, 1.1]),
    'three': ([-0.5, 0.6], [0.2, 0.5, 1.3]),
    'equally spaced': ([-0.5, 0.6], [0, 0.75, 1.5]),
}


def compared(levels):
    """Operators and constants that compute `s` with the given levels from x."""
    numbers, values = LEVELS[levels]
    constants = {f'level{i}': np.float32(value) for i, value in enumerate(values)}
    constants.update({f'number{i}': np.float32(number) for i, number in enumerate(numbers)})
    nodes, last = [], 'level0'
    for i in range(len(numbers)):
        output = 's' if i == len(numbers) - 1 else f's{i}'
        nodes += [node('Less', f'x number{i}', f'less{i}'), node('Where', f'less{i} {last} level{i + 1}', output)]
        last = output
    return nodes, constants


def around_means(*shape):
    """Return a weight with two levels in each filter around a mean, which is 0 in one filter; in another one there is one level."""
    means, deviations = normal(shape[0], *(1,) * (len(shape) - 1)), 0.5 + RANDOM.rand(shape[0], *(1,) * (len(shape) - 1))
    means[0], deviations[1] = 0, 0
    return (means + deviations * signs(*shape)).astype(np.float32)


WINDOWS = [  # shape, kernel, groups, attributes
    ((1, 8, 7, 6), (3, 3), 1, {'pads': [1] * 4}),
    ((1, 8, 7, 6), (3, 2), 1, {'pads': [2, 0, 1, 1], 'strides': [2, 1]}),
    ((1, 8, 7, 6), (3, 3), 1, {'dilations': [2, 1]}),
    ((1, 8, 7, 6), (1, 1), 1, {}),
    ((1, 8, 9), (3,), 1, {'pads': [1, 1]}),
]
WINDOWS_OF_TWO_LEVELS = [
    ((1, 8, 7, 6), (3, 3), 2, {'pads': [1] * 4}),
    ((1, 8, 7, 6), (3, 3), 8, {'pads': [1] * 4}),
    ((1, 8, 4, 5, 6), (3, 3, 3), 1, {'pads': [1] * 6}),
    ((1, 8, 4, 5, 6), (2, 3, 3), 2, {'pads': [0, 1, 1, 0, 1, 1], 'strides': [2, 1, 1]}),
]


@pytest.mark.parametrize(
    'levels, window',
    [
        *((levels, window) for levels in LEVELS for window in WINDOWS),
        *((levels, window) for levels in ('signs', 'two') for window in WINDOWS_OF_TWO_LEVELS),
    ],
)
@pytest.mark.parametrize('border', [0, -1, 0.4])
def test_means_of_weights_and_any_padding_are_packed(border, levels, window, imported):
    shape, kernel, groups, attributes = window
    nodes, constants = compared(levels)
    constants.update(weight=around_means(8, 8 // groups, *kernel), bias=normal(8))
    x, attributes = 's', dict(attributes)
    if border:
        pads, dimensions = attributes.pop('pads', [0] * 2 * len(kernel)), len(kernel)
        constants.update(border=np.float32(border), pads=np.array([0, 0, *pads[:dimensions], 0, 0, *pads[dimensions:]]))
        nodes, x = [*nodes, node('Pad', 's pads border', 'padded')], 'padded'
    model = make([*nodes, node('Conv', f'{x} weight bias', group=groups, **attributes)], constants, {'x': shape})
    imported(model, 1, x=normal(*shape))


@pytest.mark.parametrize('levels', LEVELS)
def test_means_of_weights_of_dense_layers_are_packed(levels, imported):
    nodes, constants = compared(levels)
    constants.update(weight=around_means(5, 8 * 36))
    model = make([*nodes, node('Flatten', 's', 'f'), node('Gemm', 'f weight', transB=1)], constants, {'x': (1, 8, 6, 6)})
    imported(model, 1, x=normal(1, 8, 6, 6))


MOVES = {
    'shuffle': [node('Reshape', 's split', 'r'), node('Transpose', 'r', 'q', perm=[0, 2, 1, 3, 4]), node('Reshape', 'q joined', 'm')],
    'slice': [node('Slice', 's four eight axis', 'm')],
    'concat': [node('Concat', 's s', 'm', axis=1)],
    'pool': [node('MaxPool', 's', 'm', kernel_shape=[3, 3], pads=[1] * 4)],
}


@pytest.mark.parametrize('levels', ['s', 'scaled'])
@pytest.mark.parametrize('move', MOVES)
def test_moved_signs_are_read_by_binary_layers(move, levels, imported):
    nodes, constants = begin()
    numbers = {'split': [1, 2, 4, 6, 6], 'joined': [1, 8, 6, 6], 'four': [4], 'eight': [8], 'axis': [1]}
    channels = {'slice': 4, 'concat': 16}.get(move, 8)
    constants.update({name: np.array(array) for name, array in numbers.items()}, weight=signs(8, channels, 3, 3), factor=np.float32(0.25))
    if levels == 'scaled':  # signs times .25, less 0.5
        nodes = [*nodes[:-1], node('Where', 's_less low high', 's')]
        constants.update(low=np.float32(-0.75), high=np.float32(-0.25))
    imported(make([*nodes, *MOVES[move], node('Conv', 'm weight', 'y', pads=[0] * 4)], constants), 1)


def test_pieces_of_split_signs_are_read_by_binary_layers(imported):
    from onnx import helper

    nodes, constants = begin()
    constants.update(weight=signs(8, 4, 3, 3))
    nodes += [helper.make_node('Split', ['s'], ['u', 'v'], axis=1), node('Conv', 'u weight', 'c'), node('Conv', 'v weight', 'd')]
    imported(make([*nodes, node('Add', 'c d')], constants, opset=13), 2)


def test_a_dense_layer_reads_flattened_values_of_two_bits(imported):
    constants = {'first': normal(8, 4, 3, 3), 'three': np.float32(3), 'dense': signs(3, 8 * 36), **NUMBERS}
    nodes = [
        *(
            node('Conv', 'x first', 'a', pads=[1] * 4),
            node('Clip', 'a zero one', 'b'),
            node('Mul', 'b three', 'c'),
            node('Round', 'c', 'd'),
        ),
        *(node('Flatten', 'd', 'f'), node('Gemm', 'f dense', transB=1)),
    ]
    imported(make(nodes, constants), 1)


@pytest.mark.parametrize('places', ['half_pixel', 'asymmetric', 'pytorch_half_pixel', 'align_corners'])
@pytest.mark.parametrize('nearest', ['floor', 'ceil', 'round_prefer_floor', 'round_prefer_ceil'])
def test_nearest_enlargement(nearest, places, imported):
    nodes, constants = begin()
    constants.update(weight=signs(8, 8, 1, 1), scales=np.float32([1, 1, 2, 3]))
    resize = node('Resize', 'c  scales', 'y', mode='nearest', nearest_mode=nearest, coordinate_transformation_mode=places)
    resize.input[:] = ['c', '', 'scales']
    imported(make([*nodes, node('Conv', 's weight', 'c'), resize], constants), 1)


@pytest.mark.parametrize(
    'last, words',
    [
        (node('Selu', 'c', 'y', alpha=1.0), 'its alpha or gamma differs from SELU'),
        (node('AveragePool', 'c', 'y', kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1, count_include_pad=1), 'ceil_mode'),
        (node('Softsign', 'c', 'y'), 'node .* \\(Softsign\\): there is no packed form of this operator'),
    ],
)
def test_operators_with_other_attributes_are_refused_by_name(last, words, tmp_path):
    nodes, constants = begin()
    refused(make([*nodes, node('Conv', 's weight', 'c'), last], {**constants, 'weight': signs(8, 8, 1, 1)}), tmp_path, words)


LAST = {
    'MatMul': [node('Transpose', 'c', 't', perm=[0, 2, 3, 1]), node('Reshape', 't flat', 'f'), node('MatMul', 'f dense')],
    'ReduceMean': [node('Transpose', 'c', 't', perm=[0, 2, 3, 1]), node('ReduceMean', 't', 'y', axes=[1, 2], keepdims=0)],
    'Resize': [
        node('Transpose', 'c', 't', perm=[0, 2, 3, 1]),
        helper.make_node(
            'Resize', ['t', '', 'scales'], ['r'], mode='nearest', nearest_mode='floor', coordinate_transformation_mode='asymmetric'
        ),
        node('ReduceMean', 'r', 'y', axes=[1, 2], keepdims=0),
    ],
}


@pytest.mark.parametrize('last', LAST)
def test_outputs_of_models_with_the_channels_last_are_the_same(last, imported):
    nodes, constants = begin()
    constants.update(weight=signs(8, 8, 1, 1), flat=np.array([1, 288]), dense=normal(288, 3), scales=np.float32([1, 2, 3, 1]))
    nodes = [node('Transpose', 'x', 'moved', perm=[0, 3, 1, 2]), node('Conv', 'moved first', 'a', pads=[1] * 4), *nodes[1:]]
    model = make([*nodes, node('Conv', 's weight', 'c'), *LAST[last]], constants, {'x': (1, 6, 6, 4)}, opset=13)
    imported(model, 1, x=normal(1, 6, 6, 4))


def test_maps_with_the_channels_last_are_left_as_they_are_computed(imported):
    nodes, constants = begin()
    nodes = [node('Transpose', 'x', 'moved', perm=[0, 3, 1, 2]), node('Conv', 'moved first', 'a', pads=[1] * 4), *nodes[1:]]
    last = [node('Conv', 's weight', 'c'), node('Transpose', 'c', 't', perm=[0, 2, 3, 1]), node('Add', 't bias')]
    model = make([*nodes, *last], {**constants, 'weight': signs(8, 8, 1, 1), 'bias': normal(8)}, {'x': (1, 6, 6, 4)})
    report = imported(model, 1, same=False)
    assert 'left out at the end: Transpose' in ' '.join(report.notes)


TO_VECTOR = {
    'a map': [node('Reshape', 'l one_by_one', 'f')],
    'a vector, then a map': [node('Reshape', 'l flat', 'f0'), node('Reshape', 'f0 one_by_one', 'f')],
    'a vector, then more axes': [node('Flatten', 'l', 'f0'), node('Unsqueeze', 'f0', 'f', axes=[1, 2])],
}
OF_VECTOR = {
    'nothing': ([], 'f'),
    'by element': ([node('Mul', 'f factor', 'g0'), node('Add', 'g0 bias', 'g1'), *sign('g1', 'g')], 'g'),
    'by channel': ([node('Reshape', 'f second', 'g0'), node('BatchNormalization', 'g0 gamma beta mean var', 'g1'), *sign('g1', 'g')], 'g'),
}
READS_VECTOR = {
    'Conv': [node('Reshape', 'v second', 'r'), node('Conv', 'r filters', 'd'), node('Reshape', 'd last', 'e'), *sign('e', 'm')],
    'Conv with bias': [node('Transpose', 'v', 'r', perm=[0, 3, 1, 2]), node('Conv', 'r filters five', 'd'), *sign('d', 'm')],
    'MatMul': [node('MatMul', 'v matrix', 'd'), *sign('d', 'm')],
    'Gemm': [node('Flatten', 'v', 'r'), node('Gemm', 'r matrix five', 'd'), *sign('d', 'm')],
}


@pytest.mark.parametrize('levels, of', [(4, 'nothing'), (2, 'nothing'), (2, 'by element'), (2, 'by channel')])
@pytest.mark.parametrize(
    'to, reads',
    [('a map', 'Conv'), ('a vector, then a map', 'Conv with bias'), ('a vector, then more axes', 'MatMul'), ('a map', 'Gemm')],
)
def test_vectors_of_maps_with_the_channels_last_have_any_shape(levels, of, to, reads, imported):
    """A second binary layer reads what the first one makes of the vector."""
    between, name = OF_VECTOR[of]
    nodes, constants = begin()
    nodes = [node('Transpose', 'x', 'moved', perm=[0, 3, 1, 2]), node('Conv', 'moved first', 'a', pads=[1] * 4)]
    if levels == 2:
        nodes += [node('Transpose', 'a', 'b', perm=[0, 2, 3, 1]), *sign('b', 'l')]
    else:
        nodes += [node('Clip', 'a zero one', 'c'), node('Mul', 'c three', 'h'), node('Transpose', 'h', 'b', perm=[0, 2, 3, 1])]
        nodes += [node('Round', 'b', 'r0'), node('Mul', 'r0 sixth', 'l')]
    nodes += [*TO_VECTOR[to], *between, node('Reshape', f'{name} one_by_one', 'v'), *READS_VECTOR[reads]]
    nodes += [node('Reshape', 'm second_five', 'p'), node('Conv', 'p last_filters', 'q'), node('Flatten', 'q')]
    shapes = {'one_by_one': [1, 1, 1, 288], 'flat': [1, 288], 'second': [1, 288, 1, 1], 'last': [1, 1, 1, 5], 'second_five': [1, 5, 1, 1]}
    constants.update({key: np.array(shape) for key, shape in shapes.items()}, three=np.float32(3))
    constants.update(filters=signs(5, 288, 1, 1), matrix=signs(288, 5), last_filters=signs(3, 5, 1, 1), five=normal(5))
    constants.update(gamma=normal(288), beta=normal(288), mean=normal(288), var=normal(288) ** 2 + 1)
    constants.update(factor=normal(288), bias=normal(1, 1, 288))
    imported(make(nodes, constants, {'x': (1, 6, 6, 4)}, opset=11), 2, x=normal(1, 6, 6, 4))


def test_images_of_one_channel_may_be_reshaped_to_have_it_second(imported):
    nodes, constants = begin()
    nodes = [node('Reshape', 'x second', 'moved'), node('Conv', 'moved first', 'a', pads=[1] * 4), *nodes[1:]]
    last = [node('Conv', 's weight', 'c'), node('Reshape', 'c last', 't'), node('Add', 't number', 'u'), node('Flatten', 'u', 'f')]
    constants.update(first=normal(8, 1, 3, 3), weight=signs(1, 8, 1, 1), second=np.array([1, 1, 6, 6]), last=np.array([1, 6, 6, 1]))
    constants.update(number=normal(1), dense=normal(36, 3))
    report = imported(make([*nodes, *last, node('MatMul', 'f dense')], constants, {'x': (1, 6, 6, 1)}), 1, x=normal(1, 6, 6, 1))
    assert 'the input x has the channels second in the packed network: (1, 1, 6, 6)' in report.notes


def test_numbers_of_an_axis_of_one_position_are_not_taken_for_those_of_channels(tmp_path):
    """A normalization of (1, 1, 1, 288) has one number, for all elements."""
    nodes, constants = begin()
    nodes = [node('Transpose', 'x', 'moved', perm=[0, 3, 1, 2]), node('Conv', 'moved first', 'a', pads=[1] * 4)]
    nodes += [node('Transpose', 'a', 'b', perm=[0, 2, 3, 1]), node('Reshape', 'b one_by_one', 'f')]
    nodes += [node('BatchNormalization', 'f gamma beta mean var', 'n'), *sign('n', 's'), node('MatMul', 's matrix')]
    constants.update(
        one_by_one=np.array([1, 1, 1, 288]), matrix=signs(288, 5), gamma=normal(1), beta=normal(1), mean=normal(1), var=normal(1) ** 2
    )
    refused(make(nodes, constants, {'x': (1, 6, 6, 4)}), tmp_path, r'node .* it permutes the axes')


def test_a_number_of_the_image_is_not_taken_for_a_vector(tmp_path):
    nodes, constants = begin()
    nodes = [node('Transpose', 'x', 'moved', perm=[0, 3, 1, 2]), node('Conv', 'moved first', 'a', pads=[1] * 4), *nodes[1:]]
    nodes += [
        node('Conv', 's weight', 'c'),
        node('Transpose', 'c', 'l', perm=[0, 2, 3, 1]),
        node('ReduceMean', 'l', 'r', axes=[1, 2, 3], keepdims=0),
    ]
    nodes += [node('Reshape', 'r ones', 'q'), node('Mul', 'l q', 'o'), node('ReduceMean', 'o', 'y', axes=[1, 2], keepdims=0)]
    constants.update(weight=signs(8, 8, 1, 1), ones=np.array([1, 1, 1, 1]))
    refused(make(nodes, constants, {'x': (1, 6, 6, 4)}, opset=13), tmp_path, 'node l .* it permutes the axes')


@pytest.mark.parametrize('layer', ['Conv', 'Gemm'])
def test_maps_may_be_flattened_to_maps_of_one_position(layer, imported):
    nodes, constants = begin()
    nodes += [node('Reshape', 's one_by_one', 'f'), node('Conv', 'f filters', 'c'), *sign('c', 't')]
    nodes += [node('Conv', 't last')] if layer == 'Conv' else [node('Flatten', 't', 'e'), node('Gemm', 'e matrix')]
    constants.update(one_by_one=np.array([1, -1, 1, 1]), filters=signs(5, 288, 1, 1), last=signs(3, 5, 1, 1), matrix=signs(5, 3))
    imported(make(nodes, constants), 2)


def points(dense, count=6):
    """Return a model of points x (1, 4, n) with a real dense layer of each point, signs of it, and the binary dense layer `dense`."""
    nodes = [
        node('Transpose', 'x', 'l', perm=[0, 2, 1]),
        node('MatMul', 'l first', 'm'),
        node('Add', 'm bias', 'a'),
        *sign('a', 's'),
        *dense,
    ]
    last = [node('BatchNormalization', 'd gamma beta mean var', 'n'), node('ReduceMax', 'n', 'p', axes=[2], keepdims=0)]
    constants = {
        'first': normal(4, 8),
        'bias': normal(8),
        'weight': signs(8, 5),
        'five': normal(5),
        'sizes': np.array([1, count, 5]),
        **NUMBERS,
    }
    statistics = {'gamma': normal(5), 'beta': normal(5), 'mean': normal(5), 'var': normal(5) ** 2 + 1}
    constants.update(rows=np.array([-1, 8]), **statistics)
    return make([*nodes, *last, node('MatMul', 'p matrix')], {**constants, 'matrix': normal(5, 3)}, {'x': (1, 4, count)})


DENSE_OF_POINTS = {
    'MatMul': [node('MatMul', 's weight', 'g'), node('Add', 'five g', 'c'), node('Transpose', 'c', 'd', perm=[0, 2, 1])],
    'rows': [
        *(node('Reshape', 's rows', 'r'), node('Gemm', 'r weight five', 'g', alpha=0.5, beta=2.0), node('Add', 'g five', 'h')),
        *(node('Reshape', 'h sizes', 'c'), node('Transpose', 'c', 'd', perm=[0, 2, 1])),
    ],
    'norm of rows': [
        *(node('Reshape', 's rows', 'r'), node('MatMul', 'r weight', 'g'), node('BatchNormalization', 'g gamma beta mean var', 'h')),
        *(node('Reshape', 'h sizes', 'c'), node('Transpose', 'c', 'd', perm=[0, 2, 1])),
    ],
}


@pytest.mark.parametrize('dense', DENSE_OF_POINTS)
def test_dense_layers_of_each_point_are_convolutions(dense, imported):
    imported(points(DENSE_OF_POINTS[dense]), 1, x=normal(1, 4, 6))


def test_sequences_have_their_shape_in_the_packed_network_also_before_what_is_left_out(imported):
    nodes = [node('Transpose', 'x', 'm', perm=[0, 2, 1]), node('Conv', 'm first', 'a'), *sign('a', 's'), node('Conv', 's weight', 'c')]
    constants = {'first': normal(8, 4, 3), 'weight': signs(8, 8, 1), 'matrix': normal(8, 3), **NUMBERS}
    last = [node('Transpose', 'c', 't', perm=[0, 2, 1]), node('MatMul', 't matrix', 'd')]
    model = make([*nodes, *last], constants, {'x': (1, 9, 4)}, outputs=('d',))
    assert imported(model, 1, x=normal(1, 9, 4)).notes == []
    model = make([*nodes, *last, node('LogSoftmax', 'd', 'y', axis=-1)], constants, {'x': (1, 9, 4)})
    (note,) = imported(model, 1, same=False).notes
    assert note.startswith('left out at the end: LogSoftmax; in place of the output y: ')


def test_normalizations_of_positions_are_not_taken_for_those_of_channels(imported):
    nodes = [node('Transpose', 'x', 'l', perm=[0, 2, 1]), node('BatchNormalization', 'l gamma beta mean var', 'n')]
    last = [node('MatMul', 'n first', 'a'), *sign('a', 's'), node('MatMul', 's weight', 'm'), node('Transpose', 'm', 'y', perm=[0, 2, 1])]
    statistics = {'gamma': normal(6), 'beta': normal(6), 'mean': normal(6), 'var': normal(6) ** 2 + 1}
    model = make([*nodes, *last], {'first': normal(4, 8), 'weight': signs(8, 5), **statistics, **NUMBERS}, {'x': (1, 4, 6)})
    imported(model, 1, x=normal(1, 4, 6))


def test_only_what_has_no_packed_form_is_left_out_at_the_end(imported):
    nodes, constants = begin()
    last = [node('GlobalAveragePool', 'c', 'p'), node('Flatten', 'p', 'f'), node('Softmax', 'f', 'y', axis=1)]
    report = imported(make([*nodes, node('Conv', 's weight', 'c'), *last], {**constants, 'weight': signs(8, 8, 1, 1)}), 1, same=False)
    assert report.outputs == ['f']


def inner(nodes, **constants):
    """Return a model whose nodes compute d (1, 8, 6, 6) from c, before a binary layer that reads the signs of d.

    c has sums of seven signs, none of which is 0.
    """
    first, more = begin(7)
    more.update(weight=signs(8, 7, 1, 1), other=signs(8, 8, 3, 3, seed=1), small=np.float32(0.01), **constants)
    last = [*sign('d', 'e'), node('Conv', 'e other', 'f'), node('Add', 'f eight')]
    return make([*first, node('Conv', 's weight', 'b'), node('Mul', 'b scales', 'c'), *nodes, *last], {**more, **TERMS})


TERMS = {'scales': normal(8, 1, 1), 'eight': normal(8, 1, 1), 'group': np.array([1, 4, -1]), 'map': np.array([1, 8, 6, 6])}
TERMS.update(none=np.array([0]), seven=np.array([7]), channel=np.array([1]))
TERMS.update(
    gammas=normal(8),
    betas=normal(8),
    halves=np.full((8, 6, 6), 0.5, np.float32),
    ones=np.ones(4, np.float32),
    zeros=np.zeros(4, np.float32),
)
DATA_DEPENDENT = {
    'minus its mean': [node('ReduceMean', 'c', 'm', axes=[2, 3]), node('Sub', 'c m', 'd')],
    'plus channels': [node('ReduceMean', 'c', 'm', axes=[1]), node('Add', 'm c', 'd')],
    'times the largest channel': [node('ReduceMax', 'c', 'm', axes=[1]), node('Mul', 'm c', 'd')],
    'plus the largest of some channels': [
        node('Slice', 'c none seven channel', 'k'),
        node('ReduceMax', 'k', 'm', axes=[1]),
        node('Add', 'm c', 'd'),
    ],
    'minus the mean of all': [node('ReduceMean', 'c', 'm', axes=[1, 2, 3]), node('Sub', 'c m', 'd')],
    'where': [node('Greater', 'c sixth', 'g'), node('Mul', 'c eight', 'k'), node('Where', 'g k c', 'd')],
    'where of constants': [node('Less', 'c eight', 'g'), node('Where', 'g sixth c', 'd')],
    'where of logic': [
        *(node('Greater', 'c one', 'g'), node('Less', 'c minus', 'l'), node('Or', 'g l', 'o'), node('Not', 'o', 'n')),
        *(node('Less', 'b zero', 'k'), node('And', 'n k', 'w'), node('Where', 'w b c', 'd')),
    ],
    'normalized channels': [node('InstanceNormalization', 'c gammas betas', 'd', epsilon=1e-3)],
    'normalized groups': [
        *(node('Reshape', 'c group', 'g'), node('InstanceNormalization', 'g ones zeros', 'n'), node('Reshape', 'n map', 'm')),
        node('Add', 'm eight', 'd'),
    ],
    'normalized positions': [
        *(node('Transpose', 'c', 'l', perm=[0, 2, 3, 1]), node('LayerNormalization', 'l gammas betas', 'n', axis=-1)),
        node('Transpose', 'n', 'd', perm=[0, 3, 1, 2]),
    ],
    'normalized images': [node('LayerNormalization', 'c halves', 'd', axis=1)],
}


@pytest.mark.parametrize('term', DATA_DEPENDENT)
def test_what_depends_on_other_values_of_the_image_is_packed(term, imported):
    imported(inner(DATA_DEPENDENT[term]), 2)


SELECTIONS = {
    'an exchange of rows and columns': [node('Transpose', 'v', 'm', perm=[0, 1, 3, 2])],
    'a mirror': [node('Slice', 'v end begin axis back', 'm')],
    'space to depth': [node('SpaceToDepth', 'v', 'm', blocksize=2)],
    'pixel unshuffle': [
        *(node('Reshape', 'v blocks', 'm0'), node('Transpose', 'm0', 'm1', perm=[0, 1, 3, 5, 2, 4]), node('Reshape', 'm1 deep', 'm')),
    ],
    'blocks first': [
        *(node('Reshape', 'v blocks', 'm0'), node('Transpose', 'm0', 'm1', perm=[0, 3, 5, 1, 2, 4]), node('Reshape', 'm1 deep', 'm')),
    ],
    'slices of blocks': [
        *(node('Slice', f'v first{i} last{i} axes two', f'm{i}') for i in range(4)),
        node('Concat', 'm0 m1 m2 m3', 'm', axis=1),
    ],
    'repeated': [node('Tile', 'v four', 'm')],
    'each repeated': [node('Unsqueeze', 'v axis', 'm0'), node('Expand', 'm0 wide', 'm1'), node('Reshape', 'm1 wider', 'm')],
    'reversed': [node('Slice', 'v end begin channel back', 'm')],
    'selected': [node('Gather', 'v chosen', 'm', axis=1)],
    'inside': [node('Slice', 'v inner outer axes', 'm')],
    'rows as channels': [node('Reshape', 'v lines', 'm')],
}
FIRSTS = {f'first{i}': np.array([i // 2, i % 2]) for i in range(4)} | {f'last{i}': np.array([6, 6]) for i in range(4)}
SELECTING = {
    **{'blocks': np.array([1, 8, 3, 2, 3, 2]), 'deep': np.array([1, 32, 3, 3]), 'axes': np.array([2, 3]), 'two': np.array([2, 2])},
    **{'four': np.array([1, 4, 1, 1]), 'axis': np.array([2]), 'wide': np.array([1, 8, 3, 6, 6]), 'wider': np.array([1, 24, 6, 6])},
    **{'end': np.array([-1]), 'begin': np.array([-9]), 'channel': np.array([1]), 'back': np.array([-1]), 'chosen': np.array([5, 0, 5, 7])},
    **{'inner': np.array([1, 2]), 'outer': np.array([5, 5]), 'lines': np.array([1, 48, 6]), **FIRSTS},
}


@pytest.mark.parametrize('moved', SELECTIONS)
@pytest.mark.parametrize('reads', ['signs', 'sums'])
def test_elements_that_operators_move_are_selected(moved, reads, imported):
    """The binary layer after them reads the signs of sums, or moved signs."""
    channels = {
        'an exchange of rows and columns': 8,
        'inside': 8,
        'reversed': 8,
        'a mirror': 8,
        'selected': 4,
        'each repeated': 24,
        'rows as channels': 48,
    }.get(moved, 32)
    nodes, constants = begin(7)
    nodes += [node('Conv', 's weight', 'b'), *(sign('b', 'v') if reads == 'signs' else [node('Add', 'b sixth', 'v')]), *SELECTIONS[moved]]
    last = node('Conv', 'm other') if reads == 'signs' else [*sign('m', 'e'), node('Conv', 'e other')]
    other = signs(8, channels, *(3,) * (1 if moved == 'rows as channels' else 2))
    constants.update(weight=signs(8, 7, 1, 1), other=other, **SELECTING)
    imported(make([*nodes, *([last] if reads == 'signs' else last)], constants), 2)


def levels_of_channels(second):
    """Return nodes of a quantizer to levels 0, f and f + g, with f and g of each channel, before a binary layer, and their constants."""
    low, high = np.float32([-0.3, 0.4]).reshape(2, 1, 1, 1)
    factors = {'f': np.abs(normal(1, 8, 1, 1)) + 0.2, 'low': low, 'high': high}
    nodes, constants = begin()
    for name, limit in (('f', 'low'), ('g', 'high')):
        nodes += [node('Less', f'a {limit}', f'{name}_less'), node('Where', f'{name}_less nought {name}', f'{name}_part')]
    nodes += [node('Add', 'f_part g_part', 'q'), node('Conv', 's weight', 'b'), node('Mul', 'q b')]
    return make(nodes, {**constants, **factors, 'g': second(factors['f']), 'nought': np.float32(0), 'weight': signs(8, 8, 1, 1)})


def test_levels_that_are_multiples_of_a_number_of_their_channel_are_packed(imported):
    imported(levels_of_channels(lambda f: f), 1)


def test_levels_of_channels_that_are_not_multiples_of_one_number_are_refused(tmp_path):
    words = r'node \w+ \(Add\): it has other levels in each channel, which are not multiples of one number'
    refused(levels_of_channels(lambda f: f[:, ::-1]), tmp_path, words)


NOT_SELECTED = {
    'a transposition of channels': ([node('Transpose', 'v', 'm', perm=[0, 2, 1, 3])], r'node m \(Transpose\): it permutes'),
}


@pytest.mark.parametrize('moved', NOT_SELECTED)
def test_elements_that_are_moved_in_another_way_are_refused(moved, tmp_path):
    nodes, constants = begin(7)
    last, words = NOT_SELECTED[moved]
    nodes += [node('Conv', 's weight', 'b'), node('Add', 'b sixth', 'v'), *last, *sign('m', 'e'), node('Conv', 'e other')]
    shape = (8, 6, 1, 1) if 'channels' in moved else (8, 8, 1, 1)
    constants.update(weight=signs(8, 7, 1, 1), other=signs(*shape), **SELECTING)
    refused(make(nodes, constants), tmp_path, words)


@pytest.mark.parametrize('opset', [17, 19])
@pytest.mark.parametrize(('size', 'pad'), [(6, 0), (6, 1)])
def test_pooling_that_counts_padding_may_round_up_where_no_windows_are_beyond_it(size, pad, opset, imported):
    nodes, constants = begin()
    pool = {'kernel_shape': [2, 2], 'strides': [2, 2], 'ceil_mode': 1, 'count_include_pad': 1, 'pads': [pad] * 4}
    nodes += [node('Conv', 's weight', 'c'), node('AveragePool', 'c', 'y', **pool)]
    model = make(nodes, {**constants, 'weight': signs(8, 8, 1, 1)}, {'x': (1, 4, size, size)}, opset=opset)
    imported(model, 1, x=normal(1, 4, size, size))


THERMOMETERS = {
    'unsqueezed': [node('Unsqueeze', 'x axis', 'u'), node('Less', 'levels u', 'b'), node('Where', 'b one minus', 't')],
    'scaled': [
        *(node('Mul', 'x two', 'v'), node('Reshape', 'v deeper', 'u'), node('Floor', 'u', 'r'), node('Add', 'r by_channel', 'p')),
        *(node('Greater', 'p levels', 'g'), node('Cast', 'g', 'f', to=1), node('Sub', 'f half', 't')),
    ],
    'of each channel': [node('Unsqueeze', 'x axis', 'u'), node('Sub', 'u all', 'd'), *sign('d', 't')],
}


@pytest.mark.parametrize('code', THERMOMETERS)
def test_thermometer_codes_are_signs_of_repeated_channels(code, imported):
    nodes = [*THERMOMETERS[code], node('Reshape', 't merged', 's'), node('Conv', 's weight', 'y', pads=[1] * 4)]
    constants = {'axis': np.array([2]), 'levels': np.linspace(-1, 1, 6, dtype=np.float32).reshape(6, 1, 1), 'all': normal(4, 6, 1, 1)}
    constants.update(deeper=np.array([1, 4, 1, 6, 6]), merged=np.array([1, 24, 6, 6]), two=np.float32(2), half=np.float32(0.5), **NUMBERS)
    imported(make(nodes, {**constants, 'by_channel': normal(4, 1, 1, 1), 'weight': signs(8, 24, 3, 3)}), 1)


FACTORS = {
    'Conv': [node('Mul', 's m', 't'), node('Conv', 't weight eight', 'y', pads=[1] * 4)],
    'expanded': [node('Expand', 'm map', 'e'), node('Mul', 'e s', 't'), node('Conv', 't weight', 'y')],
    'Gemm': [
        *(node('Flatten', 's', 'f'), node('Flatten', 'm', 'n'), node('Mul', 'f n', 't')),
        node('Gemm', 't dense three', 'y', transB=1, alpha=0.5, beta=2.0),
    ],
}


@pytest.mark.parametrize('layer', FACTORS)
def test_factors_of_images_multiply_the_results_of_binary_layers(layer, imported):
    nodes, constants = begin()
    nodes += [node('Abs', 'a', 'b'), node('ReduceMean', 'b', 'm', axes=[1, 2, 3]), *FACTORS[layer]]
    constants.update(weight=signs(8, 8, 3, 3), eight=normal(8), map=np.array([1, 8, 6, 6]), dense=signs(3, 288), three=normal(3))
    imported(make(nodes, constants), 1)


ENLARGED = {
    'nearest': [
        helper.make_node(
            'Resize', ['s', '', 'scales'], ['m'], mode='nearest', nearest_mode='floor', coordinate_transformation_mode='asymmetric'
        )
    ],
    'depth to space': [node('DepthToSpace', 's', 'm', blocksize=2, mode='CRD')],
    'one element': [node('GlobalMaxPool', 's', 'p'), node('Sub', 'p half', 'q'), *sign('q', 'o'), node('Expand', 'o map', 'm')],
}


@pytest.mark.parametrize('enlarged', ENLARGED)
def test_signs_that_are_repeated_are_read_by_binary_layers(enlarged, imported):
    nodes, constants = begin()
    nodes += [*ENLARGED[enlarged], node('Conv', 'm other')]
    constants.update(scales=np.array([1, 1, 2, 2], np.float32), map=np.array([1, 8, 6, 5]), half=np.linspace(0.5, 1.5, 8).reshape(8, 1, 1))
    constants['half'] = constants['half'].astype(np.float32)
    imported(make(nodes, {**constants, 'other': signs(8, 2 if 'depth' in enlarged else 8, 3, 3)}), 1)


POSITIVE_FACTORS = {
    'deviation': [
        *(node('Mul', 'c c', 'q'), node('ReduceMean', 'q', 'm', axes=[1, 2, 3]), node('Add', 'm small', 'v'), node('Sqrt', 'v', 'r')),
        node('Div', 'c r', 'd'),
    ],
    'length': [node('ReduceL2', 'c', 'l', axes=[1]), node('Expand', 'l map', 'e2'), node('Div', 'c e2', 'd')],
    'reciprocal': [node('ReduceL1', 'c', 'l', axes=[1]), node('Reciprocal', 'l', 'r'), node('Mul', 'r c', 'd')],
}


@pytest.mark.parametrize('factor', POSITIVE_FACTORS)
def test_positive_factors_before_a_sign_are_not_computed(factor, imported):
    model = inner(POSITIVE_FACTORS[factor])
    for each in model.graph.node:
        each.input[:] = ['zero' if name == 'sixth' else name for name in each.input]
    imported(model, 2)


def test_a_factor_that_may_be_0_is_computed(imported):
    nodes = [node('Relu', 'b', 'r'), node('Mul', 'r c', 'd')]
    model = inner(nodes)
    for each in model.graph.node:
        each.input[:] = ['zero' if name == 'sixth' else name for name in each.input]
    imported(model, 2)


def test_groups_that_are_not_those_of_channels_are_refused(tmp_path):
    nodes = [node('Reshape', 'c thirds', 'g'), node('InstanceNormalization', 'g three no', 'n'), node('Reshape', 'n map', 'd')]
    constants = {'thirds': np.array([1, 3, -1]), 'three': np.ones(3, np.float32), 'no': np.zeros(3, np.float32)}
    refused(inner(nodes, **constants), tmp_path, r'node g \(Reshape\): it reshapes')


def test_values_of_groups_are_read_by_normalizations_only(tmp_path):
    nodes = [node('Reshape', 'c group', 'g'), node('InstanceNormalization', 'g ones zeros', 'n'), node('Relu', 'n', 'r')]
    refused(inner([*nodes, node('Reshape', 'r map', 'd')]), tmp_path, r'node g \(Reshape\): it reshapes')


@pytest.mark.parametrize('difference', [4e-6, 3e-5, 1e-3])
@pytest.mark.parametrize('of', ['levels of channels', 'weights of a filter'])
def test_levels_that_differ_by_more_than_verification_allows_are_real_numbers(of, difference, imported):
    nodes, constants = begin()
    constants.update(weight=signs(8, 8, 3, 3), other=signs(8, 8, 1, 1), factors=1 + difference * np.linspace(0, 1, 8, dtype=np.float32))
    constants['factors'] = constants['factors'].reshape(1, 8, 1, 1)
    if of == 'levels of channels':
        nodes += [node('Mul', 's factors', 't'), node('Conv', 't weight', 'c')]
    else:
        constants['weight'] = constants['weight'] * constants['factors']
        nodes.append(node('Conv', 's weight', 'c'))
    same = difference < 1e-5
    imported(make([*nodes, *sign('c', 'e'), node('Conv', 'e other', 'y')], constants), 1 + same)


CAUSES = {
    'an operator of one axis': (
        [node('Reshape', 'c line', 'r'), node('Reshape', 'r turned', 'm'), node('GlobalMaxPool', 'm')],
        r'node r \(Reshape\): it reshapes',
    ),
    'an unknown operator': ([node('Hardmax', 'c', 'h'), node('Gather', 'h one_index', axis=1)], r'node h \(Hardmax\): there is no packed'),
    'a sum of maxima': ([node('ReduceMax', 'c', 'm', axes=[1, 2]), node('Mul', 'c m')], r'node m \(max\): it is the maximum over the axes'),
}


@pytest.mark.parametrize('kind', ['ReduceMean', 'ReduceMax'])
@pytest.mark.parametrize('axis', [2, 3, -1])
@pytest.mark.parametrize('keepdims', [0, 1])
def test_the_mean_or_the_maximum_of_columns_or_rows(kind, axis, keepdims, imported):
    nodes, constants = begin()
    nodes += [node('Conv', 's weight', 'c'), node(kind, 'c', 'y', axes=[axis], keepdims=keepdims)]
    imported(make(nodes, {**constants, 'weight': signs(8, 8, 3, 3)}, {'x': (1, 4, 7, 6)}), 1, x=normal(1, 4, 7, 6))


def test_a_reduction_without_a_packed_form_whose_result_is_repeated_is_refused(tmp_path):
    words = r'cannot be packed as a whole: node m \(max\): it is the maximum over the axes'
    refused(inner([node('ReduceMax', 'c', 'm', axes=[1, 2]), node('Add', 'm c', 'd')]), tmp_path, words)


@pytest.mark.parametrize('last', CAUSES)
def test_the_first_operator_without_a_packed_form_is_named(last, tmp_path):
    nodes, constants = begin()
    last, words = CAUSES[last]
    constants.update(weight=signs(8, 8, 1, 1), line=np.array([-1]), turned=np.array([1, 6, 6, 8]), one_index=np.array([0, 1]))
    refused(make([*nodes, node('Conv', 's weight', 'c'), *last], constants), tmp_path, words)


@pytest.mark.parametrize('precision', [np.float16, np.float64])
@pytest.mark.parametrize('input_too', [True, False])
def test_models_of_other_precisions_are_computed_in_float32(precision, input_too, tmp_path):
    nodes, constants = begin()
    constants = {name: np.asarray(array, precision) for name, array in constants.items()} | {'weight': signs(8, 8, 1, 1).astype(precision)}
    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(precision))
    if not input_too:
        nodes[0].input[0] = 'given'
        nodes = [node('Cast', 'x', 'given', to=number), *nodes]
    model = make([*nodes, node('Conv', 's weight', 'c'), node('Cast', 'c', to=onnx.TensorProto.FLOAT)], constants)
    for value in [*model.graph.input] if input_too else []:
        value.type.tensor_type.elem_type = number
    path = tmp_path / 'net.onnx'
    path.write_bytes(model.SerializeToString())
    report = bmx.import_onnx(path, tmp_path / 'packed')
    assert report.binary_layers == 1
    assert f'the model computes in {np.dtype(precision)}, the packed network in float32, with which it is compared' in report.notes
    single = {name: array.astype(np.float32) for name, array in constants.items()}
    nodes = [node('Cast', 'x', 'given', to=onnx.TensorProto.FLOAT), *nodes[1:]] if not input_too else nodes
    x = normal(1, 4, 6, 6)
    (expected,) = run(make([*nodes, node('Conv', 's weight')], single), x)
    np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(x), expected, atol=1e-5)


def test_the_decoding_of_boxes_is_left_out_at_the_end(imported):
    nodes, constants = begin()
    last = [
        *(node('Reshape', 'c boxes', 'r'), node('Transpose', 'r', 't', perm=[0, 1, 3, 4, 2]), node('Slice', 't zeros twos axis', 'f')),
        *(node('Sigmoid', 'f', 'g'), node('Slice', 't twos fours axis', 'h'), node('Exp', 'h', 'e'), node('Mul', 'e sixth', 'k')),
        node('Concat', 'g k', 'y', axis=-1),
    ]
    numbers = {'zeros': np.array([0]), 'twos': np.array([2]), 'fours': np.array([4]), 'axis': np.array([-1])}
    constants.update(weight=signs(8, 8, 1, 1), boxes=np.array([1, 2, 4, 6, 6]), **numbers)
    report = imported(make([*nodes, node('Conv', 's weight', 'c'), *last], constants), 1, same=False)
    assert report.outputs == ['c']


@pytest.mark.parametrize('kind', ['Softplus', 'Mish'])
def test_softplus_and_mish_are_packed(kind, imported):
    nodes, constants = begin()
    last = [node('Conv', 's weight', 'c'), node(kind, 'c', 'y')]
    imported(make([*nodes, *last], {**constants, 'weight': signs(8, 8, 1, 1)}, opset=18), 1)


def test_an_elementwise_operator_at_the_end_is_not_left_out(tmp_path):
    nodes, constants = begin()
    model = make([*nodes, node('Conv', 's weight', 'c'), node('Softsign', 'c')], {**constants, 'weight': signs(8, 8, 1, 1)})
    refused(model, tmp_path, r'node y \(Softsign\): there is no packed form of this operator')


def test_inputs_that_nothing_reads_are_named(imported):
    nodes, constants = begin()
    model = make([*nodes, node('Conv', 's weight')], {**constants, 'weight': signs(8, 8, 1, 1)}, {'x': (1, 4, 6, 6), 'z': (1, 2)})
    assert 'the input z is left out: nothing reads it' in imported(model, 1, same=False).notes


def test_signs_of_levels_that_are_their_threshold_are_refused(tmp_path):
    """The levels of the packed network have rounding errors, which would decide all of these signs."""
    nodes, constants = begin()
    constants.update(sixth=np.float32(0.123), weight=signs(4, 8, 1, 1), begin=np.array([2]), end=np.array([6]), axis=np.array([2]))
    shrink = [
        (node('Greater', f'{x} sixth', f'{x}g'), node('Mul', f'{x} sixth', f'{x}m'), node('Where', f'{x}g {x}m {x}', y))
        for x, y in (('s', 'v'), ('r', 'w'))  # -1 and .123
    ]
    nodes += [*shrink[0], node('Slice', 'v begin end axis', 'r'), *shrink[1]]
    refused(make([*nodes, *sign('w', 'z'), node('Conv', 'z weight')], constants), tmp_path, 'numbers at their threshold')


EMPTY = {
    'Slice': [node('Slice', 'c third third axis', 'e')],
    'Gather of rows': [node('Gather', 'c nothing', 'e', axis=2)],
    'Gather of channels': [node('Gather', 'c nothing', 'e', axis=1)],
    'Split': [helper.make_node('Split', ['c', 'all_and_none'], ['all', 'e'], axis=2)],
}


def with_empty_value(kind, end):
    nodes, constants = begin()
    constants.update(weight=signs(8, 8, 1, 1), third=np.array([3]), nothing=np.zeros(0, np.int64), all_and_none=np.array([6, 0]))
    return make(
        [*nodes, node('Conv', 's weight', 'c'), *EMPTY[kind], *end], {**constants, 'axis': np.array([3]), 'flat': np.array([1, -1])}
    )


@pytest.mark.parametrize('end', [node('Add', 'e e'), node('Reshape', 'e flat')], ids=lambda end: end.op_type)
@pytest.mark.parametrize('kind', EMPTY)
def test_outputs_without_elements_are_refused(kind, end, tmp_path):
    refused(with_empty_value(kind, [end]), tmp_path, r'the output y has no elements, its shape is \(1, .*0')


@pytest.mark.parametrize('kind', EMPTY)
def test_sums_over_no_elements_do_not_depend_on_the_input(kind, tmp_path):
    model = with_empty_value(kind, [node('Reshape', 'e flat', 'f'), node('ReduceSum', 'f', 'y', keepdims=1)])
    refused(model, tmp_path, 'the output y does not depend on the input')


@pytest.mark.parametrize('kind', EMPTY)
def test_what_is_concatenated_may_have_no_elements(kind, imported):
    axis = {'Slice': 3, 'Gather of channels': 1}.get(kind, 2)
    imported(with_empty_value(kind, [node('Concat', 'e c e', axis=axis)]), 1)
