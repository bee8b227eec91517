"""Python interface of the compiled engine, loaded once by ctypes: availability, instruction sets, and running programs."""

import ctypes
import functools
import hashlib
import math
import numbers
import os
import pathlib
import warnings
import weakref

import numpy as np

from ... import forking
from ...errors import UserError
from ..program import reference
from ..program.operations import ProgramError
from .shared_programs import SharedPrograms

FOLDER = pathlib.Path(__file__).resolve().parents[2]
ENGINE_LIBRARY = FOLDER / '_engine.so'
OPERATOR_LIBRARY = FOLDER / '_mxnet_op.so'

PRECISIONS = ('exact', 'fast', 'bf16')  # by their number in csrc/api/bmx_melius.h
MAC_KINDS = ('float', 'binary', 'int8')  # of multiply-accumulates, likewise
MAX_THREADS = 1024  # per run; kMaxThreads of csrc/threads/thread_count.h

_LAYOUT = ('C', 'A')  # of arrays passed to the engine: C-contiguous and aligned
_programs = SharedPrograms(lambda handle: load().bmx_program_destroy(handle))  # by SHA-256 of the words, precision and memory limit
_POINTERS = ctypes.POINTER(ctypes.c_void_p)  # to float arrays
_SIZES = ctypes.POINTER(ctypes.c_int64)
_STEP_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double, ctypes.c_int64, ctypes.c_int)
_PEAK_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_double, ctypes.c_double)
_FUNCTIONS = {  # of csrc/api/bmx_melius.h: result type, argument types
    'bmx_version': (ctypes.c_char_p,),
    'bmx_last_error': (ctypes.c_char_p,),
    'bmx_isa': (ctypes.c_char_p,),
    'bmx_available_isas': (ctypes.c_char_p,),
    'bmx_program_create': (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_size_t, ctypes.c_int),
    'bmx_program_load': (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int),
    'bmx_program_load_memory': (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int),
    'bmx_program_destroy': (None, ctypes.c_void_p),
    'bmx_program_infer': (ctypes.c_int, ctypes.c_void_p, _SIZES, _SIZES, ctypes.POINTER(ctypes.c_int)),
    'bmx_default_threads': (ctypes.c_int,),
    'bmx_program_run': (ctypes.c_int, ctypes.c_void_p, _SIZES, _POINTERS, _POINTERS, ctypes.c_int),
    'bmx_program_working_memory': (ctypes.c_int64, ctypes.c_void_p, _SIZES, ctypes.c_int),
    'bmx_program_profile': (
        ctypes.c_int,
        ctypes.c_void_p,
        _SIZES,
        _POINTERS,
        _POINTERS,
        ctypes.c_int,
        _STEP_CALLBACK,
        ctypes.c_void_p,
    ),
    'bmx_measure_peaks': (ctypes.c_int, ctypes.c_double, _PEAK_CALLBACK, ctypes.c_void_p),
}


def load():
    """Return the engine as a ctypes library, or None, with one warning, if it is not available.

    Raises
    ------
    UserError
        If the environment variable BMX_MELIUS_ISA names an instruction set that is not available.
    """
    with forking.changing:  # so that only one thread warns, and no child inherits a library whose loading has not ended
        return _load()


@functools.lru_cache(maxsize=None)
def _load():
    problem = missing()
    if problem:
        warnings.warn(f'{problem}; packed networks run on NumPy, many times slower', stacklevel=4)
        return None
    library = open_library(ENGINE_LIBRARY)
    if library.bmx_isa() is None:
        raise UserError(library.bmx_last_error().decode())
    return library


def open_library(path):
    """Load an engine with ctypes and declare its functions."""
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def missing():
    """Return one line with the reason why the engine is not available and what to do, or an empty string if it is."""
    with forking.changing:
        return _missing()


@functools.lru_cache(maxsize=None)
def _missing():
    advice = 'install a C++ compiler (g++), then install bmx-melius again'
    if not ENGINE_LIBRARY.exists():
        return f'the engine of bmx-melius has not been compiled ({ENGINE_LIBRARY} is missing): {advice}'
    try:
        ctypes.CDLL(str(ENGINE_LIBRARY))
    except OSError as error:  # compiled for another machine
        return f'the engine of bmx-melius cannot be loaded ({error}): {advice}'
    return ''


def instruction_sets():
    """Return the instruction set in use and a list of those available, the best one last; (None, []) without the engine."""
    library = None if missing() else load()
    if library is None:
        return None, []
    return library.bmx_isa().decode(), library.bmx_available_isas().decode().split()


def default_threads():
    """Return the default number of threads of a run, described in `Session`; None without the engine."""
    library = None if missing() else load()
    return None if library is None else library.bmx_default_threads()


def measure_peaks(seconds):
    """Measure the peak multiply-accumulates per second of one thread, for each method of the instruction set in use.

    Parameters
    ----------
    seconds : float
        Duration of each of the two measurements of a method.

    Returns
    -------
    list of tuple (method, number of its kind in `MAC_KINDS`, rate with operands in registers, rate with operands in the first-level cache)

    Raises
    ------
    UserError
        If the engine is not available.
    """
    require_engine()
    peaks, library = [], load()

    @_PEAK_CALLBACK
    def note(_, method, kind, in_registers, in_cache):
        peaks.append((method.decode(), kind, in_registers, in_cache))

    if library.bmx_measure_peaks(seconds, note, None):
        raise UserError(library.bmx_last_error().decode())
    return peaks


