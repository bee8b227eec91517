"""Small image files that cost much to decode."""

import io
import struct
import zlib

import numpy as np
import PIL.Image


def with_scans(scans, side=64):
    """Return a valid progressive JPEG file, of one colour, with a number of scans, at least 10; each is a few bytes long."""
    file = io.BytesIO()
    PIL.Image.fromarray(np.full((side, side, 3), 128, np.uint8)).save(file, format='JPEG', progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b'\xff\xda') : -2]
    return content[:-2] + last * (scans - 10) + content[-2:]


def large_webp(side):
    """Return a valid lossless WebP file of one colour, of few bytes, with side x side pixels."""
    file = io.BytesIO()
    PIL.Image.new('RGB', (side, side)).save(file, format='WEBP', lossless=True)
    return file.getvalue()


def huge_webp():
    """Return a lossless WebP file of 34 bytes that announces 16384 x 16384 pixels."""
    body = b'WEBPVP8L' + struct.pack('<I', 14) + b'\x2f' + struct.pack('<I', 0x3FFF | 0x3FFF << 14) + bytes(9)
    return b'RIFF' + struct.pack('<I', len(body)) + body


def announced_png(width, height, pixels=None):
    """Return a PNG file of some bytes that announces width x height pixels of one bit: by default it has them, all black."""
    header = b'IHDR' + struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)
    pixels = bytes(height * (1 + width // 8)) if pixels is None else pixels
    chunks = (header, b'IDAT' + zlib.compress(pixels, 9), b'IEND')
    parts = (struct.pack('>I', len(chunk) - 4) + chunk + struct.pack('>I', zlib.crc32(chunk)) for chunk in chunks)
    return b'\x89PNG\r\n\x1a\n' + b''.join(parts)
