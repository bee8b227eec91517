"""Requests and responses of the Open Inference Protocol (KServe V2): arrays as JSON, or binary after the JSON header.

The binary form follows the protocol's extension ``binary_tensor_data``: the header ``Inference-Header-Content-Length`` is the length of
the JSON part, and arrays follow as little-endian float32. Reading an image of 224 x 224, 150,528 numbers, takes a thousand times as long
from JSON.
"""

import dataclasses
import itertools
import json
import math
from typing import Any, List, Optional, Tuple

import numpy as np

from .limits import Refusal

EXTENSIONS = ('binary_tensor_data',)
LENGTH_HEADER = 'Inference-Header-Content-Length'
DATATYPE = 'FP32'
_MAX_AXES = 8
_MAX_CHARACTERS = 500  # of a message


@dataclasses.dataclass(frozen=True)
class InferenceRequest:
    """A parsed request.

    Attributes
    ----------
    id : str or None
    arrays : list of numpy.ndarray
        float32, finite, in the order of the inputs of the network.
    outputs : list of tuple (int, bool)
        Numbers of the requested outputs, and whether each is returned in binary form.
    """

    id: Optional[str]
    arrays: List[np.ndarray]
    outputs: List[Tuple[int, bool]]


def json_bytes(body, header_length):
    """Return the length of the JSON part of a body, or of the whole body if the header with its length is missing or wrong."""
    return min(int(header_length), len(body)) if _is_length(header_length) else len(body)


def parse_request(body, header_length, input_names, output_names):
    """Parse the body of a request.

    Parameters
    ----------
    body : bytes
    header_length : str or None
        Value of the header ``Inference-Header-Content-Length``; None if there is no binary part.
    input_names, output_names : list of str
        Of the network.

    Returns
    -------
    InferenceRequest

    Raises
    ------
    Refusal
        With status 400 and a line that names what is wrong.
    """
    text, binary = _split(body, header_length)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(f'the request is not JSON: {error}') from error
    _require(isinstance(content, dict), 'the request must be a JSON object')
    given = _objects(content, 'inputs')
    names = [entry.get('name') for entry in given]
    _require(sorted(map(str, names)) == sorted(input_names), f'the inputs must be {_list(input_names)}, not {_list(map(repr, names))}')
    arrays, position = {}, 0
    for entry in given:
        arrays[entry['name']], position = _array(entry, binary, position)
    _require(position == len(binary), f'{len(binary) - position} bytes follow the binary data of the inputs')
    identifier = content.get('id')
    _require(identifier is None or isinstance(identifier, str), 'id must be text')
    return InferenceRequest(identifier, [arrays[name] for name in input_names], _requested(content, output_names))


def write_response(model, request, output_names, arrays):
    """Write a response.

    Parameters
    ----------
    model : str
    request : InferenceRequest
    output_names : list of str
    arrays : list of numpy.ndarray
        All outputs of the network.

    Returns
    -------
    body : bytes
    header_length : int or None
        Length of the JSON part if a binary part follows it.

    Raises
    ------
    Refusal
        With status 422 if an output to be written as JSON is not finite.
    """
    outputs, parts = [], []
    for number, is_binary in request.outputs:
        array = arrays[number]
        entry = {'name': output_names[number], 'shape': list(array.shape), 'datatype': DATATYPE}
        if is_binary:
            parts.append(array.astype('<f4', copy=False).tobytes())
            entry['parameters'] = {'binary_data_size': len(parts[-1])}
        elif not np.isfinite(array).all():  # JSON has no such numbers
            raise Refusal(422, f'{entry["name"]} has values that are not finite, because the inputs are too large: request binary data')
        else:
            entry['data'] = array.ravel().tolist()
        outputs.append(entry)
    content = {'model_name': model, **({} if request.id is None else {'id': request.id}), 'outputs': outputs}
    text = json.dumps(content).encode()
    return b''.join([text, *parts]), len(text) if parts else None


