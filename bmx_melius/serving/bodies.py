"""Bodies of requests, read within the limits: the size is checked while a body arrives."""

import asyncio
import re

from starlette.requests import Request

from .service_limits import Refusal

_DIGITS = re.compile('[0-9]{1,15}')


async def read_body(request, limits):
    """Return the body of a `starlette.requests.Request`.

    Raises
    ------
    Refusal
        With status 413 if it is larger than `limits.upload_bytes`, and 408 if it has not arrived after `limits.read_seconds`.
    """
    try:
        return await asyncio.wait_for(_bounded(request, limits).body(), limits.read_seconds)
    except asyncio.TimeoutError as error:
        raise Refusal(408, f'the request did not arrive within {limits.read_seconds:g} seconds', 'slow') from error


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
