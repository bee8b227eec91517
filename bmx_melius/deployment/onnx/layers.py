"""Translation of convolutions and dense layers. Those that read values of few levels and have weights of few levels become binary layers.

With signs s and a value v = a s + m, weights w = sum of f_j w_j + b, where w_j are signs and f_j and b numbers for each filter, and S the
sum of all w of a filter,

    conv(v, w) = a sum of f_j conv(s, w_j) + a b conv(s, 1) + m S

if v is padded with p = a q + m, and s with q. For other q than -1, 0 and 1, s is padded with 0, and the sum of the weights beyond the map,
times p - m, is added: a convolution of one channel of ones.
"""

import numpy as np

from ...nn import marks
from ..convert.weight_levels import weight_parts
from .translation import Layer, UntranslatableError, padding_of, translate, window_of


@translate('Conv')
def _convolution(t, operator):
    weight, bias = t.require_constant(operator, 1), t.require_constant(operator, 2)
    groups = operator.attributes.get('group', 1)
    window = window_of(t, operator, weight.shape[2:])
    window.update(num_group=groups)
    name, padded = operator.inputs[0], t.padded_signs.get(operator.inputs[0])
    if padded is not None and not any(window['pad']) and not any(window['pad_end']):
        _widen(window, padded.before, padded.after)
        _Linear(t, operator, 'Convolution', marks.CONVOLUTION, window, padded.value).add(name, padded.signs, weight, bias)
    else:
        name, pad_value = _before_padding(t, operator, window)
        _Linear(t, operator, 'Convolution', marks.CONVOLUTION, window, pad_value).add(name, t.levels_of(name), weight, bias)


def _before_padding(t, operator, window):
    """Return the name of the value that a convolution pads, and with what; add the padding of an operator before it to its window."""
    name = operator.inputs[0]
    producer = t.evaluator.producers.get(name)
    if producer is None or producer.kind != 'Pad':
        return name, 0.0
    before, after, value = padding_of(t, producer)
    own = any(window['pad']) or any(window['pad_end'])
    if any(before[:2]) or any(after[:2]) or own and value:
        return name, 0.0
    _widen(window, before, after)
    return producer.inputs[0], value


def _widen(window, before, after):
    window['pad'] = tuple(first + second for first, second in zip(window['pad'], before[2:]))
    window['pad_end'] = tuple(first + second for first, second in zip(window['pad_end'], after[2:]))


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
    layer = _Linear(t, operator, 'FullyConnected', marks.DENSE, {'flatten': True}, 0.0)
    layer.add(name, t.levels_of(name), np.ascontiguousarray(weight), bias)


@translate('ConvTranspose')
def _transposed_convolution(t, operator):
    weight, bias = t.require_constant(operator, 1), t.require_constant(operator, 2)
    window = window_of(t, operator, weight.shape[2:])
    if window.pop('pad_end') != window['pad'] or 'output_shape' in operator.attributes:
        raise UntranslatableError('its padding differs at both ends, or its size is given')
    adjusted = tuple(operator.attributes.get('output_padding', [0] * len(window['pad'])))
    groups = operator.attributes.get('group', 1)
    attributes = {**window, 'adj': adjusted, 'num_group': groups, 'num_filter': weight.shape[1] * groups, 'no_bias': bias is None}
    parameters = [t.network.add_constant(weight, f'{operator.name}_weight')]
    parameters += [] if bias is None else [t.network.add_constant(bias, f'{operator.name}_bias')]
    t.layers.append(Layer(operator.name, weight.size, 32, 'a transposed convolution'))
    t.add(operator, 'Deconvolution', [t.entry(operator.inputs[0]), *parameters], attributes)


