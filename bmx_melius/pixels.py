"""Decoding and resizing of images with Pillow and NumPy, for machines without MXNet and OpenCV. The pixels equal those of `mx.image`.

`mx.image` calls OpenCV, whose bilinear resize interpolates between two pixels of each axis also where it reduces an image (Pillow's
averages over all pixels that an output pixel covers), with weights of 11 bits. `resize` computes the same integers. Pillow and OpenCV both
decode JPEG files by libjpeg-turbo, to the same pixels; docs/deploy.md, Preprocessing, lists the files for which decoded pixels differ.
"""

import io
import struct
from typing import TYPE_CHECKING, Tuple

import numpy as np

from .errors import UserError
from .image_headers import require_affordable

if TYPE_CHECKING:
    import PIL.Image

SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff')  # of image files that both Pillow and OpenCV decode
# The formats that are read; JPEG files with several pictures (MPO) are read as JPEG. Pillow has readers of many others; that of EPS
# executes the file by another program.
FORMATS = ('JPEG', 'PNG', 'BMP', 'TIFF', 'GIF', 'WEBP', 'PPM')
MAX_PIXELS = 1 << 27  # of an image, checked before its pixels are decoded: a file of kilobytes can hold gigabytes of one colour
_PIXELS_AT_ONCE = 1 << 18  # converted with integers of 32 and 64 bits: of a whole image they would take gigabytes
_FRACTION_BITS = 11  # of OpenCV's weights, INTER_RESIZE_COEF_BITS
_GRAY, _RGB = 1, 3
_LUMA = (4899, 9617, 1868)  # weights of red, green and blue: 0.299, 0.587 and 0.114 in 14 bits, as in OpenCV
_LIBPNG_LUMA = (9797, 19234, 3737)  # in 15 bits, as libpng computes them for OpenCV
_JPEG = ('JPEG', 'MPO')  # Pillow's names of such files; MPO: with further images, which phones write
_EXIF = 0xE1  # marker of a JPEG segment; XMP metadata has it too
_BEFORE_EXIF = (0xFE, *range(0xE2, 0xF0))  # markers of segments, comments and application data, that OpenCV skips to find an EXIF segment


def decode(content: bytes, name: str, channels: int) -> np.ndarray:
    """Decode an image file to the pixels that ``mx.image.imdecode`` returns: rotated by its EXIF header, without transparency.

    Parameters
    ----------
    content : bytes
        Content of the file.
    name : str
        Name of the image in errors.
    channels : {3, 1}
        RGB or gray.

    Returns
    -------
    numpy.ndarray, (height, width, channels) uint8

    Raises
    ------
    UserError
        If Pillow cannot decode it, its format is none of `FORMATS`, it has more than `MAX_PIXELS` pixels or `image_headers.MAX_SCANS`
        scans, or the file is truncated.
    ModuleNotFoundError
        If Pillow is not installed.
    """
    import PIL.Image
    import PIL.ImageOps

    try:
        require_affordable(content, MAX_PIXELS)
        with PIL.Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f'it has {image.width} x {image.height} pixels; at most {MAX_PIXELS} are possible')
            if image.format in _JPEG and channels == _GRAY:
                image.draft('L', image.size)  # the luma that the file stores, as OpenCV reads it
            if image.format == 'PNG' and channels == _GRAY and image.mode not in _GRAY_MODES:
                return _gray(np.asarray(image.convert('RGB')), _LIBPNG_LUMA, rounding=0)
            turned = image.format in _JPEG and _begins_with_exif(content)
            return from_pillow(PIL.ImageOps.exif_transpose(image) if turned else image, channels)
    except (OSError, SyntaxError, ValueError, TypeError, struct.error, PIL.Image.DecompressionBombError) as error:  # of damaged files
        reason = '' if isinstance(error, PIL.UnidentifiedImageError) else f': {error}'
        raise UserError(f'{name} cannot be decoded as an image (JPEG, PNG, ...){reason}') from error


def _begins_with_exif(content):
    """Return whether a JPEG file has an EXIF header where the OpenCV of MXNet looks for it: not after a JFIF header or XMP metadata."""
    position = 2
    while position + 10 <= len(content):
        start, marker, length = struct.unpack_from('>BBH', content, position)
        if start != 0xFF or marker not in _BEFORE_EXIF:
            return marker == _EXIF and content[position + 4 : position + 8] == b'Exif'
        position += 2 + length
    return False


_GRAY_MODES = ('1', 'L', 'LA', 'La', 'I', 'I;16', 'I;16B', 'I;16L', 'I;16N')  # of Pillow


