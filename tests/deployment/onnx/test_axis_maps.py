"""Resizing and padding by elements of the map, in the forms that ONNX has: packed networks compute what ONNX Runtime does."""

import numpy as np
import onnxruntime
import pytest
from support.tiny_onnx import helper, make, node, signs

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.runtime.packed_files import read_packed

pytestmark = pytest.mark.usefixtures('without_trial')

RANDOM = np.random.RandomState(0)
SIGN = [node('Less', 'x zero', 'l'), node('Where', 'l minus one', 's')]
NUMBERS = {'zero': np.float32(0), 'one': np.float32(1), 'minus': np.float32(-1), 'infinite': np.float32(-np.inf)}


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    return session.run(None, {'x': x})[0]


def require_equal(nodes, tmp_path, layers=1, size=(6, 5), opset=17, **constants):
    """Import a network of a binary layer c of x with further nodes and compare it with ONNX Runtime; return the report."""
    axes = len(size)
    constants = {**NUMBERS, 'w': signs(8, 4, *(3,) * axes), **{name: np.asarray(value) for name, value in constants.items()}}
    nodes = [*SIGN, node('Conv', 's w', 'c', pads=[1] * 2 * axes), *nodes]
    model = make(nodes, constants, {'x': (1, 4, *size)}, opset=opset)
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    report = bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed')
    assert report.binary_layers == layers
    x = RANDOM.normal(size=(2, 4, *size)).astype(np.float32)
    expected = np.concatenate([run(model, image[None]) for image in x])
    np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    return report


def resize(source, scales=None, sizes=None, **attributes):
    """Return a node `Resize` that makes y, and its constants."""
    names = {'scales': np.float32([1, 1, *scales])} if scales else {'sizes': np.int64([1, 8, *sizes])}
    inputs = [source, '', 'scales'] if scales else [source, '', '', 'sizes']
    places = attributes.pop('places', 'half_pixel')
    return [helper.make_node('Resize', inputs, ['y'], coordinate_transformation_mode=places, **attributes)], names


RESIZED = {
    'corners': dict(mode='linear', scales=(2, 2), places='align_corners'),
    'corners, odd sizes': dict(mode='linear', sizes=(15, 7), places='align_corners'),
    'corners, smaller': dict(mode='linear', sizes=(4, 2), places='align_corners'),
    'corners to one': dict(mode='linear', sizes=(1, 5), places='align_corners'),
    'half pixels': dict(mode='linear', scales=(2, 3)),
    'half pixels, odd sizes': dict(mode='linear', sizes=(31, 6)),
    'half pixels, smaller': dict(mode='linear', scales=(0.5, 0.6)),
    'half pixels, scales with a rest': dict(mode='linear', scales=(1.7, 2.3)),
    "PyTorch's half pixels": dict(mode='linear', sizes=(1, 11), places='pytorch_half_pixel'),
    'asymmetric': dict(mode='linear', scales=(3, 2), places='asymmetric'),
    'cubic': dict(mode='cubic', scales=(2, 2), cubic_coeff_a=-0.75),
    'without aliases': dict(mode='linear', scales=(0.5, 0.5), antialias=1),
    'nearest, odd sizes': dict(mode='nearest', sizes=(9, 13), places='asymmetric', nearest_mode='floor'),
    'nearest, smaller': dict(mode='nearest', sizes=(4, 3), nearest_mode='round_prefer_floor'),
    'nearest corners': dict(mode='nearest', scales=(2, 2), places='align_corners', nearest_mode='ceil'),
}


@pytest.mark.parametrize('form', RESIZED)
def test_maps_are_resized_as_by_onnx_runtime(form, tmp_path):
    nodes, constants = resize('c', **RESIZED[form])
    require_equal(nodes, tmp_path, opset=18, **constants)


