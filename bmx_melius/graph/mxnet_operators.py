"""Reader of MXNet's operators: from a name and attributes, which are text, to an operation. Nothing else parses these attributes."""

from typing import Mapping

from ..files.symbol_json import integers, truth
from .operations import (
    Convolution,
    DeformableConvolution,
    Dense,
    GlobalPooling,
    Operation,
    Pooling,
    TransposedConvolution,
    Unknown,
    Upsampling,
    Window,
)

READERS = {}  # name of an operator -> function from its attributes to an operation


def read_operation(name: str, attributes: Mapping[str, str]) -> Operation:
    """Return the operation of an operator; `Unknown` if no class describes it, or its attributes are malformed."""
    reader = READERS.get(name)
    if reader is None:
        return Unknown(name, 'no class describes this operator')
    try:
        return reader(attributes)
    except (KeyError, ValueError) as error:
        return Unknown(name, str(error))


def _reads(*names):
    """Register the decorated function as the reader of these operators."""

    def add(function):
        READERS.update(dict.fromkeys(names, function))
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
    begins = _sizes(a, 'pad')
    ends = _sizes(a, 'pad_end') if 'pad_end' in a else begins  # networks of other frameworks have different ones
    return Window(_sizes(a, 'kernel'), _sizes(a, 'stride'), tuple(zip(begins, ends)), _sizes(a, 'dilate'))


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
