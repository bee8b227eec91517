"""The engine in tests: programs run through its C interface, with a chosen instruction set. Tests name it in `pytest_plugins`."""

import ctypes

import numpy as np
import pytest

from bmx_melius.deployment.program.operations import ProgramError
from bmx_melius.deployment.runtime import engine, mxnet_operator
from support.native_program import INSTRUCTION_SETS as COMPILED_SETS
from support.native_program import with_emulated

INSTRUCTION_SETS = ['reference', *(name for name in COMPILED_SETS if name != 'bf16')]  # bf16 is a precision of those with AVX-512

needs_operator = pytest.mark.skipif(not mxnet_operator.compiled(), reason='the operator of MXNet has not been compiled')
needs_engine = pytest.mark.skipif(bool(engine.missing()), reason='the engine has not been compiled')


def create(library, words):
    """Return the handle of a program, or None."""
    return library.bmx_program_create(words.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)), len(words), 0)


class Engine:
    """A program on a library."""

    def __init__(self, library, handle, program):
        self.library, self.program, self.handle = library, program, handle

    @classmethod
    def of(cls, library, program):
        handle = create(library, program.to_words())
        assert handle, library.bmx_last_error()
        return cls(library, handle, program)

    def __del__(self):
        self.library.bmx_program_destroy(self.handle)

    def call(self, function, inputs, *arguments):
        """Call a function that makes outputs; return them, or raise what the engine says."""
        values = self.program.values([array.shape[2:] for array in inputs])
        inputs = [np.ascontiguousarray(array, dtype=np.float32) for array in inputs]
        outputs = [np.full((len(inputs[0]), *values[number].shape), np.nan, np.float32) for number in self.program.outputs]
        if function(self.handle, sizes_of(inputs), pointers(inputs), pointers(outputs), *arguments):
            raise ProgramError(self.library.bmx_last_error().decode())
        return outputs

    def run(self, inputs, threads=1):
        return self.call(self.library.bmx_program_run, inputs, threads)

    def profile(self, inputs, threads=1):
        callback_type, steps = self.library.bmx_program_profile.argtypes[-2], []

        def callback(_, name, seconds, macs, binary):
            steps.append((name.decode(), seconds, macs, binary))

        return self.call(self.library.bmx_program_profile, inputs, threads, callback_type(callback), None), steps

    def memory(self, inputs, threads=1):
        return self.library.bmx_program_working_memory(self.handle, sizes_of(inputs), threads)


def assert_same_bits(found, expected, message=''):
    """Require that arrays of numbers are equal, zeros also in their signs."""
    np.testing.assert_array_equal(found, expected, message)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected), f'signs of zeros; {message}')


def sizes_of(arrays):
    numbers = [number for array in arrays for number in (*array.shape, 0, 0)[:4]]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def require_instruction_set(name, emulated=False):
    """Skip the test if this build or this CPU lacks an instruction set. `emulated`: in sanitized programs, which emulate AMX."""
    available = engine.instruction_sets()[1]
    available = with_emulated(available) if emulated else available
    if name not in available:
        pytest.skip(f'{name}: not in this build or not on this CPU, which have {" ".join(available)}')


@pytest.fixture(scope='session', params=INSTRUCTION_SETS)
def library(request, open_engine):
    """The engine with each instruction set."""
    require_instruction_set(request.param)
    return open_engine(request.param)


@pytest.fixture(scope='session')
def reference_library(open_engine):
    """The engine with its reference kernels."""
    return open_engine('reference')
