"""The packed program: a network as one array of 32-bit words, and the only place that knows its bytes.

A program is a list of operations on maps of shape (channels, height, width), one per image of a batch, in single-assignment form: the
inputs are values 0, 1, ...; each operation makes the next value from earlier ones. A value is *real* (float32) or *bits* (one of two
states for each element, made by ``threshold``). A value of rank 2, (channels,) per image, is a map of height and width 1 that is *flat*.
The numbers of channels are fixed, height and width are not: a program runs on any batch and any size its operations allow (``flatten``
makes channels of them: it allows those with which it makes as many as at conversion).

Layout
------
Everything is little-endian 32-bit words, so that MXNet can carry it as an int32 array. Floats are stored bitwise.

::

    header       0  magic 'BMXP'         4  number of inputs
                 1  format version       5  number of operations
                 2  number of words      6  number of outputs
                 3  CRC-32 of words 4..  7  0
    inputs       rank (2 or 4), channels, height, width: height and width are those at conversion, an example, 1 and 1 for rank 2
    operations   opcode, words in this record, number of inputs, inputs (numbers of values), attributes, arrays
    outputs      number of a real value, each

An operation's attributes follow each other in the order of `OPERATIONS`, one word each; its arrays follow in that order too, without
gaps. The word count of a record must be what its operation needs, so nothing in a valid program is unread.

* float arrays: one word an element; float16 arrays (``half`` = 1): two elements a word, the first in the low half, padded with 0.
* bit arrays: 32 elements of the last axis a word, the first in the lowest bit; bits beyond the last element are 0.

Operations
----------
C is the number of input channels; *geometry* is kernel, stride, pad and dilation, each height before width.

``conv`` x
    Convolution with ``weight`` (out_channels, C / groups, kernel_h, kernel_w), zero padding, plus ``bias`` (out_channels,) if has_bias.
    On a flat value, with kernel 1, it is a dense layer.
``binary_conv`` b
    With s = +1 for a set bit of b, -1 for a clear one and ``pad_value`` (-1, 0 or +1) outside the map, w = +1 or -1 likewise for the
    bits of ``weight`` (out_channels, kernel_h, kernel_w, C / groups), n = kernel_h kernel_w C / groups: h = conv(s, w), an integer.
    The result is (h + n) / 2 if ``offset``, else h. On a flat value, with kernel 1, it is a binary dense layer.
``threshold`` x
    Bits: (x >= threshold[c]) != flip[c]. A threshold of -inf gives a constant.
``affine`` x
    x scale[c] + shift[c].
``relu`` x
    max(x, 0).
``max_pool``, ``avg_pool`` x
    Over windows of the geometry. ``ceil``: the last window may hang over (MXNet's pooling convention *full*). Padding never wins a
    maximum; NaN need not. An average divides by the number of elements in the window; with ``count_pad`` it counts padding too (within
    the padded map). Every window must hold an element of the map.
``global_avg_pool`` x
    Mean over height and width, which become 1.
``add`` x y; ``concat`` x y ... (along channels, one to many); ``slice`` x (channels begin to end - 1); ``flatten`` x (row-major, flat)
    Flatten and slice also take bits, concat takes values of one kind.
``shuffle`` x
    Channel i C/groups + j becomes channel j groups + i.
``expand`` b
    Real: +1 where the bit is set, ``low`` (-1 or 0) elsewhere.
"""

import dataclasses
import zlib

import numpy as np

from ..errors import UserError

MAGIC = int.from_bytes(b'BMXP', 'little')
VERSION = 1
HEADER_WORDS = 8
INPUT_WORDS = 4
RECORD_WORDS = 3  # opcode, length, number of inputs
MAX_CHANNELS = 1 << 20
MAX_SIZE = 1 << 16  # height or width
MAX_ELEMENTS = 1 << 31  # of one image's map or of a window of all channels, exclusive
MAX_OPERATIONS = 1 << 16  # giving all values their place takes time that grows with the square
MAX_WEIGHTS = 1 << 23  # per output of a binary convolution: sums stay exact in float32

