"""MXNet's operators: from a name and attributes, which are text, to an operation, and names of operators for operations.

Nothing else parses these attributes.
"""

import functools
from typing import List, Mapping

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
    DeformableConvolution,
    Dense,
    Dropout,
    Elementwise,
    ExpandDims,
    Flatten,
    GlobalPooling,
    GroupNormalization,
    HardSigmoid,
    Identity,
    InstanceNormalization,
    LayerNormalization,
    Operation,
    Padding,
    Pooling,
    Reduction,
    Reshape,
    Rounding,
    ScalarArithmetic,
    Slice,
    Split,
    Squeeze,
    StepFunction,
    SwapAxes,
    Transpose,
    TransposedConvolution,
    Unknown,
    Upsampling,
    Window,
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
    **dict.fromkeys(('identity', '_copy', 'BlockGrad', 'stop_gradient'), Identity()),
    **dict.fromkeys(('Reshape', 'reshape'), Reshape()),  # their result has the shape of the node
    'Flatten': Flatten(),
    'squeeze': Squeeze(),
}
_READERS = {}  # name of another operator -> function from its attributes to an operation


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


def _reads(*names):
    """Register the decorated function as the reader of these operators."""

    def add(function):
        _READERS.update(dict.fromkeys(names, function))
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


@_reads('FullyConnected')
def _fully_connected(a):
    return Dense(truth(a.get('flatten', 'True')))


# --- windows ----------------------------------------------------------------------------------------------------------------------------


def _window(a):
    pads = tuple((size, size) for size in _sizes(a, 'pad'))
    return Window(_sizes(a, 'kernel'), _sizes(a, 'stride'), pads, _sizes(a, 'dilate'))


def _window_groups_layout(a):
    return _window(a), int(a.get('num_group', 1)), _layout(a)


@_reads('Convolution', 'Convolution_v1')
def _convolution(a):
    return Convolution(*_window_groups_layout(a))


@_reads('_contrib_DeformableConvolution')
def _deformable_convolution(a):
    return DeformableConvolution(*_window_groups_layout(a))


@_reads('_contrib_ModulatedDeformableConvolution')
def _modulated_deformable_convolution(a):
    return DeformableConvolution(*_window_groups_layout(a), modulated=True)


@_reads('Deconvolution')
def _deconvolution(a):
    return TransposedConvolution(*_window_groups_layout(a), _sizes(a, 'adj'), _sizes(a, 'target_shape'))


@_reads('Pooling')
def _pooling(a):
    kind, layout = a.get('pool_type', 'max'), _layout(a)
    if truth(a.get('global_pool', 'False')):
        return GlobalPooling(kind, layout)
    counts_padding = a.get('count_include_pad', 'None')
    convention = a.get('pooling_convention', 'valid')
    return Pooling(kind, _window(a), convention, counts_padding == 'None' or truth(counts_padding), layout)


@_reads('UpSampling')
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


def elementwise_names(kind: str) -> List[str]:
    """Return the names of the operators that are an `Elementwise` of this kind."""
    return [name for name, operation in _WITHOUT_ATTRIBUTES.items() if isinstance(operation, Elementwise) and operation.kind == kind]


def scalar_names(kind: str) -> List[str]:
    """Return the names of the operators that are a `ScalarArithmetic` of this kind."""
    return [name for name, other in _SCALAR_ARITHMETIC.items() if other == kind]


def _scalar_arithmetic(kind, a):
    return ScalarArithmetic(kind, float(a.get('scalar', 0)))


_READERS.update({name: functools.partial(_scalar_arithmetic, kind) for name, kind in _SCALAR_ARITHMETIC.items()})


@_reads('Activation')
def _activation(a):
    return Activation(a['act_type'])


@_reads('LeakyReLU')
def _leaky_relu(a):
    kind = a.get('act_type', 'leaky')
    return Activation(kind, float(a.get('slope', 0.25)) if kind in ('leaky', 'elu') else None)


@_reads('clip')
def _clip(a):
    return Clip(float(a['a_min']), float(a['a_max']))


@_reads('hard_sigmoid')
def _hard_sigmoid(a):
    return HardSigmoid(float(a.get('alpha', 0.2)), float(a.get('beta', 0.5)))


@_reads('_npi_around')
def _around(a):
    return Rounding(int(a.get('decimals', 0)))


# --- normalizations ---------------------------------------------------------------------------------------------------------------------


@_reads('BatchNorm')
def _batch_norm(a):
    return BatchNormalization(
        axis=int(a.get('axis', 1)),
        eps=float(a.get('eps', 1e-3)),
        fixes_gamma=truth(a.get('fix_gamma', 'True')),
        returns_statistics=truth(a.get('output_mean_var', 'False')),
    )


