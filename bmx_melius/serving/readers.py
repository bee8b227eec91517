"""Processes that read requests for the service (`reading`), which can be given up: at a time limit, or when a client has disconnected."""

import asyncio
import asyncio.subprocess
import contextlib
import json
import subprocess

import numpy as np

from ..limited_process import LENGTHS, child_environment, command_of, message
from ..process import usable_cores
from . import reading
from .limits import Refusal
from .tensors import InferenceRequest
from .turns import Turns

_BASE_BYTES = 256 << 20  # of a process that reads nothing
_PIXELS_PER_CHARACTER = 4  # which take as long
_BYTES_PER_PIXEL, _BYTES_PER_CHARACTER = 20, 40  # of memory, while an image is decoded or JSON is parsed
_PIPE_BYTES = 1 << 20
_AT_ONCE = 1 << 20  # pixels of an image that is decoded in the turn in which its size is read


class Readers:
    """One process for each core, and one more for images that are not large, started when it is first needed. Used in one event loop.

    Parameters
    ----------
    limits : Limits
    """

    def __init__(self, limits):
        self._limits, self._idle, self._turns = limits, [], Turns(usable_cores() + 1)

    @property
    def memory(self):
        """Bytes of data that a process may have."""
        return _BASE_BYTES + max(_BYTES_PER_PIXEL * self._limits.pixels, _BYTES_PER_CHARACTER * self._limits.upload_bytes)

    async def image(self, spec, form, content):
        """Decode and preprocess an image as `Session.classify` does.

        Parameters
        ----------
        spec : InputSpec
        form : str or None
            Value of the header ``Content-Type`` if the content is a form with an image.
        content : bytes

        Returns
        -------
        numpy.ndarray, (1, channels, size, size) float32

        Raises
        ------
        Refusal
            As `uploads` does, and with status 422 if it takes too long.
        """
        head = {'spec': spec.to_json(), 'pixels': self._limits.pixels, 'form': form}
        found, arrays = await self._read(0, {**head, 'max_cost': _AT_ONCE}, content)
        if 'cost' in found:  # of bytes and of pixels one does not follow from the other
            found, arrays = await self._read(found['cost'], head, content)
        return arrays[0]

    async def arrays(self, body, length, input_names, output_names):
        """Return the `InferenceRequest` of a body; arguments and errors as for `tensors.parse_request`."""
        head = {'length': length, 'inputs': input_names, 'outputs': output_names}
        found, arrays = await self._read(_PIXELS_PER_CHARACTER * len(body), head, body)
        return InferenceRequest(found['id'], arrays, [tuple(output) for output in found['outputs']])

    async def close(self):
        """End the processes. None may be reading."""
        while self._idle:
            await _end(self._idle.pop())

    async def _read(self, cost, head, body):
        """Return the head of the answer to a message, and its arrays; `cost` as in `Turns.turn`."""
        async with self._turns.turn(cost):
            while self._idle and self._idle[-1].returncode is not None:  # killed by the system
                self._idle.pop()
            process = self._idle.pop() if self._idle else await _start(self.memory)
            answered = False
            try:
                head, body = await asyncio.wait_for(_ask(process, head, body), self._limits.decode_seconds)
                answered = True
            except asyncio.TimeoutError as error:
                message = f'the request was not read within {self._limits.decode_seconds:g} seconds: send a smaller image, or binary data'
                raise Refusal(422, message, 'slow') from error
            except (asyncio.IncompleteReadError, OSError) as error:
                raise Refusal(422, 'the request ended the process that read it', 'damaged') from error
            finally:
                if answered:
                    self._idle.append(process)
                else:
                    await _end(process)
        if 'refusal' in head:
            raise Refusal(*head['refusal'])
        return head, list(_split(body, head['shapes']))


async def _start(memory):
    return await asyncio.create_subprocess_exec(
        *command_of(reading.__name__, memory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        limit=_PIPE_BYTES,
        start_new_session=True,  # Ctrl-C in a terminal would reach it
    )


async def _ask(process, head, body):
    for part in message(head, body):
        process.stdin.write(part)
    await process.stdin.drain()
    lengths = LENGTHS.unpack(await process.stdout.readexactly(LENGTHS.size))
    text, body = [await process.stdout.readexactly(length) for length in lengths]
    return json.loads(text), body


async def _end(process):
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _split(body, shapes):
    """Yield the arrays, float32, whose elements follow each other."""
    position = 0
    for shape in shapes:
        array = np.frombuffer(body, np.float32, int(np.prod(shape)), position).reshape(shape)
        position += array.nbytes
        yield array
