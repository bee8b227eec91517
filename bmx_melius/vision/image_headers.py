"""Cost of decoding an image file, read from its headers without a decoder.

A decoder allocates the pixels that a file announces, and a progressive JPEG file is decoded as often as it has scans. Pillow announces the
number of pixels of most files before it allocates anything, but not of WebP files, nor the tiles of TIFF files, and never the number
of scans. What else a file makes a decoder allocate, its headers often only bound from above: `Cost.possible`.
"""

import dataclasses
import math
import re
import struct
from typing import Optional

from .tiff_directory import ENTRY, SIZES, byte_order, numbers_of_entries, unpacked

MAX_BYTES = 2_000_000_000  # of memory for decoding an image, beside its file
MAX_SCANS = 32  # of a JPEG file; encoders write 10 or fewer. One takes up to 0.2 s at 50 megapixels, even if it is a few bytes long
_SCAN_START = b'\xff\xda'
_MARKER = re.compile(b'\xff+([^\x00\xff])')  # FF 00 is a byte FF in the data of a scan
_WITHOUT_LENGTH = (*range(0x01, 0xC0), *range(0xD0, 0xD9))  # the decoder continues its search after these markers
_FRAMES = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))  # their segments announce the size
_END_OF_IMAGE, _START_OF_SCAN = 0xD9, 0xDA
_GIF_BLOCK = re.compile(b'[!,;]')  # Pillow skips other bytes between blocks
_DIRECTORIES = ((0xE1, b'Exif\0\0'), (0xE2, b'MPF\0'))  # markers and starts of segments with a directory as in a TIFF file

# Bytes of memory per pixel that Pillow and `pixels` take at most. The other formats take 14 or fewer, within `MAX_BYTES` for each image.
_BYTES_PER_PIXEL = {'BMP': 8, 'GIF': 12, 'JPEG': 14, 'PNG': 14, 'TIFF': 9, 'WebP': 17}
_BYTES_PER_RUN_LENGTH_PIXEL = 4  # of the list that Pillow fills
_RUN_LENGTH = (1, 2)  # compressions of BMP files
_FURTHEST_JUMP = 256  # rows that a jump in such a file may skip

_FURTHER_DIRECTORIES = (330, 34665, 34853, 40965)  # their places: parts, EXIF, GPS, interoperability
_NESTING = 2  # of directories
_EXPANSION = 64  # memory for a byte of a directory: numbers become objects of Python, several times
_INTEGERS = {1: 'B', 3: 'H', 4: 'I', 6: 'B', 8: 'H', 9: 'I', 13: 'I', 16: 'Q'}
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _SAMPLES, _ROWS, _PLANES = 256, 257, 258, 259, 262, 277, 278, 284
_TILE_WIDTH, _TILE_HEIGHT = 322, 323
_BOUNDED_COMPRESSIONS = {1, 2, 3, 4, 5, 8, 32773, 32946}  # of TIFF files: whose decoders take no more memory than strips or tiles
_FAX = {2, 3, 4}  # compressions that take memory for the changes of colour in a row
_BYTES_PER_CHANGE = 24
_SEPARATE, _LUMA_AND_CHROMA = {2}, 6  # values of _PLANES and _PHOTOMETRIC

_TEXTS = (b'zTXt', b'iTXt', b'iCCP', b'sPLT')  # chunks of PNG files
_TEXT_BYTES, _DEFLATED = 8_000_000, 1032  # limit of libpng for each of them; largest ratio of deflate

_CODES = 1 << 16  # most sets of Huffman codes of an image in lossless WebP, one for each block of `_BLOCK` pixels
_BLOCK, _BYTES_PER_CODE = 16, 28_000


@dataclasses.dataclass(frozen=True)
class Cost:
    """What decoding an image takes.

    Attributes
    ----------
    width, height : int
        Largest picture that the file announces; 0 where its format is left to Pillow, which announces it before it allocates anything.
    certain : int
        Bytes of memory that its pixels take.
    possible : float
        Bytes that it takes at most; infinity if its headers do not bound it.
    """

    width: int = 0
    height: int = 0
    certain: int = 0
    possible: float = 0


