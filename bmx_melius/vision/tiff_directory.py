"""Directories of TIFF files and EXIF headers. Their content may be damaged."""

import struct

ENTRY = 12  # bytes of an entry of a directory
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # bytes of the types of a directory


def byte_order(content):
    """Return the byte order of a TIFF file or EXIF header, '<' or '>'."""
    return '<' if content[:2] == b'II' else '>'


def directory_entries(content, order, place):
    """Yield (tag, type, count, place of the value) of the entries of a directory, as far as the content has them."""
    (entries,) = unpacked(f'{order}H', content, place)
    for entry in range(place + 2, min(place + 2 + entries * ENTRY, len(content) - ENTRY + 1), ENTRY):
        yield (*struct.unpack_from(f'{order}HHI', content, entry), entry + 8)


def numbers_of_entries(content, order, place):
    """Yield (tag, type, count, place of the numbers), which are in the value of an entry if they fit into it."""
    for tag, kind, count, value in directory_entries(content, order, place):
        inside = count * SIZES.get(kind, 0) <= 4
        yield tag, kind, count, value if inside else struct.unpack_from(f'{order}I', content, value)[0]


def unpacked(layout, content, place):
    """Return the numbers at a place, zeros where the content ends before."""
    size = struct.calcsize(layout)
    return struct.unpack(layout, bytes(content[place : place + size]).ljust(size, b'\0'))
