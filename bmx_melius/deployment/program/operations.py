"""Operations of a program: semantics, inputs, attributes, arrays and results.

C is the number of input channels; *geometry* is kernel, stride, dilation, each with height before width, and the padding of the four sides.

``conv`` x
    Convolution with ``weight`` (out_channels, C / groups, kernel_h, kernel_w), zero padding, plus ``bias`` (out_channels,) if has_bias.
    On a flat value, with kernel 1, it is a dense layer.
``binary_conv`` b
    Let s be +1 for set bits of b, -1 for clear ones and ``pad_value`` (-1, 0 or +1) outside the map, w be +1 and -1 for the bits of
    ``weight`` (out_channels, kernel_h, kernel_w, C / groups), and n = kernel_h kernel_w C / groups. With the integer h = conv(s, w)
    the result is (h + n) / 2 if ``offset``, else h. On a flat value, with kernel 1, it is a binary dense layer. The channels of a group
    are ``planes`` parts of equal size with the same weights, which ``weight`` contains once (C / groups / planes channels).
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
``prelu`` x
    x where x > 0, x slope[c] elsewhere.
``clip`` x
    min(max(x, low[c]), high[c]). The bounds may be infinite.
``sigmoid`` x; ``abs`` x
    1 / (1 + exp(-x)); the magnitude.
``multiply`` x y
    Elementwise product. Channels, height and width of y are each that of x, or 1: y is repeated along such an axis.
``channel_mean`` x
    Mean over the channels, of which one remains.
``scale_map``, ``shift_map`` x
    x factor, x + summand, with a constant for each position: an array of shape (C, ``height``, ``width``), or (1, ``height``, ``width``)
    without ``by_channel``. A height or width of 1 means that rows or columns share their constants; otherwise it must be that of x, so
    that the program accepts only inputs of one size.
``unflatten`` x
    A flat value as a map of height and width 1. Also accepts bits.
``elu`` x; ``gelu`` x
    x where x > 0, (exp(x) - 1) slope[c] elsewhere; x times the probability that a standard normal number is smaller than x.
``upsample`` x
    A map of which each element is repeated ``scale_h`` times in its column and ``scale_w`` times in its row, if ``repeat``; otherwise
    elements that are scale_h - 1 rows and scale_w - 1 columns of zeros apart, with none after the last one.
``global_max_pool`` x
    Maximum over height and width, which become 1.
``normalize`` x
    (x - m) / sqrt(v + eps), with the mean m and the variance v over the channels of each of ``groups`` groups and all positions, or the
    channels of a group at one position if ``by_position``.
``maximum`` x y
    The larger of two elements at the same position. NaN need not propagate.
"""

import dataclasses

import numpy as np

from ...errors import UserError
from .limits import MAX_CHANNELS, MAX_ELEMENTS, MAX_OPERANDS, MAX_SIZE, MAX_WEIGHTS

FLOAT = np.dtype('<f4')
HALF = np.dtype('<f2')

REAL_KIND, BITS_KIND = 'real', 'bits'


class ProgramError(UserError):
    """The words are not a valid program, or a program cannot run on the given input; the message gives the place and the reason."""


# --- the table ------------------------------------------------------------------------------------------------------------------------


