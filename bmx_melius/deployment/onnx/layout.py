"""Models with the channels last, as of TensorFlow, made models with the channels second.

tf2onnx puts a `Transpose` before and after each convolution, and what is between them has the channels last. Here the same operators
compute the transposed values: elementwise operators with transposed constants, others along other axes, and dense layers with permuted
weights. What each element is computed from does not change. Where there is one channel or one position, a `Reshape` may do what a
`Transpose` does, and a flattened map may have axes of size 1, between any of these operators.
"""

import dataclasses

import numpy as np

from .evaluation import ELEMENTWISE, PARAMETERS_BY_CHANNEL
from .model import import_onnx_package

_DENSE = ('MatMul', 'Gemm')
_RESHAPES = ('Reshape', 'Flatten', 'Squeeze', 'Unsqueeze')
_LAST_BY_DEFAULT = ('Softmax', 'LogSoftmax')  # operators along the last axis unless they name one
_ALONG_AXIS = ('Concat', 'Split', *_LAST_BY_DEFAULT)
_REDUCTIONS = ('ReduceMean', 'ReduceMax')


def to_second(rank):
    """Return the permutation from (N, ..., C) to (N, C, ...)."""
    return [0, rank - 1, *range(1, rank - 1)]


def to_last(rank):
    """Return the permutation from (N, C, ...) to (N, ..., C)."""
    return [0, *range(2, rank), 1]


def with_channels_second(evaluator):
    """Return an `Evaluator` of the model with the channels second, and the names of the inputs whose shape that changes.

    The given one and no names if the model has no channels to move.
    """
    varying = [operator for operator in evaluator.model.operators if operator.outputs[0] in evaluator.varying]
    if not any(_to_second(evaluator, operator) for operator in varying):
        return evaluator, []
    layout = _Layout(evaluator)
    proto = layout.rewritten()
    shapes = {name: layout.shape_of_input(name) for name in evaluator.shapes}
    return evaluator.replaced(proto, shapes), layout.moved_inputs


def _moves_channels(operator, order, before, after):
    """Return whether an operator moves the channels of the shape `before` as an order of axes does: a `Transpose`, or a `Reshape`.

    That does so where there is one channel or one position, so that the elements keep their order.
    """
    if operator.kind not in ('Transpose', 'Reshape'):
        return False
    rank, channel = len(before), 1 if order is to_last else -1
    if operator.kind == 'Transpose' or rank < 3:
        return rank > 2 and list(operator.attributes.get('perm', ())) == order(rank)
    in_order = before[channel] in (1, np.prod(before[1:]))
    return in_order and before != after == tuple(before[axis] for axis in order(rank))


def _to_second(evaluator, operator):
    return _moves_channels(operator, to_second, evaluator.shape(operator.inputs[0]), evaluator.shape(operator.outputs[0]))


def _is_vector(before, after):
    """Return whether a value of shape `after` with the elements of `before` has one axis for all elements of an image."""
    if min(len(before), len(after)) < 2 or before[0] != after[0]:
        return False
    return max(after[1:]) == np.prod(before[1:]) == np.prod(after[1:])


@dataclasses.dataclass
class _Flat:
    """A vector that was flattened from a map with the channels last: the same with the channels second, and where its elements were.

    The vector may have axes of size 1 beside the axis of its elements; with the channels second it has none.
    """

    name: str
    order: np.ndarray


@dataclasses.dataclass
class _Rows:
    """Vectors of all positions, one below the other: the name of the map with the channels second, and its sizes without the channels."""

    name: str
    sizes: tuple


