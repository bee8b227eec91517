"""Trial of a model in a separate process: with limited memory and time, before this process reads it.

The checks of onnx and ONNX Runtime were not made for untrusted models. A file of a few bytes can ask for any memory and time, also for a
constant that no size in the model announces, and an attribute that they overlook ends the process. So the model is first read and computed
where that does no harm.
"""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys

from ...errors import UserError, last_line
from ...limited_process import child_environment, command_of, limit
from ..program.limits import MEMORY_VARIABLE, memory_limit
from .batches import with_one_image
from .evaluation import Evaluator, input_shapes
from .model import read_model
from .reading_back import read_back
from .stored_programs import stored_program

MAX_SECONDS = 60  # of processor time, to read a model and compute it once
_OUT_OF_MEMORY = ('Failed to allocate memory', 'bad allocation', 'bad_alloc')  # of ONNX Runtime


def require_computable(path, input_shape):
    """Read a model and compute it once in a separate process.

    Parameters
    ----------
    path : str or os.PathLike
    input_shape : tuple of int, or dict of str to tuple of int, or None
        As `import_onnx` takes it.

    Raises
    ------
    UserError
        If the model cannot be read or computed, or takes more than `MAX_SECONDS` of processor time or the limit of memory
        (BMX_MELIUS_MEMORY_LIMIT).
    """
    question = pickle.dumps((os.fspath(path), input_shape, memory_limit(), MAX_SECONDS))
    done = subprocess.run(command_of(__name__), input=question, env=child_environment(), capture_output=True)
    if done.returncode < 0:
        raise UserError(f'{path} is refused: {_why_ended(-done.returncode)}')
    if done.returncode:
        raise RuntimeError(f'{path} cannot be tried: {done.stderr.decode(errors="replace")}')
    refusal = json.loads(last_line(done.stdout.decode()))
    if refusal:
        raise UserError(refusal)


def _why_ended(number):
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return f'to read it and compute it once takes more than {MAX_SECONDS} s of processor time, or more memory than there is'
    return f'onnx or ONNX Runtime fails on it with {signal.Signals(number).name}'


def refusal_of(path, input_shape, memory, seconds):
    """Read a model and compute it once in this process, whose limits become `memory` bytes of data and `seconds` of processor time.

    Returns
    -------
    str
        Why the model is refused; '' if it is not.
    """
    limit(memory)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        model = read_model(path)
        stored = stored_program(model.proto, path)
        if stored:
            read_back(model, *stored)
            return ''
        model = with_one_image(model) if input_shape is None else model
        Evaluator(model, input_shapes(model, input_shape))
    except UserError as error:
        if not any(message in str(error) for message in _OUT_OF_MEMORY):
            return str(error)
    except MemoryError:
        pass
    else:
        return ''
    return f'{path} is refused: to read it and compute it once takes more than {memory} bytes, the limit ({MEMORY_VARIABLE})'


def main():
    """Read the arguments of `refusal_of` from standard input, and print its result as JSON."""
    print(json.dumps(refusal_of(*pickle.load(sys.stdin.buffer))))