_KERNEL = {'kernel_h': (1, 255), 'kernel_w': (1, 255)}
SIDES = {'h': ('pad_top', 'pad_bottom'), 'w': ('pad_left', 'pad_right')}  # attributes of the padding before and after the map
PADDING = ('pad_top', 'pad_left', 'pad_bottom', 'pad_right')
_STEPS = {'stride_h': (1, 255), 'stride_w': (1, 255), **dict.fromkeys(PADDING, (0, 255))}
_DILATION = {'dilation_h': (1, 255), 'dilation_w': (1, 255)}
_CONVOLUTION = {'out_channels': (1, MAX_CHANNELS), **_KERNEL, **_STEPS, **_DILATION, 'groups': (1, MAX_CHANNELS)}
_FLAG = (0, 1)
_POSITIONS = {'by_channel': _FLAG, 'height': (1, MAX_SIZE), 'width': (1, MAX_SIZE)}


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
    'binary_conv': Rule(2, (1, 1), (BITS_KIND,), REAL_KIND, {**_CONVOLUTION, 'pad_value': (-1, 1), 'offset': _FLAG, 'planes': (1, 255)}),
    'threshold': Rule(3, (1, 1), (REAL_KIND,), BITS_KIND),
    'affine': Rule(4, (1, 1), (REAL_KIND,), REAL_KIND),
    'relu': Rule(5, (1, 1), (REAL_KIND,), REAL_KIND),
    'max_pool': Rule(6, (1, 1), (REAL_KIND,), REAL_KIND, {**_KERNEL, **_STEPS, 'ceil': _FLAG}),
    'avg_pool': Rule(7, (1, 1), (REAL_KIND,), REAL_KIND, {**_KERNEL, **_STEPS, 'ceil': _FLAG, 'count_pad': _FLAG}),
    'global_avg_pool': Rule(8, (1, 1), (REAL_KIND,), REAL_KIND),
    'add': Rule(9, (2, 2), (REAL_KIND,), REAL_KIND),
    'concat': Rule(10, (1, MAX_OPERANDS), (REAL_KIND, BITS_KIND), None),
    'slice': Rule(11, (1, 1), (REAL_KIND, BITS_KIND), None, {'begin': (0, MAX_CHANNELS), 'end': (1, MAX_CHANNELS)}),
    'shuffle': Rule(12, (1, 1), (REAL_KIND, BITS_KIND), None, {'groups': (1, MAX_CHANNELS)}),
    'flatten': Rule(13, (1, 1), (REAL_KIND, BITS_KIND), None),
    'expand': Rule(14, (1, 1), (BITS_KIND,), REAL_KIND, {'low': (-1, 0)}),
    'prelu': Rule(15, (1, 1), (REAL_KIND,), REAL_KIND),
    'clip': Rule(16, (1, 1), (REAL_KIND,), REAL_KIND),
    'sigmoid': Rule(17, (1, 1), (REAL_KIND,), REAL_KIND),
    'abs': Rule(18, (1, 1), (REAL_KIND,), REAL_KIND),
    'multiply': Rule(19, (2, 2), (REAL_KIND,), REAL_KIND),
    'channel_mean': Rule(20, (1, 1), (REAL_KIND,), REAL_KIND),
    'scale_map': Rule(21, (1, 1), (REAL_KIND,), REAL_KIND, _POSITIONS),
    'shift_map': Rule(22, (1, 1), (REAL_KIND,), REAL_KIND, _POSITIONS),
    'unflatten': Rule(23, (1, 1), (REAL_KIND, BITS_KIND), None),
    'elu': Rule(24, (1, 1), (REAL_KIND,), REAL_KIND),
    'gelu': Rule(25, (1, 1), (REAL_KIND,), REAL_KIND),
    'upsample': Rule(26, (1, 1), (REAL_KIND,), REAL_KIND, {'scale_h': (1, 255), 'scale_w': (1, 255), 'repeat': _FLAG}),
    'global_max_pool': Rule(27, (1, 1), (REAL_KIND,), REAL_KIND),
    'normalize': Rule(28, (1, 1), (REAL_KIND,), REAL_KIND, {'groups': (1, MAX_CHANNELS), 'by_position': _FLAG}),
    'maximum': Rule(29, (2, 2), (REAL_KIND,), REAL_KIND),
}

# Operations on the elements at one position of inputs of equal size, wherever that is.
ELEMENTWISE = ('affine', 'relu', 'add', 'prelu', 'clip', 'sigmoid', 'abs', 'elu', 'gelu', 'maximum')


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
        return f'{self.kind} ({", ".join(map(str, self.shape))})'


