"""Random programs with all operations, and random inputs for them."""

import random as randoms

import numpy as np

from bmx_melius import InputSpec
from bmx_melius.deployment.program.operations import OPERATIONS, REAL_KIND, Operation, ProgramError, Value, array_shapes, result_of
from bmx_melius.deployment.program.program import Program
from support.packed import operation, window

CHANNELS = (1, 2, 3, 4, 8, 16, 31, 32, 33, 48, 64, 65, 96, 128)
STEPS = tuple(name for name, row in OPERATIONS.items() if row.compares or row.rounds_inputs)  # amplify rounding errors of their inputs
SEQUENCES = (  # what the planner fuses (csrc/plan/fusion.cc); single operations, drawn at random, seldom follow one another so
    ('conv', 'affine', 'relu', 'conv', 'relu', 'max_pool'),
    ('affine', 'max_pool', 'relu', 'shuffle', 'conv', 'affine', 'relu'),
    ('relu', 'affine', 'max_pool', 'conv', 'multiply'),
    ('level_conv', 'affine', 'relu', 'level_conv', 'affine', 'max_pool'),
    ('affine', 'max_pool', 'level_conv', 'relu', 'add'),
    ('affine', 'relu', 'global_avg_pool'),
    ('relu', 'max_pool', 'global_avg_pool'),
    ('prelu', 'channel_mean'),
    ('threshold', 'binary_conv', 'add', 'threshold', 'binary_conv', 'add'),
    ('threshold', 'binary_conv', 'affine', 'clip', 'maximum', 'multiply'),
    ('concat', 'threshold', 'shuffle', 'binary_conv', 'max_pool'),
    ('concat', 'slice', 'threshold', 'binary_conv', 'affine'),
    ('threshold', 'expand', 'add', 'flatten'),
    ('affine', 'rescale', 'max_pool', 'shuffle', 'int8_conv', 'int8_conv', 'max_pool'),
    ('rescale', 'int8_conv', 'int8_conv', 'int8_conv'),
    ('rescale', 'add', 'concat', 'int8_conv'),
    ('rescale', 'int8_conv', 'threshold', 'binary_conv'),
    ('int8_conv', 'integer_avg_pool', 'maximum', 'threshold', 'binary_conv'),
    ('multi_threshold', 'max_pool', 'shuffle', 'level_int8_conv', 'affine', 'multi_threshold', 'level_int8_conv', 'max_pool'),
    ('multi_threshold', 'level_int8_conv', 'multi_threshold', 'int8_conv', 'add', 'level_int8_conv', 'threshold', 'binary_conv'),
    ('rescale', 'level_int8_conv', 'int8_conv', 'level_int8_conv', 'multi_threshold', 'concat', 'level_int8_conv'),
    ('matmul', 'softmax', 'matmul'),
    ('transpose', 'conv', 'transpose'),
    ('threshold', 'expand', 'matmul', 'threshold', 'expand', 'matmul'),
    ('concat', 'arrange', 'transpose', 'slice', 'matmul'),
    ('gather', 'row_matmul', 'softmax', 'row_matmul', 'gather'),
    ('threshold', 'expand', 'row_matmul', 'threshold', 'expand', 'row_matmul'),
    ('channel_mean', 'embedding', 'affine', 'transpose'),
)
EXACT = 2.0**24  # sums of multiples of q below q times this number are exact in float32, in any order
ROUNDED = 64.0  # magnitudes up to which the rounding errors of a value are far below 1e-5


