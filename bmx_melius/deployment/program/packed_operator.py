"""Representation of a program in an MXNet symbol: the operator ``bmx_melius_packed``, its inputs and its attributes.

Its inputs are those of the program, followed by the words of the program, an int32 vector. MXNet infers shapes before it has the words,
so the attributes contain what shape inference needs. All are decimal numbers, separated by spaces:

``num_inputs``, ``num_outputs``
    Number of inputs (without the words) and outputs of the program.
``program_words``
    Length of the vector of words.
``input_channels``
    Channels of each input; negative if it is flat, that is, of rank 2.
``output_shapes``
    Nine numbers for each output: 1 if it is flat or 0, channels, the number of the input that determines its size, and *shift*, *step*
    and *offset* for height and for width: the size n of the input becomes (n + shift) // step + offset, or offset if step is 0.
"""

import dataclasses

from .operations import ProgramError

NAME = 'bmx_melius_packed'
_WINDOWS = ('conv', 'binary_conv', 'max_pool', 'avg_pool')
_MAX_STEP = 1 << 40


def is_packed(operator, attributes):
    """Return whether a node of a symbol is a packed operator: the compiled one, or its replacement in Python."""
    return NAME in (operator, attributes.get('op_type'))


def operator_attributes(program, words):
    """Return the attributes of the operator that runs a program, as strings.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
    words : numpy.ndarray
        The result of `Program.to_words`.

    Returns
    -------
    dict of str to str
    """
    channels = (-value.channels if value.flat else value.channels for value in program.inputs)
    shapes = (number for shape in _output_shapes(program) for number in shape.numbers())
    return {
        'num_inputs': str(len(program.inputs)),
        'num_outputs': str(len(program.outputs)),
        'program_words': str(len(words)),
        'input_channels': ' '.join(map(str, channels)),
        'output_shapes': ' '.join(map(str, shapes)),
    }


@dataclasses.dataclass(frozen=True)
class _Size:
    """The size (n + shift) // step + offset for the size n of an input; offset if step is 0."""

    shift: int = 0
    step: int = 1
    offset: int = 0

    def after(self, excess, stride):
        """Return the number of windows, (size + excess) // stride + 1. Successive floor divisions are merged into one."""
        if self.step == 0:
            return _Size(0, 0, (self.offset + excess) // stride + 1)
        if self.step * stride > _MAX_STEP:
            raise ProgramError(f'strides of {self.step * stride} in all are not possible')
        return _Size(self.shift + self.step * (self.offset + excess), self.step * stride, 1)


_ONE = _Size(0, 0, 1)


@dataclasses.dataclass(frozen=True)
class _Shape:
    flat: bool
    channels: int
    source: int
    height: _Size
    width: _Size

    def numbers(self):
        sizes = (number for size in (self.height, self.width) for number in dataclasses.astuple(size))
        return (int(self.flat), self.channels, self.source, *sizes)


def _output_shapes(program):
    shapes = []
    for number, value in enumerate(program.inputs):
        size = _ONE if value.flat else _Size()
        shapes.append(_Shape(value.flat, value.channels, number, size, size))
    results = program.values()[len(program.inputs) :]
    for operation, result in zip(program.operations, results):
        shape = shapes[operation.inputs[0]]
        if operation.name in _WINDOWS and not result.flat:
            sizes = {'height': _after_windows(shape.height, operation, 'h'), 'width': _after_windows(shape.width, operation, 'w')}
            shape = dataclasses.replace(shape, **sizes)
        elif operation.name == 'global_avg_pool':
            shape = dataclasses.replace(shape, height=_ONE, width=_ONE)
        elif operation.name == 'flatten':
            shape = dataclasses.replace(shape, flat=True, height=_ONE, width=_ONE)
        shapes.append(dataclasses.replace(shape, channels=result.channels))
    return [shapes[number] for number in program.outputs]


def _after_windows(size, operation, axis):
    attributes = operation.attributes
    stride, pad = attributes[f'stride_{axis}'], attributes[f'pad_{axis}']
    extent = attributes.get(f'dilation_{axis}', 1) * (attributes[f'kernel_{axis}'] - 1) + 1
    rounding_up = stride - 1 if attributes.get('ceil') else 0
    return size.after(2 * pad - extent + rounding_up, stride)


def infer_shapes(attributes, inputs):
    """Return the shapes of the outputs from the operator's attributes and the shapes of its inputs, as the compiled operator does."""
    formulas = iter([int(number) for number in attributes['output_shapes'].split()])
    shapes = []
    for flat, channels, source, *sizes in zip(*[formulas] * 9):
        height, width = (
            (size + shift) // step + offset if step else offset
            for size, shift, step, offset in zip((*inputs[source][2:], 1, 1), sizes[0::3], sizes[1::3], sizes[2::3])
        )
        batch = inputs[source][0]
        shapes.append((batch, channels) if flat else (batch, channels, height, width))
    return shapes
