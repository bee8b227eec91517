"""Translation of the functions by which models of sequences compute (`sequences`): products of two values, softmax, normalizations."""

import numpy as np

from ...graph.operations import AxisSlice, Concatenation, Elementwise, Embedding, LayerNormalization, MatrixProduct, Softmax
from .translation import translate

_PRODUCTS = {  # kind of the function -> whether the second matrix is transposed, whether there are matrices for each row
    'Product': (False, False),
    'TransposedProduct': (True, False),
    'RowProduct': (False, True),
    'TransposedRowProduct': (True, True),
}


@translate(*_PRODUCTS)
def _product(t, operator):
    operation = MatrixProduct(operator.attributes['heads'], *_PRODUCTS[operator.kind])
    t.add(operator, operation, [t.entry(name) for name in operator.inputs])


@translate('Embedding')
def _embedding(t, operator):
    numbers, table = operator.inputs
    t.add(operator, Embedding(), [t.entry(numbers), t.entry(table)])


@translate('GroupSoftmax')
def _softmax(t, operator):
    t.add(operator, Softmax(operator.attributes['groups']))


@translate('ChannelNormalization')
def _normalization(t, operator):
    x = t.entry(operator.inputs[0])
    parameters = [_parameter(t, operator, position) for position in (1, 2)]
    t.add(operator, _operation(operator), [x, *_constants(t, operator, parameters)])


@translate('ChannelRmsNormalization')
def _rms_normalization(t, operator):
    """Add the normalization of each group beside its negative numbers: the mean of both is 0, and their variance the mean square."""
    x, groups = t.entry(operator.inputs[0]), operator.attributes['groups']
    batch, channels, *sizes = t.network.shape(x)
    size, parts = channels // groups, []
    for begin in range(0, channels, size):
        part = _sliced(t, operator, x, begin, size)
        parts += [part, t.add_inner(operator, Elementwise('negative'), [part], (batch, size, *sizes))]
    both = t.add_inner(operator, Concatenation(1), parts, (batch, 2 * channels, *sizes))
    parameters = [_parameter(t, operator, position).reshape(groups, 1, size) for position in (1, 2)]
    parameters = [np.repeat(array, 2, axis=1).reshape(-1) for array in parameters]
    both = t.add_inner(operator, _operation(operator), [both, *_constants(t, operator, parameters)], (batch, 2 * channels, *sizes))
    normalized = [_sliced(t, operator, both, 2 * begin, size) for begin in range(0, channels, size)]
    t.add(operator, Concatenation(1), normalized)


def _sliced(t, operator, x, begin, size):
    batch, channels, *sizes = t.network.shape(x)
    return x if size == channels else t.add_inner(operator, AxisSlice(1, begin, begin + size), [x], (batch, size, *sizes))


def _parameter(t, operator, position):
    return t.require_constant(operator, position).reshape(-1)


def _operation(operator):
    return LayerNormalization(1, operator.attributes['epsilon'], operator.attributes['groups'])


def _constants(t, operator, parameters):
    return [t.network.add_constant(array, f'{operator.name}_{name}') for array, name in zip(parameters, ('gamma', 'beta'))]
