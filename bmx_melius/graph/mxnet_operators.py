"""MXNet's operators: from a name and attributes, which are text, to an operation, and names of operators for operations.

Nothing else parses these attributes.
"""

import functools
from typing import Callable, Dict, Mapping

from ..files.symbol_json import integers, truth
from .operations import (
    Activation,
    AxisMaps,
    AxisSlice,
    BatchNormalization,
    BilinearResizing,
    Clip,
    Concatenation,
    Convolution,
    ConvolutionV1,
    DeformableConvolution,
    Dense,
    Dropout,
    Elementwise,
    Embedding,
    ExpandDims,
    Flatten,
    GlobalPooling,
    GroupNormalization,
    HardSigmoid,
    Identity,
    InstanceNormalization,
    LayerNormalization,
    MatrixProduct,
    Operation,
    Padding,
    Pooling,
    PositionSelection,
    Reduction,
    Reshape,
    Rounding,
    ScalarArithmetic,
    Slice,
    Softmax,
    Split,
    Squeeze,
    StepFunction,
    SwapAxes,
    Transpose,
    TransposedConvolution,
    Unknown,
    Upsampling,
    Window,
    key_of,
)

_WITHOUT_ATTRIBUTES = {  # name of an operator -> operation
    **dict.fromkeys(('elemwise_add', '_plus', '_Plus'), Elementwise('add')),
    **dict.fromkeys(('broadcast_add', 'broadcast_plus'), Elementwise('add', repeats=True)),
    **dict.fromkeys(('elemwise_sub', '_minus', '_Minus'), Elementwise('subtract')),
    **dict.fromkeys(('broadcast_sub', 'broadcast_minus'), Elementwise('subtract', repeats=True)),
    **dict.fromkeys(('elemwise_mul', '_mul', '_Mul'), Elementwise('multiply')),
    'broadcast_mul': Elementwise('multiply', repeats=True),
    **dict.fromkeys(('elemwise_div', '_div', '_Div'), Elementwise('divide')),
    'broadcast_div': Elementwise('divide', repeats=True),
    '_npi_true_divide': Elementwise('true_divide', repeats=True),
    **dict.fromkeys(('_maximum', '_Maximum'), Elementwise('maximum')),
    'broadcast_maximum': Elementwise('maximum', repeats=True),
    **dict.fromkeys(('_minimum', '_Minimum'), Elementwise('minimum')),
    'broadcast_minimum': Elementwise('minimum', repeats=True),
    **dict.fromkeys(('add_n', 'ElementWiseSum'), Elementwise('sum')),
    'abs': Elementwise('abs'),
    'negative': Elementwise('negative'),
    'square': Elementwise('square'),
    'relu': Activation('relu'),
    'sigmoid': Activation('sigmoid'),
    'tanh': Activation('tanh'),
    'softsign': Activation('softsign'),
    **dict.fromkeys(('identity', '_copy', 'BlockGrad', 'stop_gradient'), Identity()),
    **dict.fromkeys(('Reshape', 'reshape'), Reshape()),  # their result has the shape of the node
    'Flatten': Flatten(),
    'squeeze': Squeeze(),
}
_READERS: Dict[str, Callable[[Mapping[str, str]], Operation]] = {}  # name of another operator -> what reads its attributes
READ_AS = {name: [key_of(operation)] for name, operation in _WITHOUT_ATTRIBUTES.items()}  # name of an operator -> classes and kinds
_NAMES = {key: name for name, (key,) in reversed(READ_AS.items())}  # the opposite: the first one of several names
_NAMES.update({(AxisMaps, None): 'map_axes', (PositionSelection, None): 'select_positions'})  # which are not MXNet's
_NAMES[StepFunction, None] = 'step'  # likewise
_NAMES.update({(MatrixProduct, None): 'batch_dot', (Softmax, None): 'softmax', (Embedding, None): 'Embedding'})  # which are not read
_ELEMENTWISE_NAMES = {operation: name for name, operation in reversed(_WITHOUT_ATTRIBUTES.items()) if isinstance(operation, Elementwise)}


