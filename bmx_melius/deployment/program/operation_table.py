"""The table of operations: what a program may contain, and what its readers, the documentation and the tests need to know of it.

An operation is one row of `OPERATIONS`. ``make operations`` writes the same table for the engine in C++
(``csrc/program/operation_table.h``) and for the documentation (``docs/internals/packed-format.md``). What an operation computes stands
elsewhere: its shape rule in `operations`, its definition in `reference`, its step in ``csrc/plan/lowering.cc``.
"""

import dataclasses
from typing import Dict, Literal, Optional, Tuple

from .limits import MAX_CHANNELS, MAX_OPERANDS, MAX_SIZE

REAL_KIND, BITS_KIND = 'real', 'bits'
FIRST_VERSION = 2  # of the format, the first one that a release wrote
INT8_VERSION = 3  # the first one with layers of 8-bit integers
MAX_INT16 = 32766  # the largest magnitude of numbers stored as 16-bit integers, so that 32767 is a threshold that none reaches
MAX_BYTE = 255  # of the inputs of 8-bit layers
MAX_SUM = 1 << 23  # the largest magnitude of results of 8-bit layers that are sums: the one up to which `rescale` rounds
MAX_THRESHOLDS = 255  # of `multi_threshold`, so that the numbers are bytes
MAX_LEVEL_BITS = 4  # of weights of few levels
OFFSET_SHIFT = 8  # offsets of rescaling are multiples of 2^-8