def require_engine():
    """Raise `UserError` unless the engine is available."""
    if missing():
        raise UserError(missing())


def check_threads(threads):
    """Raise `UserError` unless `threads` is 0 (the default number) or 1 to `MAX_THREADS`."""
    if isinstance(threads, bool) or not isinstance(threads, numbers.Integral) or not 0 <= threads <= MAX_THREADS:
        raise UserError(f'threads must be a whole number from 1 to {MAX_THREADS}, or 0 for the default, not {threads!r}')


def _create(words, precision):
    """Return the handle of a program. Raises `ProgramError` if it is invalid."""
    library, words = load(), np.require(words, np.int32, _LAYOUT)
    handle = library.bmx_program_create(words.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)), len(words), PRECISIONS.index(precision))
    if not handle:
        raise ProgramError(library.bmx_last_error().decode())
    return handle


class Runner:
    """A program prepared to run on the engine, or on NumPy if the engine is not available. Thread-safe.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
    words : numpy.ndarray of int32, shape (words,)
        The serialized program, the result of `Program.to_words`.
    precision : str
        One of `PRECISIONS`.
    """

    def __init__(self, program, words, precision='exact'):
        self.program = program
        self._last = None, None, ()  # of the last run: input shapes, the same as a ctypes array, output shapes
        self._handle, self._library = None, load()
        if self._library is not None:
            limit = os.environ.get('BMX_MELIUS_MEMORY_LIMIT')  # which the engine reads when it prepares a program
            key = hashlib.sha256(np.ascontiguousarray(words).data).digest(), precision, limit
            self._handle = _programs.acquire(key, lambda: _create(words, precision))
            weakref.finalize(self, _programs.release, key).atexit = False

    def run(self, inputs, threads=0):
        """Run the program as `reference.run` does. `threads` is 0 for `default_threads`."""
        if self._handle is None:
            return reference.run(self.program, inputs)
        shapes, inputs, outputs = self._arrays(inputs)
        if self._library.bmx_program_run(self._handle, shapes, _pointers(inputs), _pointers(outputs), threads):
            raise self._error()
        return outputs

    def profile(self, inputs, threads=0):
        """Run the program once and time its steps.

        Returns
        -------
        list of tuple (name, seconds, multiply-accumulates, number of their kind in `MAC_KINDS`)

        Raises
        ------
        UserError
            If the engine is not available or the inputs do not fit.
        """
        require_engine()
        shapes, inputs, outputs = self._arrays(inputs)
        steps = []

        @_STEP_CALLBACK
        def note(_, name, seconds, macs, kind):
            steps.append((name.decode(), seconds, macs, kind))

        if self._library.bmx_program_profile(self._handle, shapes, _pointers(inputs), _pointers(outputs), threads, note, None):
            raise self._error()
        return steps

    def working_memory(self, inputs, threads=0):
        """Return the bytes of memory that a run on these inputs needs in addition to weights, inputs and outputs.

        Raises
        ------
        UserError
            If the engine is not available or the inputs do not fit.
        """
        require_engine()
        reference.check_inputs(self.program, inputs)
        size = self._library.bmx_program_working_memory(self._handle, _sizes(inputs), threads)
        if size < 0:
            raise self._error()
        return size

    def _arrays(self, inputs):
        """Check the inputs; return their sizes for the engine, the inputs as contiguous arrays, and uninitialized outputs."""
        reference.check_inputs(self.program, inputs)
        inputs = [_laid_out(array) for array in inputs]
        shapes = tuple(array.shape for array in inputs)
        known, sizes, output_shapes = self._last  # read once, because another thread may replace it
        if shapes != known:
            sizes = _sizes(inputs)
            output_shapes = self._output_shapes(sizes, shapes)
            self._last = shapes, sizes, output_shapes
        return sizes, inputs, [np.empty(shape, np.float32) for shape in output_shapes]

    def _output_shapes(self, sizes, input_shapes):
        number = len(self.program.outputs)
        shapes, ranks = (ctypes.c_int64 * (4 * number))(), (ctypes.c_int * number)()
        if self._library.bmx_program_infer(self._handle, sizes, shapes, ranks):
            reference.infer_shapes(self.program, input_shapes)  # raises the same error with its reason
            raise self._error()
        output_shapes = [tuple(shapes[4 * i : 4 * i + rank]) for i, rank in enumerate(ranks)]
        reference.check_memory(4 * sum(map(math.prod, output_shapes)), 'memory for its outputs')
        return output_shapes

    def _error(self):
        return ProgramError(self._library.bmx_last_error().decode())


def _sizes(arrays):
    """Return the shapes of the arrays as a ctypes array with four numbers for each."""
    numbers = [number for array in arrays for number in (*array.shape, 0, 0)[:4]]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _laid_out(array):
    """Return a contiguous and aligned array. `np.require` takes a microsecond even if the array is both already."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=_LAYOUT)


def _pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*map(_address, arrays))


def _address(array):
    """Return `array.ctypes.data` in a third of the time. `from_buffer` does not accept read-only arrays."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.flags.writeable else array.ctypes.data
