"""Preprocessing with NumPy and Pillow: the pixels of OpenCV and of MXNet."""

import io
import struct
import tracemalloc

import cv2
import mxnet as mx
import numpy as np
import PIL.EpsImagePlugin
import PIL.Image
import PIL.ImageFile
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.hostile_images import announced_png
from support.images import encode, stored, turned

from bmx_melius.data.mxnet_decoder import as_decoded_alike, decodes_alike
from bmx_melius.errors import UserError
from bmx_melius.vision import pixels
from bmx_melius.vision.preprocessing import InputSpec

LENGTH = st.integers(1, 90)


def make_image(height, width, channels=3, seed=0):
    """Return a texture of several scales: (height, width, channels) uint8."""
    random = np.random.RandomState(seed)
    scales = [
        cv2.resize(random.randint(0, 256, (max(1, height // scale), max(1, width // scale), channels)).astype(np.uint8), (width, height))
        for scale in (1, 3, 20)
    ]
    return np.mean(scales, axis=0).astype(np.uint8).reshape(height, width, channels)


def noise(height, width, channels):
    return np.random.RandomState(height + 91 * width).randint(0, 256, (height, width, channels)).astype(np.uint8)


@given(LENGTH, LENGTH, LENGTH, LENGTH, st.sampled_from([1, 3]))
@example(40, 60, 20, 30, 3)  # half the size, which OpenCV computes in another way
@example(60, 60, 20, 20, 3)
@example(1, 1, 7, 9, 1)
@example(33, 47, 33, 47, 3)
def test_resize_equals_opencv_in_every_pixel(rows, columns, height, width, channels):
    image = noise(rows, columns, channels)
    expected = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR).reshape(height, width, channels)
    np.testing.assert_array_equal(pixels.resize(image, height, width), expected)


@given(LENGTH, LENGTH, LENGTH, LENGTH)
@example(40, 60, 20, 30)
def test_resize_equals_mxnet_in_every_pixel(rows, columns, height, width):
    image = noise(rows, columns, 3)
    expected = mx.image.imresize(mx.nd.array(image, dtype='uint8'), width, height, interp=1).asnumpy()
    np.testing.assert_array_equal(pixels.resize(image, height, width), expected)


@pytest.mark.parametrize('height,width', [(30, 45), (21, 90), (77, 60), (30, 20), (200, 133)])
def test_a_window_of_the_result_is_that_part_of_it(height, width):
    image, window = noise(60, 40, 3), (slice(5, 15), slice(3, 18))
    np.testing.assert_array_equal(pixels.resize(image, height, width, window), pixels.resize(image, height, width)[window])


def jpeg(image, **options):
    return stored(image, 'JPEG', **options)


def assert_decoded_as_by_mxnet(content):
    for channels in (3, 1):
        expected = mx.image.imdecode(content, flag=0 if channels == 1 else 1).asnumpy()
        np.testing.assert_array_equal(pixels.decode(content, 'image', channels), expected)


@pytest.mark.parametrize('subsampling', [0, 1, 2])
@pytest.mark.parametrize('quality', [50, 95])
@pytest.mark.parametrize('height,width', [(64, 80), (33, 51)])
def test_jpeg_files_are_decoded_as_by_mxnet(subsampling, quality, height, width):
    image = make_image(height, width)
    assert_decoded_as_by_mxnet(jpeg(image, subsampling=subsampling, quality=quality))
    assert_decoded_as_by_mxnet(jpeg(image, subsampling=subsampling, quality=quality, progressive=True))


def test_other_files_are_decoded_as_by_mxnet():
    image = make_image(30, 40)
    transparent = np.dstack([image, make_image(30, 40, 1, seed=1)])
    for form in ('PNG', 'BMP', 'TIFF'):
        for mode in ('RGB', 'L', '1'):
            assert_decoded_as_by_mxnet(stored(image, form, mode))
    for mode in ('P', 'LA'):
        assert_decoded_as_by_mxnet(stored(image, 'PNG', mode))
    assert_decoded_as_by_mxnet(stored(transparent, 'PNG'))
    assert_decoded_as_by_mxnet(encode(np.random.RandomState(0).randint(0, 65536, (30, 40, 1)).astype(np.uint16)))
    assert_decoded_as_by_mxnet(jpeg(image, mode='L'))
    assert_decoded_as_by_mxnet(jpeg(image, mode='CMYK'))


def segment(marker, content):
    return struct.pack('>BBH', 0xFF, marker, len(content) + 2) + content


def exif(orientation, order):
    ends = '<' if order == b'II' else '>'
    fields = struct.pack(f'{ends}HIHHHIHHI', 42, 8, 1, 0x112, 3, 1, orientation, 0, 0)
    return segment(0xE1, b'Exif\0\0' + order + fields)


@pytest.mark.parametrize('order', [b'II', b'MM'])
@pytest.mark.parametrize('orientation', range(1, 9))
def test_a_jpeg_file_is_rotated_by_its_exif_header_wherever_it_is(orientation, order):
    content = jpeg(make_image(20, 30))
    start, jfif, rest = content[:2], content[2:20], content[20:]
    assert jfif[4:8] == b'JFIF'
    header = exif(orientation, order)
    assert_decoded_as_by_mxnet(start + header + rest)
    assert pixels.decode(start + header + rest, 'image', 3).shape[:2] == ((20, 30) if orientation < 5 else (30, 20))
    upright = pixels.decode(start + header + rest, 'image', 3)
    # MXNet finds the header after some segments and not after others; other readers find all
    for before in (
        jfif,
        segment(0xFE, b'a comment'),
        segment(0xE2, b'ICC_PROFILE\0\1\1' + bytes(20)),
        segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0'),
    ):
        content = start + before + header + rest
        np.testing.assert_array_equal(pixels.decode(content, 'image', 3), upright)
        if decodes_alike(content):
            assert_decoded_as_by_mxnet(content)
        assert decodes_alike(as_decoded_alike(content, 'image'))
        assert_decoded_as_by_mxnet(as_decoded_alike(content, 'image'))
    assert decodes_alike(start + header + rest) and decodes_alike(start + jfif + header + rest) == (orientation == 1)


def test_the_first_image_of_a_file_with_several_is_decoded_as_by_mxnet():
    """Phones write such JPEG files (MPO), with a second image of another resolution or exposure."""
    file, (first, second) = io.BytesIO(), (PIL.Image.fromarray(make_image(20, 30, seed=seed)) for seed in (1, 2))
    first.save(file, format='MPO', save_all=True, append_images=[second])
    content = file.getvalue()
    assert content[2:4] == b'\xff\xe0', 'a JFIF header'
    content = content[:2] + exif(6, b'II') + content[20:]  # without it MXNet finds the EXIF header
    with PIL.Image.open(io.BytesIO(content)) as image:
        assert image.format == 'MPO'
    assert_decoded_as_by_mxnet(content)
    assert pixels.decode(content, 'image', 3).shape[:2] == (30, 20)


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    'spec',
    [
        InputSpec(),
        InputSpec(size=24, resize=32),
        InputSpec(size=24, resize=None),
        InputSpec(1, 8, 10, (77.9,), (95.9,)),
        InputSpec(1, 40, None, (128,), (70,)),
        InputSpec(size=32, resize=32),
    ],
)
def test_array_equals_load(tmp_path, spec):
    content = jpeg(make_image(61, 45))
    files = [
        write(tmp_path / 'a.jpg', content),
        write(tmp_path / 'b.jpg', turned(content)),
        write(tmp_path / 'c.png', encode(noise(32, 64, 3))),
    ]
    for file in files:
        array = spec.array(file)
        assert array.dtype == np.float32 and array.shape == (1, *spec.shape) and array.flags.c_contiguous
        np.testing.assert_array_equal(array, spec.load(file).asnumpy())
        np.testing.assert_array_equal(array, spec.array(str(file)))


def test_pixels_may_be_a_file_a_pillow_image_or_an_array(tmp_path):
    image, spec = noise(40, 30, 3), InputSpec(size=16, resize=20)
    expected = spec.array(write(tmp_path / 'a.png', encode(image)))
    np.testing.assert_array_equal(spec.array(image), expected)
    np.testing.assert_array_equal(spec.array(PIL.Image.fromarray(image)), expected)
    gray = InputSpec(1, 16, 20, (100,), (50,))
    for array in (image[..., 0], image[..., :1]):
        np.testing.assert_array_equal(gray.array(array), gray.array(PIL.Image.fromarray(image[..., 0])))
        np.testing.assert_array_equal(spec.array(array), spec.array(np.repeat(image[..., :1], 3, axis=2)))
    decoded = mx.image.imdecode(stored(image, 'BMP'), flag=0).asnumpy()  # by OpenCV's weights of the colours
    np.testing.assert_array_equal(gray.array(image), gray.array(decoded))


@pytest.mark.parametrize(
    'image,message',
    [
        (np.zeros((4, 4, 3)), 'must be uint8, 0 to 255, not float64'),
        (np.zeros((4, 4, 4), np.uint8), r'not \(4, 4, 4\)'),
        (np.zeros((0, 4, 3), np.uint8), r'not \(0, 4, 3\)'),
        (np.zeros(4, np.uint8), r'not \(4,\)'),
        (3, 'a path, the bytes of a file, a PIL image or a NumPy array of uint8, not int'),
    ],
)
def test_what_is_no_image_is_refused(image, message):
    with pytest.raises(UserError, match=message):
        InputSpec().array(image)


def test_a_file_that_is_no_image_or_truncated_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(PIL.ImageFile, 'LOAD_TRUNCATED_IMAGES', True)  # as GluonCV does when it is imported
    content = jpeg(make_image(60, 60))
    for read in (InputSpec().array, InputSpec().load):
        for damaged in (b'', b'not an image', content[: len(content) // 2], encode(noise(60, 60, 3))[:2000]):
            with pytest.raises(UserError, match='a.jpg cannot be decoded as an image'):
                read(write(tmp_path / 'a.jpg', damaged))
        with pytest.raises(FileNotFoundError, match='nothing.jpg'):
            read(tmp_path / 'nothing.jpg')


def test_a_small_file_of_many_pixels_is_refused_before_they_are_decoded(monkeypatch):
    monkeypatch.setattr(pixels, 'MAX_PIXELS', 1024**2)
    assert pixels.decode(announced_png(1024, 1024), 'photo.png', 1).shape == (1024, 1024, 1)
    content = announced_png(1032, 1032)
    assert len(content) < 1000
    monkeypatch.setattr(PIL.ImageFile.ImageFile, 'load', lambda _: pytest.fail('was decoded'))
    with pytest.raises(UserError, match='photo.png cannot be decoded .* it has 1032 x 1032 pixels; at most 1048576 are possible'):
        pixels.decode(content, 'photo.png', 1)


def test_formats_that_another_program_would_execute_are_refused(monkeypatch):
    content = io.BytesIO()
    PIL.Image.new('RGB', (4, 4)).save(content, 'EPS')
    monkeypatch.setattr(PIL.EpsImagePlugin, 'Ghostscript', lambda *_, **__: pytest.fail('was executed'))
    with pytest.raises(UserError, match='photo.eps cannot be decoded as an image'):
        pixels.decode(content.getvalue(), 'photo.eps', 3)


@pytest.mark.parametrize('resize, size', [(10, 8), (12, 12), (None, 10), (20, 16), (5, 4), (None, 16)])
def test_pixels_are_cropped_in_numpy_as_by_mxnet_and_opencv(resize, size):
    image, spec = np.random.RandomState(0).randint(0, 256, (10, 10, 3)).astype(np.uint8), InputSpec(size=size, resize=resize)
    resized = cv2.resize(image, (resize or size,) * 2)
    begin = (len(resized) - size) // 2
    expected = resized[begin : begin + size, begin : begin + size]
    for cropped in (spec.crop_pixels(image), spec.crop(mx.nd.array(image, dtype='uint8')).asnumpy()):
        np.testing.assert_array_equal(cropped, expected)


def test_rows_of_a_thin_image_are_not_repeated_in_memory_to_enlarge_it():
    thin = np.random.RandomState(0).randint(0, 256, (2, 1 << 20, 3)).astype(np.uint8)
    tracemalloc.start()
    result = pixels.resize(thin, 224, 32)
    assert tracemalloc.get_traced_memory()[1] < 1 << 27  # 224 rows of the image are 700 MB
    tracemalloc.stop()
    np.testing.assert_array_equal(result, cv2.resize(thin, (32, 224)))


def test_a_thin_image_that_would_become_huge_is_refused():
    thin, spec = np.zeros((1, 100_000, 3), np.uint8), InputSpec(size=224, resize=256)
    for preprocess in (spec.array, spec.crop_pixels, lambda image: spec.crop(mx.nd.array(image, dtype='uint8'))):
        with pytest.raises(UserError, match='an image of 100000 x 1 pixels would be resized to 25600000 x 256'):
            preprocess(thin)


@pytest.mark.parametrize('mode, channels', [('CMYK', 3), ('CMYK', 1), ('RGB', 1), ('I;16', 1)])
def test_large_images_are_converted_in_parts_with_the_same_pixels_and_little_memory(mode, channels, monkeypatch):
    height, width = 1500, 2000
    content = np.random.RandomState(0).randint(0, 256, height * width * (4 if mode == 'CMYK' else 3), np.uint8).tobytes()
    image = PIL.Image.frombytes(mode, (width, height), content[: height * width * len(PIL.Image.new(mode, (1, 1)).tobytes())])
    tracemalloc.start()
    parts = pixels.from_pillow(image, channels)
    bytes_per_pixel = tracemalloc.get_traced_memory()[1] / (height * width)
    tracemalloc.stop()
    assert bytes_per_pixel < 20  # with 32-bit integers for the whole image at once, 40 and more
    monkeypatch.setattr(pixels, '_PIXELS_AT_ONCE', height * width)
    np.testing.assert_array_equal(pixels.from_pillow(image, channels), parts)