# --- what rows consist of -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of constants.

    Attributes
    ----------
    shape : tuple of str
        The sizes, each the name of an attribute, ``C``, the number of input channels, or a number. ``x * y / z``, from left to right, are
        products and quotients without remainder, ``2^x`` is a power, ``x if y`` is x if attribute y is set, otherwise 1.
    dtype : str
        float32, float16, int32, int8 or bits. ``x if y`` is x if attribute y is set, otherwise float32.
    exists : str or None
        The attribute without which the array does not exist; None for arrays that always exist.
    ordered : bool
        Whether its elements are compared with others, so that they must not be NaN.
    """

    shape: Tuple[str, ...] = ('C',)
    dtype: str = 'float32'
    exists: Optional[str] = None
    ordered: bool = False


@dataclasses.dataclass(frozen=True)
class OperationType:
    """A row of the table.

    Attributes
    ----------
    opcode : int
        Its number in the file, which no other operation has or had.
    doc : str
        What it computes from its inputs x, y, ..., of which bits are called b, in Markdown.
    inputs : tuple (int, int)
        The smallest and the largest number of inputs.
    kinds : tuple of str
        The accepted kinds of value. All inputs of an operation are of one kind.
    result : str or None
        The kind of the result; None for the kind of the inputs.
    attributes : dict of str to (int, int)
        Smallest and largest value of each attribute, in the order of the file.
    arrays : dict of str to Array
        In the order of the file.
    shape : str
        The rule for the shape of the result: a key of `operations.SHAPES`, and in C++ a function in ``csrc/program/operations.cc``.
    elementwise : {None, 'channels', 'values', 'positions'}
        For operations on elements at one position, wherever that is: what an element is combined with. Constants of its channel (arrays of
        shape ``C``, two at most), another value, in either order, or constants of its position. The engine fuses such operations with those
        before and after.
    like : str or None
        For ``positions`` the operation on two values that it computes with its constants.
    view : {None, 'channels', 'shape'}
        For operations that compute nothing: whether the result consists of `channels` of the inputs, or of all elements in another `shape`.
        It can lie in memory where the inputs do, in another `shape` only if the map has one position.
    rounds : {'never', 'products', 'always'}
        Where the result is rounded: ``never`` if all inputs are integers; as sums of ``products`` are, so not if all numbers are small
        multiples of a power of two; or ``always``.
    rounds_inputs : bool
        Whether it rounds its inputs to integers.
    looks_up : bool
        Whether its inputs are numbers of rows of an array, of which attribute ``rows`` is the number.
    amplifies : bool
        Whether small errors of its inputs may become large, so that the engine is verified on exact inputs of it.
    products : {None, 'floats', 'binary', 'int8'}
        For operations that multiply by weights: of what, so how their multiplications are counted and which limits their sums have.
    reduces : {None, 'maximum', 'mean'}
        For operations on several elements of a channel or position: what they compute of these.
    range : {None, 'bits', 'sums', 'limits', 'counts', 'total', 'merged'}
        The rule for the range of results that are integers: from ``low``, 0 if it has none, to 1; the range of sums of signs; from
        ``result_min`` to ``result_max``; from 0 to ``thresholds``; if the inputs are integers, the sum of their ranges, or what these cover
        together. None if the results are real numbers, and for elementwise operations with ``channels``, whose results are always float32.
    scales : str or None
        For operations that only multiply each channel by a number and add another one: the array of factors. Rounding is monotonic, so
        such an operation can follow a maximum instead.
    weight_levels : bool
        Whether its weights have few levels and are stored as the numbers of these, in bit planes (`layer_weights`).
    rectifies : bool
        Whether it replaces negative numbers by 0 and keeps all others.
    on_maps : bool
        Whether it is defined on maps: a flat value is to it a map of one position.
    recognized : bool
        Whether an import of ONNX recognizes it in the operators that an export makes of it. Models of programs with others contain the
        program.
    since : int
        The version of the format that has it. A program is of the latest version that one of its operations needs.
    """

    opcode: int
    doc: str
    inputs: Tuple[int, int] = (1, 1)
    kinds: Tuple[str, ...] = (REAL_KIND,)
    result: Optional[str] = REAL_KIND
    attributes: Dict[str, Tuple[int, int]] = dataclasses.field(default_factory=dict)
    arrays: Dict[str, Array] = dataclasses.field(default_factory=dict)
    shape: str = 'same'
    elementwise: Optional[Literal['channels', 'values', 'positions']] = None
    like: Optional[str] = None
    view: Optional[Literal['channels', 'shape']] = None
    rounds: Literal['never', 'products', 'always'] = 'never'
    rounds_inputs: bool = False
    looks_up: bool = False
    amplifies: bool = False
    products: Optional[Literal['floats', 'binary', 'int8']] = None
    reduces: Optional[Literal['maximum', 'mean']] = None
    range: Optional[Literal['bits', 'sums', 'limits', 'counts', 'total', 'merged']] = None
    scales: Optional[str] = None
    weight_levels: bool = False
    rectifies: bool = False
    on_maps: bool = False
    recognized: bool = True
    since: int = FIRST_VERSION

    @property
    def is_local(self) -> bool:
        """Whether each element of the result depends only on the elements of the inputs at its position, and these are of its size."""
        return self.elementwise is not None and self.shape in ('same', 'equal')

    @property
    def compares(self) -> bool:
        """Whether it compares real numbers with thresholds, and so makes bits or integers of them."""
        return self.result == BITS_KIND or self.range == 'counts'

    @property
    def is_exact(self) -> bool:
        """Whether its results have no rounding errors even if its inputs have: of comparisons, or computed from bits."""
        return self.compares or self.kinds == (BITS_KIND,)

    @property
    def moves(self) -> bool:
        """Whether it only moves elements, of whatever kind."""
        return self.result is None

    @property
    def is_integer_layer(self) -> bool:
        """Whether it belongs to layers of 8-bit integers, from the rounding of their input to their means."""
        return self.rounds_inputs and self.elementwise is None and not self.looks_up


SIDES = {'h': ('pad_top', 'pad_bottom'), 'w': ('pad_left', 'pad_right')}  # attributes of the padding before and after the map
PADDING = ('pad_top', 'pad_left', 'pad_bottom', 'pad_right')
_FLAG = (0, 1)
_CHANNELS = (1, MAX_CHANNELS)
_SIZE = (1, MAX_SIZE)
_LENGTH = (1, 255)
_WINDOW = {'kernel_h': _LENGTH, 'kernel_w': _LENGTH, 'stride_h': _LENGTH, 'stride_w': _LENGTH, **dict.fromkeys(PADDING, (0, 255))}
_CONVOLUTION = {'out_channels': _CHANNELS, **_WINDOW, 'dilation_h': _LENGTH, 'dilation_w': _LENGTH, 'groups': _CHANNELS}
_RESCALING = {'shift': (OFFSET_SHIFT, 38), 'result_min': (-MAX_INT16, MAX_INT16), 'result_max': (-MAX_INT16, MAX_INT16)}
_SUM_RESCALING = {'shift': _RESCALING['shift'], 'result_min': (-MAX_SUM, MAX_SUM), 'result_max': (-MAX_SUM, MAX_SUM)}
_LEVELS = {'bits': (1, MAX_LEVEL_BITS), 'by_position': _FLAG}
_CODES = Array(('bits', 'out_channels * C / groups * kernel_h * kernel_w'), 'bits')
_LEVELS_SHAPE = ('kernel_h * kernel_w if by_position', '2^bits')
_FRACTION_BITS = (0, 8)
_POSITIONS = {'by_channel': _FLAG, 'height': _SIZE, 'width': _SIZE}
_MAP = Array(('C if by_channel', 'height', 'width'))
_BITS, _ANY = (BITS_KIND,), (REAL_KIND, BITS_KIND)

# --- the table ------------------------------------------------------------------------------------------------------------------------

OPERATIONS = {
    'conv': OperationType(
        1,
        'Convolution with `weight`, zero padding, plus `bias` if `has_bias`. On a flat value, with kernel 1, it is a dense layer.',
        attributes={**_CONVOLUTION, 'has_bias': _FLAG, 'half': _FLAG},
        arrays={
            'weight': Array(('out_channels', 'C / groups', 'kernel_h', 'kernel_w'), 'float16 if half'),
            'bias': Array(('out_channels',), exists='has_bias'),
        },
        shape='convolution',
        rounds='products',
        products='floats',
        amplifies=True,
        on_maps=True,
    ),
    'binary_conv': OperationType(
        2,
        'Let s be +1 for set bits of b, -1 for clear bits and `pad_value` (-1, 0 or +1) outside the map, w be +1 and -1 for set '
        'and clear bits of `weight`, and n = kernel_h kernel_w C / groups. With the integer h = conv(s, w) the result is (h + '
        'n) / 2 if `offset`, else h. On a flat value, with kernel 1, it is a binary dense layer. The channels of a group are '
        '`planes` parts of equal size with the same weights, which `weight` contains once.',
        kinds=_BITS,
        attributes={**_CONVOLUTION, 'pad_value': (-1, 1), 'offset': _FLAG, 'planes': (1, 255)},
        arrays={'weight': Array(('out_channels', 'kernel_h', 'kernel_w', 'C / groups / planes'), 'bits')},
        shape='convolution',
        products='binary',
        range='sums',
        on_maps=True,
    ),
    'threshold': OperationType(
        3,
        'Bits: (x >= `threshold`[c]) != `flip`[c]. A threshold of -inf gives a constant.',
        result=BITS_KIND,
        arrays={'threshold': Array(ordered=True), 'flip': Array(dtype='bits')},
        range='bits',
        amplifies=True,
    ),
    'affine': OperationType(
        4,
        'x `scale`[c] + `shift`[c], rounded once.',
        arrays={'scale': Array(), 'shift': Array()},
        elementwise='channels',
        rounds='products',
        scales='scale',
    ),
    'relu': OperationType(5, '0 where x < 0, x elsewhere, also where it is -0.', elementwise='channels', rectifies=True),
    'max_pool': OperationType(
        6,
        "Maximum over windows. With `ceil` the last window may extend beyond the padded map (MXNet's pooling convention "
        '*full*). Padding is never the maximum; NaN need not propagate. Of zeros the maximum is +0, whatever their signs. Every window '
        'must contain an element of the map.',
        attributes={**_WINDOW, 'ceil': _FLAG},
        shape='pooling',
        reduces='maximum',
        on_maps=True,
    ),
    'avg_pool': OperationType(
        7,
        'Mean over windows as of `max_pool`: the sum divided by the number of elements in the window, with `count_pad` '
        'including padding (within the padded map).',
        attributes={**_WINDOW, 'ceil': _FLAG, 'count_pad': _FLAG},
        shape='pooling',
        rounds='always',
        reduces='mean',
        on_maps=True,
    ),
    'global_avg_pool': OperationType(
        8, 'Mean over height and width, which become 1.', shape='global', rounds='always', reduces='mean', on_maps=True
    ),
    'add': OperationType(9, 'x + y, of equal shape.', inputs=(2, 2), shape='equal', elementwise='values', range='total'),
    'concat': OperationType(
        10,
        'The inputs one after the other along the channels.',
        inputs=(1, MAX_OPERANDS),
        kinds=_ANY,
        result=None,
        shape='joined',
        view='channels',
        range='merged',
    ),
    'slice': OperationType(
        11,
        'Channels `begin` to `end` - 1.',
        kinds=_ANY,
        result=None,
        attributes={'begin': (0, MAX_CHANNELS), 'end': _CHANNELS},
        shape='cut',
        view='channels',
        range='merged',
    ),
    'shuffle': OperationType(
        12,
        'Channel i C / groups + j becomes channel j groups + i.',
        kinds=_ANY,
        result=None,
        attributes={'groups': _CHANNELS},
        shape='groups',
        range='merged',
        recognized=False,
    ),
    'flatten': OperationType(
        13,
        'All elements of an image, row by row, as a flat value.',
        kinds=_ANY,
        result=None,
        shape='flat',
        view='shape',
        range='merged',
    ),
    'expand': OperationType(
        14, 'Real: +1 where the bit is set, `low` (-1 or 0) elsewhere.', kinds=_BITS, attributes={'low': (-1, 0)}, range='bits'
    ),
    'prelu': OperationType(
        15, 'x where x > 0, x `slope`[c] elsewhere.', arrays={'slope': Array()}, elementwise='channels', rounds='products'
    ),
    'clip': OperationType(
        16,
        'min(max(x, `low`[c]), `high`[c]), where x is kept if it equals a bound, as -0 equals 0. The bounds may be infinite.',
        arrays={'low': Array(ordered=True), 'high': Array(ordered=True)},
        elementwise='channels',
        recognized=False,
    ),
    'sigmoid': OperationType(17, '1 / (1 + exp(-x)).', elementwise='channels', rounds='always'),
    'abs': OperationType(18, 'The magnitude of x.', elementwise='channels'),
    'multiply': OperationType(
        19,
        'x y. Channels, height and width of y are equal to x or 1: y is repeated along such an axis.',
        inputs=(2, 2),
        shape='broadcast',
        elementwise='values',
        rounds='products',
    ),
    'channel_mean': OperationType(
        20, 'Mean over the channels, of which one remains.', shape='one_channel', rounds='products', reduces='mean'
    ),
    'scale_map': OperationType(
        21,
        'x `factor`, with a constant for each position. A height or width of 1 means that rows or columns share their '
        'constants; otherwise it must be equal to x, so that the program accepts only inputs of one size.',
        attributes=_POSITIONS,
        arrays={'factor': _MAP},
        shape='positions',
        elementwise='positions',
        like='multiply',
        rounds='products',
    ),
    'shift_map': OperationType(
        22,
        'x + `summand`, with constants as of `scale_map`.',
        attributes=_POSITIONS,
        arrays={'summand': _MAP},
        shape='positions',
        elementwise='positions',
        like='add',
        rounds='products',
    ),
    'unflatten': OperationType(
        23, 'A flat value as a map of height and width 1.', kinds=_ANY, result=None, shape='map', view='shape', range='merged'
    ),
    'elu': OperationType(
        24,
        'x where x > 0, (exp(x) - 1) `slope`[c] elsewhere.',
        arrays={'slope': Array()},
        elementwise='channels',
        rounds='always',
        recognized=False,
    ),
    'gelu': OperationType(
        25, 'x times the probability that a standard normal number is smaller than x.', elementwise='channels', rounds='always'
    ),
    'upsample': OperationType(
        26,
        'A map of which each element is repeated `scale_h` times in its column and `scale_w` times in its row, if `repeat`; '
        'otherwise elements that are scale_h - 1 rows and scale_w - 1 columns of zeros apart, with none after the last one.',
        attributes={'scale_h': _LENGTH, 'scale_w': _LENGTH, 'repeat': _FLAG},
        shape='enlarged',
        recognized=False,
    ),
    'global_max_pool': OperationType(
        27, 'Maximum over height and width, which become 1; of zeros it is +0.', shape='global', reduces='maximum', on_maps=True
    ),
    'normalize': OperationType(
        28,
        '(x - m) / sqrt(v + `eps`), with the mean m and the variance v over the channels of each of `groups` groups and all '
        'positions, or the channels of a group at one position if `by_position`.',
        attributes={'groups': _CHANNELS, 'by_position': _FLAG},
        arrays={'eps': Array(('1',))},
        shape='groups',
        rounds='always',
        amplifies=True,
        on_maps=True,
        recognized=False,
    ),
    'maximum': OperationType(
        29,
        'The larger of x and y, of equal shape; of two zeros it is +0. NaN need not propagate.',
        inputs=(2, 2),
        shape='equal',
        elementwise='values',
    ),
    'rescale': OperationType(
        30,
        'Integers: min(max((n `multiplier`[c] + `offset`[c] 2^(shift - 8) + 2^(shift - 1)) >> shift, result_min), result_max), computed '
        'with 64 bits, where n is x rounded to the nearest integer, ties to even, and limited to ±2^23. '
        'result_min must not exceed result_max.',
        attributes=_RESCALING,
        arrays={'multiplier': Array(dtype='int32'), 'offset': Array(dtype='int32')},
        rounds_inputs=True,
        range='limits',
        scales='multiplier',
        since=INT8_VERSION,
    ),
    'int8_conv': OperationType(
        31,
        'Let u be x rounded to the nearest integer, ties to even, and limited to 0 to 255, and outside the map `pad`[c], limited likewise. '
        'The sum conv(u, `weight`), an integer of 32 bits, is rescaled as by `rescale`, with numbers for each filter. On a flat value, '
        'with kernel 1, it is a dense layer.',
        attributes={**_CONVOLUTION, **_RESCALING},
        arrays={
            'weight': Array(('out_channels', 'C / groups', 'kernel_h', 'kernel_w'), 'int8'),
            'pad': Array(dtype='int32'),
            'multiplier': Array(('out_channels',), 'int32'),
            'offset': Array(('out_channels',), 'int32'),
        },
        shape='convolution',
        rounds_inputs=True,
        products='int8',
        range='limits',
        on_maps=True,
        since=INT8_VERSION,
    ),
    'integer_mean': OperationType(
        32,
        'Integers: the mean over height and width, which become 1, of x rounded and limited to ±32766, in multiples of '
        '2^-`fraction_bits`: floor(2^fraction_bits mean + 1/2).',
        attributes={'fraction_bits': _FRACTION_BITS},
        shape='global',
        rounds_inputs=True,
        reduces='mean',
        on_maps=True,
        since=INT8_VERSION,
    ),
    'integer_avg_pool': OperationType(
        33,
        'Integers: means over windows as of `avg_pool`, of integers and rounded as by `integer_mean`.',
        attributes={**_WINDOW, 'ceil': _FLAG, 'count_pad': _FLAG, 'fraction_bits': _FRACTION_BITS},
        shape='pooling',
        rounds_inputs=True,
        reduces='mean',
        on_maps=True,
        since=INT8_VERSION,
    ),
    'round': OperationType(
        34,
        'x rounded to the nearest integer, ties to even (roundTiesToEven of IEEE 754).',
        elementwise='channels',
        rounds_inputs=True,
        amplifies=True,
        since=3,
    ),
    'divide': OperationType(
        35,
        'x / `divisor`[c], the nearest float32 number. The product with a reciprocal, as of `affine`, may be another one, '
        'which `round` may take to another integer.',
        arrays={'divisor': Array()},
        elementwise='channels',
        rounds='always',
        since=3,
    ),
    'softplus': OperationType(36, 'log(1 + exp(x)).', elementwise='channels', rounds='always', since=4),
    'level_conv': OperationType(
        40,
        'Convolution with weights of few levels, added in the order of `conv`, whose result is multiplied by `scale`[f] of its filter, '
        'plus `bias`[f] if `has_bias`, else plus 0. Weight i, counted as in the weight of `conv`, is `levels`[k, n]: bit j of n is element '
        'i of row j of `codes`, and k is the position in the kernel, row by row, if `by_position`, else 0.',
        attributes={**_CONVOLUTION, 'has_bias': _FLAG, **_LEVELS},
        arrays={
            'codes': _CODES,
            'levels': Array(_LEVELS_SHAPE),
            'scale': Array(('out_channels',)),
            'bias': Array(('out_channels',), exists='has_bias'),
        },
        shape='convolution',
        rounds='products',
        products='floats',
        weight_levels=True,
        amplifies=True,
        on_maps=True,
        since=5,
    ),
    'level_int8_conv': OperationType(
        41,
        'As `int8_conv`, with a weight that is stored as that of `level_conv`. Results may have the magnitude 2^23, so that they can be '
        'the sums themselves: those of a `multiplier` of 2^shift.',
        attributes={**_CONVOLUTION, **_SUM_RESCALING, **_LEVELS},
        arrays={
            'codes': _CODES,
            'levels': Array(_LEVELS_SHAPE, 'int8'),
            'pad': Array(dtype='int32'),
            'multiplier': Array(('out_channels',), 'int32'),
            'offset': Array(('out_channels',), 'int32'),
        },
        shape='convolution',
        rounds_inputs=True,
        products='int8',
        weight_levels=True,
        range='limits',
        on_maps=True,
        since=6,
    ),
    'multi_threshold': OperationType(
        42,
        'Integers: the number of thresholds t in `threshold`[0, c], `threshold`[1, c], ... for which (x >= t) != `flip`[c].',
        attributes={'thresholds': (1, MAX_THRESHOLDS)},
        arrays={'threshold': Array(('thresholds', 'C'), ordered=True), 'flip': Array(dtype='bits')},
        range='counts',
        amplifies=True,
        recognized=False,
        since=6,
    ),
    'transpose': OperationType(
        50,
        'Channel c at position p, of all positions row by row, becomes channel p at column c of a map of one row. `height` and `width` '
        'are those of x, so that the program accepts only inputs of one size.',
        attributes={'height': _SIZE, 'width': _SIZE},
        shape='transposed',
        recognized=False,
        since=5,
    ),
    'arrange': OperationType(
        51,
        'The positions, row by row, in rows of `row_length` positions; 0: all of them in one row.',
        attributes={'row_length': (0, MAX_SIZE)},
        shape='arranged',
        recognized=False,
        since=5,
    ),
    'matmul': OperationType(
        52,
        'A product of matrices for each of `heads` groups of channels. The rows of a matrix are positions, row by row, its columns the '
        'channels of the group. It is x y^T if `transposed`, with a channel for each position of y, else x y, where a group of x has a '
        'channel for each position of y. y must have `positions` positions. Sums begin with +0, and each product, in order, is added '
        'with one rounding.',
        inputs=(2, 2),
        attributes={'heads': _CHANNELS, 'positions': _CHANNELS, 'transposed': _FLAG},
        shape='product',
        rounds='products',
        amplifies=True,
        recognized=False,
        since=5,
    ),
    'softmax': OperationType(
        53,
        'exp(x - m) / s, with the maximum m and the sum s of these exponentials of the channels of each of `groups` groups at a position.',
        attributes={'groups': _CHANNELS},
        shape='groups',
        rounds='always',
        on_maps=True,
        recognized=False,
        since=5,
    ),
    'embedding': OperationType(
        54,
        'Row n of `table` at each position as `features` channels, where n is the number in the only channel of x, rounded to the nearest '
        'integer, ties to even, and limited to 0 to rows - 1.',
        attributes={'rows': _CHANNELS, 'features': _CHANNELS, 'half': _FLAG},
        arrays={'table': Array(('rows', 'features'), 'float16 if half')},
        shape='looked_up',
        rounds_inputs=True,
        looks_up=True,
        amplifies=True,
        recognized=False,
        since=6,
    ),
    'gather': OperationType(
        55,
        'A map of `height` x `width`, whose position i, counted row by row, is position `places`[i] of the inputs: of those of x, row by '
        'row, then of those of y, and so on. The inputs have as many channels as x and `positions` positions in all, to which places are '
        'limited.',
        inputs=(1, MAX_OPERANDS),
        attributes={'positions': _CHANNELS, 'height': _SIZE, 'width': _SIZE},
        arrays={'places': Array(('height', 'width'), 'int32')},
        shape='gathered',
        recognized=False,
        since=7,
    ),
    'row_matmul': OperationType(
        56,
        'As `matmul`, with a matrix for each row of a map: its rows are the positions of that row. x and y have as many rows, and those of '
        'y `positions` positions.',
        inputs=(2, 2),
        attributes={'heads': _CHANNELS, 'positions': _CHANNELS, 'transposed': _FLAG},
        shape='product_of_rows',
        rounds='products',
        amplifies=True,
        recognized=False,
        since=7,
    ),
}

# --- what the engine's planner and the export to C decide alike, so that they add floats in the same order ------------------------------

MAX_STEM_INPUTS = 16  # channels of a group up to which a convolution adds in the order of planar maps, if it begins at an input
MAX_STEM_LAYERS = 16  # such convolutions in a row; the engine evaluates them recursively
EPILOGUE = ('affine', 'relu')  # what a convolution computes in its step, each of them at most once and in this order
SUMMED_PIXELS = 64  # of a mean that are added in float32