@_reads('LayerNorm')
def _layer_norm(a):
    return LayerNormalization(int(a.get('axis', -1)), float(a.get('eps', 1e-5)))


@_reads('GroupNorm')
def _group_norm(a):
    return GroupNormalization(int(a.get('num_groups', 1)), float(a.get('eps', 1e-5)))


@_reads('InstanceNorm')
def _instance_norm(a):
    return InstanceNormalization(float(a.get('eps', 1e-3)))


def _reduction(kind, a):
    axes = tuple(axis for axis in integers(a.get('axis', 'None')) if axis is not None)
    return Reduction(kind, axes, truth(a.get('keepdims', 'False')), truth(a.get('exclude', 'False')))


_READERS.update({kind: functools.partial(_reduction, kind) for kind in ('mean', 'max')})


# --- moves ------------------------------------------------------------------------------------------------------------------------------


@_reads('Dropout')
def _dropout(a):
    return Dropout(a.get('mode', 'training') == 'always')


@_reads('Concat')
def _concat(a):
    return Concatenation(int(a.get('dim', 1)))


@_reads('slice_axis')
def _slice_axis(a):
    end = a.get('end', 'None')
    return AxisSlice(int(a['axis']), int(a['begin']), None if end == 'None' else int(end))


@_reads('slice')
def _slice(a):
    return Slice(*(integers(a.get(name, '')) for name in ('begin', 'end', 'step')))


@_reads('SliceChannel')
def _slice_channel(a):
    return Split(int(a.get('axis', 1)), truth(a.get('squeeze_axis', 'False')))


@_reads('expand_dims')
def _expand_dims(a):
    return ExpandDims(int(a['axis']))


@_reads('transpose')
def _transpose(a):
    return Transpose(_sizes(a, 'axes'))


@_reads('SwapAxis')
def _swap_axis(a):
    return SwapAxes(int(a.get('dim1', 0)), int(a.get('dim2', 0)))


# --- maps -------------------------------------------------------------------------------------------------------------------------------


@_reads('Pad')
def _pad(a):
    widths = _sizes(a, 'pad_width')
    if len(widths) % 2:
        raise ValueError(f'pad_width has {len(widths)} numbers')
    return Padding(a['mode'], tuple(zip(widths[::2], widths[1::2])), float(a.get('constant_value', 0)))


@_reads('_contrib_BilinearResize2D')
def _bilinear_resize(a):
    return BilinearResizing(a.get('mode', 'size'), truth(a.get('align_corners', 'True')))


# --- names ------------------------------------------------------------------------------------------------------------------------------

_NAMES = {  # class of an operation with attributes -> operator
    AxisSlice: 'slice_axis',
    BatchNormalization: 'BatchNorm',
    BilinearResizing: '_contrib_BilinearResize2D',
    Clip: 'clip',
    Concatenation: 'Concat',
    Convolution: 'Convolution',
    Dense: 'FullyConnected',
    Dropout: 'Dropout',
    ExpandDims: 'expand_dims',
    GlobalPooling: 'Pooling',
    GroupNormalization: 'GroupNorm',
    HardSigmoid: 'hard_sigmoid',
    InstanceNormalization: 'InstanceNorm',
    LayerNormalization: 'LayerNorm',
    Padding: 'Pad',
    Pooling: 'Pooling',
    Rounding: '_npi_around',
    Slice: 'slice',
    Split: 'SliceChannel',
    SwapAxes: 'SwapAxis',
    Transpose: 'transpose',
    TransposedConvolution: 'Deconvolution',
    Upsampling: 'UpSampling',
    AxisMaps: 'map_axes',  # this one and the next one are not MXNet's
    StepFunction: 'step',
}


def operator_name(operation: Operation) -> str:
    """Return the name of the operator that stands for an operation in reports and in the table of conversion rules."""
    if isinstance(operation, Unknown):
        return operation.name
    for name, other in _WITHOUT_ATTRIBUTES.items():
        if other == operation:
            return name
    if isinstance(operation, ScalarArithmetic):
        return scalar_names(operation.kind)[0]
    if isinstance(operation, Reduction):
        return operation.kind
    if isinstance(operation, Activation):
        return 'Activation' if operation.kind in ('softrelu', 'softsign') else 'LeakyReLU'
    if isinstance(operation, DeformableConvolution):
        return '_contrib_ModulatedDeformableConvolution' if operation.modulated else '_contrib_DeformableConvolution'
    return _NAMES[type(operation)]
