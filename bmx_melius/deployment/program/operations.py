"""Operations of a program: semantics, inputs, attributes, arrays and results.

C is the number of input channels; *geometry* is kernel, stride, pad and dilation, each with height before width.

``conv`` x
    Convolution with ``weight`` (out_channels, C / groups, kernel_h, kernel_w), zero padding, plus ``bias`` (out_channels,) if has_bias.
    On a flat value, with kernel 1, it is a dense layer.
``binary_conv`` b
    Let s be +1 for set bits of b, -1 for clear ones and ``pad_value`` (-1, 0 or +1) outside the map, w be +1 and -1 for the bits of
    ``weight`` (out_channels, kernel_h, kernel_w, C / groups), and n = kernel_h kernel_w C / groups. With the integer h = conv(s, w)
    the result is (h + n) / 2 if ``offset``, else h. On a flat value, with kernel 1, it is a binary dense layer.
``threshold`` x
    Bits: (x >= threshold[c]) != flip[c]. A threshold of -inf gives a constant.
``affine`` x
    x scale[c] + shift[c].
``relu`` x
    max(x, 0).
``max_pool``, ``avg_pool`` x
    Over windows of the geometry. With ``ceil`` the last window may extend beyond the padded map (MXNet's pooling convention *full*).
    Padding is never the maximum; NaN need not propagate. An average is divided by the number of elements in the window, with
    ``count_pad`` including padding (within the padded map). Every window must contain an element of the map.
``global_avg_pool`` x
    Mean over height and width, which become 1.
``add`` x y; ``concat`` x y ... (along channels, one to many); ``slice`` x (channels begin to end - 1); ``flatten`` x (row-major, flat)
    Flatten and slice also accept bits; the inputs of concat are of one kind.
``shuffle`` x
    Channel i C/groups + j becomes channel j groups + i.
``expand`` b
    Real: +1 where the bit is set, ``low`` (-1 or 0) elsewhere.
"""

import dataclasses

import numpy as np

from ...errors import UserError

MAX_CHANNELS = 1 << 20
MAX_SIZE = 1 << 16  # height or width
MAX_ELEMENTS = 1 << 31  # of one image's map or of a window of all channels, exclusive
MAX_WEIGHTS = 1 << 23  # per output of a binary convolution: sums stay exact in float32

FLOAT = np.dtype('<f4')
HALF = np.dtype('<f2')

REAL_KIND, BITS_KIND = 'real', 'bits'


class ProgramError(UserError):
    """The words are not a valid program, or a program cannot run on the given input; the message gives the place and the reason."""


# --- the table ------------------------------------------------------------------------------------------------------------------------


_KERNEL = {'kernel_h': (1, 255), 'kernel_w': (1, 255)}
_STEPS = {'stride_h': (1, 255), 'stride_w': (1, 255), 'pad_h': (0, 255), 'pad_w': (0, 255)}
_DILATION = {'dilation_h': (1, 255), 'dilation_w': (1, 255)}
_CONVOLUTION = {'out_channels': (1, MAX_CHANNELS), **_KERNEL, **_STEPS, **_DILATION, 'groups': (1, MAX_CHANNELS)}
_FLAG = (0, 1)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Signature of an operation: its code in the file, its inputs, result and attributes.

    Attributes
    ----------
    opcode : int
    inputs : tuple (least, most)
        Number of inputs.
    kinds : tuple of str
        The accepted kinds of value. All inputs of an operation are of one kind.
    result : str or None
        The kind of the result; None for that of the inputs.
    attributes : dict of str to (least, most)
        Ranges of the attributes, in the order of the file.
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


