"""Decoding and resizing of images with Pillow and NumPy: the one place that says which image files are read, and to which pixels.

Everything in Python that reads image files calls `decode`; bmx-classify (`tools/classify`) computes the same pixels in C++. The rule is
the table in docs/data.md, Image files.

`mx.image` calls OpenCV, whose bilinear resize interpolates between two pixels of each axis also where it reduces an image (Pillow's
averages over all pixels that an output pixel covers), with weights of 11 bits. `resize` computes the same integers. Pillow and OpenCV both
decode JPEG files by libjpeg-turbo, to the same pixels.
"""

import dataclasses
import io
import os
import re
import struct
from typing import TYPE_CHECKING, Optional, Tuple, Union

import numpy as np

from .. import forking
from ..errors import MemoryLimitError, UserError
from ..limited_process import LimitedProcesses, is_limited
from .channel_files import npy_pixels, tiff_pixels, tiff_shape
from .image_headers import MAX_BYTES, require_affordable
from .npy_header import NPY_START
from .tiff_directory import byte_order, directory_entries, unpacked

if TYPE_CHECKING:
    import PIL.Image


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of image files.

    Attributes
    ----------
    name : str
    pillow : str or None
        The name of its reader in Pillow; None: `channel_files` reads it.
    suffixes : tuple of str
        Ends of the names of its files, in lower case.
    start : re.Pattern
        Matches the first bytes of its files.
    """

    name: str
    pillow: Optional[str]
    suffixes: Tuple[str, ...]
    start: 're.Pattern[bytes]'


PNG_START = b'\x89PNG\r\n\x1a\n'
# The formats that are read. Pillow has readers of many others; the reader of EPS executes the file by another program.
FORMATS = (
    Format('JPEG', 'JPEG', ('.jpg', '.jpeg'), re.compile(rb'\xff\xd8\xff')),  # also with further images (MPO), as phones write them
    Format('PNG', 'PNG', ('.png',), re.compile(re.escape(PNG_START))),
    Format('BMP', 'BMP', ('.bmp',), re.compile(rb'BM')),
    Format('TIFF', 'TIFF', ('.tif', '.tiff'), re.compile(rb'II\*\0|MM\0\*')),
    Format('GIF', 'GIF', ('.gif',), re.compile(rb'GIF8[79]a')),
    Format('WebP', 'WEBP', ('.webp',), re.compile(rb'RIFF.{4}WEBP', re.DOTALL)),
    Format('Netpbm', 'PPM', ('.pbm', '.pgm', '.pnm', '.ppm'), re.compile(rb'P[1-6]\s')),
    Format('NPY', None, ('.npy',), re.compile(re.escape(NPY_START))),  # arrays of NumPy
)
FORMAT_NAMES = ', '.join(form.name for form in FORMATS[:-1]) + f' or {FORMATS[-1].name}'  # in messages
SUFFIXES = tuple(sorted(suffix for form in FORMATS for suffix in form.suffixes))  # of the files in folders that are images
MAX_PIXELS = 1 << 27  # of an image, checked before its pixels are decoded: a file of kilobytes can hold gigabytes of one colour
MAX_FILE_BYTES = 1 << 31  # of an image file: more than the largest image that is decoded, without compression
_PIXELS_AT_ONCE = 1 << 18  # converted with integers of 32 and 64 bits: of a whole image they would take gigabytes
_PROCESS_BYTES = MAX_BYTES + (256 << 20)  # of a process that decodes an image
_PROCESS_SECONDS = 60
_FRACTION_BITS = 11  # of OpenCV's weights, INTER_RESIZE_COEF_BITS
_GRAY, _RGB = 1, 3
_MAX_PILLOW_CHANNELS = 4  # channels of a TIFF file: colours and transparency, or CMYK
_LUMA = (4899, 9617, 1868)  # weights of red, green and blue: 0.299, 0.587 and 0.114 in 14 bits, as in OpenCV
_LIBPNG_LUMA = (9797, 19234, 3737)  # in 15 bits, as libpng computes them for OpenCV
_PNG_END = b'IEND\xaeB`\x82'
EXIF = b'Exif\0\0'  # start of an EXIF header
_ORIENTATION, _SHORT = 0x112, 3  # tag and type of the orientation in an EXIF header


def format_of(start: bytes) -> Optional[Format]:
    """Return the format of an image file that begins with these bytes, 12 or more; None if it is not one of `FORMATS`."""
    return next((form for form in FORMATS if form.start.match(start)), None)


_processes = LimitedProcesses(f'{__package__}.decoding', _PROCESS_BYTES, _PROCESS_SECONDS)


def read_file(path: Union[str, 'os.PathLike[str]']) -> bytes:
    """Return the content of an image file. Raises `OSError`, and `UserError` if it has more than `MAX_FILE_BYTES` bytes."""
    with open(path, 'rb') as file:
        require_file_size(os.fstat(file.fileno()).st_size, path)
        return file.read()


def require_file_size(size: int, name: Union[str, 'os.PathLike[str]']) -> None:
    """Raise `UserError` if an image file has more than `MAX_FILE_BYTES` bytes, because its content would exhaust the memory."""
    if size > MAX_FILE_BYTES:
        raise UserError(f'{os.fspath(name)} has {size:,} bytes, more than an image can have ({MAX_FILE_BYTES:,})')


def decode(content: bytes, name: str, channels: int) -> np.ndarray:
    """Decode an image file: its first picture, rotated by its EXIF orientation, without transparency, 8 bits per channel.

    Of channels with 16 bits the upper 8 are used. A network with one channel gets the luma that a JPEG file stores, or the luma of the
    colours. With a number of channels other than 1 and 3, it gets the channels of an .npy or TIFF file, as they are stored. docs/data.md,
    Image files, has the rule as a table.

    Takes at most `image_headers.MAX_BYTES` of memory beside `content`: files that announce more are refused, and files of which the headers
    do not say it are decoded by a separate process with this limit.

    Sets Pillow's `LOAD_TRUNCATED_IMAGES` to False for the process: GluonCV sets it to True when it is imported, and the missing part of an
    image would be gray wherever GluonCV is used.

    Parameters
    ----------
    content : bytes
        Content of the file.
    name : str
        Name of the image in errors.
    channels : int
        3, RGB; 1, gray; or another number up to `channel_files.MAX_CHANNELS`.

    Returns
    -------
    numpy.ndarray, (height, width, channels) uint8

    Raises
    ------
    UserError
        If its format is none of `FORMATS`, Pillow cannot decode it, its channels have 32 bits, it has more than `MAX_PIXELS` pixels (or
        numbers, in .npy files and TIFF files with other channels than Pillow reads) or `image_headers.MAX_SCANS` scans, it has other
        channels than the network takes, or the file is truncated. `MemoryLimitError` if decoding takes too much memory.
    ModuleNotFoundError
        If Pillow is not installed.
    """
    with forking.importing:
        import PIL.Image
        import PIL.ImageFile

        PIL.Image.init()  # imports its readers, as its own functions do at their first use

    PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False
    form = format_of(content)
    if form is None:
        raise UserError(f'{name} cannot be decoded as an image: it is not a {FORMAT_NAMES} file')
    try:
        cost = require_affordable(content, form.name, MAX_PIXELS)
        if cost.possible <= MAX_BYTES or is_limited(_PROCESS_BYTES):
            stored = _with_all_channels(content, form, channels)
            return _decode_by_pillow(content, form, channels) if stored is None else stored
    except (OSError, SyntaxError, ValueError, TypeError, struct.error, PIL.Image.DecompressionBombError) as error:  # of damaged files
        reason = 'it is damaged' if isinstance(error, PIL.UnidentifiedImageError) else error
        raise UserError(f'{name} cannot be decoded as an image ({form.name}): {reason}') from error
    except MemoryError as error:
        raise MemoryLimitError(f'{name} cannot be decoded as an image ({form.name}): it takes too much memory') from error
    return _decode_in_process(content, name, channels)


def _decode_in_process(content, name, channels):
    try:
        head, body = _processes.ask({'name': name, 'channels': channels}, content)
    except ChildProcessError as error:
        raise MemoryLimitError(f'{name} cannot be decoded as an image: {error}') from error
    if 'error' in head:
        raise UserError(head['error'])
    return np.frombuffer(body, np.uint8).reshape(head['shape'])


def _with_all_channels(content, form, channels):
    """Return the pixels of a file whose channels are not read by Pillow, None for other files. Raises `ValueError`."""
    if form.name == 'NPY':
        stored = npy_pixels(content, MAX_PIXELS)
    elif form.name == 'TIFF' and (channels not in (_GRAY, _RGB) or tiff_shape(content)[2] > _MAX_PILLOW_CHANNELS):
        stored = _turned(*tiff_pixels(content, MAX_PIXELS))
    elif channels not in (_GRAY, _RGB):
        raise ValueError(f'it has no {channels} channels, which only TIFF and NPY files can have')
    else:
        return None
    if stored.shape[2] != channels and not {stored.shape[2], channels} <= {_GRAY, _RGB}:
        raise ValueError(f'it has {stored.shape[2]} channels, but {channels} are needed (--channels)')
    return _with_channels(stored, channels)


def _decode_by_pillow(content, form, channels):
    import PIL.Image

    with PIL.Image.open(io.BytesIO(content), formats=[form.pillow]) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f'it has {image.width} x {image.height} pixels; at most {MAX_PIXELS} are possible')
        if form.name == 'JPEG' and channels == _GRAY:
            image.draft('L', image.size)  # the luma that the file stores, as OpenCV reads it
        image.load()
        if form.name == 'PNG' and _PNG_END not in content:
            raise ValueError('image file is truncated')
        if form.name == 'TIFF' and image.mode == 'I':
            raise ValueError('its channels have 32 bits; 8 or 16 are possible')
        pixels, orientation = _pixels(image, form, channels), orientation_of(image.info.get('exif', b''))
    del image  # its memory is needed to turn the pixels
    return _turned(pixels, orientation)


def _pixels(image, form, channels):
    if form.name == 'PNG' and channels == _GRAY and image.mode not in _GRAY_MODES:
        return _converted(image, 1, lambda part: _gray(np.asarray(part.convert('RGB')), _LIBPNG_LUMA, rounding=0))
    return from_pillow(image, channels)


def orientation_of(exif):
    """Return the orientation in the first directory of an EXIF header, bytes; 1 if there is none. Damaged headers are common and no error.

    Pillow's `getexif` also looks for it in XMP metadata, depending on its version. It has turned TIFF files when it loads them.
    """
    tiff = exif[len(EXIF) :] if exif.startswith(EXIF) else exif
    order = byte_order(tiff)
    (directory,) = unpacked(f'{order}I', tiff, 4)
    values = (value for tag, kind, _, value in directory_entries(tiff, order, directory) if (tag, kind) == (_ORIENTATION, _SHORT))
    return next((unpacked(f'{order}H', tiff, value)[0] for value in values), 1)


def _turned(image, orientation):
    """Return pixels turned and mirrored upright from an EXIF orientation, 1 to 8 (EXIF 2.3, table 5); other numbers change nothing."""
    if not 2 <= orientation <= 8:
        return image
    upright = image.transpose(1, 0, 2) if orientation >= 5 else image
    rows = slice(None, None, -1 if orientation in (3, 4, 7, 8) else 1)
    columns = slice(None, None, -1 if orientation in (2, 3, 6, 7) else 1)
    return np.ascontiguousarray(upright[rows, columns])


_GRAY_MODES = ('1', 'L', 'LA', 'La', 'I', 'I;16', 'I;16B', 'I;16L', 'I;16N')  # of Pillow


def from_pillow(image: 'PIL.Image.Image', channels: int) -> np.ndarray:
    """Return the pixels of a Pillow image as (height, width, channels) uint8, RGB or gray, without transparency.

    Raises `UserError` for modes that have no such pixels, as floating-point numbers, and for other numbers of channels.
    """
    if channels not in (_GRAY, _RGB):
        raise UserError(f'a PIL image has no {channels} channels: give an array (height, width, {channels})')
    if image.mode == 'F':
        raise UserError('its channels are floating-point numbers; 8 or 16 bits are possible')
    return _converted(image, channels, lambda part: _with_channels(_stored(part), channels))


def _stored(image):
    """Return the pixels of a Pillow image as (height, width, 1 or 3) uint8."""
    if image.mode in _GRAY_MODES:
        if image.mode.startswith('I'):  # 16 bits, which Pillow would clip to 8
            return (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)[:, :, None]
        return np.asarray(image.convert('L'))[:, :, None]
    return _rgb_of_cmyk(np.asarray(image)) if image.mode == 'CMYK' else np.asarray(image.convert('RGB'))


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
        (height, width, 3), RGB; (height, width, 1) or (height, width), gray; or (height, width, channels).
    channels : int

    Raises
    ------
    UserError
        If the array has another shape or dtype.
    """
    if array.dtype != np.uint8:
        raise UserError(f'the pixels of an image must be uint8, 0 to 255, not {array.dtype}')
    pixels = array[:, :, None] if array.ndim == 2 else array
    possible = (_GRAY, _RGB) if channels in (_GRAY, _RGB) else (channels,)
    if pixels.ndim != 3 or pixels.shape[2] not in possible or not pixels.size:
        shapes = 'shape (height, width, 3), (height, width, 1) or (height, width)' if possible[1:] else f'shape (height, width, {channels})'
        raise UserError(f'an image must have the {shapes}, not {array.shape}')
    return _with_channels(pixels, channels)