def cost_of(content: bytes, form: str, begin: int = 0, end: Optional[int] = None) -> Cost:
    """Return the cost of decoding an image.

    Parameters
    ----------
    content : bytes or mmap.mmap
        The file lies at the bytes `begin` to `end`. It may be damaged.
    form : str
        Name of its format, see `pixels.FORMATS`.
    begin, end : int
    """
    end = len(content) if end is None else end
    if form not in _COSTS:
        return Cost()
    width, height, further, unknown = _COSTS[form](content, begin, end)
    certain = _BYTES_PER_PIXEL[form] * width * height + further
    return Cost(width, height, certain, certain + unknown)


def require_affordable(content: bytes, form: str, max_pixels: int) -> Cost:
    """Check that an image file does not announce more work than a decoder should do, and return its cost.

    Parameters
    ----------
    content : bytes
        Content of a file.
    form : str
        Name of its format.
    max_pixels : int
        Height times width.

    Raises
    ------
    ValueError
        If it has more pixels, its pixels take more than `MAX_BYTES` of memory, or a JPEG file has more than `MAX_SCANS` scans.
    """
    cost = cost_of(content, form)
    if cost.width * cost.height > max_pixels:
        raise ValueError(f'it has {cost.width} x {cost.height} pixels; at most {max_pixels} are possible')
    if cost.certain > MAX_BYTES:
        raise ValueError(
            f'it takes {cost.certain:,} bytes of memory for {cost.width} x {cost.height} pixels as they are stored; '
            f'at most {MAX_BYTES:,} are possible'
        )
    if form == 'JPEG' and content.count(_SCAN_START) > MAX_SCANS:  # also in thumbnails and metadata
        scans = jpeg_scans(content)
        if scans > MAX_SCANS:
            raise ValueError(f'it has {scans} scans; at most {MAX_SCANS} are decoded: save it again, not as progressive JPEG')
    return cost


