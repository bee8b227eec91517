"""Translation of convolutions and dense layers. Those that read values of few levels and have weights of few levels become binary layers.

With signs s, a value v = a s + c that is padded with p, and S the sum of all weights w of a filter,

    conv(v, w) = conv(s, a w) + c S

where s is padded with (p - c) / a. The rules of the converter (`convert.rules.low_bit`) make binary convolutions of this, also of bit
planes.
"""

import dataclasses

import numpy as np

from ...errors import counted
from ...graph.operations import Convolution, Dense, TransposedConvolution
from ...nn import marks
from ..convert.few_levels import smaller_levels
from ..convert.weight_levels import WeightParts, weight_parts
from .translation import ImportedLayer, UntranslatableError, padding_of, translate, window_of


@translate('Conv')
def _convolution(t, operator):
    weight, bias = t.require_constant(operator, 1), t.require_constant(operator, 2)
    groups = operator.attributes.get('group', 1)
    window = window_of(t, operator, weight.shape[2:])
    name, padded = operator.inputs[0], t.padded_signs.get(operator.inputs[0])
    if padded is not None and not window.is_padded:
        window, pad_value, signs = _widened(window, padded.before, padded.after), padded.value, padded.signs
    else:
        name, window, pad_value = _before_padding(t, operator, window)
        signs = t.levels_of(name)
    _Linear(t, operator, Convolution(window, groups), pad_value).add(name, signs, weight, bias)


def _before_padding(t, operator, window):
    """Return the name of the value that a convolution pads, its window with the padding of an operator before it, and what it pads with."""
    name = operator.inputs[0]
    producer = t.evaluator.producers.get(name)
    if producer is None or producer.kind != 'Pad' or producer.attributes.get('mode', 'constant') != 'constant':
        return name, window, 0.0
    before, after, value = padding_of(t, producer)
    if any(before[:2]) or any(after[:2]) or window.is_padded and value:
        return name, window, 0.0
    return producer.inputs[0], _widened(window, before, after), value


def _widened(window, before, after):
    """Return a window with more padding, of which the lists have an element for each axis of the value."""
    pads = ((begin + more, end + beyond) for (begin, end), more, beyond in zip(window.pads, before[2:], after[2:]))
    return dataclasses.replace(window, pads=tuple(pads))


@translate('Gemm')
def _gemm(t, operator):
    a = operator.attributes
    weight, bias = t.require_constant(operator, 1), t.require_constant(operator, 2)
    weight = weight if a.get('transB', 0) else weight.T
    if a.get('transA', 0):
        raise UntranslatableError('it transposes its input')
    if bias is not None:
        bias = bias * np.float32(a.get('beta', 1))
        rows = np.broadcast_to(bias, np.broadcast_shapes(bias.shape, (1, len(weight))))
        if (rows != rows[:1]).any():
            raise UntranslatableError('what it adds differs between the images of a batch')
        bias = np.ascontiguousarray(rows[0])
    _dense(t, operator, weight * np.float32(a.get('alpha', 1)), bias)


@translate('MatMul')
def _matrix_product(t, operator):
    weight = t.require_constant(operator, 1)
    if weight.ndim != 2 or len(t.shape(operator.inputs[0])) != 2:
        raise UntranslatableError('only the product of vectors with a constant matrix can be packed')
    _dense(t, operator, weight.T, None)


def _dense(t, operator, weight, bias):
    name = operator.inputs[0]
    _Linear(t, operator, Dense(), 0.0).add(name, t.levels_of(name), np.ascontiguousarray(weight), bias)


@translate('ConvTranspose')
def _transposed_convolution(t, operator):
    weight, bias = t.require_constant(operator, 1), t.require_constant(operator, 2)
    window = window_of(t, operator, weight.shape[2:])
    if any(begin != end for begin, end in window.pads) or 'output_shape' in operator.attributes:
        raise UntranslatableError('its padding differs at both ends, or its size is given')
    groups, added = operator.attributes.get('group', 1), tuple(operator.attributes.get('output_padding', ()))
    parameters = [t.network.add_constant(weight, f'{operator.name}_weight')]
    parameters += [] if bias is None else [t.network.add_constant(bias, f'{operator.name}_bias')]
    t.layers.append(ImportedLayer(operator.name, weight.size, 32, 'a transposed convolution'))
    t.add(operator, TransposedConvolution(window, groups, output_padding=added), [t.entry(operator.inputs[0]), *parameters])


