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
_FLOAT_GUARDS = {  # flags with which other bits are computed -> error
    'defined(__FAST_MATH__)': '-ffast-math and -Ofast change results: compile this file without them',
    'FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16': 'float must be computed as float: for 32-bit x86 give -msse2 -mfpmath=sse',
    'defined(__clang__) && !defined(__NO_MATH_ERRNO__) && (defined(__ARM_FEATURE_FMA) || defined(__riscv_flen)) && !defined(__aarch64__)': (
        'give -fno-math-errno: otherwise Clang calls fmaf of a C library, which may round twice'
    ),
}
_INTEGER_GUARDS = {'(-1 >> 1) != -1': 'shifts of negative integers must be arithmetic'}
_FLOATS = re.compile(r'\b(float|double)\b')
_NAME = re.compile(r'[A-Za-z][A-Za-z0-9_]*')
_RESERVED = re.compile(  # keywords, headers of the standard library, functions of the kernels, and the files of another network
    'auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|restrict|return|short|'
    'signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|assert|complex|ctype|errno|fenv|inttypes|iso646|limits|'
    'locale|math|setjmp|signal|stdalign|stdarg|stdatomic|stdbit|stdbool|stdckdint|stddef|stdint|stdio|stdlib|stdnoreturn|string|tgmath|threads|'
    'time|uchar|wchar|wctype|bmx_.*|.*_weights',
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class OperationReport:
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
    inputs, outputs : list of bmx_melius.deployment.c_export.values.Parameter
        What the caller provides.
    stack : int
        Bytes of the stack that a run needs at most, with GCC on Cortex-M and RV32.
    weights : int
        Bytes of the constants.
    code : int
        Estimated bytes of code.
    layers : list of OperationReport
    """

    files: dict
    arena: int
    inputs: list
    outputs: list
    stack: int
    weights: int
    code: int
    layers: list

    @property
    def arguments(self):
        """Bytes of the inputs and outputs."""
        return sum(parameter.bytes for parameter in [*self.inputs, *self.outputs])

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
        Of each input; default: as at conversion.
    spec : bmx_melius.vision.preprocessing.InputSpec, optional
        With it, the files have a function that normalizes the pixels of an image. A network of 8-bit integers whose first layer reads the
        pixels takes these as its input instead.

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
    lowering = Lowering(program, shapes, spec)
    calls = lowering.run([program.outputs[output] for output in outputs])
    arena = Arena(calls.calls)
    kernels = Kernels(
        [(call.template, call.kinds) for call in calls.calls if call.template != TRACE],
        {constant.type for constant in calls.constants.values() if constant.type.startswith('bmx_')},
    )
    constants = list(calls.constants.values())
    layers = [
        OperationReport(number, operation.name, str(shapes[number]), sum(one.bytes for one in constants if one.operation == number))
        for number, operation in enumerate(program.operations, len(program.inputs))
    ]
    inputs, results = lowering.inputs, lowering.outputs
    normalizes = spec is not None and len(inputs) == 1 and inputs[0].value.shape == spec.shape and inputs[0].type == 'float'
    texts = _Texts(name, inputs, results, spec if normalizes else None)
    weights = sum(constant.bytes for constant in constants)
    code = code_bytes(kernels.templates, sum(call.template != TRACE for call in calls.calls), normalizes)
    files = {
        f'{name}.h': texts.header(arena.bytes),
        f'{name}.c': texts.source(kernels, calls, arena, layers),
        f'{name}_weights.h': texts.weights(constants, layers, weights),
    }
    return CNetwork(files, arena.bytes, inputs, results, STACK_BYTES, weights, code, layers)


class _Texts:
    """The contents of the files."""

    def __init__(self, name, inputs, outputs, spec):
        self.name, self.spec = name, spec
        self.inputs, self.outputs = inputs, outputs
        parameters = [f'const {one.type}* {one.name}' for one in inputs] + [f'{one.type}* {one.name}' for one in outputs]
        self.run = f'void {name}_run({", ".join(parameters)})'
        self.normalize = f'void {name}_normalize(const uint8_t* pixels, float* input)'
        self.origin = f'// Written by bmx-melius {__version__}, export-c.'

    def header(self, arena_bytes):
        guard = f'{self.name.upper()}_H'
        lines = [self.origin, f'#ifndef {guard}', f'#define {guard}', '', '#include <stdint.h>', '']
        for one in [*self.inputs, *self.outputs]:
            lines.append(f'#define {self.name.upper()}_{one.name.upper()}_SIZE {one.elements}  // {_elements_text(one)}')
        for one in self.outputs:
            lines += self._scale_of(one)
        lines += [f'#define {self.name.upper()}_ARENA_BYTES {arena_bytes}  // of static memory']
        lines += [f'#define {self.name.upper()}_STACK_BYTES {STACK_BYTES}  // of stack at most, with GCC on Cortex-M and RV32', '']
        lines += ['#ifdef __cplusplus', 'extern "C" {', '#endif', '']
        lines += ['// Runs the network on one input. Not to be called again before it has returned, from an interrupt for example.']
        lines += [f'{self.run};', '']
        if self.spec:
            lines += [
                f'// Normalizes an image of {self.spec.size} x {self.spec.size} pixels, {_pixels_text(self.spec.channels)}, for an input.'
            ]
            lines += [f'{self.normalize};', '']
        return '\n'.join([*lines, '#ifdef __cplusplus', '}', '#endif', '', f'#endif  // {guard}', ''])

    def _scale_of(self, output):
        """Return the definitions of what the integers of an output stand for."""
        if output.type == 'float':
            return []
        name = f'{self.name.upper()}_{output.name.upper()}'
        shift = f' + {name}_SHIFT' if output.shift else ''
        lines = [f'#define {name}_SCALE {output.scale}f  // an integer n of the output stands for n * {name}_SCALE{shift}']
        return [*lines, f'#define {name}_SHIFT {output.shift}f'] if shift else lines

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
        kernel_text = kernels.text()
        types = {constant.type for constant in calls.constants.values()} | {buffer.type for call in calls.calls for buffer in call.buffers}
        has_floats = self.spec is not None or 'float' in types or _FLOATS.search(kernel_text)
        has_integers = 'bmx_rescaling' in kernels.templates
        lines += [f'#include "{self.name}.h"', '']
        lines += ['#include <float.h>'] if has_floats else []
        lines += ['#include <stddef.h>', '', f'#include "{self.name}_weights.h"', '']
        for condition, message in {**(_FLOAT_GUARDS if has_floats else {}), **(_INTEGER_GUARDS if has_integers else {})}.items():
            lines += [f'#if {condition}', f'#error "{message}"', '#endif']
        lines.append('')
        if traces:
            lines += ['// Called with the bits of each layer, to compare them with those of another run: value, words, number of words.']
            lines += [f'#ifndef {TRACE}', f'#define {TRACE}(value, words, count) ((void)0)', '#endif', '']
        lines += ['// Called before the calls of each layer, to measure its time: value.']
        lines += [f'#ifndef {LAYER}', f'#define {LAYER}(value) ((void)0)', '#endif', '']
        lines += ['// --- kernels', '', kernel_text, '', '// --- network', '']
        lines += [structure_text(one) for one in calls.constants.values() if not isinstance(one.content, np.ndarray)]
        if any(not buffer.external for call in calls.calls for buffer in call.buffers):
            lines += ['', arena_text(arena, types)]
        described = {layer.number: f'{layer.name}, {layer.result}' for layer in layers}
        used = {buffer.name for call in calls.calls for buffer in call.buffers}
        body, last = [f'    (void){name};' for name in (one.name for one in self.inputs) if name not in used], None
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


def _elements_text(parameter):
    value = parameter.value
    if parameter.type == 'uint8_t':
        return f'uint8_t: an image of {value.height} rows of {value.width} pixels, {_pixels_text(value.channels)}'
    type = 'floats' if parameter.type == 'float' else parameter.type
    return f'{type}: {value.channels} channels' + ('' if value.flat else f' of {value.height} rows of {value.width}')


def _pixels_text(channels):
    if channels == 1:
        return 'gray'
    names = 'red, green and blue' if channels == 3 else f'{channels} channels'
    return f'the {names} of a pixel next to one another'