@dataclasses.dataclass
class Operation:
    """One operation: its name in `OPERATIONS`, the numbers of its input values, its attributes and its arrays.

    An operation of a structure has no arrays, but the words before each of them (`program`, *Arrays*) as ``array_numbers``.

    Arrays: ``weight`` and ``bias`` of ``conv`` float32 (the weight float16 with half = 1), ``weight`` of ``binary_conv`` bool,
    ``threshold`` float32 and ``flip`` bool, all others float32; shapes as in the module's docstring.
    """

    name: str
    inputs: tuple
    attributes: dict = dataclasses.field(default_factory=dict)
    arrays: dict = dataclasses.field(default_factory=dict)
    array_numbers: dict = dataclasses.field(default_factory=dict)


_CHANNEL_ARRAYS = {'affine': ('scale', 'shift'), 'prelu': ('slope',), 'elu': ('slope',), 'clip': ('low', 'high')}
_POSITION_ARRAYS = {'scale_map': 'factor', 'shift_map': 'summand'}


def array_shapes(operation, channels):
    """Return the arrays of an operation with `channels` input channels, in the order of the file: name -> (dtype, shape)."""
    attributes = operation.attributes
    if operation.name in ('conv', 'binary_conv'):
        outputs, kernel = attributes['out_channels'], (attributes['kernel_h'], attributes['kernel_w'])
        inputs = channels // attributes['groups']
        if operation.name == 'binary_conv':
            return {'weight': (np.dtype(bool), (outputs, *kernel, inputs // attributes['planes']))}
        arrays = {'weight': (HALF if attributes['half'] else FLOAT, (outputs, inputs, *kernel))}
        if attributes['has_bias']:
            arrays['bias'] = (FLOAT, (outputs,))
        return arrays
    if operation.name == 'threshold':
        return {'threshold': (FLOAT, (channels,)), 'flip': (np.dtype(bool), (channels,))}
    if operation.name == 'normalize':
        return {'eps': (FLOAT, (1,))}
    if operation.name in _POSITION_ARRAYS:
        shape = (channels if attributes['by_channel'] else 1, attributes['height'], attributes['width'])
        return {_POSITION_ARRAYS[operation.name]: (FLOAT, shape)}
    return {name: (FLOAT, (channels,)) for name in _CHANNEL_ARRAYS.get(operation.name, ())}


# --- shapes ---------------------------------------------------------------------------------------------------------------------------


def result_of(operation, inputs):
    """Return the `Value` that an operation computes from the values `inputs`.

    Raises
    ------
    ProgramError
        If the operation does not accept them.
    """
    name, attributes = operation.name, operation.attributes
    rule, x = OPERATIONS[name], inputs[0]
    for value in inputs:
        if value.kind not in rule.kinds:
            raise ProgramError(f'{name} does not take {value}')
        if value.kind != x.kind or value.flat != x.flat:
            raise ProgramError(f'{name} mixes {x} with {value}')
    channels, height, width, flat = x.channels, x.height, x.width, x.flat
    if name in ('conv', 'binary_conv'):
        _check_convolution(operation, x)
        channels, (height, width) = attributes['out_channels'], _windows(operation, x, ceil=False)
    elif name in ('max_pool', 'avg_pool'):
        height, width = _pooled_size(operation, x)
    elif name in ('global_avg_pool', 'global_max_pool'):
        height = width = 1
    elif name in ('add', 'maximum'):
        if x != inputs[1]:
            raise ProgramError(f'{name} of {x} and {inputs[1]}')
    elif name == 'multiply':
        y = inputs[1]
        if y.channels not in (1, channels) or y.height not in (1, height) or y.width not in (1, width):
            raise ProgramError(f'multiply of {x} and {y}')
    elif name == 'channel_mean':
        channels = 1
    elif name in _POSITION_ARRAYS:
        if attributes['height'] not in (1, height) or attributes['width'] not in (1, width):
            raise ProgramError(
                f'{name} has constants for a map of {attributes["height"]} x {attributes["width"]}, not of {height} x {width}: '
                'give inputs of the size at conversion'
            )
    elif name == 'concat':
        for value in inputs:
            if value.height != height or value.width != width:
                raise ProgramError(f'concat of {x} and {value}')
        channels = sum(value.channels for value in inputs)
    elif name == 'slice':
        begin, end = attributes['begin'], attributes['end']
        if not begin < end <= channels:
            raise ProgramError(f'slice of channels {begin} to {end} of {channels}')
        channels = end - begin
    elif name in ('shuffle', 'normalize'):
        if channels % attributes['groups']:
            raise ProgramError(f'{name} of {channels} channels in {attributes["groups"]} groups')
    elif name == 'upsample':
        if flat:
            raise ProgramError(f'upsample of {x}')
        height, width = (
            size * attributes[scale] if attributes['repeat'] else (size - 1) * attributes[scale] + 1
            for size, scale in ((height, 'scale_h'), (width, 'scale_w'))
        )
    elif name == 'flatten':
        channels, height, width, flat = channels * height * width, 1, 1, True
    elif name == 'unflatten':
        if not flat:
            raise ProgramError(f'unflatten of {x}')
        flat = False
    if channels > MAX_CHANNELS:
        raise ProgramError(f'{name} makes {channels} channels; at most {MAX_CHANNELS} are possible')
    if height > MAX_SIZE or width > MAX_SIZE:
        raise ProgramError(f'{name} makes a map of {height} x {width}; at most {MAX_SIZE} a side')
    if channels * height * width >= MAX_ELEMENTS:
        raise ProgramError(f'{name} makes a map of {MAX_ELEMENTS} or more elements')
    return Value(rule.result or x.kind, channels, height, width, flat)


def _check_convolution(operation, x):
    attributes = operation.attributes
    groups, channels = attributes['groups'], attributes['out_channels']
    if x.channels % groups or channels % groups:
        raise ProgramError(f'{operation.name} cannot split {x.channels} into {channels} channels in {groups} groups')
    window = attributes['kernel_h'] * attributes['kernel_w'] * x.channels
    if operation.name == 'binary_conv' and window // groups >= MAX_WEIGHTS:
        raise ProgramError(f'binary_conv with {window // groups} weights per output; fewer than {MAX_WEIGHTS} are exact')
    if operation.name == 'binary_conv' and x.channels // groups % attributes['planes']:
        raise ProgramError(f'binary_conv cannot split the {x.channels // groups} channels of a group into {attributes["planes"]} planes')
    if operation.name == 'conv' and window >= MAX_ELEMENTS:
        raise ProgramError(f'conv has {MAX_ELEMENTS} or more elements in a window')


def _pooled_size(operation, x):
    """Return height and width of the result of pooling."""
    name, attributes = operation.name, operation.attributes
    if any(attributes[side] >= attributes[f'kernel_{axis}'] for axis in 'hw' for side in SIDES[axis]):
        raise ProgramError(f'{name} with a pad as large as its kernel has windows without an element')
    height, width = _windows(operation, x, ceil=bool(attributes['ceil']))
    last_row, last_column = (
        (size - 1) * attributes[f'stride_{axis}'] - attributes[SIDES[axis][0]] for size, axis in ((height, 'h'), (width, 'w'))
    )
    if last_row >= x.height or last_column >= x.width:
        raise ProgramError(f'{name} has a last window without an element of the map')
    return height, width


def _windows(operation, x, ceil):
    """Return height and width of the result of sliding the window of an operation over `x`."""
    sizes = []
    for axis, size in (('h', x.height), ('w', x.width)):
        kernel, stride = (operation.attributes[f'{name}_{axis}'] for name in ('kernel', 'stride'))
        pad = sum(operation.attributes[side] for side in SIDES[axis])
        extent = operation.attributes.get(f'dilation_{axis}', 1) * (kernel - 1) + 1
        if x.flat and (extent, stride, pad) != (1, 1, 0):
            raise ProgramError(f'{operation.name} of a flat value must have kernel 1')
        room = size + pad - extent
        if room < 0:
            raise ProgramError(f'{operation.name} has a window of {extent} on a padded map of {size + pad}')
        sizes.append((room + stride - 1 if ceil else room) // stride + 1)
    return sizes
