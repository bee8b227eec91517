"""Which image files MXNet's reader decodes to the pixels of `bmx_melius.vision.pixels.decode`, and how others become such files.

`mx.io.ImageRecordIter` decodes images in C++ by the OpenCV that MXNet was compiled with (3.4): no GIF, WebP and Netpbm files; TIFF files
without their orientation; PNG files without the orientation in their EXIF header; JPEG files with it only where the header comes first.
"""

import io
import struct

import numpy as np

from ..vision.image_headers import MAX_BYTES, cost_of
from ..vision.pixels import EXIF, MAX_PIXELS, PNG_START, decode, format_of, orientation_of

_JPEG_START, _START_OF_SCAN = b'\xff\xd8\xff', 0xDA
_EXIF_SEGMENT, _FILL = 0xE1, 0xFF
_BEFORE_EXIF = (0xFE, *range(0xE2, 0xF0))  # markers of segments, comments and application data, that OpenCV skips to find an EXIF header
_PNG_DEPTH = 24  # byte of the bits per channel


def decodes_alike(content, begin=0, end=None):
    """Return whether MXNet's reader decodes an image file, the bytes `begin` to `end` of `content`, to the pixels of `decode`.

    It is False for a file that may take more than `image_headers.MAX_BYTES` of memory, which this reader does not limit.

    Only headers are looked at: of most damaged files the result has no meaning. Of a PNG file with a wrong length of a chunk it is False:
    Pillow decodes some of these, and MXNet's `imdecode` returns uninitialised pixels where its reader fails.
    """
    end = len(content) if end is None else end
    if content[begin : begin + len(_JPEG_START)] == _JPEG_START:
        if not _is_affordable(content, 'JPEG', begin, end):
            return False
        header, comes_first = _exif_of_jpeg(content, begin, end)
        return comes_first or not _turns(header and content[slice(*header)])
    if content[begin : begin + len(PNG_START)] == PNG_START:
        if not _is_affordable(content, 'PNG', begin, end):
            return False
        header, is_whole = _exif_of_png(content, begin, end)
        return is_whole and content[begin + _PNG_DEPTH : begin + _PNG_DEPTH + 1] != b'\x10' and not _turns(header)
    return False


def as_decoded_alike(content, name):
    """Return an image file as one that MXNet's reader decodes to the same pixels; most files are returned as they are.

    In a JPEG file the EXIF header is moved to the beginning. Other files are decoded and stored as PNG.

    Raises
    ------
    UserError
        If the file cannot be decoded.
    """
    if decodes_alike(content):
        return content
    form = format_of(content)
    if form is not None and form.name == 'JPEG' and _is_affordable(content, 'JPEG', 0, len(content)):
        (begin, end), _ = _exif_of_jpeg(content, 0, len(content))
        segment = slice(begin - 4, end)  # with its marker and length
        return content[:2] + content[segment] + content[2 : segment.start] + content[segment.stop :]
    import PIL.Image

    pixels, stored = decode(content, name, 3), io.BytesIO()
    is_gray = bool((pixels == pixels[..., :1]).all())
    PIL.Image.fromarray(np.ascontiguousarray(pixels[..., 0]) if is_gray else pixels).save(stored, 'PNG')
    return stored.getvalue()


def _is_affordable(content, form, begin, end):
    cost = cost_of(content, form, begin, end)
    return cost.width * cost.height <= MAX_PIXELS and cost.possible <= MAX_BYTES


def _turns(header):
    return bool(header) and 2 <= orientation_of(header) <= 8


def _exif_of_jpeg(content, begin, end):
    """Return (first byte, end) of the EXIF header of a JPEG file, or None, and whether OpenCV finds it."""
    position, comes_first = begin + 2, True
    while position + 10 <= end:
        start, marker, length = struct.unpack_from('>BBH', content, position)
        if start != 0xFF or marker == _START_OF_SCAN:
            break
        if marker == _FILL:
            position += 1
            continue
        if marker == _EXIF_SEGMENT and content[position + 4 : position + 4 + len(EXIF)] == EXIF:
            return (position + 4, min(position + 2 + length, end)), comes_first
        comes_first = comes_first and marker in _BEFORE_EXIF
        position += 2 + length
    return None, True


def _exif_of_png(content, begin, end):
    """Return the EXIF header of a PNG file, bytes, empty if there is none, and whether the chunks lead to the last one."""
    position, header = begin + len(PNG_START), b''
    while position + 12 <= end:
        length, kind = struct.unpack_from('>I4s', content, position)
        if kind == b'eXIf' and not header:
            header = content[position + 8 : min(position + 8 + length, end)]
        position += 12 + length
        if kind == b'IEND':
            return header, position <= end
    return header, False