def _of_few_levels(weight):
    """Return the `WeightParts` of a weight; None if it is real-valued, also where a filter has so few weights that each is a level."""
    parts = weight_parts(weight)
    return parts if parts and parts.numbers < weight[0].size else None


class _Linear:
    """A convolution or dense layer.

    Parameters
    ----------
    t : Translator
    operator : Operator
    operation : Convolution or Dense
    pad_value : float
    """

    def __init__(self, t, operator, operation, pad_value):
        self._t, self._operator, self._operation, self._pad_value = t, operator, operation, pad_value
        self._shape = t.shape(operator.outputs[0])
        is_dense = isinstance(operation, Dense)
        self._role = marks.DENSE if is_dense else marks.CONVOLUTION
        self._groups = 1 if is_dense else operation.groups
        self._padded = not is_dense and operation.window.is_padded

    def add(self, name, signs, weight, bias):
        """Add the layer with input `name`, which takes few levels if `signs` is not None."""
        t = self._t
        if bias is not None and bias.shape != (len(weight),):
            raise UntranslatableError(f'its bias has the shape {bias.shape}, not one element for each of its {len(weight)} filters')
        binary = _of_few_levels(weight)
        parts = binary if signs else None
        if parts and self._can_pack(signs):
            entry = self._binary(signs, parts, weight, bias)
            t.layers.append(ImportedLayer(self._operator.name, weight.size, len(parts.parts)))
        else:
            if self._pad_value and self._padded:
                raise UntranslatableError(f'its input is padded with {self._pad_value:g}, and it is not a binary layer')
            inputs = [t.entry(name), self._constant(weight, 'weight')] + ([] if bias is None else [self._constant(bias, 'bias')])
            entry = self._node(inputs)
            found = smaller_levels(weight)
            reads = 'real numbers' if not signs else 'several levels, which grouped and 3-D layers cannot' if binary else 'few levels'
            count = found.bits if found else len(binary.parts) if binary else 0
            weights = f'have {counted(count, "bit")}, but' if count else 'are real;'
            reason = f'its weights {weights} it reads {reads}'
            few_levels = '' if bool(count) == bool(signs) else 'weights' if binary else '' if count else 'input'
            t.layers.append(ImportedLayer(self._operator.name, weight.size, found.bits if found else 32, reason, few_levels))
        t.set(self._operator.outputs[0], entry)

    def _can_pack(self, signs):
        return not self._has_planes(signs) or self._groups == 1 and len(self._shape) < 5

    def _has_planes(self, signs):
        return self._t.network.has_planes(signs.entry.node)

    def _binary(self, signs, weights, weight, bias):
        """Add a layer that reads signs or bit planes, whose weight is the sum of `weights`; return its `Entry`."""
        total = sum(weights.parts).reshape(len(weight), -1).sum(axis=1)
        if weights.means is not None:
            total = total + weights.means * weight[0].size
        shift = signs.shift * total + (0 if bias is None else bias)
        padding = (self._pad_value - signs.shift) / signs.scale if self._padded else 0.0
        facts = {marks.ROLE: self._role, 'bits': 1, 'method': 'levels', 'sign': 0, 'pad_value': padding}
        inputs = [signs.entry, self._constant(weight, 'weight')] + ([self._constant(shift, 'shift')] if np.any(shift) else [])
        entry = self._node(inputs, facts)
        self._t.network.weights[entry.node] = self._as_read(signs, weights)
        return entry

    def _as_read(self, signs, weights):
        """Return `WeightParts` for the entry of `signs` in place of the value: the products are the same, but for the shift."""
        parts, means = weights.parts, weights.means
        if signs.flipped is not None:
            ones = np.ones(parts[0].shape)
            parts, means = parts if means is None else [*parts, ones * means.reshape(-1, *(1,) * (ones.ndim - 1))], None
            by_group = signs.flipped.reshape(self._groups, -1).repeat(len(ones) // self._groups, axis=0)
            parts = [part * by_group.reshape(*ones.shape[:2], *(1,) * (ones.ndim - 2)) for part in parts]
        return WeightParts([part * signs.scale for part in parts], None if means is None else means * signs.scale)

    def _constant(self, array, name):
        return self._t.network.add_constant(array, f'{self._operator.name}_{name}')

    def _node(self, inputs, facts=None):
        """Add the node of the layer, with the marks `facts`; return its `Entry`."""
        operator = self._operator
        return self._t.network.add(self._operation, operator.name, inputs, self._shape, facts, operator.outputs[0])