def from_pillow(image: 'PIL.Image.Image', channels: int) -> np.ndarray:
    """Return the pixels of a Pillow image as (height, width, channels) uint8, RGB or gray, without transparency."""
    if image.mode in _GRAY_MODES:
        if image.mode.startswith('I'):  # 16 bits, which Pillow would clip to 8
            gray = _convert(np.asarray(image), lambda rows: (rows.astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
        else:
            gray = np.asarray(image.convert('L'))
        return _with_channels(gray[:, :, None], channels)
    colours = _convert(np.asarray(image), _rgb_of_cmyk) if image.mode == 'CMYK' else np.asarray(image.convert('RGB'))
    return _with_channels(colours, channels)


def _rgb_of_cmyk(image):
    """Return pixels of a CMYK image in RGB as OpenCV does: with the inverted values of Adobe's files, which Pillow has inverted."""
    inks = 255 - image.astype(np.int32)
    colours, black = inks[..., :3], inks[..., 3:]
    return (black - ((255 - colours) * black >> 8)).astype(np.uint8)


def from_array(array: np.ndarray, channels: int) -> np.ndarray:
    """Return pixels with `channels` channels.

    Parameters
    ----------
    array : numpy.ndarray, uint8
        (height, width, 3), RGB; (height, width, 1) or (height, width), gray.
    channels : {3, 1}

    Raises
    ------
    UserError
        If the array has another shape or dtype.
    """
    if array.dtype != np.uint8:
        raise UserError(f'the pixels of an image must be uint8, 0 to 255, not {array.dtype}')
    pixels = array[:, :, None] if array.ndim == 2 else array
    if pixels.ndim != 3 or pixels.shape[2] not in (_GRAY, _RGB) or not pixels.size:
        raise UserError(f'an image must have the shape (height, width, 3), (height, width, 1) or (height, width), not {array.shape}')
    return _with_channels(pixels, channels)


def _with_channels(pixels, channels):
    if pixels.shape[2] == channels:
        return pixels
    return np.repeat(pixels, _RGB, axis=2) if channels == _RGB else _gray(pixels, _LUMA, rounding=sum(_LUMA) // 2)


def _gray(colours, weights, rounding):
    column = np.array(weights, np.int32)[:, None]
    return _convert(colours, lambda rows: ((rows @ column + rounding) // sum(weights)).astype(np.uint8))


def _convert(image, convert):
    """Apply a conversion of pixels to some rows of an image at a time."""
    rows = max(1, _PIXELS_AT_ONCE // image.shape[1])
    return np.concatenate([convert(image[begin : begin + rows]) for begin in range(0, len(image), rows)])


def resize(image: np.ndarray, height: int, width: int, window: Tuple[slice, slice] = (slice(None), slice(None))) -> np.ndarray:
    """Resize an image bilinearly. Equals ``cv2.resize(image, (width, height))`` in every pixel.

    Parameters
    ----------
    image : numpy.ndarray, (rows, columns, channels) uint8
    height, width : int
        Size after resizing.
    window : tuple of slice
        Rows and columns of the result to compute; the default is all of them.

    Returns
    -------
    numpy.ndarray, uint8
    """
    if image.shape[:2] == (2 * height, 2 * width):  # OpenCV takes means of 2 x 2 pixels here
        rows, columns = (slice(2 * begin, 2 * end) for begin, end, _ in (window[0].indices(height), window[1].indices(width)))
        quads = image[rows, columns].astype(np.int32)
        return ((quads[::2, ::2] + quads[1::2, ::2] + quads[::2, 1::2] + quads[1::2, 1::2] + 2) >> 2).astype(np.uint8)
    top, bottom, row_weights = _neighbours(image.shape[0], height, window[0], at_border=False)
    left, right, column_weights = _neighbours(image.shape[1], width, window[1], at_border=True)
    weights = column_weights[:, :, None]

    def row(numbers):
        pixels = image[numbers]
        return (pixels[:, left] * weights[0] + pixels[:, right] * weights[1]) >> 4  # OpenCV keeps 15 bits of each sum

    above, below = row_weights[:, :, None, None]
    return ((((above * row(top)) >> 16) + ((below * row(bottom)) >> 16) + 2) >> 2).astype(np.uint8)


def _neighbours(before, after, window, at_border):
    """Return what the results of one axis are interpolated from.

    Parameters
    ----------
    before, after : int
        Length of the axis before and after resizing.
    window : slice
        Results to compute.
    at_border : bool
        Whether results beyond the centre of the first or last pixel get weights of 1 and 0, as OpenCV's columns do. For rows OpenCV
        keeps both weights, of the same row, so that their products are rounded separately.

    Returns
    -------
    first, second : numpy.ndarray of int
        Positions of the two neighbours.
    weights : numpy.ndarray of int32, (2, results)
        Their weights, fractions of 11 bits.
    """
    scale = 1 / (after / before)  # OpenCV inverts twice
    positions = ((np.arange(*window.indices(after)) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(positions).astype(np.int64)
    fractions = positions - first.astype(np.float32)
    if at_border:
        fractions[(first < 0) | (first >= before - 1)] = 0
    weights = np.rint(np.stack([np.float32(1) - fractions, fractions]) * np.float32(1 << _FRACTION_BITS)).astype(np.int32)
    return first.clip(0, before - 1), (first + 1).clip(0, before - 1), weights