class Maker:
    """Generator of a random program, operation by operation. `names` are those that `grow` chooses from.

    With `exact`, all numbers are multiples of a power of two, and so small that all results are exact and engine and interpreter must agree
    bit for bit. Otherwise weights are random numbers, and there are no thresholds, because these could amplify rounding errors.

    Attributes
    ----------
    bounds : list of tuple (float, float)
        For each value the largest possible magnitude, and the number of which it is a multiple if `exact`.
    """

    names = (*OPERATIONS,)
    first_output = 0  # the first value that may be an output

    def __init__(self, random, exact):
        self.random, self.exact = random, exact
        self.numpy = np.random.RandomState(random.getrandbits(32))
        self.inputs, self.values, self.operations, self.bounds = [], [], [], []
        self.sequence = ()  # names of operations to add next, each on the value of the one before
        unwanted = set() if exact else set(STEPS)
        self.sequences = [names for names in SEQUENCES if set(names) <= set(self.names) - unwanted]
        for _ in range(random.choice((1, 1, 1, 2))):
            flat = random.random() < 0.2
            size = (1, 1) if flat else (random.randint(1, 12), random.randint(1, 12))
            self.inputs.append(Value(REAL_KIND, random.choice((1, *CHANNELS)), *size, flat))
            self.bounds.append((8.0, 0.5))
        self.values += self.inputs

    def program(self, operations):
        for _ in range(operations):
            self.grow()
        real = [number for number, value in enumerate(self.values) if value.kind == REAL_KIND and number >= self.first_output]
        outputs = {real[-1]} | set(self.random.sample(real, min(len(real), self.random.randint(0, 2))))
        return Program(self.inputs, self.operations, sorted(outputs))

    def grow(self):
        """Add an operation, unless all of several attempts are invalid: the next of a sequence, if one has begun and it can be added."""
        if not self.sequence and self.random.random() < 0.2:
            self.sequence = self.random.choice(self.sequences)
        for attempt in range(40):
            follows = self.sequence and attempt < 20
            if follows:
                name = self.sequence[0]
            else:
                self.sequence = ()
                name = self.random.choice((*self.names, *('threshold', 'binary_conv', 'add') * self.exact * 3))
                if 'embedding' in self.names and self.values[-1].channels == 1 and self.random.random() < 0.2:  # of few values
                    name = 'embedding'
            row = OPERATIONS[name]
            count = 1 if row.shape == 'broadcast' else self.random.randint(row.inputs[0], min(row.inputs[1], 4))
            inputs = tuple(self.any_value(row.kinds) for _ in range(count))
            if follows and self.values[-1].kind in row.kinds:
                inputs = (len(self.values) - 1, *inputs[1:])
            if row.shape == 'looked_up':
                inputs = (self.any_value(row.kinds, channels=1),)
            if row.shape == 'broadcast' and None not in inputs:
                inputs += (self.factor_of(inputs[0]),)
            if None in inputs:
                continue
            attributes = self.attributes(name, self.values[inputs[0]])
            if row.shape in ('product', 'product_of_rows'):
                inputs = inputs[0], self.right_of(inputs[0], attributes, by_row=row.shape == 'product_of_rows')
            if row.shape == 'gathered':
                inputs = [number for number in inputs if self.values[number].channels == self.values[inputs[0]].channels]
                attributes['positions'] = sum(self.values[number].height * self.values[number].width for number in inputs)
            operation = Operation(name, tuple(inputs), attributes)
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
            self.sequence = self.sequence[1:]
            return

    def add(self, name, *inputs, **attributes):
        """Add an operation, whose other attributes do nothing special; return the number of its value."""
        added = operation(name, *inputs, **attributes)
        self.arrays(added)
        self.operations.append(added)
        self.values.append(result_of(added, [self.values[number] for number in inputs]))
        return len(self.values) - 1

    def any_value(self, kinds, channels=None):
        """Return the number of one of the last values of these kinds, often the last one, with so many channels; None if there is none."""
        numbers = [number for number, value in enumerate(self.values) if value.kind in kinds and channels in (None, value.channels)]
        if not numbers:
            return None
        return numbers[-1] if self.random.random() < 0.6 else self.random.choice(numbers[-6:])

    def factor_of(self, x):
        """Return the number of a value by which value `x` can be multiplied; if possible one that is smaller."""
        product = Operation('multiply', ())
        fitting, smaller = [], []
        for number, value in enumerate(self.values):
            try:
                result_of(product, [self.values[x], value])
            except ProgramError:
                continue
            (fitting if value.shape == self.values[x].shape else smaller).append(number)
        return self.random.choice(smaller if smaller and self.random.random() < 0.7 else fitting)

    def right_of(self, x, attributes, by_row=False):
        """Return the number of a value with which value `x` can be multiplied as a matrix, and adapt the attributes of the product."""
        found, heads = [], attributes['heads']
        for number, value in enumerate(self.values):
            positions, fits = value.width * (1 if by_row else value.height), not by_row or value.height == self.values[x].height
            if value.kind == REAL_KIND and fits and not value.flat and value.channels % heads == 0:
                if value.channels == self.values[x].channels:
                    found.append((number, positions, 1))
                if heads * positions == self.values[x].channels:
                    found += [(number, positions, 0)] * 3
        number, attributes['positions'], attributes['transposed'] = self.random.choice(found) if found else (x, 1, 1)
        return number

    def attributes(self, name, value):
        choice = self.random.choice
        attributes = {}
        for attribute, (low, high) in OPERATIONS[name].attributes.items():
            if attribute.startswith('kernel'):
                attributes[attribute] = choice((1, 1, 2, 3, 3, 5))
            elif attribute.startswith('stride') or attribute.startswith('dilation'):
                attributes[attribute] = choice((1, 1, 1, 2, 3))
            elif attribute.startswith('pad_') and attribute != 'pad_value':
                attributes[attribute] = choice((0, 0, 1, 1, 2, 4))
            elif attribute == 'planes':
                attributes[attribute] = choice([p for p in (1, 1, 2, 3) if value.channels // attributes['groups'] % p == 0])
            elif attribute == 'features':
                attributes[attribute] = choice(CHANNELS)
            elif attribute in ('scale_h', 'scale_w'):
                attributes[attribute] = choice((1, 2, 3))
            elif attribute == 'row_length':
                positions = value.height * value.width
                attributes[attribute] = choice([0, *(length for length in range(1, positions + 1) if positions % length == 0)])
            elif attribute in ('groups', 'heads'):
                attributes[attribute] = choice([g for g in (1, 1, 2, 3, 4, 8) if value.channels % g == 0])
            elif attribute == 'out_channels':
                attributes[attribute] = attributes.get('groups', 1) * choice((1, 3, 8, 16, 32, 64))
            elif attribute == 'shift':
                attributes[attribute] = choice((low, 16, 20, 24, 31, high))
            elif attribute == 'result_min':
                attributes[attribute], attributes['result_max'] = choice(((0, 255), (0, 255), (low, high), (-128, 127), (3, 20)))
            elif attribute == 'result_max':
                pass
            elif attribute in ('height', 'width'):
                size, shape = getattr(value, attribute), OPERATIONS[name].shape
                attributes[attribute] = size if shape == 'transposed' else choice((1, size, *((3, 7) if shape == 'gathered' else ())))
            elif attribute == 'begin':
                attributes[attribute] = self.random.randrange(value.channels)
            elif attribute == 'end':
                attributes[attribute] = self.random.randint(attributes['begin'] + 1, value.channels)
            else:
                attributes[attribute] = self.random.randint(low, min(high, low + 4))
        if value.flat and 'kernel_h' in attributes:
            plain = window(dilation=1)
            attributes = {key: plain.get(key, number) for key, number in attributes.items()}
        return attributes

    def bound(self, operation):
        """Return the entry of `bounds` for the result, or None if the operation must not be added."""
        name, a, x = operation.name, operation.attributes, self.values[operation.inputs[0]]
        inputs, units = zip(*(self.bounds[number] for number in operation.inputs))
        unit = min(1, *units)
        rounds = OPERATIONS[name].rounds == 'always'
        if self.exact and rounds or not self.exact and (name in STEPS or (rounds or name == 'clip') and inputs[0] > ROUNDED):
            return None
        if 'kernel_h' in a and name in ('conv', 'level_conv', 'binary_conv'):
            weights = a['kernel_h'] * a['kernel_w'] * (x.channels // a['groups'])
            bound = weights if name == 'binary_conv' else (4 if name == 'level_conv' else 2) * weights * inputs[0] + 8
            unit = 0.5 if name == 'binary_conv' else unit
        elif 'fraction_bits' in a:
            bound, unit = min(inputs[0] + 1, 1 << 15) * 2.0 ** a['fraction_bits'], 1
        elif 'thresholds' in a:
            bound, unit = a['thresholds'], 1
        elif 'result_max' in a:
            bound, unit = max(-a['result_min'], a['result_max']), 1
        elif name == 'round':
            bound, unit = inputs[0] + 1, 1
        elif name == 'divide':
            bound = 2 * inputs[0]
        elif name == 'affine':
            bound = 2 * inputs[0] + 8
        elif name in ('scale_map', 'shift_map'):
            bound = 2 * inputs[0] if name == 'scale_map' else inputs[0] + 2
        elif name in ('matmul', 'row_matmul'):
            bound, unit = inputs[0] * inputs[1] * (x.channels // a['heads']), min(1, units[0] * units[1])
        elif name == 'embedding':
            bound, unit = 4.0, 1
        elif name == 'multiply':
            bound, unit = inputs[0] * inputs[1], min(1, units[0] * units[1])
        elif name == 'clip':
            bound, unit = max(inputs[0], 10), min(unit, 0.5)
        elif name == 'normalize':
            bound = float(np.sqrt(x.channels * x.height * x.width)) * 4  # the deviation is at least 1 / 4 by eps
        elif name == 'channel_mean':
            if x.channels & (x.channels - 1) and self.exact:
                return None
            bound, unit = inputs[0], unit / x.channels
        else:
            bound = sum(inputs) if name == 'add' else max([1, *inputs])
            unit = unit / 2 if name == 'prelu' else unit
        return (bound, unit) if bound < EXACT * (unit if self.exact else 0.25) else None

    def arrays(self, operation):
        channels = self.values[operation.inputs[0]].channels
        for name, (dtype, shape) in array_shapes(operation, channels).items():
            equal = [array for other in self.operations for key, array in other.arrays.items() if (key, array.shape) == (name, shape)]
            if equal and equal[0].dtype == dtype and self.random.random() < 0.3:
                array = self.random.choice(equal)
            elif dtype.kind == 'b':
                array = self.numpy.rand(*shape) < 0.5
            elif name == 'threshold':
                array = self.numpy.randint(-20, 21, shape) / 2 * self.numpy.choice((1, 1, 10), shape)
                array[self.numpy.rand(*shape) < 0.1] = self.numpy.choice((-np.inf, np.inf, 1e30, -1e9, 40000, -0.0))
            elif name in ('multiplier', 'offset'):
                array = (self.numpy.rand(*shape) - 0.5) * 2.0 ** self.numpy.randint(8, 33, shape)
            elif name == 'places':
                array = self.numpy.randint(-2, operation.attributes['positions'] + 2, shape)
            elif name == 'pad':
                array = self.numpy.randint(-3, 300, shape)
            elif dtype == np.int8:
                array = self.numpy.randint(-128, 128, shape)
            elif name == 'eps':
                array = self.numpy.rand(*shape) + 1 / 16
            elif name == 'divisor':
                array = self.numpy.choice((-1, 1), shape) * (self.numpy.rand(*shape) + 0.5)
            elif name in ('low', 'high'):
                array = self.numpy.randint(0, 21, shape) / (2 if name == 'high' else -2)
                array[self.numpy.rand(*shape) < 0.1] = np.inf if name == 'high' else -np.inf
            elif name == 'slope':
                array = self.numpy.randint(-2, 3, shape) / 2
            elif not self.exact:
                array = self.numpy.randn(*shape)
            else:
                array = self.numpy.randint(-2, 3, shape)
            array = np.asarray(array).astype(dtype)
            if dtype.kind == 'f' and not (self.exact and name == 'shift'):  # a shift of -0 and a bias before it are added in another order
                array[(array == 0) & (self.numpy.rand(*shape) < 0.5)] = -0.0
            operation.arrays[name] = array

    def data(self, sizes, batch):
        arrays = []
        for value, size in zip(self.inputs, sizes):
            shape = (batch, value.channels) if value.flat else (batch, value.channels, *size)
            array = self.numpy.randint(-16, 17, shape) / 2 if self.exact else self.numpy.randn(*shape)
            zeros = self.numpy.rand(*shape) < self.random.choice((0, 0.1, 0.6))
            array[zeros] = self.numpy.choice((0.0, -0.0), zeros.sum())
            arrays.append(array)
        return [array.astype(np.float32) for array in arrays]


class PixelMaker(Maker):
    """Generator of a random program that computes with integers from the pixels to the outputs, and of pixels.

    Attributes
    ----------
    spec : InputSpec
        Normalization of the pixels, from which the first operations compute them again.
    """

    names = (
        *('rescale', 'int8_conv', 'int8_conv', 'level_int8_conv', 'multi_threshold', 'integer_mean', 'integer_avg_pool', 'max_pool'),
        *('global_max_pool', 'maximum', 'concat', 'slice', 'shuffle', 'flatten', 'unflatten', 'relu', 'abs', 'expand', 'upsample'),
    )
    first_output = 2  # those before are the real numbers of the pixels

    def __init__(self, random):
        super().__init__(random, exact=True)
        channels, size = random.choice(CHANNELS[:7]), random.randint(1, 9)
        mean, std = self.numpy.uniform(60, 180, channels), self.numpy.uniform(20, 90, channels)
        self.spec = InputSpec(channels, size, size, tuple(mean), tuple(std))
        self.inputs = [Value(REAL_KIND, channels, size, size, False)]
        self.values, self.bounds = list(self.inputs), [(8.0, 0.5), (8.0, 0.5), (255.0, 1.0)]
        self.add('affine', 0)
        self.operations[-1].arrays = {'scale': std.astype('f'), 'shift': mean.astype('f')}
        self.add('rescale', 1, shift=8, result_max=255)
        self.operations[-1].arrays = {'multiplier': np.full(channels, 256, np.int32), 'offset': np.zeros(channels, np.int32)}

    def any_value(self, kinds, channels=None):
        number = super().any_value(kinds, channels)
        return None if number is None else max(number, 2) if REAL_KIND in kinds else number

    def attributes(self, name, value):
        attributes, choice = super().attributes(name, value), self.random.choice
        if name in ('int8_conv', 'level_int8_conv') and self.random.random() < 0.4:
            attributes['groups'] = choice((value.channels, max(value.channels // 3, 1)))
            attributes['out_channels'] = attributes['groups'] * choice((1, 1, 2, 5))
        if name == 'binary_conv' and attributes['offset']:
            attributes['pad_value'] = choice((-1, 1))  # so that sums are whole
        return attributes

    def pixels(self, batch):
        return self.numpy.randint(0, 256, (batch, *self.spec.shape)).astype(np.uint8)


def programs_with_all(names, count, make):
    """Yield at least `count` programs, whose outputs depend, together, on every operation in `names`: `Maker`, program.

    `make` returns both.
    """
    missing, found = set(names), 0
    while found < count or missing:
        maker, program = make()
        computed = operations_of_outputs(program)
        if found < count or computed & missing:
            missing -= computed
            found += 1
            yield maker, program


def operations_of_outputs(program):
    """Return the names of the operations on which the outputs of a program depend."""
    first, names, values = len(program.inputs), set(), list(program.outputs)
    while values:
        number = values.pop()
        if number >= first:
            names.add(program.operations[number - first].name)
            values += program.operations[number - first].inputs
    return names


def other_sizes(random, program):
    """Return heights and widths on which the program can be run, possibly other than those at conversion."""
    for _ in range(3):
        sizes = [(1, 1) if value.flat else (random.randint(1, 14), random.randint(1, 14)) for value in program.inputs]
        try:
            values = program.values(sizes)
        except ProgramError:
            continue
        if [value.channels for value in values] == [value.channels for value in program.values()]:
            return sizes
    return [(value.height, value.width) for value in program.inputs]


def numbers_beside_ties():
    """Return float32 numbers (1, n), in a list: ties of rounding to integers, numbers beside them, and those that are whole or infinite."""
    ties = np.concatenate([np.arange(-600, 600) / 2, 2.0 ** np.arange(9, 40) - 0.5, -(2.0 ** np.arange(9, 40)) - 0.5]).astype(np.float32)
    beside = [np.nextafter(ties, np.float32(bound)) for bound in (-np.inf, np.inf)]
    return [np.concatenate([ties, *beside, np.float32([np.inf, -np.inf, 3e38, -3e38, -0.0, 1e-40])])[None]]


def describe(program):
    values = program.values()
    first = len(program.inputs)
    lines = [f'{number}: input {value}' for number, value in enumerate(program.inputs)]
    lines += [f'{first + i}: {o.name} {o.inputs} {o.attributes} -> {values[first + i]}' for i, o in enumerate(program.operations)]
    return '\n'.join([*lines, f'outputs {program.outputs}'])


def some_program(seed=0, operations=12):
    """Return a generator that has made a program of so many operations, the program, and heights and widths of its inputs."""
    maker = Maker(randoms.Random(seed), exact=True)
    program = maker.program(operations)
    return maker, program, [(value.height, value.width) for value in program.inputs]
