"""The engine against the NumPy interpreter: random programs, damaged programs, damaged files, threads, every instruction set."""
import ctypes
import os
import pathlib
import shutil
import struct
import threading
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bmx_melius.deploy import native, reference
from bmx_melius.deploy.container import write_parameters
from bmx_melius.deploy.program import BITS_KIND, OPERATIONS, REAL_KIND, Operation, Program, ProgramError, Value, array_shapes, result_of

pytestmark = pytest.mark.skipif(bool(native.missing()), reason='the engine has not been compiled')

FLOATS, SIZES = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_int64)
STEP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double, ctypes.c_int64, ctypes.c_int)
FUNCTIONS = {
    'bmx_last_error': (ctypes.c_char_p,),
    'bmx_isa': (ctypes.c_char_p,),
    'bmx_available_isas': (ctypes.c_char_p,),
    'bmx_program_create': (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    'bmx_program_load': (ctypes.c_void_p, ctypes.c_char_p),
    'bmx_program_destroy': (None, ctypes.c_void_p),
    'bmx_program_infer': (ctypes.c_int, ctypes.c_void_p, SIZES, SIZES, ctypes.POINTER(ctypes.c_int)),
    'bmx_program_run': (ctypes.c_int, ctypes.c_void_p, SIZES, ctypes.POINTER(FLOATS), ctypes.POINTER(FLOATS), ctypes.c_int),
    'bmx_program_working_memory': (ctypes.c_int64, ctypes.c_void_p, SIZES, ctypes.c_int),
    'bmx_program_profile': (
        ctypes.c_int, ctypes.c_void_p, SIZES, ctypes.POINTER(FLOATS), ctypes.POINTER(FLOATS), ctypes.c_int, STEP, ctypes.c_void_p,
    ),
}  # fmt: skip


def load_library(path):
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Engine:
    """A program on a library."""

    def __init__(self, library, handle, program):
        self.library, self.program, self.handle = library, program, handle

    @classmethod
    def of(cls, library, program):
        words = program.to_words()
        handle = library.bmx_program_create(words.ctypes.data, len(words))
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

    def memory(self, inputs, threads=1):
        return self.library.bmx_program_working_memory(self.handle, sizes_of(inputs), threads)


def sizes_of(arrays):
    numbers = [number for array in arrays for number in (*array.shape, 0, 0)[:4]]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def pointers(arrays):
    return (FLOATS * len(arrays))(*(array.ctypes.data_as(FLOATS) for array in arrays))


@pytest.fixture(scope='session')
def libraries(tmp_path_factory):
    """The engine once for each instruction set: copies of its file, because it reads BMX_MELIUS_ISA only once."""
    folder = tmp_path_factory.mktemp('engines')
    names = load_library(native.ENGINE_LIBRARY).bmx_available_isas().decode().split()
    found, before = {}, os.environ.get('BMX_MELIUS_ISA')
    for name in [*names, 'vax']:
        path = shutil.copy(native.ENGINE_LIBRARY, folder / f'{name}.so')
        os.environ['BMX_MELIUS_ISA'] = name
        found[name] = load_library(path)
        found[name].bmx_isa()
    if before is None:
        del os.environ['BMX_MELIUS_ISA']
    else:
        os.environ['BMX_MELIUS_ISA'] = before
    return found


def working(libraries):
    return {name: library for name, library in libraries.items() if name != 'vax'}


# --- random programs ------------------------------------------------------------------------------------------------------------------

CHANNELS = (1, 2, 3, 4, 8, 16, 31, 32, 33, 48, 64, 65, 96, 128)
EXACT = 2.0**22  # sums of multiples of 1/4 below it are exact in float32, in any order


class Maker:
    """Makes a random program operation by operation.

    With `exact`, every number in it is a small multiple of 1/2, so that all results are exact and engine and interpreter must agree in
    every bit. Otherwise weights are random numbers, and there are no thresholds, which would turn rounding into other results.
    """

    def __init__(self, random, exact):
        self.random, self.exact = random, exact
        self.numpy = np.random.RandomState(random.getrandbits(32))
        self.inputs, self.values, self.operations, self.bounds = [], [], [], []
        for _ in range(random.choice((1, 1, 1, 2))):
            flat = random.random() < 0.2
            size = (1, 1) if flat else (random.randint(1, 12), random.randint(1, 12))
            self.inputs.append(Value(REAL_KIND, random.choice(CHANNELS), *size, flat))
            self.bounds.append(8.0)
        self.values += self.inputs

    def program(self, operations):
        for _ in range(operations):
            self.grow()
        real = [number for number, value in enumerate(self.values) if value.kind == REAL_KIND]
        outputs = {real[-1]} | set(self.random.sample(real, min(len(real), self.random.randint(0, 2))))
        return Program(self.inputs, self.operations, sorted(outputs))

    def grow(self):
        """Add one operation, if one of a few attempts fits."""
        for _ in range(20):
            name = self.random.choice((*OPERATIONS, *('threshold', 'binary_conv', 'add') * self.exact * 3))
            kinds = OPERATIONS[name].kinds
            count = 2 if name == 'add' else self.random.randint(1, 4) if name == 'concat' else 1
            inputs = tuple(self.any_value(kinds) for _ in range(count))
            if None in inputs:
                continue
            operation = Operation(name, inputs, self.attributes(name, self.values[inputs[0]]))
            try:
                value = result_of(operation, [self.values[number] for number in inputs])
            except ProgramError:
                continue
            bound = self.bound(operation)
            weights = sum(int(np.prod(shape)) for _, shape in array_shapes(operation, self.values[inputs[0]].channels).values())
            if bound is None or weights > 1 << 16 or value.channels * value.height * value.width > 1 << 14:
                continue
            self.arrays(operation)
            self.operations.append(operation)
            self.values.append(value)
            self.bounds.append(bound)
            return

    def any_value(self, kinds):
        """One of the last values of these kinds, often the very last one."""
        numbers = [number for number, value in enumerate(self.values) if value.kind in kinds]
        if not numbers:
            return None
        return numbers[-1] if self.random.random() < 0.6 else self.random.choice(numbers[-6:])

    def attributes(self, name, value):
        choice = self.random.choice
        attributes = {}
        for attribute, (least, most) in OPERATIONS[name].attributes.items():
            if attribute.startswith('kernel'):
                attributes[attribute] = choice((1, 1, 2, 3, 3, 5))
            elif attribute.startswith('stride') or attribute.startswith('dilation'):
                attributes[attribute] = choice((1, 1, 1, 2, 3))
            elif attribute.startswith('pad_') and attribute != 'pad_value':
                attributes[attribute] = choice((0, 0, 1, 1, 2, 4))
            elif attribute == 'groups':
                attributes[attribute] = choice([g for g in (1, 1, 2, 3, 4, 8) if value.channels % g == 0])
            elif attribute == 'out_channels':
                attributes[attribute] = attributes.get('groups', 1) * choice((1, 3, 8, 16, 32, 64))
            elif attribute == 'begin':
                attributes[attribute] = self.random.randrange(value.channels)
            elif attribute == 'end':
                attributes[attribute] = self.random.randint(attributes['begin'] + 1, value.channels)
            else:
                attributes[attribute] = self.random.randint(least, most)
        if value.flat and 'kernel_h' in attributes:
            plain = {'kernel': 1, 'stride': 1, 'dilation': 1, 'pad': 0}
            attributes = {key: plain.get(key[:-2], number) if key[-2:] in ('_h', '_w') else number for key, number in attributes.items()}
        return attributes

    def bound(self, operation):
        """The largest magnitude an element of the result can have, or None if the operation must not be made."""
        name, a = operation.name, operation.attributes
        inputs = [self.bounds[number] for number in operation.inputs]
        if name == 'threshold' and not self.exact:
            return None
        if name in ('avg_pool', 'global_avg_pool') and self.exact:
            return None
        if 'kernel_h' in a and name.endswith('conv'):
            weights = a['kernel_h'] * a['kernel_w'] * (self.values[operation.inputs[0]].channels // a['groups'])
            bound = weights if name == 'binary_conv' else 2 * weights * inputs[0] + 8
        elif name == 'affine':
            bound = 2 * inputs[0] + 8
        else:
            bound = sum(inputs) if name == 'add' else max([1, *inputs])
        return bound if bound < EXACT else None

    def arrays(self, operation):
        channels = self.values[operation.inputs[0]].channels
        for name, (dtype, shape) in array_shapes(operation, channels).items():
            if dtype.kind == 'b':
                array = self.numpy.rand(*shape) < 0.5
            elif name == 'threshold':
                array = self.numpy.randint(-20, 21, shape) / 2 * self.numpy.choice((1, 1, 10), shape)
                array[self.numpy.rand(*shape) < 0.1] = self.numpy.choice((-np.inf, np.inf, 1e30, -1e9, 40000, -0.0))
            elif not self.exact:
                array = self.numpy.randn(*shape)
            else:
                array = self.numpy.randint(-2, 3, shape)
            operation.arrays[name] = np.asarray(array).astype(dtype)

    def data(self, sizes, batch):
        arrays = []
        for value, size in zip(self.inputs, sizes):
            shape = (batch, value.channels) if value.flat else (batch, value.channels, *size)
            arrays.append(self.numpy.randint(-16, 17, shape) / 2 if self.exact else self.numpy.randn(*shape))
        return [array.astype(np.float32) for array in arrays]


def other_sizes(random, program):
    """Heights and widths the program can be run on, perhaps not those at conversion."""
    for _ in range(3):
        sizes = [(1, 1) if value.flat else (random.randint(1, 14), random.randint(1, 14)) for value in program.inputs]
        try:
            values = program.values(sizes)
        except ProgramError:
            continue
        if [value.channels for value in values] == [value.channels for value in program.values()]:
            return sizes
    return [(value.height, value.width) for value in program.inputs]


def describe(program):
    values = program.values()
    first = len(program.inputs)
    lines = [f'{number}: input {value}' for number, value in enumerate(program.inputs)]
    lines += [f'{first + i}: {o.name} {o.inputs} {o.attributes} -> {values[first + i]}' for i, o in enumerate(program.operations)]
    return '\n'.join([*lines, f'outputs {program.outputs}'])


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples * 5, suppress_health_check=list(HealthCheck))
def test_every_instruction_set_equals_the_interpreter_in_every_bit(libraries, random):
    maker = Maker(random, exact=True)
    program = maker.program(random.randint(1, 12))
    inputs = maker.data(other_sizes(random, program), random.randint(1, 4))
    expected = reference.run(program, inputs)
    for name, library in working(libraries).items():
        engine = Engine.of(library, program)
        for threads in (1, 2, 3):
            for number, (y, wanted) in enumerate(zip(engine.run(inputs, threads), expected)):
                np.testing.assert_array_equal(y, wanted, f'{name}, {threads} threads, output {number} of\n{describe(program)}')


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples * 3, suppress_health_check=list(HealthCheck))
def test_floats_differ_by_rounding_alone_and_not_by_threads(libraries, random):
    maker = Maker(random, exact=False)
    program = maker.program(random.randint(1, 8))
    inputs = maker.data(other_sizes(random, program), random.randint(1, 3))
    expected = reference.run(program, inputs)
    for name, library in working(libraries).items():
        engine = Engine.of(library, program)
        single = engine.run(inputs)
        for number, (y, wanted) in enumerate(zip(single, expected)):
            tolerance = 1e-5 * max(1, np.abs(wanted).max())
            np.testing.assert_allclose(y, wanted, 1e-5, tolerance, err_msg=f'{name}, output {number} of\n{describe(program)}')
        for threads in (2, 3):
            for y, one in zip(engine.run(inputs, threads), single):
                np.testing.assert_array_equal(y, one, f'{name}, {threads} threads')
        for image in range(len(inputs[0])):
            for y, one in zip(engine.run([array[image : image + 1] for array in inputs]), single):
                np.testing.assert_array_equal(y[0], one[image], f'{name}, image {image} alone')