def test_a_map_of_one_element_is_enlarged_without_a_kernel(tmp_path):
    nodes, constants = resize('a', mode='linear', scales=(64, 64))
    report = require_equal([node('GlobalAveragePool', 'c', 'a'), *nodes], tmp_path, **constants)
    assert report.conversion.size_after < 5000


def test_lines_are_resized(tmp_path):
    nodes, constants = resize('c', mode='linear', scales=(2,), places='align_corners')
    require_equal(nodes, tmp_path, size=(9,), **constants)


def test_upsample_of_old_models(tmp_path):
    require_equal([node('Upsample', 'c scales', mode='linear')], tmp_path, opset=9, scales=np.float32([1, 1, 2, 2]))


PADS = np.int64([0, 0, 2, 1, 0, 0, 1, 3])
PADDED = {
    'edge': [node('Pad', 'c pads', mode='edge')],
    'reflect': [node('Pad', 'c pads', mode='reflect')],
    'wrap': [node('Pad', 'c pads', mode='wrap')],
    'convolution': [node('Pad', 'c pads', 'p', mode='edge'), node('Conv', 'p v')],
    'circular': [  # as PyTorch exports it
        *(node('Slice', 'c last end rows', 'b'), node('Slice', 'c start two rows', 'e'), node('Concat', 'b c e', axis=2)),
    ],
    'rolled': [node('Slice', 'c two end rows', 'b'), node('Slice', 'c start two rows', 'e'), node('Concat', 'b e', axis=2)],
}


@pytest.mark.parametrize('form', PADDED)
def test_maps_are_padded_by_their_elements_as_by_onnx_runtime(form, tmp_path):
    constants = {'last': [-1], 'end': [1 << 40], 'rows': [2], 'start': [0], 'two': [2]}
    constants = {name: np.int64(value) for name, value in constants.items()}
    v = RANDOM.normal(size=(3, 8, 3, 3)).astype(np.float32)
    require_equal(PADDED[form], tmp_path, opset=19, pads=PADS, v=v, **constants)


@pytest.mark.parametrize('form', ['edge', 'reflect', 'nearest'])
def test_signs_that_are_moved_remain_signs(form, tmp_path):
    nodes, constants = resize('t', scales=(2, 2), mode='nearest')
    nodes[0].output[:] = ['p']
    if form != 'nearest':
        nodes, constants = [node('Pad', 't pads', 'p', mode=form)], {'pads': PADS}
    nodes = [node('Add', 'c half', 'd'), node('Less', 'd zero', 'f'), node('Where', 'f minus one', 't'), *nodes, node('Conv', 'p v')]
    require_equal(nodes, tmp_path, layers=2, v=signs(3, 8, 3, 3), half=np.float32(0.5), **constants)


@pytest.mark.parametrize('mode', ['infinite', 'lowest', 'edge'])
@pytest.mark.parametrize('stride', [1, 2])
def test_padding_that_is_never_the_maximum_is_padding_of_the_pooling(mode, stride, tmp_path):
    pad = node('Pad', 'c pads', 'p', mode='edge') if mode == 'edge' else node('Pad', f'c pads {mode}', 'p')
    pool = node('MaxPool', 'p', kernel_shape=[2, 3], strides=[stride] * 2)
    require_equal([pad, pool], tmp_path, pads=np.int64([0, 0, 0, 1, 0, 0, 1, 2]), lowest=np.finfo(np.float32).min)
    program, *_ = read_packed(tmp_path / 'packed')
    assert [operation.name for operation in program.operations] == ['threshold', 'binary_conv', 'max_pool']


def test_padding_with_a_number_is_refused_with_what_can_be_packed(tmp_path):
    with pytest.raises(UserError, match='it pads with -5; zeros can be packed, .* minus infinity before maximum pooling'):
        require_equal(
            [node('Pad', 'c pads five', 'p'), node('MaxPool', 'p', kernel_shape=[2, 2])], tmp_path, pads=PADS, five=np.float32(-5)
        )
