"""Image files of every kind, with the pixels that each reader must find in them, or that they are refused: the table of docs/data.md."""

import dataclasses
import io
from typing import Optional

import cv2
import numpy as np
import PIL.Image

from support.channel_images import TIFF_FILES, npy
from support.hostile_images import announced_png
from support.images import stored

_TURN = 6  # EXIF orientation: turn by 90 degrees clockwise
_random = np.random.RandomState(0)
COLOURS = cv2.resize(_random.randint(0, 256, (4, 5, 3)).astype(np.uint8), (40, 30))
GRAY = cv2.resize(_random.randint(0, 256, (4, 5)).astype(np.uint8), (40, 30))
_OTHER = COLOURS[::-1, ::-1]  # of a second frame or page


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of image files.

    Attributes
    ----------
    name : str
        The row of the table in docs/data.md to which it belongs, and after a colon what is particular.
    suffix : str
    content : bytes
    pixels : numpy.ndarray or None
        RGB, (height, width, 3) uint8; None: the file is refused.
    in_c : bool
        Whether bmx-classify reads the format.
    """

    name: str
    suffix: str
    content: bytes
    pixels: Optional[np.ndarray]
    in_c: bool = False

    @property
    def file_name(self):
        """Name of the file."""
        return ''.join(letter if letter.isalnum() else '-' for letter in self.name) + self.suffix


def _rgb(gray):
    return np.repeat(gray[..., None], 3, axis=2)


def _exif():
    exif = PIL.Image.Exif()
    exif[0x112] = _TURN
    return exif.tobytes()


def _by_opencv(content):
    """Return the pixels of a JPEG file by OpenCV, which turns it."""
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


def _second(array=_OTHER):
    return {'save_all': True, 'append_images': [PIL.Image.fromarray(array)]}


def _jpeg():
    plain = stored(COLOURS, 'JPEG', quality=95)
    after_jfif = stored(COLOURS, 'JPEG', quality=95, exif=_exif())
    upright = np.rot90(_by_opencv(plain), -1)
    rows = [
        ('', plain, _by_opencv(plain)),
        ('progressive', *[stored(COLOURS, 'JPEG', progressive=True)] * 2),
        ('gray', *[stored(COLOURS, 'JPEG', 'L')] * 2),
        ('CMYK', *[stored(COLOURS, 'JPEG', 'CMYK', quality=100, subsampling=0)] * 2),
        ('EXIF orientation after JFIF', after_jfif, upright),
        ('EXIF orientation first', after_jfif[:2] + after_jfif[20:], upright),
        ('several pictures, MPO', stored(COLOURS, 'MPO', quality=95, **_second()), _by_opencv(plain)),
        ('bytes after the end', plain + bytes(200), _by_opencv(plain)),
        ('half of it', plain[: len(plain) // 2], None),
        ('without its last bytes', plain[:-2], None),
    ]
    return [('JPEG', '.jpg', name, content, _by_opencv(pixels) if isinstance(pixels, bytes) else pixels) for name, content, pixels in rows]


def _png():
    plain, paletted = stored(COLOURS, 'PNG'), PIL.Image.fromarray(COLOURS).quantize(20)
    transparent = np.dstack([COLOURS, GRAY])
    damaged = bytearray(plain)
    damaged[len(plain) // 2] ^= 0x10
    file = io.BytesIO()
    paletted.save(file, 'PNG', transparency=3)
    rows = [
        ('', plain, COLOURS),
        ('transparency', stored(transparent, 'PNG'), COLOURS),
        ('gray', stored(GRAY, 'PNG'), _rgb(GRAY)),
        ('gray with transparency', stored(GRAY, 'PNG', 'LA'), _rgb(GRAY)),
        ('palette', file.getvalue(), np.array(paletted.getpalette()).reshape(-1, 3)[np.asarray(paletted)].astype(np.uint8)),
        ('black and white', stored((GRAY > 99) * np.uint8(255), 'PNG', '1'), _rgb((GRAY > 99) * np.uint8(255))),
        ('16 bits gray', cv2.imencode('.png', GRAY.astype(np.uint16) * 256 + 200)[1].tobytes(), _rgb(GRAY)),
        ('16 bits', cv2.imencode('.png', COLOURS[..., ::-1].astype(np.uint16) * 256 + 200)[1].tobytes(), COLOURS),
        ('EXIF orientation', stored(COLOURS, 'PNG', exif=_exif()), np.rot90(COLOURS, -1)),
        ('animated', stored(COLOURS, 'PNG', **_second()), COLOURS),
        ('truncated', plain[:-300], None),
        ('without its last bytes', plain[:-3], None),
        ('damaged', bytes(damaged), None),
    ]
    return [('PNG', '.png', *row) for row in rows]


def _others():
    lossless, gif = {'lossless': True}, stored(GRAY, 'GIF')
    inks = np.asarray(PIL.Image.fromarray(COLOURS).convert('CMYK')).astype(int)
    of_inks = (255 - inks[..., 3:]) - (inks[..., :3] * (255 - inks[..., 3:]) >> 8)
    webp, bmp, tiff = stored(COLOURS, 'WEBP', **lossless), stored(COLOURS, 'BMP'), stored(COLOURS, 'TIFF')
    return [
        ('GIF', '.gif', '', gif, _rgb(GRAY)),
        ('GIF', '.gif', 'animated', stored(GRAY, 'GIF', **_second(GRAY[::-1])), _rgb(GRAY)),
        ('GIF', '.gif', 'truncated', gif[: len(gif) // 2], None),
        ('WebP', '.webp', '', webp, COLOURS),
        ('WebP', '.webp', 'transparency', stored(np.dstack([COLOURS, GRAY]), 'WEBP', exact=True, **lossless), COLOURS),
        ('WebP', '.webp', 'animated', stored(COLOURS, 'WEBP', **lossless, **_second()), COLOURS),
        ('WebP', '.webp', 'EXIF orientation', stored(COLOURS, 'WEBP', exif=_exif(), **lossless), np.rot90(COLOURS, -1)),
        ('WebP', '.webp', 'truncated', webp[:-200], None),
        ('BMP', '.bmp', '', bmp, COLOURS),
        ('BMP', '.bmp', 'truncated', bmp[:-300], None),
        ('TIFF', '.tif', '', tiff, COLOURS),
        ('TIFF', '.tiff', 'transparency', stored(np.dstack([COLOURS, GRAY]), 'TIFF'), COLOURS),
        ('TIFF', '.tif', 'CMYK', stored(COLOURS, 'TIFF', 'CMYK'), of_inks.astype(np.uint8)),
        ('TIFF', '.tif', '16 bits gray', cv2.imencode('.tiff', GRAY.astype(np.uint16) * 256 + 200)[1].tobytes(), _rgb(GRAY)),
        ('TIFF', '.tif', '16 bits', cv2.imencode('.tiff', COLOURS[..., ::-1].astype(np.uint16) * 256 + 200)[1].tobytes(), COLOURS),
        ('TIFF', '.tif', 'orientation', stored(COLOURS, 'TIFF', tiffinfo={0x112: _TURN}), np.rot90(COLOURS, -1)),
        ('TIFF', '.tif', 'several pages', stored(COLOURS, 'TIFF', **_second()), COLOURS),
        ('TIFF', '.tif', 'truncated', tiff[:-300], None),
        ('TIFF', '.tif', 'floating-point numbers', stored(GRAY.astype(np.float32), 'TIFF'), None),
        ('TIFF', '.tif', '32 bits', stored(GRAY.astype(np.int32) << 8, 'TIFF'), None),
        ('Netpbm', '.ppm', '', stored(COLOURS, 'PPM'), COLOURS),
        ('Netpbm', '.pgm', '16 bits gray', b'P5 40 30 65535\n' + (GRAY.astype(np.uint16) * 256 + 200).astype('>u2').tobytes(), _rgb(GRAY)),
        ('TIFF', '.tif', '5 channels', TIFF_FILES[0].read_bytes(), None),
        ('NPY', '.npy', '', npy(COLOURS), COLOURS),
        ('NPY', '.npy', 'gray', npy(GRAY), _rgb(GRAY)),
        ('NPY', '.npy', '16 bits', npy(np.asfortranarray(COLOURS.astype('>u2') * 256 + 200)), COLOURS),
        ('NPY', '.npy', 'truncated', npy(COLOURS)[:-1], None),
        ('NPY', '.npy', 'floating-point numbers', npy(COLOURS.astype(np.float32)), None),
        ('NPY', '.npy', '5 channels', npy(np.zeros((4, 5, 5), np.uint8)), None),
        ('other formats', '.jpg', 'JPEG 2000', stored(COLOURS, 'JPEG2000'), None),
        ('other formats', '.png', 'text', b'no image at all', None),
        ('other formats', '.gif', 'empty', b'', None),
        ('PNG', '.jpg', 'with another suffix', stored(COLOURS, 'PNG'), COLOURS),
        ('PNG', '.png', 'too many pixels', announced_png(1 << 15, 1 << 16, bytes(100)), None),
    ]


KINDS = [
    Kind(f'{form}: {name}' if name else form, suffix, content, pixels, form in ('JPEG', 'PNG'))
    for form, suffix, name, content, pixels in [*_jpeg(), *_png(), *_others()]
]
READ, REFUSED = [kind for kind in KINDS if kind.pixels is not None], [kind for kind in KINDS if kind.pixels is None]


def write(folder, kinds):
    """Write a file for each kind; return their paths."""
    paths = [folder / kind.file_name for kind in kinds]
    for path, kind in zip(paths, kinds):
        path.write_bytes(kind.content)
    return paths
