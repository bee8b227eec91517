"""The files of a network in C: NAME.c, NAME.h and NAME_weights.h."""

import dataclasses
import re

import numpy as np

from ..._version import __version__
from ...errors import UserError
from .arena import Arena
from .c_text import arena_text, array_text, call_text, structure_text
from .code_size import STACK_BYTES, code_bytes
from .kernel_sources import Kernels
from .layer_calls import Lowering, check_operations

TRACE = 'BMX_TRACE'  # the call after each layer of bits
LAYER = 'BMX_LAYER'  # the call before each layer
_GUARDS = {  # flags with which other bits are computed -> error
    'defined(__FAST_MATH__)': '-ffast-math and -Ofast change results: compile this file without them',
    'FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16': 'float must be computed as float: for 32-bit x86 give -msse2 -mfpmath=sse',
    'defined(__clang__) && !defined(__NO_MATH_ERRNO__) && (defined(__ARM_FEATURE_FMA) || defined(__riscv_flen)) && !defined(__aarch64__)': (
        'give -fno-math-errno: otherwise Clang calls fmaf of a C library, which may round twice'
    ),
}
_NAME = re.compile(r'[A-Za-z][A-Za-z0-9_]*')
_RESERVED = re.compile(  # keywords, headers of the standard library, functions of the kernels, and the files of another network
    'auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|restrict|return|short|'
    'signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|assert|complex|ctype|errno|fenv|inttypes|iso646|limits|'
    'locale|math|setjmp|signal|stdalign|stdarg|stdatomic|stdbit|stdbool|stdckdint|stddef|stdint|stdio|stdlib|stdnoreturn|string|tgmath|threads|'
    'time|uchar|wchar|wctype|bmx_.*|.*_weights',
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Layer:
    """An operation of an exported network: number of its result, name, result, and bytes of its constants."""

    number: int
    name: str
    result: str
    weights: int


@dataclasses.dataclass(frozen=True)
class CNetwork:
    """A network as C.

    Attributes
    ----------
    files : dict of str to str
        Names and contents of the files.
    arena : int
        Bytes of memory for values, which the program has as one static array.
    arguments : int
        Bytes of the inputs and outputs, which the caller provides.
    stack : int
        Bytes of the stack that a run needs at most, with GCC on Cortex-M and RV32.
    weights : int
        Bytes of the constants.
    code : int
        Estimated bytes of code.
    layers : list of Layer
    """

    files: dict
    arena: int
    arguments: int
    stack: int
    weights: int
    code: int
    layers: list

    @property
    def ram(self):
        """Bytes of memory for a run, without inputs and outputs."""
        return self.arena + self.stack

    @property
    def flash(self):
        return self.weights + self.code


def check_name(name):
    """Raise `UserError` unless a name can begin the names of functions and files."""
    if not _NAME.fullmatch(name):
        raise UserError(f'{name!r} cannot begin the names of C functions: give --name a name of letters, digits and _ such as digits_net')
    if _RESERVED.fullmatch(name):
        raise UserError(
            f'{name!r} cannot begin the names of C functions and files: it is a keyword or a header of C, begins with bmx_, or ends with '
            '_weights; give --name another name such as digits_net'
        )


def to_c(program, outputs, name, sizes=None, spec=None):
    """Write a program as C.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
    outputs : list of int
        The number of the program output for each output of the network.
    name : str
        Begins the names of functions and files, see `check_name`.
    sizes : list of tuple (height, width), optional
        Of each input; default: those at conversion.
    spec : bmx_melius.vision.preprocessing.InputSpec, optional
        With it, the files have a function that normalizes the pixels of an image.

    Returns
    -------
    CNetwork

    Raises
    ------
    UserError
        For a name that is not possible, operations without a form in C, constants that are NaN, and sizes that the network does not accept.
    """
    check_name(name)
    check_operations(program)
    shapes = program.values(sizes)
    calls = Lowering(program, shapes).run([program.outputs[output] for output in outputs])
    arena = Arena(calls.calls)
    kernels = Kernels(
        [(call.template, call.kinds) for call in calls.calls if call.template != TRACE],
        {constant.type for constant in calls.constants.values() if constant.type.startswith('bmx_')},
    )
    constants = list(calls.constants.values())
    layers = [
        Layer(number, operation.name, str(shapes[number]), sum(one.bytes for one in constants if one.operation == number))
        for number, operation in enumerate(program.operations, len(program.inputs))
    ]
    inputs, output_values = shapes[: len(program.inputs)], [shapes[program.outputs[output]] for output in outputs]
    has_pixels = spec is not None and len(inputs) == 1 and inputs[0].shape == spec.shape
    texts = _Texts(name, inputs, output_values, spec if has_pixels else None)
    weights = sum(constant.bytes for constant in constants)
    arguments = 4 * sum(value.channels * value.height * value.width for value in [*inputs, *output_values])
    code = code_bytes(kernels.templates, sum(call.template != TRACE for call in calls.calls), has_pixels)
    files = {
        f'{name}.h': texts.header(arena.bytes),
        f'{name}.c': texts.source(kernels, calls, arena, layers),
        f'{name}_weights.h': texts.weights(constants, layers, weights),
    }
    return CNetwork(files, arena.bytes, arguments, STACK_BYTES, weights, code, layers)


class _Texts:
    """The contents of the files."""

    def __init__(self, name, inputs, outputs, spec):
        self.name, self.spec = name, spec
        self.inputs = _named('input', inputs)
        self.outputs = _named('output', outputs)
        parameters = [f'const float* {key}' for key in self.inputs] + [f'float* {key}' for key in self.outputs]
        self.run = f'void {name}_run({", ".join(parameters)})'
        self.normalize = f'void {name}_normalize(const uint8_t* pixels, float* input)'
        self.origin = f'// Written by bmx-melius {__version__}, export-c.'

    def header(self, arena_bytes):
        guard = f'{self.name.upper()}_H'
        lines = [self.origin, f'#ifndef {guard}', f'#define {guard}', '', '#include <stdint.h>', '']
        for key, value in {**self.inputs, **self.outputs}.items():
            size = value.channels * value.height * value.width
            lines.append(f'#define {self.name.upper()}_{key.upper()}_SIZE {size}  // floats: {_shape_text(value)}')
        lines += [f'#define {self.name.upper()}_ARENA_BYTES {arena_bytes}  // of static memory']
        lines += [f'#define {self.name.upper()}_STACK_BYTES {STACK_BYTES}  // of stack at most, with GCC on Cortex-M and RV32', '']
        lines += ['#ifdef __cplusplus', 'extern "C" {', '#endif', '']
        lines += ['// Runs the network on one input. Not to be called again before it has returned, from an interrupt for example.']
        lines += [f'{self.run};', '']
        if self.spec:
            lines += [f'// Normalizes an image of {self.spec.size} x {self.spec.size} pixels, {_pixels_text(self.spec)}, for an input.']
            lines += [f'{self.normalize};', '']
        return '\n'.join([*lines, '#ifdef __cplusplus', '}', '#endif', '', f'#endif  // {guard}', ''])

    def weights(self, constants, layers, total):
        guard = f'{self.name.upper()}_WEIGHTS_H'
        lines = [self.origin, f'// Constants of the network, {total} bytes.', f'#ifndef {guard}', f'#define {guard}', '']
        lines += ['#include <stdint.h>', '']
        arrays = [one for one in constants if isinstance(one.content, np.ndarray)]
        if any(np.isinf(one.content).any() for one in arrays if one.type == 'float'):
            lines += ['#define BMX_INFINITY (1.0f / 0.0f)', '']
        described = {layer.number: layer for layer in layers}
        for number in sorted({one.operation for one in arrays}):
            layer = described[number]
            lines += [f'// {number}: {layer.name}, {layer.weights} bytes']
            lines += [array_text(one) for one in arrays if one.operation == number] + ['']
        return '\n'.join([*lines, f'#endif  // {guard}', ''])

    def source(self, kernels, calls, arena, layers):
        traces = any(call.template == TRACE for call in calls.calls)
        lines = [self.origin, '// C99 without library functions. The results have the bits of the engine of bmx-melius.']
        lines += [f'#include "{self.name}.h"', '', '#include <float.h>', '#include <stddef.h>', '', f'#include "{self.name}_weights.h"', '']
        for condition, message in _GUARDS.items():
            lines += [f'#if {condition}', f'#error "{message}"', '#endif']
        lines.append('')
        if traces:
            lines += ['// Called with the bits of each layer, to compare them with those of another run: value, words, number of words.']
            lines += [f'#ifndef {TRACE}', f'#define {TRACE}(value, words, count) ((void)0)', '#endif', '']
        lines += ['// Called before the calls of each layer, to measure its time: value.']
        lines += [f'#ifndef {LAYER}', f'#define {LAYER}(value) ((void)0)', '#endif', '']
        lines += ['// --- kernels', '', kernels.text(), '', '// --- network', '']
        lines += [structure_text(one) for one in calls.constants.values() if not isinstance(one.content, np.ndarray)]
        if any(not buffer.external for call in calls.calls for buffer in call.buffers):
            lines += ['', arena_text(arena)]
        described = {layer.number: f'{layer.name}, {layer.result}' for layer in layers}
        used = {buffer.name for call in calls.calls for buffer in call.buffers}
        body, last = [f'    (void){name};' for name in self.inputs if name not in used], None
        for call in calls.calls:
            if call.operation != last:
                body.append(f'    {LAYER}({call.operation});  // {described.get(call.operation, "output")}')
                last = call.operation
            body.append(call_text(call, arena))
        lines += ['', f'{self.run} {{', *body, '}', '']
        return '\n'.join(lines + self._normalization())

    def _normalization(self):
        if not self.spec:
            return []
        pixels, channels = self.spec.size**2, self.spec.channels
        numbers = [', '.join(f'{float(np.float32(number)).hex()}f' for number in values) for values in (self.spec.mean, self.spec.std)]
        return [
            f'{self.normalize} {{',
            f'    static const float mean[{channels}] = {{{numbers[0]}}}, deviation[{channels}] = {{{numbers[1]}}};',
            f'    for (int32_t c = 0; c < {channels}; ++c) {{',
            f'        for (int32_t i = 0; i < {pixels}; ++i) {{',
            f'            *input++ = ((float)pixels[i * {channels} + c] - mean[c]) / deviation[c];',
            '        }',
            '    }',
            '}',
            '',
        ]


def _named(name, values):
    return {name if len(values) == 1 else f'{name}{number}': value for number, value in enumerate(values)}


def _shape_text(value):
    return f'{value.channels} channels' + ('' if value.flat else f' of {value.height} rows of {value.width}')


def _pixels_text(spec):
    return 'the red, green and blue of a pixel next to one another' if spec.channels == 3 else 'gray'
