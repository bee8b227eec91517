"""The preprocessing of an image, against arithmetic by hand and MXNet's own record iterator."""

import json

import cv2
import mxnet as mx
import numpy as np
import pytest
from support.images import write_records

from bmx_melius.errors import UserError
from bmx_melius.vision.preprocessing import InputSpec


def make_image(path, height, width, channels=3, seed=0):
    """Write a smooth random image to `path` (JPEG or PNG by its suffix), so that JPEG loses little."""
    small = mx.nd.array(np.random.RandomState(seed).randint(0, 256, (4, 4, 3)), dtype='uint8')
    image = mx.image.imresize(small, width, height).asnumpy()
    cv2.imwrite(str(path), image if channels == 3 else image[..., :1])


def test_defaults_are_those_of_imagenet():
    spec = InputSpec()
    assert spec.shape == (3, 224, 224) and spec.resize == 256
    assert spec.mean == (123.68, 116.779, 103.939) and spec.std == (58.393, 57.12, 57.375)


def test_a_description_survives_json():
    for spec in (InputSpec(), InputSpec(1, 16, None, (100,), (50,))):
        assert InputSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


TOO_LARGE = {'size': 8193, 'resize': 9000}, {'resize': 16385}, {'size': 10**9, 'resize': None}
NO_WHOLE_NUMBERS = {'size': 7.5}, {'size': True}, {'size': None}, {'resize': 256.5}, {'channels': 3.0}
NOT_FINITE = {'std': (1, float('nan'), 1)}, {'std': (1, float('inf'), 1)}, {'mean': (float('nan'), 0, 0)}


@pytest.mark.parametrize(
    'fields',
    [
        {'channels': 2},
        {'channels': 1},
        {'size': 0},
        {'size': 300},
        *TOO_LARGE,
        *NO_WHOLE_NUMBERS,
        {'std': (1, 0, 1)},
        {'mean': (1, 2)},
        *NOT_FINITE,
    ],
)
def test_values_that_do_not_fit_are_refused(fields):
    with pytest.raises(UserError):
        InputSpec(**fields)


@pytest.mark.parametrize(
    'fields',
    [
        {},
        {'size': 3},
        {**InputSpec().to_json(), 'more': 1},
        {**InputSpec().to_json(), 'mean': None},
        {**InputSpec().to_json(), 'size': 'big'},
        {**InputSpec().to_json(), 'mean': ['a', 'b', 'c']},
        {**InputSpec().to_json(), 'std': [10**400, 1, 1]},
        {**InputSpec().to_json(), 'size': 10**9},
    ],
)
def test_a_malformed_description_is_refused(fields):
    with pytest.raises(UserError):
        InputSpec.from_json(fields)


@pytest.mark.parametrize('height,width', [(60, 40), (40, 60), (33, 33)])
def test_load_equals_the_validation_pass_of_the_record_iterator(tmp_path, height, width):
    make_image(tmp_path / 'a.jpg', height, width)
    spec = InputSpec(size=24, resize=32)
    write_records(tmp_path / 'a', [(tmp_path / 'a.jpg').read_bytes()])
    statistics = {f'{name}_{c}': value for name in ('mean', 'std') for c, value in zip('rgb', getattr(spec, name))}
    file = str(tmp_path / 'a.rec')
    batch = next(mx.io.ImageRecordIter(path_imgrec=file, batch_size=1, data_shape=spec.shape, resize=spec.resize, **statistics))
    loaded = spec.load(tmp_path / 'a.jpg')
    assert loaded.shape == (1, *spec.shape) and loaded.dtype == np.float32
    # the iterator may decode the JPEG with another library, which rounds some pixels differently by one or two levels
    np.testing.assert_allclose(loaded.asnumpy(), batch.data[0].asnumpy(), atol=2.5 / 57)


def test_normalize_takes_out_mean_and_deviation_of_each_channel():
    image = np.random.RandomState(0).randint(0, 256, (2, 5, 6, 3))
    spec = InputSpec(mean=(1, 2, 3), std=(4, 5, 6), size=5)
    expected = ((image - np.array([1.0, 2.0, 3.0])) / np.array([4.0, 5.0, 6.0])).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(spec.normalize(mx.nd.array(image, dtype='uint8')).asnumpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(spec.normalize(mx.nd.array(image[0], dtype='uint8')).asnumpy(), expected[0], rtol=1e-6)


def test_a_gray_network_reads_a_colour_image_as_gray_without_cropping(tmp_path):
    make_image(tmp_path / 'a.png', 20, 30)
    spec = InputSpec(1, 8, None, (0,), (1,))
    assert spec.load(tmp_path / 'a.png').shape == (1, 1, 8, 8)
    make_image(tmp_path / 'gray.png', 8, 8, channels=1)
    np.testing.assert_array_equal(spec.load(tmp_path / 'gray.png').asnumpy()[0, 0], cv2.imread(str(tmp_path / 'gray.png'), 0))
