"""Trial of a model in a separate process: it reads and computes the model with limited memory and time, and hands over both.

The checks of onnx and ONNX Runtime were not made for untrusted models. A file of a few bytes can ask for any memory and time, also for a
constant that no size in the model announces, and an attribute that they overlook ends the process. So a model is read and computed where
that does no harm. What the process writes is a line of JSON; if it does not refuse the model, the checked model and its values follow.
"""

import dataclasses
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile

import numpy as np

from ...errors import UserError
from ...limited_process import child_environment, command_of, limit
from ..program.limits import MEMORY_VARIABLE, memory_limit
from .batches import evaluator_of_one_image
from .cutting import ending_at
from .evaluation import Evaluator, input_shapes
from .model import OF_FILE, import_onnx_package, model_of, read_model
from .reading_back import read_back
from .stored_programs import stored_program

MAX_SECONDS = 60  # of processor time, to read a model and compute it once
_OUT_OF_MEMORY = ('Failed to allocate memory', 'bad allocation', 'bad_alloc', 'Failed to serialize proto')  # of ONNX Runtime and Protobuf


def tried(path, input_shape, outputs=None):
    """Read a model and compute it on a sample in a separate process.

    Parameters
    ----------
    path : str or os.PathLike
    input_shape : tuple of int, or dict of str to tuple of int, or None
        As `import_onnx` takes it.
    outputs : sequence of str or None
        As `import_onnx` takes it.

    Returns
    -------
    model : Model
        For one image, if `input_shape` is None and each image of its batch has the same result alone.
    evaluator : Evaluator or None
        None for a model that has its program in its metadata.

    Raises
    ------
    UserError
        If the model cannot be read or computed, or takes more than `MAX_SECONDS` of processor time or the limit of memory
        (BMX_MELIUS_MEMORY_LIMIT).
    """
    question = pickle.dumps(((os.fspath(path), input_shape, outputs), memory_limit(), MAX_SECONDS))
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command_of(__name__), env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        with process:
            try:
                process.stdin.write(question)
                process.stdin.close()
                return received(process.stdout, path)
            except (BrokenPipeError, EOFError):
                pass  # it has ended
            except BaseException:
                process.kill()  # it may still write
                raise
        if process.returncode < 0:
            raise UserError(f'{path} is refused: {_why_ended(-process.returncode)}')
        errors.seek(0)
        raise RuntimeError(f'{path} cannot be tried: {errors.read().decode(errors="replace")}')


def received(stream, path):
    """Return what `tried` does, from what `hand_over` has written. Raises `EOFError` if that is incomplete."""
    answer = json.loads(_exactly(stream, int.from_bytes(_exactly(stream, 8), 'little')))
    if answer['refusal']:
        raise UserError(answer['refusal'])
    onnx, _ = import_onnx_package()
    proto = onnx.ModelProto()
    proto.ParseFromString(_exactly(stream, answer['bytes']))
    model = model_of(onnx, proto, os.fspath(path), answer['size'])
    model = dataclasses.replace(model, **{name: answer[name] for name in OF_FILE})
    if answer['shapes'] is None:
        return model, None
    known = {}
    for name, dtype, shape in answer['values']:
        known[name] = np.empty(shape, dtype)
        _fill(stream, known[name].reshape(-1).view(np.uint8))
    return model, Evaluator(model, {name: tuple(shape) for name, shape in answer['shapes'].items()}, known)


def _exactly(stream, length):
    content = bytearray(length)
    _fill(stream, content)
    return bytes(content)


def _fill(stream, buffer):
    """Read as many bytes as a buffer takes."""
    if stream.readinto(buffer) < len(buffer):
        raise EOFError


def _why_ended(number):
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return f'to read it and compute it once takes more than {MAX_SECONDS} s of processor time, or more memory than there is'
    return f'onnx or ONNX Runtime fails on it with {signal.Signals(number).name}'


def hand_over(stream, question, memory, seconds):
    """Answer a question, the arguments of `computed`, in this process, whose limits become `memory` bytes and `seconds` of processor time.

    Written to the stream is why the model is refused, or the checked model with its values.
    """
    limit(memory)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        model, evaluator = computed(*question)
        content = model.proto.SerializeToString()
        answer = {'refusal': '', 'bytes': len(content)}
        answer.update((name, getattr(model, name)) for name in ('size', *OF_FILE))
        values = evaluator.sampled if evaluator else {}
        answer['shapes'] = evaluator and evaluator.shapes
        answer['values'] = [(name, array.dtype.str, array.shape) for name, array in values.items()]
        _write(stream, answer, content, *values.values())
        return
    except UserError as error:
        refusal = '' if any(message in str(error) for message in _OUT_OF_MEMORY) else str(error)
    except MemoryError:
        refusal = ''
    limits = f'to read it and compute it once takes more than {memory} bytes, the limit: set {MEMORY_VARIABLE} to allow more'
    _write(stream, {'refusal': refusal or f'{question[0]} is refused: {limits}'})


def computed(path, input_shape, outputs=None):
    """Return what `tried` does, read and computed in this process without limits."""
    model = read_model(path)
    stored = stored_program(model.proto, path)
    if outputs:
        model = ending_at(model, outputs)
    elif stored:
        read_back(model, *stored)
        return model, None
    evaluator = evaluator_of_one_image(model) if input_shape is None else None
    evaluator = evaluator or Evaluator(model, input_shapes(model, input_shape))
    return evaluator.model, evaluator


def _write(stream, answer, *contents):
    text = json.dumps(answer).encode()
    stream.write(len(text).to_bytes(8, 'little') + text)
    for content in contents:
        stream.write(content if isinstance(content, bytes) else np.ascontiguousarray(content).reshape(-1).view(np.uint8))
    stream.flush()


def main():
    """Read the arguments of `hand_over` from standard input, and write to standard output."""
    with open(os.dup(1), 'wb') as stream:
        os.dup2(2, 1)  # what libraries print must not mix with the answer
        hand_over(stream, *pickle.load(sys.stdin.buffer))