WORD = np.dtype('<i4')
BITS = np.dtype('<u4')
FLOAT = np.dtype('<f4')
HALF = np.dtype('<f2')
BOOL_KIND = 'b'  # the kind of NumPy dtype that stands for bits

REAL_KIND, BITS_KIND = 'real', 'bits'


class ProgramError(UserError):
    """The words are no valid program, or a program cannot run on the given input; the message says where and why."""


# --- the table of operations ----------------------------------------------------------------------------------------------------------

_KERNEL = {'kernel_h': (1, 255), 'kernel_w': (1, 255)}
_STEPS = {'stride_h': (1, 255), 'stride_w': (1, 255), 'pad_h': (0, 255), 'pad_w': (0, 255)}
_DILATION = {'dilation_h': (1, 255), 'dilation_w': (1, 255)}
_CONVOLUTION = {'out_channels': (1, MAX_CHANNELS), **_KERNEL, **_STEPS, **_DILATION, 'groups': (1, MAX_CHANNELS)}
_FLAG = (0, 1)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row of the table: how an operation is written and what it takes.

    Attributes
    ----------
    opcode : int
    inputs : tuple (least, most)
    kinds : tuple of str
        The kinds of value it takes; all its inputs are of one kind.
    result : str or None
        The kind it makes; None: that of its inputs.
    attributes : dict of str to (least, most)
        In the order of the file.
    """

    opcode: int
    inputs: tuple
    kinds: tuple
    result: 'str | None'
    attributes: dict = dataclasses.field(default_factory=dict)


OPERATIONS = {
    'conv': Rule(1, (1, 1), (REAL_KIND,), REAL_KIND, {**_CONVOLUTION, 'has_bias': _FLAG, 'half': _FLAG}),
    'binary_conv': Rule(2, (1, 1), (BITS_KIND,), REAL_KIND, {**_CONVOLUTION, 'pad_value': (-1, 1), 'offset': _FLAG}),
    'threshold': Rule(3, (1, 1), (REAL_KIND,), BITS_KIND),
    'affine': Rule(4, (1, 1), (REAL_KIND,), REAL_KIND),
    'relu': Rule(5, (1, 1), (REAL_KIND,), REAL_KIND),
    'max_pool': Rule(6, (1, 1), (REAL_KIND,), REAL_KIND, {**_KERNEL, **_STEPS, 'ceil': _FLAG}),
    'avg_pool': Rule(7, (1, 1), (REAL_KIND,), REAL_KIND, {**_KERNEL, **_STEPS, 'ceil': _FLAG, 'count_pad': _FLAG}),
    'global_avg_pool': Rule(8, (1, 1), (REAL_KIND,), REAL_KIND),
    'add': Rule(9, (2, 2), (REAL_KIND,), REAL_KIND),
    'concat': Rule(10, (1, 1 << 16), (REAL_KIND, BITS_KIND), None),
    'slice': Rule(11, (1, 1), (REAL_KIND, BITS_KIND), None, {'begin': (0, MAX_CHANNELS), 'end': (1, MAX_CHANNELS)}),
    'shuffle': Rule(12, (1, 1), (REAL_KIND, BITS_KIND), None, {'groups': (1, MAX_CHANNELS)}),
    'flatten': Rule(13, (1, 1), (REAL_KIND, BITS_KIND), None),
    'expand': Rule(14, (1, 1), (BITS_KIND,), REAL_KIND, {'low': (-1, 0)}),
}
_NAMES = {rule.opcode: name for name, rule in OPERATIONS.items()}


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of a value: its kind and the shape of one image's part. Flat values have height and width 1."""

    kind: str
    channels: int
    height: int
    width: int
    flat: bool

    @property
    def shape(self):
        """Shape of one image's part, as the user sees it: (channels,) or (channels, height, width)."""
        return (self.channels,) if self.flat else (self.channels, self.height, self.width)

    def __str__(self):
        return f'{self.kind} {self.shape}'