def _with_channels(pixels, channels):
    if pixels.shape[2] == channels:
        return pixels
    return np.repeat(pixels, _RGB, axis=2) if channels == _RGB else _gray(pixels, _LUMA, rounding=sum(_LUMA) // 2)


def _gray(colours, weights, rounding):
    column, result = np.array(weights, np.int32)[:, None], np.empty((*colours.shape[:2], 1), np.uint8)
    for rows in _rows_at_once(*colours.shape[:2]):
        result[rows] = (colours[rows] @ column + rounding) // sum(weights)
    return result


def _converted(image, channels, convert):
    """Convert a Pillow image, some rows at a time, by a function that returns pixels with `channels` channels."""
    result = np.empty((image.height, image.width, channels), np.uint8)
    for rows in _rows_at_once(image.height, image.width):
        result[rows] = convert(image.crop((0, rows.start, image.width, rows.stop)))
    return result


def _rows_at_once(height, width):
    """Yield slices of the rows of an image that are to be converted together."""
    rows = max(1, _PIXELS_AT_ONCE // width)
    for begin in range(0, height, rows):
        yield slice(begin, min(begin + rows, height))


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
    if image.shape[:2] == (height, width):
        return image[window]
    if image.shape[:2] == (2 * height, 2 * width):  # OpenCV takes means of 2 x 2 pixels here
        rows, columns = (slice(2 * begin, 2 * end) for begin, end, _ in (window[0].indices(height), window[1].indices(width)))
        quads = image[rows, columns].astype(np.int32)
        return ((quads[::2, ::2] + quads[1::2, ::2] + quads[::2, 1::2] + quads[1::2, 1::2] + 2) >> 2).astype(np.uint8)
    top, bottom, row_weights = _neighbours(image.shape[0], height, window[0], at_border=False)
    left, right, column_weights = _neighbours(image.shape[1], width, window[1], at_border=True)
    weights = column_weights[:, :, None]

    def row(numbers):
        pixels, repeated = (image[numbers], slice(None)) if len(numbers) < len(image) else (image, numbers)
        return ((pixels[:, left] * weights[0] + pixels[:, right] * weights[1]) >> 4)[repeated]  # OpenCV keeps 15 bits of each sum

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