def read_operation(name: str, attributes: Mapping[str, str]) -> Operation:
    """Return the operation of an operator; `Unknown` if no class describes it, or its attributes are malformed."""
    if name in _WITHOUT_ATTRIBUTES:
        return _WITHOUT_ATTRIBUTES[name]
    if name not in _READERS:
        return Unknown(name)
    try:
        return _READERS[name](attributes)
    except (KeyError, ValueError) as error:
        return Unknown(name, str(error))


def operator_name(operation: Operation) -> str:
    """Return the name of the operator that stands for an operation of another framework, in reports and in names of nodes."""
    if isinstance(operation, Unknown):
        return operation.name
    if isinstance(operation, Elementwise):
        return _ELEMENTWISE_NAMES[operation]
    operation_class, kind = key_of(operation)
    return _NAMES.get((operation_class, kind)) or _NAMES[operation_class, None]


def _reads(operation_class, name, kinds=(None,)):
    """Register the decorated function as the reader of an operator, which makes operations of a class, or of some kinds of it."""

    def add(function):
        _READERS[name] = function
        for kind in kinds:
            READ_AS.setdefault(name, []).append((operation_class, kind))
            _NAMES.setdefault((operation_class, kind), name)
        return function

    return add


def _sizes(a, name):
    """Return an attribute that is a number for each axis; () if it is missing."""
    sizes = integers(a.get(name, ''))
    if None in sizes:
        raise ValueError(f'{name} is {a[name]}')
    return sizes


def _layout(a):
    layout = a.get('layout', 'None')
    return None if layout == 'None' else layout


@_reads(Dense, 'FullyConnected')
def _fully_connected(a):
    return Dense(truth(a.get('flatten', 'True')))


# --- windows ----------------------------------------------------------------------------------------------------------------------------


def _window(a):
    pads = tuple((size, size) for size in _sizes(a, 'pad'))
    return Window(_sizes(a, 'kernel'), _sizes(a, 'stride'), pads, _sizes(a, 'dilate'))


def _window_groups_layout(a):
    return _window(a), int(a.get('num_group', 1)), _layout(a)


@_reads(Convolution, 'Convolution')
def _convolution(a):
    return Convolution(*_window_groups_layout(a))


@_reads(ConvolutionV1, 'Convolution_v1')
def _convolution_v1(a):
    return ConvolutionV1(*_window_groups_layout(a))


@_reads(DeformableConvolution, '_contrib_DeformableConvolution')
def _deformable_convolution(a):
    return DeformableConvolution(*_window_groups_layout(a))


@_reads(DeformableConvolution, '_contrib_ModulatedDeformableConvolution')
def _modulated_deformable_convolution(a):
    return DeformableConvolution(*_window_groups_layout(a), modulated=True)


@_reads(TransposedConvolution, 'Deconvolution')
def _deconvolution(a):
    return TransposedConvolution(*_window_groups_layout(a), _sizes(a, 'adj'), _sizes(a, 'target_shape'))


@_reads(Pooling, 'Pooling')
@_reads(GlobalPooling, 'Pooling')
def _pooling(a):
    kind, layout = a.get('pool_type', 'max'), _layout(a)
    if truth(a.get('global_pool', 'False')):
        return GlobalPooling(kind, layout)
    counts_padding = a.get('count_include_pad', 'None')
    convention = a.get('pooling_convention', 'valid')
    return Pooling(kind, _window(a), convention, counts_padding == 'None' or truth(counts_padding), layout)


@_reads(Upsampling, 'UpSampling')
def _upsampling(a):
    return Upsampling(a['sample_type'], int(a['scale']))


# --- elementwise ------------------------------------------------------------------------------------------------------------------------

_SCALAR_ARITHMETIC = {
    '_plus_scalar': 'add',
    '_minus_scalar': 'subtract',
    '_rminus_scalar': 'subtract_from',
    '_mul_scalar': 'multiply',
    '_div_scalar': 'divide',
    **dict.fromkeys(('_maximum_scalar', '_MaximumScalar'), 'maximum'),
    **dict.fromkeys(('_minimum_scalar', '_MinimumScalar'), 'minimum'),
}


def _scalar_arithmetic(kind, a):
    return ScalarArithmetic(kind, float(a.get('scalar', 0)))