def webp_size(content: bytes):
    """Return width and height that a WebP file announces (RFC 9649); zeros for other files and for files that are too short."""
    if len(content) < 30 or content[:4] != b'RIFF' or content[8:12] != b'WEBP':
        return 0, 0
    kind = content[12:16]
    if kind == b'VP8X':
        return tuple(1 + int.from_bytes(content[begin : begin + 3], 'little') for begin in (24, 27))
    if kind == b'VP8L':
        (bits,) = struct.unpack_from('<I', content, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b'VP8 ':
        return tuple(side & 0x3FFF for side in struct.unpack_from('<HH', content, 26))
    return 0, 0


def jpeg_scans(content: bytes) -> int:
    """Return the number of scans of the first image in a JPEG file, found as libjpeg finds them."""
    return sum(marker == _START_OF_SCAN for marker, _, _ in _jpeg_segments(content, 0, len(content)))


def _jpeg_segments(content, begin, end):
    """Yield the markers of the first image in a JPEG file, as libjpeg finds them, with begin and end of the contents of their segments."""
    position = begin + 2
    while True:
        found = _MARKER.search(content, position, end)
        if found is None:
            return
        marker, position = found[1][0], found.end()
        if marker == _END_OF_IMAGE:
            return
        first = position
        if marker not in _WITHOUT_LENGTH and position + 2 <= end:
            first, position = position + 2, position + max(2, struct.unpack_from('>H', content, position)[0])
        yield marker, first, min(position, end)


def _cost_of_jpeg(content, begin, end):
    width = height = 0
    directories = dict.fromkeys(_DIRECTORIES, b'')
    for marker, first, last in _jpeg_segments(content, begin, end):
        if marker == _START_OF_SCAN:
            break
        if marker in _FRAMES and first + 5 <= last and not width:
            height, width = struct.unpack_from('>HH', content, first + 1)
        for key in _DIRECTORIES:
            if marker == key[0] and content[first : first + len(key[1])] == key[1]:
                directories[key] += content[first + len(key[1]) : last]  # Pillow joins several segments
    return width, height, 0, sum(map(_directory_memory, directories.values()))


def _cost_of_png(content, begin, end):
    """Compressed texts and profiles are decompressed: Pillow limits them further, libpng in MXNet's reader only each of them."""
    width = height = texts = 0
    position = begin + 8
    while position + 8 <= end:
        length, name = struct.unpack_from('>I4s', content, position)
        if name == b'IHDR':
            width, height = map(max, (width, height), unpacked('>II', content, position + 8))
        texts += min(_TEXT_BYTES, _DEFLATED * length) if name in _TEXTS else 0
        position += 12 + length
    return width, height, 0, texts


def _cost_of_bmp(content, begin, _):
    (size,) = unpacked('<I', content, begin + 14)
    width, height = unpacked('<HH' if size == 12 else '<ii', content, begin + 18)
    height = abs(height)
    is_run_length = size > 12 and unpacked('<I', content, begin + 30)[0] in _RUN_LENGTH
    jumps = _BYTES_PER_RUN_LENGTH_PIXEL * max(0, width) * (height + _FURTHEST_JUMP) if is_run_length else 0
    return max(0, width), height, 0, jumps


def _cost_of_gif(content, begin, end):
    """The first frame may be larger than the canvas, which Pillow enlarges then."""
    width, height, flags = unpacked('<HHB', content, begin + 6)
    position = begin + 13 + _palette(flags)
    while True:
        found = _GIF_BLOCK.search(content, position, end)
        if found is None or found[0] == b';':
            return width, height, 0, 0
        if found[0] == b',':
            left, top, columns, rows = unpacked('<HHHH', content, found.end())
            return max(width, left + columns), max(height, top + rows), 0, 0
        position = found.end() + 1
        while position < end and content[position]:
            position += 1 + content[position]
        position += 1


def _palette(flags):
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _cost_of_webp(content, _, __):
    """All formats of WebP are decoded as animations by Pillow, on two canvases."""
    width, height = webp_size(content)
    is_lossless = b'VP8L' in content or b'ALPH' in content
    return width, height, 0, _BYTES_PER_CODE * min(_CODES, math.ceil(width * height / _BLOCK)) if is_lossless else 0


def _cost_of_tiff(content, begin, end):
    """Strips and tiles are decompressed as a whole, and tiles may be larger than the image. Of a repeated entry any number may count."""
    content = memoryview(content)[begin:end]
    order = byte_order(content)
    (first,) = unpacked(f'{order}I', content, 4)
    fields = {}
    for tag, kind, count, place in numbers_of_entries(content, order, first):
        fields.setdefault(tag, set()).add(_first_number(content, order, kind, count, place))

    def largest(tag, default):
        return max(fields.get(tag, ()), default=default)

    width, height, compressions = largest(_WIDTH, 0), largest(_HEIGHT, 0), fields.get(_COMPRESSION, {1})
    columns, rows = width, min(height, largest(_ROWS, height))
    memory = _directory_memory(content)
    if compressions == {1}:
        return width, height, 0, memory
    if _TILE_WIDTH in fields:
        columns, rows = largest(_TILE_WIDTH, 0), largest(_TILE_HEIGHT, 0)
    samples = 1 if fields.get(_PLANES) == _SEPARATE else largest(_SAMPLES, 1)
    per_pixel = samples * math.ceil(largest(_BITS, 1) / 8) + (4 if _LUMA_AND_CHROMA in fields.get(_PHOTOMETRIC, ()) else 0)
    changes = _BYTES_PER_CHANGE * columns if compressions & _FAX else 0
    is_bounded = compressions <= _BOUNDED_COMPRESSIONS
    return max(width, columns), max(height, rows), columns * rows * per_pixel + changes, memory if is_bounded else math.inf


def _first_number(content, order, kind, count, place):
    return unpacked(order + _INTEGERS[kind], content, place)[0] if kind in _INTEGERS and count else 0


def _directory_memory(content):
    """Return the bytes of memory that Pillow takes at most for the first directory of a TIFF file and the directories that it names.

    Entries may name the same bytes many times, and each becomes a copy.
    """
    order = byte_order(content)
    places, read = list(unpacked(f'{order}I', content, 4)), 0
    for _ in range(1 + _NESTING):
        further = []
        for place in places:
            named = {}  # by tag, of which the last entry counts
            for tag, kind, count, begin in numbers_of_entries(content, order, place):
                read += ENTRY + min(count * SIZES.get(kind, 0), max(0, len(content) - begin))
                if tag in _FURTHER_DIRECTORIES:
                    named[tag] = _first_number(content, order, kind, count, begin)
            further += named.values()
        places = further
    return _EXPANSION * read


_COSTS = {
    'JPEG': _cost_of_jpeg,
    'PNG': _cost_of_png,
    'BMP': _cost_of_bmp,
    'GIF': _cost_of_gif,
    'WebP': _cost_of_webp,
    'TIFF': _cost_of_tiff,
}
