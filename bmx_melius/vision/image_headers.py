"""Cost of decoding an image file, read from its headers without a decoder.

A decoder allocates the pixels that a file announces, and a progressive JPEG file is decoded as often as it has scans. Pillow announces the
number of pixels of most files before it allocates anything, but not that of WebP files, and never the number of scans.
"""

import re
import struct

MAX_SCANS = 32  # of a JPEG file; encoders write 10 or fewer. One takes up to 0.2 s at 50 megapixels, even if it is a few bytes long
_SCAN_START = b'\xff\xda'
_MARKER = re.compile(b'\xff+([^\x00\xff])')  # FF 00 is a byte FF in the data of a scan
_WITHOUT_LENGTH = (*range(0x01, 0xC0), *range(0xD0, 0xD9))  # the decoder continues its search after these markers
_END_OF_IMAGE, _START_OF_SCAN = 0xD9, 0xDA


def require_affordable(content: bytes, max_pixels: int) -> None:
    """Check that an image file does not announce more work than a decoder should do.

    Parameters
    ----------
    content : bytes
        Content of a file of any format.
    max_pixels : int
        Height times width of a WebP file, which Pillow allocates when it opens one.

    Raises
    ------
    ValueError
        If a WebP file has more pixels, or a JPEG file more than `MAX_SCANS` scans.
    """
    width, height = webp_size(content)
    if width * height > max_pixels:
        raise ValueError(f'it has {width} x {height} pixels; at most {max_pixels} are possible')
    if content.startswith(b'\xff\xd8') and content.count(_SCAN_START) > MAX_SCANS:  # also in thumbnails and metadata
        scans = jpeg_scans(content)
        if scans > MAX_SCANS:
            raise ValueError(f'it has {scans} scans; at most {MAX_SCANS} are decoded: save it again, not as progressive JPEG')


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
    scans, position = 0, 2
    while True:
        found = _MARKER.search(content, position)
        if found is None:
            return scans
        marker, position = found[1][0], found.end()
        if marker == _END_OF_IMAGE:
            return scans
        scans += marker == _START_OF_SCAN
        if marker not in _WITHOUT_LENGTH and position + 2 <= len(content):
            position += max(2, struct.unpack_from('>H', content, position)[0])
