"""Memory of decoding: at most 2 GB, whatever an image file announces or hides; measured in processes of their own."""

import json
import os
import resource
import struct
import subprocess
import sys
import zlib

import numpy as np
import PIL.features
import PIL.Image
import pytest
from support.classifiers import write_classifier, write_image
from support.hostile_images import (
    animated_webp,
    empty_jpeg,
    exif_of_many_tags,
    gif,
    gray_tiff,
    jpeg_with_exif,
    png,
    png_of,
    rle_bmp,
    tiff_of_many_tags,
    tiled_tiff,
)
from support.images import stored
from support.long_runs import mostly_long
from support.paths import ROOT

from bmx_melius.data.mxnet_decoder import as_decoded_alike, decodes_alike
from bmx_melius.errors import MemoryLimitError, UserError
from bmx_melius.vision.image_headers import MAX_BYTES, cost_of
from bmx_melius.vision.pixels import MAX_FILE_BYTES, MAX_PIXELS, decode, format_of, read_file

needs_webp = pytest.mark.skipif(not PIL.features.check('webp'), reason='Pillow without WebP')
SIDE = 11585  # of a square with `MAX_PIXELS` pixels
BESIDE = 400 << 20  # bytes that Python, NumPy and Pillow take themselves
HEADER = struct.pack('>IIBBBBB', 8, 8, 8, 0, 0, 0, 0)

PROGRAM = """
import json, os, resource, sys
memory = int(sys.argv[1])
from bmx_melius.errors import UserError
from bmx_melius.vision import pixels
from bmx_melius.vision.pixels import decode
import PIL.Image, PIL.ImageFile
PIL.Image.MAX_IMAGE_PIXELS = None  # as programs for large images set it
PIL.Image.preinit()
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
with open(sys.argv[2], 'rb') as file:
    content = file.read()

def peak():
    with open('/proc/self/status') as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith('VmHWM'))

before = peak()
try:
    result = list(decode(content, 'the file', int(sys.argv[3])).shape)
except UserError as error:
    result = str(error)
pixels._processes.close()
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
print(json.dumps([result, peak() - before, children]))
"""


def decoded_apart(content, folder, memory=MAX_BYTES + BESIDE, channels=3):
    """Decode a file in a process with limited address space.

    Returns
    -------
    result : list of int or str
        Shape of the pixels, or the error.
    own, others : int
        Bytes of memory that decoding takes in this process, and that a process that it starts takes.
    """
    path = folder / 'image'
    path.write_bytes(content)
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OPENBLAS_NUM_THREADS': '1', 'PYTHONWARNINGS': 'ignore'}
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM, str(memory), path, str(channels)], capture_output=True, text=True, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def text(name, length):
    return name, b'a\0\0' + zlib.compress(bytes(length), 9)


ANNOUNCED = {  # refused from what their headers say
    'animated WebP': lambda: animated_webp(SIDE, SIDE),
    'lossless WebP of another size than its canvas': lambda: animated_webp(1 << 24, 200),
    'tile of TIFF': lambda: tiled_tiff(46_000),
    'strip of TIFF': lambda: gray_tiff(1 << 27, 2, 8, b''),
    'changes of colour in a row of TIFF': lambda: gray_tiff(1 << 27, 1, 4, b'', tag_258=[1]),
    'samples of TIFF': lambda: gray_tiff(9000, 9000, 8, b'', tag_277=[16], tag_258=[32]),
    'canvas of GIF': lambda: gif((65535, 65535)),
    'frame of GIF': lambda: gif((1, 1), (60000, 60000, 60000, 60000), b'!\xf9\4\x09\0\0\1\0'),
    'frame of GIF after other bytes': lambda: gif((1, 1), (0, 0, 60000, 60000), b'a!\xf9\4\x09\0\0\1\0bb'),
    'JPEG': lambda: empty_jpeg(65500, 65500, start=0xC0),
    'second header of PNG': lambda: png_of(
        (b'IHDR', HEADER), (b'IHDR', struct.pack('>IIBBBBB', 60000, 60000, 8, 6, 0, 0, 0)), (b'IDAT', b''), (b'IEND', b'')
    ),
    'BMP': lambda: rle_bmp(1 << 27, 2, []),
}
HIDDEN = {  # decoded by a process that is given up
    'jumps in BMP': lambda: rle_bmp(MAX_PIXELS, 1, [(0, 20)]),
    'jumps in BMP of 4 bits': lambda: rle_bmp(MAX_PIXELS, 1, [(0, 255)], bits=4),
    'tags of TIFF': lambda: tiff_of_many_tags(6000, 1 << 20),
    'EXIF of JPEG': lambda: jpeg_with_exif(exif_of_many_tags(6000, 1 << 20)),
}