for _name, _kind in _SCALAR_ARITHMETIC.items():
    _reads(ScalarArithmetic, _name, [_kind])(functools.partial(_scalar_arithmetic, _kind))


@_reads(Activation, 'Activation')
def _activation(a):
    return Activation(a['act_type'])


@_reads(Activation, 'LeakyReLU', kinds=('leaky', 'prelu', 'elu', 'selu', 'gelu', 'rrelu'))
def _leaky_relu(a):
    kind = a.get('act_type', 'leaky')
    return Activation(kind, float(a.get('slope', 0.25)) if kind in ('leaky', 'elu') else None)


@_reads(Clip, 'clip')
def _clip(a):
    return Clip(float(a['a_min']), float(a['a_max']))


@_reads(HardSigmoid, 'hard_sigmoid')
def _hard_sigmoid(a):
    return HardSigmoid(float(a.get('alpha', 0.2)), float(a.get('beta', 0.5)))


@_reads(Rounding, '_npi_around')
def _around(a):
    return Rounding(int(a.get('decimals', 0)))


# --- normalizations ---------------------------------------------------------------------------------------------------------------------


@_reads(BatchNormalization, 'BatchNorm')
def _batch_norm(a):
    return BatchNormalization(
        axis=int(a.get('axis', 1)),
        eps=float(a.get('eps', 1e-3)),
        fixes_gamma=truth(a.get('fix_gamma', 'True')),
        returns_statistics=truth(a.get('output_mean_var', 'False')),
    )


@_reads(LayerNormalization, 'LayerNorm')
def _layer_norm(a):
    return LayerNormalization(int(a.get('axis', -1)), float(a.get('eps', 1e-5)))


@_reads(GroupNormalization, 'GroupNorm')
def _group_norm(a):
    return GroupNormalization(int(a.get('num_groups', 1)), float(a.get('eps', 1e-5)))


@_reads(InstanceNormalization, 'InstanceNorm')
def _instance_norm(a):
    return InstanceNormalization(float(a.get('eps', 1e-3)))


def _reduction(kind, a):
    axes = tuple(axis for axis in integers(a.get('axis', 'None')) if axis is not None)
    return Reduction(kind, axes, truth(a.get('keepdims', 'False')), truth(a.get('exclude', 'False')))


for _kind in ('mean', 'max'):
    _reads(Reduction, _kind, [_kind])(functools.partial(_reduction, _kind))


# --- moves ------------------------------------------------------------------------------------------------------------------------------


@_reads(Dropout, 'Dropout')
def _dropout(a):
    return Dropout(a.get('mode', 'training') == 'always')


@_reads(Concatenation, 'Concat')
def _concat(a):
    return Concatenation(int(a.get('dim', 1)))


@_reads(AxisSlice, 'slice_axis')
def _slice_axis(a):
    end = a.get('end', 'None')
    return AxisSlice(int(a['axis']), int(a['begin']), None if end == 'None' else int(end))


@_reads(Slice, 'slice')
def _slice(a):
    return Slice(*(integers(a.get(name, '')) for name in ('begin', 'end', 'step')))


@_reads(Split, 'SliceChannel')
def _slice_channel(a):
    return Split(int(a.get('axis', 1)), truth(a.get('squeeze_axis', 'False')))


@_reads(ExpandDims, 'expand_dims')
def _expand_dims(a):
    return ExpandDims(int(a['axis']))


@_reads(Transpose, 'transpose')
def _transpose(a):
    return Transpose(_sizes(a, 'axes'))


@_reads(SwapAxes, 'SwapAxis')
def _swap_axis(a):
    return SwapAxes(int(a.get('dim1', 0)), int(a.get('dim2', 0)))


# --- maps -------------------------------------------------------------------------------------------------------------------------------


@_reads(Padding, 'Pad')
def _pad(a):
    widths = _sizes(a, 'pad_width')
    if len(widths) % 2:
        raise ValueError(f'pad_width has {len(widths)} numbers')
    return Padding(a['mode'], tuple(zip(widths[::2], widths[1::2])), float(a.get('constant_value', 0)))


@_reads(BilinearResizing, '_contrib_BilinearResize2D')
def _bilinear_resize(a):
    return BilinearResizing(a.get('mode', 'size'), truth(a.get('align_corners', 'True')))