def metadata(network):
    """Return the metadata of a `ServedNetwork` as the protocol describes it, a dict. The size of an axis that varies is -1."""

    def described(names, shapes):
        return [
            {'name': name, 'datatype': DATATYPE, 'shape': [-1 if size is None else size for size in shape]}
            for name, shape in zip(names, shapes)
        ]

    return {
        'name': network.name,
        'versions': [],
        'platform': 'bmx_melius',
        'inputs': described(network.input_names, network.input_shapes),
        'outputs': described(network.output_names, network.output_shapes),
    }


def _split(body, header_length):
    """Return the JSON part and the binary part of a body."""
    if header_length is None:
        return body, b''
    _require(
        _is_length(header_length) and int(header_length) <= len(body),
        f'{LENGTH_HEADER} must be the length of the JSON part, not {header_length!r}',
    )
    return body[: int(header_length)], memoryview(body)[int(header_length) :]


def _is_length(text):
    return text is not None and text.isascii() and text.isdigit() and len(text) < 12


def _array(entry, binary, position):
    """Return the array of an input, and the position after its binary data."""
    name, shape = entry['name'], entry.get('shape')
    _require(entry.get('datatype') == DATATYPE, f'the datatype of input {name} must be {DATATYPE}, not {entry.get("datatype")!r}')
    _require(
        isinstance(shape, list) and 1 <= len(shape) <= _MAX_AXES and all(type(size) is int and size > 0 for size in shape),
        f'the shape of input {name} must be a list of positive whole numbers, not {shape!r}',
    )
    size = _parameters(entry).get('binary_data_size')
    if size is None:
        array = _numbers(name, entry.get('data'))
    else:
        _require(type(size) is int and size >= 0 and size % 4 == 0, f'binary_data_size of input {name} must be a multiple of 4')
        _require(position + size <= len(binary), f'the binary data of input {name} is incomplete: {size} bytes are needed')
        array = np.frombuffer(binary[position : position + size], '<f4').astype(np.float32, copy=False)
        position += size
    _require(array.size == math.prod(shape), f'input {name} has {array.size} numbers, but its shape is {shape}')
    _require(np.isfinite(array).all(), f'input {name} has numbers that are not finite float32 numbers')
    return array.reshape(shape), position


def _numbers(name, data):
    """Return the numbers of nested lists, each as long as those beside it, as an array with one axis."""
    _require(isinstance(data, list), f'input {name} must have data, a list of numbers')
    while data and set(map(type, data)) == {list} and len(set(map(len, data))) == 1:
        data = list(itertools.chain.from_iterable(data))
    _require({int, float}.issuperset(map(type, data)), f'the data of input {name} is not an array of numbers')  # NumPy would convert text
    try:
        array = np.asarray(data, np.float64)
    except OverflowError as error:
        raise _invalid(f'input {name} has numbers that are not finite float32 numbers') from error
    with np.errstate(over='ignore'):  # too large numbers become infinite and are refused
        return array.astype(np.float32).ravel()


def _requested(content, output_names):
    """Return the requested outputs, all of them if the request names none."""
    binary = _flag(_parameters(content), 'binary_data_output', False)
    if not content.get('outputs'):
        return [(number, binary) for number in range(len(output_names))]
    requested, entries = [], _objects(content, 'outputs')
    names = [entry.get('name') for entry in entries]
    for name in output_names:
        _require(names.count(name) < 2, f'the output {name} is requested {names.count(name)} times: request it once')
    for entry in entries:
        _require(entry.get('name') in output_names, f'there is no output {entry.get("name")!r}, only {_list(output_names)}')
        requested.append((output_names.index(entry['name']), _flag(_parameters(entry), 'binary_data', binary)))
    return requested


def _objects(content, key):
    entries = content.get(key)
    _require(isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries), f'{key} must be a list of objects')
    return entries


def _parameters(content):
    parameters: Any = content.get('parameters', {})
    _require(isinstance(parameters, dict), 'parameters must be an object')
    return parameters


def _flag(parameters, name, default):
    value = parameters.get(name, default)
    _require(isinstance(value, bool), f'{name} must be true or false')
    return value


def _list(names):
    return ', '.join(names) or 'none'


def _require(condition, message):
    if not condition:
        raise _invalid(message)


def _invalid(message):
    return Refusal(400, message if len(message) <= _MAX_CHARACTERS else f'{message[:_MAX_CHARACTERS]}...')  # it may quote the request