@pytest.mark.parametrize('name', ANNOUNCED)
def test_what_headers_announce_is_refused_before_it_takes_memory(name, tmp_path):
    content = ANNOUNCED[name]()
    assert len(content) < 2000
    result, own, others = decoded_apart(content, tmp_path)
    assert 'the file cannot be decoded as an image' in result and 'possible' in result and '\n' not in result
    assert own < 20 << 20 and others == 0


@pytest.mark.parametrize('name', HIDDEN)
def test_what_headers_do_not_announce_ends_another_process(name, tmp_path):
    result, own, others = decoded_apart(HIDDEN[name](), tmp_path)
    if isinstance(result, str):  # newer versions of Pillow read some of them within the limit
        assert 'the file cannot be decoded as an image' in result and 'it takes too much memory' in result and '\n' not in result
    assert own < 40 << 20 < others < MAX_BYTES + BESIDE


def test_files_whose_cost_is_not_known_have_the_same_pixels_from_the_other_process():
    pixels = np.random.RandomState(0).randint(0, 256, (30, 40, 3)).astype(np.uint8)
    content = stored(pixels, 'TIFF', compression='lzma')
    assert cost_of(content, 'TIFF').possible > MAX_BYTES
    np.testing.assert_array_equal(decode(content, 'a.tif', 3), pixels)
    with pytest.raises(UserError, match='^a.tif cannot be decoded as an image .TIFF.: '):
        decode(gray_tiff(8, 8, 50000, b'not compressed by Zstandard'), 'a.tif', 3)
    np.testing.assert_array_equal(decode(content, 'a.tif', 3), pixels)


def test_numbers_of_a_directory_that_name_the_same_bytes_are_counted_each():
    for content, form in ((tiff_of_many_tags(6000, 1 << 20), 'TIFF'), (jpeg_with_exif(exif_of_many_tags(6000, 1 << 20)), 'JPEG')):
        assert cost_of(content, form).possible > 6000 * (1 << 19)
    ordinary = PIL.Image.Exif()
    ordinary[0x112], ordinary[0x10E] = 6, 'a text'
    assert cost_of(stored(np.zeros((9, 9, 3), np.uint8), 'JPEG', exif=ordinary.tobytes()), 'JPEG').possible < 1 << 20


MODES = {
    'JPEG': ('RGB', 'L', 'CMYK'),
    'PNG': ('RGB', 'RGBA', 'L', 'LA', 'P', '1', 'I;16'),
    'BMP': ('RGB', 'L', '1', 'P'),
    'TIFF': ('RGB', 'RGBA', 'CMYK', 'L', 'P', '1', 'I;16'),
    'GIF': ('P', 'L'),
    'WEBP': ('RGB', 'RGBA'),
    'PPM': ('RGB', 'L', '1', 'I'),
}
OPTIONS = {
    'JPEG': ({}, {'progressive': True, 'subsampling': 0}),
    'TIFF': ({}, {'compression': 'tiff_deflate', 'tiffinfo': {278: 2000}}),
    'WEBP': ({'quality': 50, 'method': 0},),
}


@pytest.mark.parametrize(
    'form,mode,options',
    mostly_long(
        [(form, mode, options) for form in MODES for mode in MODES[form] for options in OPTIONS.get(form, ({},))],
        *((form, mode) for form in MODES for mode in {MODES[form][0], MODES[form][-1]}),
        key=lambda row: row[:2],
    ),
)
def test_decoding_takes_no_more_than_the_headers_say(form, mode, options, tmp_path):
    if form == 'WEBP' and not PIL.features.check('webp'):
        pytest.skip('Pillow without WebP')
    exif = PIL.Image.Exif()
    exif[0x112] = 6
    path, side = tmp_path / 'stored', 2000
    turning = {'exif': exif.tobytes()} if form in ('JPEG', 'PNG', 'WEBP', 'TIFF') and 'tiffinfo' not in options else {}
    image = PIL.Image.new(mode, (side, side)) if mode.startswith('I') else PIL.Image.new('RGB', (side, side))
    (image.quantize(4) if mode == 'P' else image.convert(mode)).save(path, form, **options, **turning)
    content = path.read_bytes()
    name = format_of(content).name
    for channels in (1, 3):
        result, own, others = decoded_apart(content, tmp_path, channels=channels)
        assert result == [side, side, channels] and others == 0
        assert own <= (cost_of(content, name).certain or 14 * side * side) + (16 << 20)