@dataclasses.dataclass(frozen=True)
class Value:
    """Kind and shape (for one image) of a value. Flat values have height and width 1."""

    kind: str
    channels: int
    height: int
    width: int
    flat: bool

    @property
    def shape(self):
        """Shape for one image: (channels,) or (channels, height, width)."""
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
    """Return the arrays of an operation with `channels` input channels, in the order of the file: name -> (dtype, shape)."""
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
    """Return the `Value` that an operation computes from the values `inputs`.

    Raises
    ------
    ProgramError
        If the operation does not accept them.
    """
    rule = OPERATIONS[operation.name]
    x, attributes = inputs[0], operation.attributes
    for value in inputs:
        require(value.kind in rule.kinds, f'{operation.name} takes {" or ".join(rule.kinds)} values, not {value}')
        require(value.kind == x.kind and value.flat == x.flat, f'{operation.name} mixes {x} with {value}')
    channels, height, width, flat = x.channels, x.height, x.width, x.flat
    if operation.name in ('conv', 'binary_conv'):
        groups, channels = attributes['groups'], attributes['out_channels']
        require(
            x.channels % groups == 0 and channels % groups == 0,
            f'{operation.name} cannot split {x.channels} into {channels} channels in {groups} groups',
        )
        if operation.name == 'binary_conv':
            weights = attributes['kernel_h'] * attributes['kernel_w'] * (x.channels // groups)
            require(weights < MAX_WEIGHTS, f'binary_conv with {weights} weights per output; fewer than {MAX_WEIGHTS} are exact')
        else:
            window = attributes['kernel_h'] * attributes['kernel_w'] * x.channels
            require(window < MAX_ELEMENTS, f'conv has {MAX_ELEMENTS} or more elements in a window')
        height, width = _windows(operation, x, ceil=False)
    elif operation.name in ('max_pool', 'avg_pool'):
        require(
            all(attributes[f'pad_{axis}'] < attributes[f'kernel_{axis}'] for axis in 'hw'),
            f'{operation.name} with a pad as large as its kernel has windows without an element',
        )
        height, width = _windows(operation, x, ceil=bool(attributes['ceil']))
        require(
            (height - 1) * attributes['stride_h'] - attributes['pad_h'] < x.height
            and (width - 1) * attributes['stride_w'] - attributes['pad_w'] < x.width,
            f'{operation.name} has a last window without an element of the map',
        )
    elif operation.name == 'global_avg_pool':
        height = width = 1
    elif operation.name == 'add':
        require(inputs[0] == inputs[1], f'add of {inputs[0]} and {inputs[1]}')
    elif operation.name == 'concat':
        require(all((v.height, v.width) == (height, width) for v in inputs), f'concat of {", ".join(map(str, inputs))}')
        channels = sum(value.channels for value in inputs)
    elif operation.name == 'slice':
        begin, end = attributes['begin'], attributes['end']
        require(begin < end <= channels, f'slice of channels {begin} to {end} of {channels}')
        channels = end - begin
    elif operation.name == 'shuffle':
        require(channels % attributes['groups'] == 0, f'shuffle of {channels} channels in {attributes["groups"]} groups')
    elif operation.name == 'flatten':
        channels, height, width, flat = channels * height * width, 1, 1, True
    require(channels <= MAX_CHANNELS, f'{operation.name} makes {channels} channels; at most {MAX_CHANNELS} are possible')
    require(height <= MAX_SIZE and width <= MAX_SIZE, f'{operation.name} makes a map of {height} x {width}; at most {MAX_SIZE} a side')
    require(channels * height * width < MAX_ELEMENTS, f'{operation.name} makes a map of {MAX_ELEMENTS} or more elements')
    return Value(rule.result or x.kind, channels, height, width, flat)


def _windows(operation, x, ceil):
    """Return height and width of the result of sliding the window of an operation over `x`."""
    sizes = []
    for axis, size in (('h', x.height), ('w', x.width)):
        kernel, stride, pad = (operation.attributes[f'{name}_{axis}'] for name in ('kernel', 'stride', 'pad'))
        extent = operation.attributes.get(f'dilation_{axis}', 1) * (kernel - 1) + 1
        require(not x.flat or (extent, stride, pad) == (1, 1, 0), f'{operation.name} of a flat value must have kernel 1')
        room = size + 2 * pad - extent
        require(room >= 0, f'{operation.name} has a window of {extent} on a padded map of {size + 2 * pad}')
        sizes.append((room + stride - 1 if ceil else room) // stride + 1)
    return sizes


def require(condition, message):
    """Raise `ProgramError` unless the condition holds."""
    if not condition:
        raise ProgramError(message)
