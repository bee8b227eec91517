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
    return png_of((header[:4], header[4:]), (b'IDAT', zlib.compress(pixels, 9)), (b'IEND', b''))


def rle_bmp(width, height, deltas, bits=8):
    """Return a BMP file with run lengths of 8 or 4 bits. Its pixels are jumps ``(right, up)``, which Pillow fills with zeros."""
    colours = 1 << bits
    begin = 14 + 40 + 4 * colours
    pixels = b''.join(bytes([0, 2, right, up]) for right, up in deltas) + b'\0\1'
    size = begin + len(pixels)
    head = struct.pack('<2sIHHI', b'BM', size, 0, 0, begin)
    kind = {8: 1, 4: 2}[bits]
    head += struct.pack('<IiiHHIIiiII', 40, width, height, 1, bits, kind, len(pixels), 0, 0, colours, colours)
    return head + bytes(4 * colours) + pixels


def webp_of(*chunks):
    """Return a WebP file of chunks (name, content)."""
    body = b'WEBP' + b''.join(name + struct.pack('<I', len(content)) + content + bytes(len(content) % 2) for name, content in chunks)
    return b'RIFF' + struct.pack('<I', len(body)) + body


def animated_webp(width, height):
    """Return a WebP file of about 90 bytes: an animation on a canvas of width x height pixels with one frame of one pixel."""
    file = io.BytesIO()
    PIL.Image.new('RGB', (1, 1)).save(file, 'WEBP', lossless=True)
    frame = file.getvalue()[12:]
    sides = b''.join((side - 1).to_bytes(3, 'little') for side in (width, height))
    return webp_of((b'VP8X', b'\2\0\0\0' + sides), (b'ANIM', bytes(6)), (b'ANMF', bytes(12) + bytes(3) + b'\0' + frame))


def gif(canvas, frame=(0, 0, 1, 1), control=b''):
    """Return a GIF file with a canvas (width, height) and a frame (left, top, width, height), which has one pixel."""
    head = b'GIF89a' + struct.pack('<HHBBB', *canvas, 0x80, 0, 0) + bytes(6)
    return head + control + b',' + struct.pack('<HHHHB', *frame, 0) + b'\2\2D\1\0;'


def tiff(fields, pixels=b'', order='<'):
    """Return a TIFF file: fields are a dict of tags to a list of numbers, or to (type, bytes); `pixels` lie at byte 8."""
    sizes = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1}
    begin = 8 + len(pixels) + len(pixels) % 2
    behind = begin + 2 + 12 * len(fields) + 4
    entries, data = [], b''
    for tag, value in sorted(fields.items()):
        kind, content = value if isinstance(value, tuple) else (4, struct.pack(f'{order}{len(value)}I', *value))
        count = len(content) // sizes[kind]
        place = content.ljust(4, b'\0') if len(content) <= 4 else struct.pack(f'{order}I', behind + len(data))
        data += content if len(content) > 4 else b''
        entries.append(struct.pack(f'{order}HHI', tag, kind, count) + place)
    start = struct.pack(f'{order}2sHI', b'II' if order == '<' else b'MM', 42, begin)
    return start + pixels + bytes(len(pixels) % 2) + struct.pack(f'{order}H', len(fields)) + b''.join(entries) + bytes(4) + data


def gray_tiff(width, height, compression, pixels, **more):
    """Return a TIFF file of a gray image in one strip; `more` are further fields, ``tag_322=[16]``."""
    fields = {256: [width], 257: [height], 258: [8], 259: [compression], 262: [1], 273: [8], 277: [1], 278: [height], 279: [len(pixels)]}
    fields.update({int(name[4:]): value for name, value in more.items()})
    return tiff({tag: value for tag, value in fields.items() if value is not None}, pixels)


def tiled_tiff(side, compression=8):
    """Return a TIFF file of one pixel in a tile of side x side pixels, of which the file has some bytes."""
    pixels = zlib.compress(bytes(1000))
    tile = {'tag_322': [side], 'tag_323': [side], 'tag_324': [8], 'tag_325': [len(pixels)]}
    return gray_tiff(1, 1, compression, pixels, tag_273=None, tag_278=None, tag_279=None, **tile)