@pytest.mark.long
@pytest.mark.parametrize('components,start', [(3, 0xC0), (3, 0xC2), (4, 0xC2), (4, 0xCA)])
def test_the_largest_jpeg_files_take_less_than_the_limit(components, start, tmp_path):
    content = empty_jpeg(SIDE, SIDE, components, start=start)
    result, own, others = decoded_apart(content, tmp_path)
    assert result == [SIDE, SIDE, 3] and own < cost_of(content, 'JPEG').certain < MAX_BYTES and others == 0


@pytest.mark.long
@pytest.mark.parametrize('depth,colour', [(1, 0), (16, 0), (8, 2), (8, 3), (8, 6), (16, 6)])
def test_the_largest_png_files_take_less_than_the_limit(depth, colour, tmp_path):
    frame = struct.pack('>IIIIIHHBB', 0, SIDE, SIDE, 0, 0, 1, 1, 1, 0)
    content = png(SIDE, SIDE, depth, colour, before=[(b'acTL', struct.pack('>II', 1, 0)), (b'fcTL', frame)])
    result, own, others = decoded_apart(content, tmp_path)
    assert result == [SIDE, SIDE, 3] and own < cost_of(content, 'PNG').certain < MAX_BYTES and others == 0


@pytest.mark.long
@needs_webp
def test_the_largest_webp_files_take_less_than_the_limit(tmp_path):
    content = animated_webp(10_800, 10_800)
    result, own, others = decoded_apart(content, tmp_path)
    assert result == [10_800, 10_800, 3] and own < cost_of(content, 'WebP').certain < MAX_BYTES and others == 0


def test_images_that_mxnets_reader_would_decode_without_a_limit_are_left_to_the_library():
    huge = {
        'a JPEG file': empty_jpeg(60_000, 60_000, start=0xC0),
        'a PNG file': png_of((b'IHDR', struct.pack('>IIBBBBB', 20_000, 20_000, 8, 2, 0, 0, 0)), (b'IDAT', b''), (b'IEND', b'')),
    }
    for name, content in huge.items():
        assert not decodes_alike(content) and not decodes_alike(b'before' + content + b'after', 6, 6 + len(content))
        with pytest.raises(UserError, match=f'{name} cannot be decoded'):
            as_decoded_alike(content, name)
    texts = png(8, 8, 8, 2, before=[text(b'zTXt', 8_000_000)] * 300)
    assert not decodes_alike(texts) and decodes_alike(png(8, 8, 8, 2, before=[text(b'zTXt', 100)] * 300))
    with pytest.raises(UserError, match='texts cannot be decoded'):
        as_decoded_alike(texts, 'texts')


def test_a_file_of_many_bytes_is_not_read(tmp_path):
    with open(tmp_path / 'sparse.png', 'wb') as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(UserError, match=r'sparse.png has 2,147,483,649 bytes, more than an image can have'):
        read_file(tmp_path / 'sparse.png')


def test_memory_that_is_exhausted_is_an_error_of_one_line(monkeypatch):
    def load(*_):
        raise MemoryError

    monkeypatch.setattr(PIL.Image.Image, 'crop', load)
    with pytest.raises(MemoryLimitError, match=r'^a.png cannot be decoded as an image \(PNG\): it takes too much memory$'):
        decode(png(8, 8, 8, 2), 'a.png', 3)


def test_other_images_of_a_folder_are_classified_and_scored(tmp_path):
    packed, photos = write_classifier(tmp_path / 'network'), tmp_path / 'photos'
    photos.mkdir()
    for number in range(3):
        write_image(photos / f'{number}.png', seed=number)
    hostile = {'animated.webp': animated_webp(SIDE, SIDE), 'jumps.bmp': rle_bmp(MAX_PIXELS, 1, [(0, 20)]), 'tile.tif': tiled_tiff(46_000)}
    for name, content in hostile.items():
        (photos / name).write_bytes(content)

    def run(command, *arguments):
        limit = 3 * MAX_BYTES
        return subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', 'bmx_melius', command, packed, photos, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, 'PYTHONPATH': str(ROOT)},
            cwd=tmp_path,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )

    done = run('predict', '--json')
    assert done.returncode == 2 and '3 of 6 images cannot be read' in done.stderr and 'Traceback' not in done.stderr
    assert [os.path.basename(row['image']) for row in json.loads(done.stdout)['predictions']] == ['0.png', '1.png', '2.png']
    parquet = pytest.importorskip('pyarrow.parquet')
    done = run('score', '--output', 'scores', '--workers', '1')
    assert done.returncode == 0 and '3 could not be read' in done.stdout
    rows = [row for path in (tmp_path / 'scores').glob('*.parquet') for row in parquet.read_table(path).to_pylist()]
    assert {os.path.basename(row['image']) for row in rows if row['error']} == set(hostile)
    assert all('cannot be decoded as an image' in row['error'] for row in rows if row['error']) and len(rows) == 6