@dataclasses.dataclass
class Operation:
    """One operation: its name in `OPERATIONS`, the numbers of its input values, its attributes and its arrays.

    Arrays: ``weight`` and ``bias`` of ``conv`` float32 (the weight float16 with half = 1), ``weight`` of ``binary_conv`` bool,
    ``threshold`` float32 and ``flip`` bool, ``scale`` and ``shift`` float32; shapes as in the module's docstring.
    """

    name: str
    inputs: tuple
    attributes: dict = dataclasses.field(default_factory=dict)
    arrays: dict = dataclasses.field(default_factory=dict)


def array_shapes(operation, channels):
    """The arrays an operation on `channels` input channels has, in the order of the file: name -> (dtype, shape); bool means bits."""
    attributes = operation.attributes
    if operation.name in ('conv', 'binary_conv'):
        outputs, kernel = attributes['out_channels'], (attributes['kernel_h'], attributes['kernel_w'])
        inputs = channels // attributes['groups']
        if operation.name == 'binary_conv':
            return {'weight': (np.dtype(bool), (outputs, *kernel, inputs))}
        arrays = {'weight': (HALF if attributes['half'] else FLOAT, (outputs, inputs, *kernel))}
        if attributes['has_bias']:
            arrays['bias'] = (FLOAT, (outputs,))
        return arrays
    if operation.name == 'threshold':
        return {'threshold': (FLOAT, (channels,)), 'flip': (np.dtype(bool), (channels,))}
    if operation.name == 'affine':
        return {'scale': (FLOAT, (channels,)), 'shift': (FLOAT, (channels,))}
    return {}


# --- shapes ---------------------------------------------------------------------------------------------------------------------------