class _Linear:
    """A convolution or dense layer.

    Parameters
    ----------
    t : Translator
    operator : Operator
    mxnet_operator, role : str
    attributes : dict
        Of the MXNet operator, without the number of filters.
    pad_value : float
    """

    def __init__(self, t, operator, mxnet_operator, role, attributes, pad_value):
        self._t, self._operator, self._kind, self._role = t, operator, mxnet_operator, role
        self._attributes, self._pad_value = attributes, pad_value
        self._groups = attributes.get('num_group', 1)
        self._shape = t.shape(operator.outputs[0])
        self._padded = any(attributes.get('pad', ())) or any(attributes.get('pad_end', ()))

    def add(self, name, signs, weight, bias):
        """Add the layer with input `name`, which takes few levels if `signs` is not None."""
        t = self._t
        if bias is not None and bias.shape != (len(weight),):
            raise UntranslatableError(f'its bias has the shape {bias.shape}, not one element for each of its {len(weight)} filters')
        parts = weight_parts(weight) if signs else None
        if parts and self._can_pack(signs):
            entry = self._binary(signs, parts, bias)
            t.layers.append(Layer(self._operator.name, weight.size, len(parts.parts)))
        else:
            if self._pad_value and self._padded:
                raise UntranslatableError(f'its input is padded with {self._pad_value:g}, and it is not a binary layer')
            inputs = [t.entry(name), self._constant(weight, 'weight')] + ([] if bias is None else [self._constant(bias, 'bias')])
            entry = self._node(self._operator.name, inputs, len(weight), bias is None, value=self._operator.outputs[0])
            binary = weight_parts(weight)
            reads = 'real numbers' if not signs else 'several levels, which grouped and 3-D layers cannot' if binary else 'few levels'
            count = len(binary.parts) if binary else 0
            weights = f'have {count} bit{"s" if count > 1 else ""}, but' if binary else 'are real;'
            reason = f'its weights {weights} it reads {reads}'
            t.layers.append(Layer(self._operator.name, weight.size, 32, reason))
        t.set(self._operator.outputs[0], entry)

    def _can_pack(self, signs):
        return not self._has_planes(signs) or self._groups == 1 and len(self._shape) < 5

    def _has_planes(self, signs):
        return self._t.network.has_planes(signs.entry.node)

    def _facts(self, signs, padding, is_sign):
        """Return the marks of a layer that reads signs or bit planes; `is_sign` is whether its weights are signs without factors."""
        encoding = '' if self._has_planes(signs) else 'sign'
        facts = {'bits': 1, 'method': 'sign', 'sign': int(is_sign), 'pad_value': padding, 'encoding': encoding}
        return {marks.ROLE: self._role, **facts}

    def _binary(self, signs, weights, bias):
        has_planes = self._has_planes(signs)
        filters = len(weights.parts[0])
        total = sum(weights.parts).reshape(filters, -1).sum(axis=1)
        if weights.means is not None:
            total = total + weights.means * weights.parts[0][0].size
        shift, border = signs.shift * total, None
        padding = (self._pad_value - signs.shift) / signs.scale if self._padded else 0.0
        if has_planes:
            padding = self._pad_value - signs.shift if self._padded else 0.0
        elif padding not in (-1, 0, 1):
            border = self._border(signs, weights, self._pad_value - signs.shift)
            padding = 0.0
        turned = self._turned(signs, weights.parts[0].shape)
        terms = [self._product(signs, part * signs.scale * turned, padding) for part in weights.parts]
        if weights.means is not None:
            terms.append(self._mean(signs, weights, padding))
        terms += [] if border is None else [border]
        if bias is not None:
            shift = shift + bias
        return self._total(terms, shift)

    def _total(self, terms, shift):
        """Add the sum of the terms, functions (name, value) -> Entry, and of a number for each filter; return its `Entry`."""
        t, operator, output = self._t, self._operator, self._operator.outputs[0]
        shifted = bool(np.any(shift))
        if len(terms) == 1 and not shifted:
            return terms[0](operator.name, output)
        entry = terms[0](f'{operator.name}_0', None)
        for number, term in enumerate(terms[1:], 1):
            last = number == len(terms) - 1 and not shifted
            inputs = [entry, term(f'{operator.name}_{number}', None)]
            name = operator.name if last else f'{operator.name}_sum{number}'
            entry = t.network.add('elemwise_add', name, inputs, self._shape, value=output if last else None)
        if not shifted:
            return entry
        constant = self._by_filter(shift, 'shift')
        return t.network.add('broadcast_add', operator.name, [entry, constant], self._shape, value=output)

    def _by_filter(self, numbers, name):
        return self._constant(np.reshape(numbers, (1, -1, *(1,) * (len(self._shape) - 2))), name)

    def _constant(self, array, name):
        return self._t.network.add_constant(array, f'{self._operator.name}_{name}')

    def _node(self, name, inputs, filters, no_bias=True, facts=None, value=None, **attributes):
        count = 'num_filter' if self._kind == 'Convolution' else 'num_hidden'
        attributes = {**self._attributes, count: filters, 'no_bias': no_bias, **attributes}
        shape = (self._shape[0], filters, *self._shape[2:])
        return self._t.network.add(self._kind, name, inputs, shape, attributes, facts, value)

    def _product(self, signs, weight, padding):
        """Return the term for one part of the weights, signs times a number for each filter or position."""
        magnitudes = np.abs(weight).reshape(len(weight), -1)
        factors = magnitudes[:, 0]

        def binary(name, value):
            """Add a layer of signs and its factors."""
            ones = (factors == 1).all()
            constant = self._constant(np.where(weight >= 0, 1, -1), 'weight')
            facts = self._facts(signs, padding, is_sign=True)
            read = self._read(signs, padding, name)
            entry = self._node(name if ones else f'{name}_signs', [read, constant], len(weight), facts=facts, value=value if ones else None)
            if ones:
                return entry
            factor = self._by_filter(factors, 'factor')
            return self._t.network.add('broadcast_mul', name, [entry, factor], self._shape, value=value)

        def several_bits(name, value):
            """Add a layer of bit planes, or with a number for each kernel position."""
            facts = self._facts(signs, padding, is_sign=False)
            inputs = [self._read(signs, padding, name), self._constant(weight, 'weight')]
            return self._node(name, inputs, len(weight), facts=facts, value=value)

        same = (np.abs(magnitudes - factors[:, None]) <= 1e-6 * magnitudes.max(axis=1, keepdims=True)).all()
        return binary if same and not self._has_planes(signs) else several_bits

    def _read(self, signs, padding, name):
        """Return the `Entry` that a binary layer reads: with the mark of its padding, which the rules of MXNet's layers expect."""
        if not padding or self._has_planes(signs):
            return signs.entry
        facts = {marks.ROLE: marks.CONVOLUTION_INPUT, 'pad_value': padding}
        shape, attributes = self._t.network.shape(signs.entry), {'scalar': padding}
        return self._t.network.add('_minus_scalar', f'{name}_padded', [signs.entry], shape, attributes, facts)

    def _mean(self, signs, weights, padding):
        """Return the term of a mean for each filter: the sum of the window, from one filter of ones for each group, times the mean."""

        def term(name, value):
            means, size = weights.means * signs.scale, (self._groups, *weights.parts[0].shape[1:])
            facts = self._facts(signs, padding, is_sign=not self._has_planes(signs))
            ones = self._constant(np.ones(size) * self._turned(signs, size), 'ones')
            sums = self._node(f'{name}_window', [self._read(signs, padding, name), ones], self._groups, facts=facts)
            weight = self._constant(means.reshape(-1, 1, *(1,) * (len(size) - 2)), 'mean')
            if self._kind == 'FullyConnected':
                return self._node(name, [sums, weight], len(means), value=value)
            one = (1,) * (len(size) - 2)
            window = {'kernel': one, 'stride': one, 'dilate': one, 'pad': (0,) * len(one), 'pad_end': (0,) * len(one)}
            return self._node(name, [sums, weight], len(means), value=value, **window)

        return term

    def _turned(self, signs, shape):
        """Return factors -1 and 1 of weights of this shape, which read signs some of which are the opposite ones."""
        if signs.flipped is None:
            return np.ones((1,) * len(shape))
        by_group = signs.flipped.reshape(self._groups, shape[1]).repeat(shape[0] // self._groups, axis=0)
        return by_group.reshape(*shape[:2], *(1,) * (len(shape) - 2))

    def _border(self, signs, weights, difference):
        """Return the term of the weights beyond the map, times the difference between the padding and what stands for it in the signs."""

        def term(name, value):
            network, shape = self._t.network, self._t.network.shape(signs.entry)
            weight = sum(weights.parts).sum(axis=1, keepdims=True)
            if weights.means is not None:
                weight = weight + (weights.means * weights.parts[0].shape[1]).reshape(-1, *(1,) * (weight.ndim - 1))
            one = (shape[0], 1, *shape[2:])
            plane = network.add('slice_axis', f'{name}_channel', [signs.entry], one, {'axis': 1, 'begin': 0, 'end': 1})
            plane = network.add('_mul_scalar', f'{name}_zeros', [plane], one, {'scalar': 0.0})
            plane = network.add('_plus_scalar', f'{name}_ones', [plane], one, {'scalar': 1.0})
            inside = self._constant(-difference * weight, 'border')
            beyond = self._constant(difference * weight.reshape(len(weight), -1).sum(axis=1), 'beyond')
            return self._node(name, [plane, inside, beyond], len(weight), no_bias=False, value=value, num_group=1)

        return term