class _Layout:
    def __init__(self, evaluator):
        self._evaluator, self._onnx = evaluator, import_onnx_package()[0]
        self._second = {}  # name of a value (N, ..., C) -> name of the same value (N, C, ...)
        self._flat = {}  # name of a value (N, elements), perhaps with axes of size 1 -> _Flat
        self._rows = {}  # name of a value (N * positions, C) -> _Rows
        self._nodes, self._initializers, self._renamed = [], [], {}
        self.moved_inputs = [name for name in evaluator.shapes if self._is_last(name)]

    def _is_last(self, name):
        """Return whether an input is transposed, perhaps after elementwise operators, to have the channels second."""
        for operator in self._first_readers(name):
            if _to_second(self._evaluator, operator):
                # of three axes, the exchange of the last two moves the channels in either direction
                rank = len(self._evaluator.shape(operator.inputs[0]))
                readers = self._first_readers(operator.outputs[0])
                return rank > 3 or not any(reader.kind in _DENSE or reader.kind == 'Reshape' for reader in readers)
        return False

    def _first_readers(self, name):
        """Return the operators that read a value, perhaps after elementwise operators and padding, which are not among them."""
        waiting, seen, readers = [name], set(), []
        while waiting:
            value = waiting.pop()
            for operator in self._evaluator.model.operators:
                if value in operator.inputs and operator.outputs[0] not in seen:
                    seen.add(operator.outputs[0])
                    if operator.kind in ELEMENTWISE or operator.kind == 'Pad':
                        waiting.append(operator.outputs[0])
                    else:
                        readers.append(operator)
        return readers

    def shape_of_input(self, name):
        shape = self._evaluator.shapes[name]
        return tuple(shape[axis] for axis in to_second(len(shape))) if name in self.moved_inputs else shape

    def rewritten(self):
        """Return the ModelProto."""
        onnx, model = self._onnx, self._evaluator.model
        for name in self.moved_inputs:
            last = f'{name}_channels_last'
            self._add('Transpose', [name], last, perm=to_last(len(self._evaluator.shapes[name])))
            self._renamed[name], self._second[last] = last, name
        for operator, node in zip(model.operators, model.proto.graph.node):
            operator = dataclasses.replace(operator, inputs=[self._renamed.get(name, name) for name in operator.inputs])
            self._move(operator)
            copied = onnx.NodeProto()
            copied.CopyFrom(node)
            del copied.input[:]
            copied.input.extend(operator.inputs)
            self._nodes.append(copied)
        self._replace_outputs()
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        del proto.graph.node[:]
        proto.graph.node.extend(self._nodes)
        proto.graph.initializer.extend(self._initializers)
        for entry in proto.graph.input:
            if entry.name in self.moved_inputs and entry.type.tensor_type.HasField('shape'):
                axes = entry.type.tensor_type.shape.dim
                sizes = [onnx.TensorShapeProto.Dimension() for _ in axes]
                for size, axis in zip(sizes, to_second(len(axes))):
                    size.CopyFrom(axes[axis])
                del axes[:]
                axes.extend(sizes)
        return proto

    def _replace_outputs(self):
        """Compute the outputs of the model from the moved values: as they are, or with the channels moved back."""
        for name in self._evaluator.model.outputs:
            moved = self._renamed.get(name) or self._second.get(name)
            if moved is None:
                continue
            for node in self._nodes:
                if name in node.output:
                    node.output[list(node.output).index(name)] = f'{name}_unmoved'
            make = self._onnx.helper.make_node
            if name in self._renamed:
                self._nodes.append(make('Identity', [moved], [name], f'{name}_output'))
            else:
                self._nodes.append(make('Transpose', [moved], [name], f'{name}_output', perm=to_last(len(self._evaluator.shape(name)))))

    def _constant(self, array, name):
        name = f'{name}_{len(self._initializers)}_moved'
        self._initializers.append(self._onnx.numpy_helper.from_array(np.asarray(array, order='C'), name))
        return name

    def _add(self, kind, inputs, output, **attributes):
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=f'{output}_moved', **attributes))
        return output

    def _again(self, operator, inputs, **attributes):
        """Add an operator that reads moved values; return the names of its outputs."""
        outputs = [f'{output}_channels_second' if output else '' for output in operator.outputs]
        attributes = {**operator.attributes, **attributes}
        attributes = {name: self._onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for name, v in attributes.items()}
        self._nodes.append(self._onnx.helper.make_node(operator.kind, inputs, outputs, name=f'{operator.name}_moved', **attributes))
        return outputs

    def _move(self, operator):
        """Add the operators that compute the values of an operator with the channels second, if it reads such."""
        kind, output, first = operator.kind, operator.outputs[0], operator.inputs[0] if operator.inputs else ''
        shape = self._evaluator.shape(output)
        if kind in ('Transpose', *_RESHAPES) and self._move_elements(operator, first, shape):
            return
        if kind in ELEMENTWISE:
            self._move_elementwise(operator, shape)
        elif kind == 'Conv' and first in self._flat:
            self._move_convolution(operator, self._flat[first], shape)
        elif kind in _DENSE and not operator.attributes.get('transA', 0):
            if first in self._flat:
                self._move_dense(operator, self._flat[first], shape)
            elif first in self._rows:
                name = self._dense_of_positions(operator, self._rows[first].name)
                if name:
                    self._rows[output] = dataclasses.replace(self._rows[first], name=name)
            elif first in self._second and kind == 'MatMul':
                name = self._dense_of_positions(operator, self._second[first])
                if name:
                    self._second[output] = name
        elif first in self._second:
            self._move_other(operator, first, shape)
        elif first in self._rows and kind == 'Reshape':
            sizes = self._rows[first].sizes
            if shape == (*sizes, self._shape(first)[1]):
                self._second[output] = self._rows[first].name

    def _shape(self, name):
        """Return the shape of a value that an operator reads, before it was renamed."""
        return self._evaluator.shape(self._original_shape(name))

    def _move_elements(self, operator, first, after):
        """Set the output of an operator that moves elements if it is a vector, or a map whose channels it moves; return whether it is."""
        output, before = operator.outputs[0], self._shape(first)
        if _is_vector(before, after):
            self._move_vector(first, output, before, after)
        elif first in self._second and _moves_channels(operator, to_second, before, after):
            self._renamed[output] = self._second[first]
        elif _moves_channels(operator, to_last, before, after):
            self._second[output] = first
        else:
            return False
        return True

    def _move_vector(self, first, output, before, shape):
        if first in self._flat:
            self._flat[output] = self._flat[first]
        elif first in self._second:
            sizes, second = before[1:], (before[0], before[-1], *before[1:-1])
            order = np.moveaxis(np.arange(int(np.prod(sizes))).reshape(sizes), -1, 0).reshape(-1)
            if np.array_equal(order, np.arange(len(order))):
                self._set_vector(output, shape, self._second[first], second)
            else:
                name = self._reshaped(self._second[first], f'{output}_channels_second', (shape[0], len(order)))
                self._flat[output] = _Flat(name, order)
        elif before[1] == max(before[1:]) > shape[1]:
            self._set_vector(output, shape, first, before)

    def _set_vector(self, output, shape, name, before):
        """Set a value, a vector of some shape, to the value `name` of shape `before` with the same elements."""
        count = max(shape[1:])
        second = shape[0], count, *(1,) * (len(shape) - 2)
        if before != second:
            name = self._reshaped(name, f'{output}_map', second)
        if shape == second:
            self._renamed[output] = name
        elif shape[-1] == count:
            self._second[output] = name

    def _reshaped(self, name, output, shape):
        return self._add('Reshape', [name, self._constant(np.array(shape, np.int64), output)], output)

    def _move_elementwise(self, operator, shape):
        varying = [name for name in operator.inputs if name and self._evaluator.constant(self._original(name)) is None]
        constants = [self._evaluator.constant(name) for name in operator.inputs if name and name not in varying]
        by_channel = operator.kind in PARAMETERS_BY_CHANNEL and any(array.size > 1 for array in constants)
        if varying and all(name in self._second for name in varying) and not by_channel:  # by_channel: of axis 1, which moves
            inputs = [self._second.get(name) or self._moved_constant(name, len(shape)) for name in operator.inputs]
            outputs = self._again(operator, inputs)
            self._second.update(zip(operator.outputs, outputs))
        elif varying and all(name in self._rows for name in varying) and all(array.size in (1, shape[1]) for array in constants):
            sizes, inputs = self._rows[varying[0]].sizes, []
            for name in operator.inputs:
                if name in self._rows:
                    inputs.append(self._rows[name].name)
                else:
                    inputs.append(name if operator.kind in PARAMETERS_BY_CHANNEL else self._moved_constant(name, len(sizes) + 1))
            self._rows[operator.outputs[0]] = _Rows(self._again(operator, inputs)[0], sizes)
        elif varying and all(name in self._flat for name in varying):
            self._move_elementwise_of_vectors(operator, varying, constants, shape)

    def _move_elementwise_of_vectors(self, operator, varying, constants, shape):
        order = self._flat[varying[0]].order
        if any(self._shape(name) != shape or not np.array_equal(self._flat[name].order, order) for name in varying):
            return
        by_channel, sizes = operator.kind in PARAMETERS_BY_CHANNEL, [array.size for array in constants]
        of_axis_1 = shape[1] == len(order) and operator.attributes.get('axis', 1) % len(shape) == 1
        if by_channel and not of_axis_1 and (max(sizes) > 1 or operator.kind == 'BatchNormalization'):
            return
        inputs = [
            self._flat[name].name if name in self._flat else self._moved_vector(name, order, len(shape), by_channel)
            for name in operator.inputs
        ]
        self._flat[operator.outputs[0]] = _Flat(self._again(operator, inputs)[0], order)

    def _original(self, name):
        return next((before for before, after in self._renamed.items() if after == name), name)

    def _moved_constant(self, name, rank):
        if not name:
            return name
        array = self._evaluator.constant(name)
        if array.ndim < 2:
            array = array.reshape((1,) * (rank - 1) + array.shape) if array.ndim else array
        else:
            array = array.reshape((1,) * (rank - array.ndim) + array.shape)
        return self._constant(array.transpose(to_second(rank)) if array.ndim else array, name)

    def _moved_vector(self, name, order, rank, by_channel):
        """Return the name of a constant beside a vector whose elements are in an order, which had `rank` axes."""
        array = self._evaluator.constant(name) if name else None
        if array is None or not array.ndim:
            return name
        if not by_channel:  # what is beside it is repeated: of the other axes each has the size 1
            array = array.reshape((1,) * (rank - array.ndim) + array.shape)
            array = array.reshape(len(array), -1)
        return self._constant(array[..., order] if array.shape[-1] == len(order) else array, name)

    def _move_other(self, operator, first, shape):
        kind, sizes, second = operator.kind, self._shape(first), self._second[first]
        rank = len(sizes)
        position = {axis: place for place, axis in enumerate(to_second(rank))}
        if kind in ('Reshape', 'Flatten') and shape == (int(np.prod(sizes[:-1])), sizes[-1]) and shape[0] != sizes[0]:
            self._rows[operator.outputs[0]] = _Rows(second, sizes[:-1])
        elif kind in _ALONG_AXIS and all(name in self._second for name in operator.inputs if name in self._evaluator.varying):
            inputs = [self._second.get(name, name) for name in operator.inputs]
            axis = operator.attributes.get('axis', -1 if kind in _LAST_BY_DEFAULT else 0)
            outputs = self._again(operator, inputs, axis=position[axis % rank])
            self._second.update(zip(operator.outputs, outputs))
        elif kind in _REDUCTIONS:
            self._move_reduction(operator, second, position, rank)
        elif kind == 'Pad' and len(operator.inputs) < 4 and 'pads' not in operator.attributes:
            pads = self._evaluator.constant(operator.inputs[1]).reshape(2, rank)
            pads = self._constant(np.ascontiguousarray(pads[:, to_second(rank)].reshape(-1)), operator.name)
            self._second[operator.outputs[0]] = self._again(operator, [second, pads, *operator.inputs[2:]])[0]
        elif kind == 'Resize' and 'axes' not in operator.attributes:
            self._move_resize(operator, second, rank)

    def _move_resize(self, operator, second, rank):
        inputs = [second]
        for name, parts in zip(operator.inputs[1:], (2, 1, 1)):  # the limits of the region, scales and sizes
            array = self._evaluator.constant(name) if name else np.zeros(0)
            if array is None:
                return
            moved = array.reshape(parts, rank)[:, to_second(rank)].reshape(-1) if array.size else None
            inputs.append(name if moved is None else self._constant(moved, operator.name))
        self._second[operator.outputs[0]] = self._again(operator, inputs)[0]

    def _original_shape(self, name):
        return name if name in self._evaluator.varying else self._original(name)

    def _move_reduction(self, operator, second, position, rank):
        axes = operator.attributes.get('axes')
        if axes is None and len(operator.inputs) > 1:
            axes = self._evaluator.constant(operator.inputs[1])
        if axes is None:
            return
        moved = sorted(position[int(axis) % rank] for axis in axes)
        attributes = {'axes': moved} if 'axes' in operator.attributes else {}
        inputs = [second] if attributes else [second, self._constant(np.array(moved, np.int64), operator.name)]
        (output,) = self._again(operator, inputs, **attributes)
        if operator.attributes.get('keepdims', 1):
            self._second[operator.outputs[0]] = output
        elif moved == list(range(2, rank)):
            self._renamed[operator.outputs[0]] = output

    def _dense_of_positions(self, operator, second):
        """Add a convolution of size 1 that computes the dense layer of each position; return the name of its output, '' without one."""
        weight = self._evaluator.constant(operator.inputs[1])
        if weight is None or weight.ndim != 2:
            return ''
        weight = weight if operator.attributes.get('transB', 0) else weight.T
        rank = len(self._sizes_of(operator.inputs[0]))
        weight = weight * weight.dtype.type(operator.attributes.get('alpha', 1))
        inputs = [second, self._constant(weight.reshape(*weight.shape, *(1,) * (rank - 2)), operator.name)]
        if len(operator.inputs) > 2 and operator.inputs[2]:
            bias = self._evaluator.constant(operator.inputs[2])
            if bias is None or bias.size not in (1, len(weight)):
                return ''
            bias = np.broadcast_to(bias.reshape(-1) * bias.dtype.type(operator.attributes.get('beta', 1)), len(weight))
            inputs.append(self._constant(bias, operator.name))
        output = f'{operator.outputs[0]}_channels_second'
        self._nodes.append(self._onnx.helper.make_node('Conv', inputs, [output], name=f'{operator.name}_moved'))
        return output

    def _sizes_of(self, name):
        """Return the shape of a value of rows or with the channels last, with an axis for each of the map."""
        return (*self._rows[name].sizes, 1) if name in self._rows else self._shape(name)

    def _move_dense(self, operator, flat, shape):
        weight, vectors = self._evaluator.constant(operator.inputs[1]), len(shape) == 2
        if weight is None or not vectors and (weight.ndim != 2 or shape[-1] != np.prod(shape[1:])):
            return
        transposed = operator.attributes.get('transB', 0)
        weight = self._constant(weight[:, flat.order] if transposed else weight[flat.order], operator.name)
        (output,) = self._again(operator, [flat.name, weight, *operator.inputs[2:]])
        self._set_vector(operator.outputs[0], shape, output, (shape[0], max(shape[1:])))

    def _move_convolution(self, operator, flat, shape):
        """Add a convolution of a map of one position, whose channels are the elements of a vector, as a dense layer."""
        weight, bias = self._evaluator.constant(operator.inputs[1]), operator.inputs[2:]
        if weight is None or weight.size != weight.shape[0] * len(flat.order) or any(operator.attributes.get('pads', ())):
            return
        weight = self._constant(weight.reshape(len(weight), -1)[:, flat.order].T, operator.name)
        output = self._add('Gemm' if bias else 'MatMul', [flat.name, weight, *bias], f'{operator.outputs[0]}_channels_second')
        self._set_vector(operator.outputs[0], shape, output, shape[:2])