def result_of(operation, inputs):
    """The `Value` an operation makes from the values `inputs`.

    Raises
    ------
    ProgramError
        When it does not accept them.
    """
    rule = OPERATIONS[operation.name]
    x, attributes = inputs[0], operation.attributes
    for value in inputs:
        _require(value.kind in rule.kinds, f'{operation.name} takes {" or ".join(rule.kinds)} values, not {value}')
        _require(value.kind == x.kind and value.flat == x.flat, f'{operation.name} mixes {x} with {value}')
    channels, height, width, flat = x.channels, x.height, x.width, x.flat
    if operation.name in ('conv', 'binary_conv'):
        groups, channels = attributes['groups'], attributes['out_channels']
        _require(
            x.channels % groups == 0 and channels % groups == 0,
            f'{operation.name} cannot split {x.channels} into {channels} channels in {groups} groups',
        )
        if operation.name == 'binary_conv':
            weights = attributes['kernel_h'] * attributes['kernel_w'] * (x.channels // groups)
            _require(weights < MAX_WEIGHTS, f'binary_conv with {weights} weights per output; fewer than {MAX_WEIGHTS} are exact')
        else:
            window = attributes['kernel_h'] * attributes['kernel_w'] * x.channels
            _require(window < MAX_ELEMENTS, f'conv has {MAX_ELEMENTS} or more elements in a window')
        height, width = _windows(operation, x, ceil=False)
    elif operation.name in ('max_pool', 'avg_pool'):
        _require(
            all(attributes[f'pad_{axis}'] < attributes[f'kernel_{axis}'] for axis in 'hw'),
            f'{operation.name} with a pad as large as its kernel has windows without an element',
        )
        height, width = _windows(operation, x, ceil=bool(attributes['ceil']))
        _require(
            (height - 1) * attributes['stride_h'] - attributes['pad_h'] < x.height
            and (width - 1) * attributes['stride_w'] - attributes['pad_w'] < x.width,
            f'{operation.name} has a last window without an element of the map',
        )
    elif operation.name == 'global_avg_pool':
        height = width = 1
    elif operation.name == 'add':
        _require(inputs[0] == inputs[1], f'add of {inputs[0]} and {inputs[1]}')
    elif operation.name == 'concat':
        _require(all((v.height, v.width) == (height, width) for v in inputs), f'concat of {", ".join(map(str, inputs))}')
        channels = sum(value.channels for value in inputs)
    elif operation.name == 'slice':
        begin, end = attributes['begin'], attributes['end']
        _require(begin < end <= channels, f'slice of channels {begin} to {end} of {channels}')
        channels = end - begin
    elif operation.name == 'shuffle':
        _require(channels % attributes['groups'] == 0, f'shuffle of {channels} channels in {attributes["groups"]} groups')
    elif operation.name == 'flatten':
        channels, height, width, flat = channels * height * width, 1, 1, True
    _require(channels <= MAX_CHANNELS, f'{operation.name} makes {channels} channels; at most {MAX_CHANNELS} are possible')
    _require(height <= MAX_SIZE and width <= MAX_SIZE, f'{operation.name} makes a map of {height} x {width}; at most {MAX_SIZE} a side')
    _require(channels * height * width < MAX_ELEMENTS, f'{operation.name} makes a map of {MAX_ELEMENTS} or more elements')
    return Value(rule.result or x.kind, channels, height, width, flat)


def _windows(operation, x, ceil):
    """Height and width after sliding a window over `x`."""
    sizes = []
    for axis, size in (('h', x.height), ('w', x.width)):
        kernel, stride, pad = (operation.attributes[f'{name}_{axis}'] for name in ('kernel', 'stride', 'pad'))
        extent = operation.attributes.get(f'dilation_{axis}', 1) * (kernel - 1) + 1
        _require(not x.flat or (extent, stride, pad) == (1, 1, 0), f'{operation.name} of a flat value must have kernel 1')
        room = size + 2 * pad - extent
        _require(room >= 0, f'{operation.name} has a window of {extent} on a padded map of {size + 2 * pad}')
        sizes.append((room + stride - 1 if ceil else room) // stride + 1)
    return sizes


def _require(condition, message):
    if not condition:
        raise ProgramError(message)


# --- the program ----------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Program:
    """A packed network: `Value` of each input (its height and width an example), operations, numbers of the output values."""

    inputs: list
    operations: list
    outputs: list

    def values(self, sizes=None):
        """The `Value` of every input and operation, for inputs of the given (height, width) each; by default those at conversion.

        Raises
        ------
        ProgramError
            Naming the operation that does not fit.
        """
        values = []
        converted = self.values() if sizes is not None else None
        for number, value in enumerate(self.inputs):
            if sizes is not None and not value.flat:
                height, width = sizes[number]
                value = dataclasses.replace(value, height=height, width=width)
            _require(
                1 <= value.channels <= MAX_CHANNELS
                and 1 <= value.height <= MAX_SIZE
                and 1 <= value.width <= MAX_SIZE
                and value.channels * value.height * value.width < MAX_ELEMENTS,
                f'input {number}: size {value.shape} is not possible',
            )
            values.append(value)
        for number, operation in enumerate(self.operations):
            try:
                values.append(result_of(operation, [values[source] for source in operation.inputs]))
            except ProgramError as error:
                raise ProgramError(f'operation {number}: {error}') from error
            if converted is not None and values[-1].channels != converted[len(values) - 1].channels:  # flatten's depend on the size
                raise ProgramError(
                    f'operation {number}: {operation.name} makes {values[-1].channels} channels of this input; the network was converted'
                    f' with {converted[len(values) - 1].channels}: give inputs of the size at conversion'
                )
        for number in self.outputs:
            _require(values[number].kind == REAL_KIND, f'output value {number} holds bits')
        return values

    def to_words(self):
        """The program as an int32 array of shape (words,), checked by reading it back."""
        values = self.values()
        parts = []
        for value in self.inputs:
            parts.append(_words([2 if value.flat else 4, value.channels, value.height, value.width]))
        for operation in self.operations:
            rule = OPERATIONS[operation.name]
            body = [_words([*operation.inputs, *(operation.attributes[name] for name in rule.attributes)])]
            for name, (dtype, shape) in array_shapes(operation, values[operation.inputs[0]].channels).items():
                array = np.asarray(operation.arrays[name])
                if array.shape != shape or array.dtype != dtype:
                    raise ValueError(f'{operation.name}: {name} must be {dtype} {shape}, not {array.dtype} {array.shape}')
                body.append(_encode(array))
            length = RECORD_WORDS + sum(map(len, body))
            parts += [_words([rule.opcode, length, len(operation.inputs)]), *body]
        parts.append(_words(self.outputs))
        rest = np.concatenate([_words([len(self.inputs), len(self.operations), len(self.outputs), 0]), *parts])
        words = np.concatenate([_words([MAGIC, VERSION, len(rest) + 4, _checksum(rest)]), rest])
        Program.from_words(words)
        return words

    @classmethod
    def from_words(cls, words):
        """Read and validate a program completely.

        Parameters
        ----------
        words : numpy.ndarray of int32, shape (words,)

        Raises
        ------
        ProgramError
            Saying at which word and why it is no valid program.
        """
        words = np.asarray(words)
        _require(words.dtype == WORD and words.ndim == 1, f'a program is a vector of int32, not {words.dtype} of shape {words.shape}')
        _require(len(words) >= HEADER_WORDS, f'a program has at least {HEADER_WORDS} words, not {len(words)}: the file is cut short')
        magic, version, length, checksum, inputs, operations, outputs, zero = (int(word) for word in words[:HEADER_WORDS])
        _require(magic == MAGIC, 'no packed program: the magic word is missing')
        _require(version == VERSION, f'format version {version}; this release reads version {VERSION}: convert the network again')
        _require(length == len(words), f'the header says {length} words, there are {len(words)}: the file is damaged')
        _require(checksum == _checksum(words[4:]), 'the checksum does not match: the file is damaged')
        _require(zero == 0, 'word 7 is not 0')
        reader = _Reader(words)
        program = cls([reader.input() for _ in range(reader.count(inputs, INPUT_WORDS, 'inputs'))], [], [])
        values = program.values()
        _require(operations <= MAX_OPERATIONS, f'{operations} operations; at most {MAX_OPERATIONS} are possible')
        for number in range(reader.count(operations, RECORD_WORDS + 1, 'operations')):
            operation = reader.operation(number, values)
            program.operations.append(operation)
            values.append(_named(number, result_of, operation, [values[source] for source in operation.inputs]))
        for _ in range(reader.count(outputs, 1, 'outputs')):
            program.outputs.append(reader.source(len(values), 'an output'))
        _require(reader.position == len(words), f'{len(words) - reader.position} words follow the last output')
        program.values()
        return program


def _named(number, function, *arguments):
    try:
        return function(*arguments)
    except ProgramError as error:
        raise ProgramError(f'operation {number}: {error}') from error


class _Reader:
    """Takes words one after the other, and never one that is not there."""

    def __init__(self, words):
        self.words, self.position = words, HEADER_WORDS

    def take(self, count, what):
        left = len(self.words) - self.position
        _require(0 <= count <= left, f'word {self.position}: {what} needs {count} words, {left} are left')
        self.position += count
        return self.words[self.position - count : self.position]

    def count(self, number, least_words, what):
        """`number` itself, if that many things of at least `least_words` words can follow and there is at least one."""
        left = len(self.words) - self.position
        _require(1 <= number <= left // least_words, f'the header says {number} {what}; {left} words are left')
        return number

    def source(self, existing, what):
        number = int(self.take(1, what)[0])
        _require(0 <= number < existing, f'word {self.position - 1}: {what} is value {number}, of {existing} so far')
        return number

    def input(self):
        rank, channels, height, width = (int(word) for word in self.take(INPUT_WORDS, 'an input'))
        _require(rank in (2, 4), f'word {self.position - INPUT_WORDS}: an input of rank {rank}; 2 and 4 exist')
        _require(rank == 4 or (height, width) == (1, 1), f'word {self.position - INPUT_WORDS}: an input of rank 2 has height and width 1')
        return Value(REAL_KIND, channels, height, width, rank == 2)

    def operation(self, number, values):
        start = self.position
        opcode, length, inputs = (int(word) for word in self.take(RECORD_WORDS, f'operation {number}'))
        _require(opcode in _NAMES, f'word {start}: operation {number} has the unknown code {opcode}')
        name = _NAMES[opcode]
        rule, place = OPERATIONS[name], f'operation {number} ({name})'
        _require(rule.inputs[0] <= inputs <= rule.inputs[1], f'word {start}: {place} has {inputs} inputs')
        sources = tuple(self.source(len(values), f'an input of {place}') for _ in range(inputs))
        attributes = {}
        for attribute, (least, most) in rule.attributes.items():
            value = int(self.take(1, place)[0])
            _require(least <= value <= most, f'word {self.position - 1}: {place} has {attribute} {value}; {least} to {most} exist')
            attributes[attribute] = value
        operation = Operation(name, sources, attributes)
        _named(number, result_of, operation, [values[source] for source in sources])  # before sizes are computed from it
        for array, (dtype, shape) in array_shapes(operation, values[sources[0]].channels).items():
            what = f'{array} of {place}'
            operation.arrays[array] = _decode(self.take(_word_count(dtype, shape), what), dtype, shape, what)
        _require(self.position - start == length, f'word {start}: {place} takes {self.position - start} words, its record says {length}')
        if name == 'threshold':
            _require(not np.isnan(operation.arrays['threshold']).any(), f'{place} has a threshold that is not a number')
        return operation


# --- words ----------------------------------------------------------------------------------------------------------------------------


def _words(numbers):
    return np.array(numbers, dtype=WORD)


def _checksum(words):
    crc = zlib.crc32(np.ascontiguousarray(words).tobytes())
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def _word_count(dtype, shape):
    count = 1
    for size in shape[:-1]:
        count *= size
    if dtype.kind == BOOL_KIND:
        return count * -(-shape[-1] // 32)
    return -(-count * shape[-1] * dtype.itemsize // 4)


def _encode(array):
    if array.dtype == bool:
        return pack_bits(array).reshape(-1).view(WORD)
    data = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(data + b'\0' * (-len(data) % 4), dtype=WORD)


def _decode(words, dtype, shape, what):
    if dtype.kind == BOOL_KIND:
        packed = words.view(BITS).reshape(*shape[:-1], -1)
        tail = shape[-1] % 32
        _require(not tail or not (packed[..., -1] >> tail).any(), f'{what} has bits set beyond its last element')
        return unpack_bits(packed, shape[-1])
    count = 1
    for size in shape:
        count *= size
    elements = words.view(dtype)
    _require(not elements[count:].view(np.uint16).any() if dtype == HALF else True, f'{what} is not padded with 0')
    return elements[:count].reshape(shape)


def pack_bits(bits):
    """Pack the last axis of a bool array, 32 elements a word, the first in the lowest bit: (..., n) -> (..., ceil(n/32)) uint32."""
    count = bits.shape[-1]
    words = -(-count // 32)
    padded = np.zeros((*bits.shape[:-1], words * 32), dtype=bool)
    padded[..., :count] = bits
    return np.packbits(padded, axis=-1, bitorder='little').view(BITS)


def unpack_bits(words, count):
    """The inverse of `pack_bits`: (..., words) uint32 -> (..., count) bool."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=count, bitorder='little').astype(bool)
