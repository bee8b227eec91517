"""Bodies of requests, read within the limits: the size is checked while a body arrives."""

import asyncio
import re

from .limits import Refusal

_DIGITS = re.compile('[0-9]{1,15}')


async def read_body(request, limits):
    """Return the body of a `starlette.requests.Request`, a bytearray.

    Raises
    ------
    Refusal
        With status 413 if it is larger than `limits.upload_bytes`, and 408 if it has not arrived after `limits.read_seconds`.
    """
    try:
        return await asyncio.wait_for(_bounded(request, limits.upload_bytes), limits.read_seconds)
    except asyncio.TimeoutError as error:
        raise Refusal(408, f'the request did not arrive within {limits.read_seconds:g} seconds', 'slow') from error


async def _bounded(request, max_bytes):
    """Return the body, or raise `Refusal` as soon as it is known to be longer than `max_bytes` bytes."""
    too_large = Refusal(413, f'the request is larger than {max_bytes:,} bytes', 'large')
    announced = request.headers.get('Content-Length', '')
    if _DIGITS.fullmatch(announced) and int(announced) > max_bytes:
        raise too_large
    body = bytearray()  # pieces that are joined at the end would need twice the memory
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise too_large
    return body
