"""Uploaded images: found in a form, and checked before they are decoded.

The number of pixels is checked before an image is decoded, so that a small file with a huge image takes no memory. Only the formats of
`bmx_melius.vision.pixels` are decoded, whatever else Pillow could read.
"""

import io
import math
import struct

import PIL.Image
from python_multipart import create_form_parser
from python_multipart.exceptions import FormParserError

from ..vision.channel_files import npy_shape, tiff_shape
from ..vision.image_headers import jpeg_scans, webp_size
from ..vision.pixels import FORMAT_NAMES, format_of
from .limits import Refusal

_MAX_FIELDS = 8


def file_of_form(body, kind):
    """Return the content of the file in a form (multipart/form-data), in memory.

    Parameters
    ----------
    body : bytes
    kind : str
        Value of the header ``Content-Type``.

    Raises
    ------
    Refusal
        With status 400 if the form is damaged, or does not contain one file.
    """
    files, fields = [], []
    try:
        parser = create_form_parser(
            {'Content-Type': kind.encode('latin-1')},
            _appending(fields, _MAX_FIELDS),
            _appending(files, 1),
            config={'MAX_MEMORY_FILE_SIZE': len(body) + 1, 'MAX_BODY_SIZE': float('inf')},  # otherwise it writes to the disk
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Refusal(400, f'the form cannot be read: {error}') from error
    if not files:
        raise Refusal(400, 'the form has 0 files: send one image')
    return files[0].file_object.getvalue()


def _appending(found, max_parts):
    """Return a function that appends parts of a form to a list, and refuses more than `max_parts`."""

    def append(part):
        if len(found) == max_parts:
            raise Refusal(400, f'the form has too many parts: send one image and at most {_MAX_FIELDS} fields')
        found.append(part)

    return append


def check_image(content, max_pixels):
    """Check an uploaded image without decoding its pixels.

    Pillow reads its header, because a damaged image is answered by another status than a large one; `image_headers.cost_of`, which
    accepts any bytes, bounds what decoding takes, and is asked by the process that decodes.

    Returns
    -------
    int
        What decoding it costs: its pixels, and a tenth of them for each scan of a JPEG file.

    Raises
    ------
    Refusal
        With status 400 if there is nothing, 415 if its format is none of `pixels.FORMATS`, 422 if it is damaged, and 413 if it has more
        than `max_pixels` pixels.
    """
    if not content:
        raise Refusal(400, 'the request is empty: send an image file as its body, or as the file of a form')
    form = format_of(content)
    if form is None:
        raise Refusal(415, f'the upload is not a {FORMAT_NAMES} file', 'format')
    if math.prod(webp_size(content)) > max_pixels:  # which Pillow would allocate
        raise Refusal(413, f'the image has more than the {max_pixels:,} pixels that are allowed', 'large')
    try:
        width, height = _size(content, form)
    except PIL.Image.DecompressionBombError as error:  # more than twice the pixels of which it warns
        raise Refusal(413, f'the image has more than the {max_pixels:,} pixels that are allowed', 'large') from error
    except (OSError, SyntaxError, ValueError, TypeError, struct.error) as error:
        raise Refusal(422, 'the upload begins like an image file, but is damaged', 'damaged') from error
    if width * height > max_pixels:
        raise Refusal(413, f'the image has {width} x {height} pixels; at most {max_pixels:,} are allowed', 'large')
    return width * height * (10 + (jpeg_scans(content) if form.name == 'JPEG' else 0)) // 10


def _size(content, form):
    """Return width and height of an image; for one with more than 3 channels the width of an RGB image with as many numbers."""
    if form.pillow:
        try:
            with PIL.Image.open(io.BytesIO(content), formats=[form.pillow]) as image:
                return image.size
        except PIL.UnidentifiedImageError:
            if form.name != 'TIFF':  # of which others have channels that Pillow does not know
                raise
    height, width, channels = npy_shape(content) if form.name == 'NPY' else tiff_shape(content)
    return math.ceil(width * max(1, channels / 3)), height
