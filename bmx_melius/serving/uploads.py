"""Bodies of requests, read within the limits, and the images that they contain.

The size is checked while a body arrives, and the number of pixels before an image is decoded, so neither a large body nor a small file
with a huge image takes memory. Only the formats of `bmx_melius.pixels` are decoded, whatever else Pillow could read.
"""

import asyncio
import io
import re
import struct

import PIL.Image
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ..pixels import FORMAT_NAMES, format_of
from .service_limits import Refusal

_MULTIPART = b'multipart/form-data'
_MOST_FIELDS = 8
_DIGITS = re.compile('[0-9]{1,15}')


async def read_body(request, limits):
    """Return the body of a `starlette.requests.Request`.

    Raises
    ------
    Refusal
        With status 413 if it is larger than `limits.upload_bytes`, and 408 if it has not arrived after `limits.read_seconds`.
    """
    return await _in_time(_bounded(request, limits).body(), limits)


async def read_image(request, limits):
    """Return the image file in a request: the body, or the file of a form (multipart/form-data).

    Raises
    ------
    Refusal
        As `read_body` does, and with status 400 if a form does not contain one file.
    """
    kind, _ = parse_options_header(request.headers.get('Content-Type'))
    if kind != _MULTIPART:
        return await read_body(request, limits)
    return await _in_time(_file_of_form(_bounded(request, limits)), limits)


def check_image(content, limits):
    """Check an uploaded image without decoding its pixels.

    Raises
    ------
    Refusal
        With status 400 if there is nothing, 415 if its format is none of `pixels.FORMATS`, 422 if it is damaged, and 413 if it has more
        than `limits.pixels` pixels.
    """
    if not content:
        raise Refusal(400, 'the request is empty: send an image file as its body, or as the file of a form')
    form = format_of(content)
    if form is None:
        raise Refusal(415, f'the upload is not a {FORMAT_NAMES} file', 'format')
    try:
        with PIL.Image.open(io.BytesIO(content), formats=[form.pillow]) as image:
            width, height = image.size
    except PIL.Image.DecompressionBombError as error:  # more than twice the pixels of which it warns
        raise Refusal(413, f'the image has more than the {limits.pixels:,} pixels that are allowed', 'large') from error
    except (OSError, SyntaxError, ValueError, TypeError, struct.error) as error:
        raise Refusal(422, 'the upload begins like an image file, but is damaged', 'damaged') from error
    if width * height > limits.pixels:
        raise Refusal(413, f'the image has {width} x {height} pixels; at most {limits.pixels:,} are allowed', 'large')


def _bounded(request, limits):
    """Return the request with a body that ends with a `Refusal` when it gets too large."""
    too_large = Refusal(413, f'the request is larger than {limits.upload_bytes:,} bytes', 'large')
    announced = request.headers.get('Content-Length', '')
    if _DIGITS.fullmatch(announced) and int(announced) > limits.upload_bytes:
        raise too_large
    received = 0

    async def receive():
        nonlocal received
        message = await request.receive()
        received += len(message.get('body', b''))
        if received > limits.upload_bytes:
            raise too_large
        return message

    return Request(request.scope, receive)


async def _in_time(reading, limits):
    try:
        return await asyncio.wait_for(reading, limits.read_seconds)
    except asyncio.TimeoutError as error:
        raise Refusal(408, f'the request did not arrive within {limits.read_seconds:g} seconds', 'slow') from error


async def _file_of_form(request):
    try:
        async with request.form(max_files=1, max_fields=_MOST_FIELDS) as form:
            files = [value for value in form.values() if isinstance(value, UploadFile)]
            if len(files) != 1:
                raise Refusal(400, f'the form has {len(files)} files: send one image')
            return await files[0].read()
    except (HTTPException, FormParserError) as error:  # of Starlette and of its parser
        raise Refusal(400, f'the form cannot be read: {getattr(error, "detail", error)}') from error
