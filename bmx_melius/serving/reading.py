"""Program of a process that reads requests: it decodes images, and parses arrays in JSON.

Both can take long and much memory, which only the end of a process limits for certain. A request and its answer are a message each, see
`limited_process`. `readers` starts these processes.
"""

import math

import numpy as np

from ..errors import MemoryLimitError, UserError
from ..limited_process import answer_messages, message
from ..vision.preprocessing import InputSpec
from . import tensors, uploads
from .limits import Refusal


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
    except MemoryLimitError as error:
        raise Refusal(413, f'{error}: send a smaller image', 'large') from error
    except UserError as error:
        raise Refusal(422, str(error), 'damaged') from error


def main(memory):
    """Answer the messages on standard input with at most `memory` bytes of data."""
    np.seterr(all='ignore')
    answer_messages(respond, memory)
