"""Small image files that cost much to decode."""

import io
import struct

import numpy as np
import PIL.Image


def with_scans(scans, side=64):
    """Return a valid progressive JPEG file, of one colour, with a number of scans, at least 10; each is a few bytes long."""
    file = io.BytesIO()
    PIL.Image.fromarray(np.full((side, side, 3), 128, np.uint8)).save(file, format='JPEG', progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b'\xff\xda') : -2]
    return content[:-2] + last * (scans - 10) + content[-2:]


def huge_webp():
    """Return a lossless WebP file of 34 bytes that announces 16384 x 16384 pixels."""
    body = b'WEBPVP8L' + struct.pack('<I', 14) + b'\x2f' + struct.pack('<I', 0x3FFF | 0x3FFF << 14) + bytes(9)
    return b'RIFF' + struct.pack('<I', len(body)) + body