def tiff_of_many_tags(tags, size):
    """Return a TIFF file of one pixel with further tags that name the same `size` bytes each."""
    fields = {256: [1], 257: [1], 258: [8], 259: [1], 262: [1], 273: [8], 277: [1], 278: [1], 279: [1]}
    entries = [struct.pack('<HHII', tag, 4, 1, numbers[0]) for tag, numbers in sorted(fields.items())]
    entries += [struct.pack('<HHII', 1000 + number, 7, size - 8, 8) for number in range(tags)]
    content = struct.pack('<2sHI', b'II', 42, 16) + bytes(8) + struct.pack('<H', len(entries)) + b''.join(entries) + bytes(4)
    return content.ljust(size, b'\0')


def exif_of_many_tags(tags, size):
    """Return an EXIF header whose directory has tags that name the same `size` bytes each."""
    entries = [struct.pack('<HHII', 1000 + number, 7, size - 8, 8) for number in range(tags)]
    body = struct.pack('<2sHIH', b'II', 42, 8, tags) + b''.join(entries) + bytes(4)
    return b'Exif\0\0' + body + bytes(max(0, size - len(body)))


def jpeg_with_exif(exif):
    """Return a small JPEG file with an EXIF header of any length, in several segments."""
    file = io.BytesIO()
    PIL.Image.new('RGB', (8, 8)).save(file, 'JPEG')
    content, segments = file.getvalue(), b''
    for begin in range(6, len(exif), 65000):
        part = b'Exif\0\0' + exif[begin : begin + 65000]
        segments += b'\xff\xe1' + struct.pack('>H', 2 + len(part)) + part
    return content[:2] + segments + content[20:]  # without JFIF, whose resolution Pillow would take


def empty_jpeg(width, height, components=3, sampling=0x11, start=0xC2):
    """Return a JPEG file of some bytes that announces width x height pixels: a scan whose content is missing, which decoders take as gray.

    `start` is its kind: 0xC0 baseline, 0xC2 progressive, 0xC9 and 0xCA the same with arithmetic coding.
    """

    def segment(marker, content):
        return bytes([0xFF, marker]) + struct.pack('>H', 2 + len(content)) + content

    frame = struct.pack('>BHHB', 8, height, width, components)
    frame += b''.join(bytes([number + 1, 0x11 if number else sampling, 0]) for number in range(components))
    tables = b''.join(segment(0xC4, bytes([kind]) + b'\1' + bytes(15) + b'\0') for kind in (0x00, 0x10))
    ends = bytes([0, 0, 0]) if start in (0xC2, 0xCA) else bytes([0, 63, 0])
    scan = bytes([components]) + b''.join(bytes([number + 1, 0]) for number in range(components)) + ends
    return b'\xff\xd8' + segment(0xDB, b'\0' + b'\1' * 64) + segment(start, frame) + tables + segment(0xDA, scan) + b'\0\xff\xd9'


def png(width, height, depth, colour, interlaced=False, before=(), pixels=None):
    """Return a PNG file, by default with black pixels; `before` are chunks (name, content) before these."""
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    header = struct.pack('>IIBBBBB', width, height, depth, colour, 0, 0, interlaced)
    if pixels is None:
        squeeze = zlib.compressobj(9)
        parts = [squeeze.compress(bytes(1 + (width * bits + 7) // 8)) for _ in range(height)]
        pixels = b''.join(parts) + squeeze.flush()
    palette = [(b'PLTE', bytes(6))] if colour == 3 else []
    return png_of((b'IHDR', header), *before, *palette, (b'IDAT', pixels), (b'IEND', b''))


def png_of(*chunks):
    """Return a PNG file of chunks (name, content)."""
    parts = (struct.pack('>I', len(content)) + name + content + struct.pack('>I', zlib.crc32(name + content)) for name, content in chunks)
    return b'\x89PNG\r\n\x1a\n' + b''.join(parts)
