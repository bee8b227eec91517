"""Program of a process that reads requests: it decodes images, and parses arrays in JSON.

Both can take long and much memory, which only the end of a process limits for certain. A request and its answer are a message each: the
lengths of its two parts, a JSON object, and bytes. `readers` starts these processes.

Run: ``python -m bmx_melius.serving.reading MEMORY``
"""

import gc
import json
import os
import resource
import signal
import struct
import sys

import numpy as np

from ..errors import UserError
from ..vision.preprocessing import InputSpec
from . import tensors, uploads
from .limits import Refusal

LENGTHS = struct.Struct('<II')  # of the JSON object, and of the bytes after it


def message(head, *bodies):
    """Return a message as a list of bytes, from an object for JSON and the pieces of the second part."""
    text = json.dumps(head).encode()
    return [LENGTHS.pack(len(text), sum(map(len, bodies))), text, *bodies]


def respond(head, body):
    """Return the answer to a request, a list of bytes.

    Parameters
    ----------
    head : dict
        Of an image: ``spec``, `InputSpec.to_json`, ``pixels``, the limit, and ``form``, the type of a body that is a form, or None. Of
        arrays: ``length``, ``inputs`` and ``outputs``, see `tensors.parse_request`.
    body : bytes

    Returns
    -------
    list of bytes
        A message: ``refusal``, the arguments of a `Refusal`; or ``shapes`` and the elements of arrays, and for a request of arrays
        also the other fields of an `InferenceRequest`.
    """
    try:
        if 'spec' in head:
            found, arrays = {}, [_image(body, **head)]
        else:
            request = tensors.parse_request(body, head['length'], head['inputs'], head['outputs'])
            found, arrays = {'id': request.id, 'outputs': request.outputs}, request.arrays
    except Refusal as refusal:
        return message({'refusal': [refusal.status, str(refusal), refusal.reason]})
    except MemoryError:
        return message({'refusal': [413, 'the request needs too much memory: send a smaller image, or binary data', 'large']})
    return message({**found, 'shapes': [array.shape for array in arrays]}, *(array.data.cast('B') for array in arrays))


def _image(body, spec, pixels, form):
    content = uploads.file_of_form(body, form) if form else body
    uploads.check_image(content, pixels)
    try:
        return InputSpec.from_json(spec).decoded_array(content, 'the upload')
    except UserError as error:
        raise Refusal(422, str(error), 'damaged') from error


def main(memory):
    """Answer the messages on standard input, until its end, with at most `memory` bytes of data."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the service ends this process, after the requests that it has accepted
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()
    gc.disable()  # it would look at all lists of a JSON text again and again while it is parsed
    with open(os.dup(0), 'rb') as requests, open(os.dup(1), 'wb') as answers:
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


if __name__ == '__main__':
    np.seterr(all='ignore')
    main(int(sys.argv[1]))
