"""Cost of decoding an image file, read from its headers: the sizes equal Pillow's, and the scans are as written."""

import re
import tracemalloc

import numpy as np
import PIL.features
import PIL.Image
import pytest
from support.hostile_images import huge_webp, with_scans
from support.images import stored

from bmx_melius.errors import UserError
from bmx_melius.vision.image_headers import MAX_SCANS, jpeg_scans, require_affordable, webp_size
from bmx_melius.vision.pixels import MAX_PIXELS, decode

needs_webp = pytest.mark.skipif(not PIL.features.check('webp'), reason='Pillow without WebP')


def encoded(shape, **options):
    return stored(np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8), **options)


@needs_webp
@pytest.mark.parametrize('options', [{'lossless': True}, {'quality': 80}, {'quality': 80, 'exif': b'Exif\0\0MM\0*\0\0\0\x08\0\0'}])
@pytest.mark.parametrize('height,width', [(1, 1), (3, 200), (260, 17)])
def test_the_size_of_a_webp_file_is_that_of_its_image(height, width, options):
    content = encoded((height, width, 3), form='WEBP', **options)
    assert webp_size(content) == (width, height)


@pytest.mark.parametrize('content', [b'', b'RIFF', b'RIFF____WEBPVP8X', b'RIFF____WEBPabcd' + bytes(20), encoded((3, 3, 3), form='JPEG')])
def test_other_files_have_no_size_of_webp(content):
    assert webp_size(content) == (0, 0)


@needs_webp
def test_a_webp_file_of_34_bytes_takes_no_memory_for_the_pixels_that_it_announces():
    assert len(huge_webp()) == 34
    with pytest.raises(UserError, match='it has 16384 x 16384 pixels; at most'):
        decode(huge_webp(), 'x.webp', 3)
    with pytest.raises(ValueError, match='pixels'):
        require_affordable(encoded((9, 10, 3), form='WEBP'), 'WebP', 89)
    require_affordable(encoded((9, 10, 3), form='WEBP'), 'WebP', 90)


@pytest.mark.parametrize('progressive,channels,scans', [(False, 3, 1), (True, 3, 10), (True, 1, 6)])
@pytest.mark.parametrize('metadata', [b'', b'Exif\0\0' + b'\xff\xda\0\x02' * 100])
def test_the_scans_of_a_jpeg_file_are_counted_but_not_those_in_its_metadata(progressive, channels, scans, metadata):
    shape = (90, 120, channels) if channels == 3 else (90, 120)
    content = encoded(shape, form='JPEG', progressive=progressive, exif=metadata)
    assert jpeg_scans(content) == scans
    assert jpeg_scans(content + content) == scans  # of the first picture
    require_affordable(content, 'JPEG', MAX_PIXELS)
    assert decode(content, 'x.jpg', 3).shape == (90, 120, 3)


def test_garbage_and_short_ends_between_the_segments_do_not_hide_scans():
    content = with_scans(20)
    assert jpeg_scans(content) == 20
    position = content.index(b'\xff\xda')
    assert jpeg_scans(content[:position] + b'garbage\xff\x00\xff\xff' + content[position:]) == 20
    assert jpeg_scans(content[:position] + b'\xff\xd3\xff\x02' + content[position:]) == 20
    for end in range(len(content)):
        assert jpeg_scans(content[:end]) <= 20


def test_a_jpeg_file_with_too_many_scans_is_refused_before_it_is_decoded(monkeypatch):
    assert decode(with_scans(MAX_SCANS), 'x.jpg', 3).shape == (64, 64, 3)
    monkeypatch.setattr(PIL.Image, 'open', None)
    tracemalloc.start()
    with pytest.raises(UserError, match=re.escape(f'it has {10 * MAX_SCANS} scans; at most {MAX_SCANS} are decoded')):
        decode(with_scans(10 * MAX_SCANS), 'x.jpg', 3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
