"""Program of a process that reads requests: it decodes images, and parses arrays in JSON.

Both can take long and much memory, which only the end of a process limits for certain. A request and its answer are a message each: the
lengths of its two parts, a JSON object, and bytes. `readers` starts these processes.

Run: ``python -m bmx_melius.serving.reading MEMORY``
"""

import contextlib
import gc
import json
import math
import os
import resource
import signal
import struct
import sys
import traceback

import numpy as np

from ..errors import UserError
from ..vision.preprocessing import InputSpec
from . import tensors, uploads
from .limits import Refusal

LENGTHS = struct.Struct('<II')  # of the JSON object, and of the bytes after it
LOG_BYTES = 2000  # of a request
_PIPE_BYTES = 1 << 20  # more than a pipe holds


def message(head, *bodies):
    """Return a message as a list of bytes, from an object for JSON and the pieces of the second part."""
    text = json.dumps(head).encode()
    return [LENGTHS.pack(len(text), sum(map(len, bodies))), text, *bodies]


def respond(head, body):
    """Return the answer to a request, a list of bytes.

    Parameters
    ----------
    head : dict
        Of an image: ``spec``, `InputSpec.to_json`, ``pixels``, the limit, ``form``, the type of a body that is a form, or None, and
        perhaps ``max_cost``, beyond which it is not decoded, see `uploads.check_image`. Of arrays: ``length``, ``inputs`` and
        ``outputs``, see `tensors.parse_request`.
    body : bytes

    Returns
    -------
    list of bytes
        A message: ``refusal``, the arguments of a `Refusal`; ``cost`` of an image that has not been decoded; or ``shapes`` and the
        elements of arrays, and for a request of arrays also the other fields of an `InferenceRequest`.
    """
    try:
        if 'spec' in head:
            found, arrays = _image(body, **head)
        else:
            request = tensors.parse_request(body, head['length'], head['inputs'], head['outputs'])
            found, arrays = {'id': request.id, 'outputs': request.outputs}, request.arrays
    except Refusal as refusal:
        return message({'refusal': [refusal.status, str(refusal), refusal.reason]})
    except MemoryError:
        return message({'refusal': [413, 'the request needs too much memory: send a smaller image, or binary data', 'large']})
    return message({**found, 'shapes': [array.shape for array in arrays]}, *(array.data.cast('B') for array in arrays))


def _image(body, spec, pixels, form, max_cost=math.inf):
    content = uploads.file_of_form(body, form) if form else body
    cost = uploads.check_image(content, pixels)
    if cost > max_cost:
        return {'cost': cost}, []
    try:
        return {}, [InputSpec.from_json(spec).decoded_array(content, 'the upload')]
    except UserError as error:
        raise Refusal(422, str(error), 'damaged') from error


class RequestLog:
    """Within the block, standard error of this process: its first `LOG_BYTES` bytes for each request are written to the former one.

    What a library writes about a request can be several times as long as the request.
    """

    def __enter__(self):
        self._log = os.dup(2)
        self._source, sink = os.pipe()
        for end in (self._source, sink):
            os.set_blocking(end, False)  # what does not fit into the pipe is lost
        os.dup2(sink, 2)
        os.close(sink)
        return self

    def __exit__(self, *_):
        os.dup2(self._log, 2)
        os.close(self._log)
        os.close(self._source)

    def end_request(self):
        """Write the beginning of what has been written since the last call."""
        with contextlib.suppress(BlockingIOError):  # nothing
            text = os.read(self._source, _PIPE_BYTES)
            os.write(self._log, text if len(text) <= LOG_BYTES else text[: LOG_BYTES - 4] + b'...\n')


def main(memory):
    """Answer the messages on standard input, until its end, with at most `memory` bytes of data."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the service ends this process, after the requests that it has accepted
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()
    gc.disable()  # it would look at all lists of a JSON text again and again while it is parsed
    with RequestLog() as log, open(os.dup(0), 'rb') as requests, open(os.dup(1), 'wb') as answers:
        os.dup2(2, 1)  # what libraries print must not mix with the answers
        while True:
            lengths = requests.read(LENGTHS.size)
            if len(lengths) < LENGTHS.size:
                return
            head, body = map(requests.read, LENGTHS.unpack(lengths))
            try:
                for part in respond(json.loads(head), body):
                    answers.write(part)
                answers.flush()
                del head, body
                gc.collect()
            except BrokenPipeError:  # the service has been killed
                os._exit(1)
            except Exception:
                traceback.print_exc()
                log.end_request()
                os._exit(1)
            log.end_request()


if __name__ == '__main__':
    np.seterr(all='ignore')
    main(int(sys.argv[1]))
