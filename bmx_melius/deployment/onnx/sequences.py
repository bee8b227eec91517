"""Models of sequences (N, tokens, features), as transformers and mixers, made models of maps with the channels second.

A sequence is a map of one row: its tokens are positions, its features channels. Then a dense layer of features is a convolution of size 1,
for which the rules of convolutions hold. `Reshape` and `Transpose` move no elements here: a value is a map and a `_View` that says which
part of the index along each of its axes is a part of the channel or the position. What reads a value decides which map it needs: a mixer of
tokens one with channels and positions exchanged, an operator that is not of sequences the value itself. So windows of a map are axes of its
positions, and only where their tokens are multiplied, joined with others, or selected, are their positions gathered: each window becomes a
row of a map. What repeats a value, such as tokens that all windows share, is a part of the index of stride 0. Products of two values,
softmax and normalizations of features are calls of functions of the model, of the domain `DOMAIN`, which ONNX Runtime computes and
`sequence_layers` translates.
"""

import dataclasses
import itertools
import math

import numpy as np

from .evaluation import ELEMENTWISE, PARAMETERS_BY_CHANNEL
from .model import import_onnx_package

DOMAIN = 'bmx_melius.sequences'
_BATCH, _CHANNEL, _POSITION = range(3)
_RESHAPES = ('Reshape', 'Flatten', 'Squeeze', 'Unsqueeze')
_REPETITIONS = ('Expand', 'Tile')
_ARRANGING = ('Transpose', 'Concat', *_RESHAPES, *_REPETITIONS)  # operators that may read what is repeated
_REDUCTIONS = ('ReduceMean', 'ReduceMax', 'ReduceSum')
_SELECTIONS = ('Gather', 'Slice', 'Split')
_FIRST_OPSET = 13  # in which Softmax is of one axis
_AXES_AS_INPUT = 18  # the first version in which the axes of ReduceMean are an input


def with_sequences_as_maps(evaluator):
    """Return an `Evaluator` of the model in which sequences are maps; the given one if the model has none."""
    if _opset(evaluator) < _FIRST_OPSET or not any(_is_of_sequences(evaluator, operator) for operator in evaluator.model.operators):
        return evaluator
    return evaluator.replaced(_Sequences(evaluator).rewritten(), evaluator.shapes)


def is_of_sequences_as_maps(model):
    """Return whether a model is what `with_sequences_as_maps` makes of another one; then its program is for inputs of one size."""
    return any(entry.domain == DOMAIN for entry in model.proto.opset_import)


def _opset(evaluator):
    return next(entry.version for entry in evaluator.model.proto.opset_import if entry.domain in ('', 'ai.onnx'))


def _is_of_sequences(evaluator, operator):
    """Return whether an operator is an embedding, a product of two values, or a dense layer or normalization of the last of three axes."""
    varying = [name for name in operator.inputs if name in evaluator.varying]
    if operator.kind == 'MatMul' and len(varying) == 2 or _ids(evaluator, operator):
        return True
    return operator.kind in ('MatMul', 'LayerNormalization') and len(varying) == 1 and len(evaluator.shape(varying[0])) == 3


def _ids(evaluator, operator):
    """Return the name of the input (N, tokens) that has the ids for which an operator selects rows of a table, or None."""
    if operator.kind != 'Gather' or operator.attributes.get('axis', 0) or operator.inputs[0] in evaluator.varying:
        return None
    cast = evaluator.producers.get(operator.inputs[1])
    ids = cast.inputs[0] if cast is not None and cast.kind == 'Cast' else None
    table = evaluator.constant(operator.inputs[0])
    fits = ids in evaluator.model.ids and len(evaluator.shape(ids)) == 2 and table.ndim == 2 and table.dtype == np.float32
    return ids if fits else None


@dataclasses.dataclass(frozen=True)
class _Factor:
    """A part of the index along an axis: `size` steps of `stride` along the batch, the channels or the positions of a map.

    A stride of 0 repeats the elements.
    """

    dimension: int
    stride: int
    size: int


def _joined(factors):
    """Return factors without those of size 1, and with one in place of those that count on."""
    found = []
    for factor in factors:
        if found and found[-1].dimension == factor.dimension and found[-1].stride == factor.stride * factor.size:
            found[-1] = dataclasses.replace(factor, size=found[-1].size * factor.size)
        elif factor.size > 1:
            found.append(factor)
    return tuple(found)


def _whole(dimension, size):
    """Return the factors of an axis along a whole dimension."""
    return _joined([_Factor(dimension, 1, size)])


@dataclasses.dataclass(frozen=True)
class _View:
    """A value as the elements of a map.

    Attributes
    ----------
    name : str
        Of the map, in the new model.
    sizes : tuple of int
        Its shape: (N, C) or (N, C, ...).
    axes : tuple of tuple of _Factor
        For each axis of the value the factors of its index, the first one counts slowest.
    """

    name: str
    sizes: tuple
    axes: tuple

    @property
    def channels(self):
        return self.sizes[1]

    @property
    def positions(self):
        return math.prod(self.sizes[2:])

    @property
    def batch(self):
        return _whole(_BATCH, self.sizes[0])

    @property
    def all_channels(self):
        return _whole(_CHANNEL, self.channels)

    @property
    def all_positions(self):
        return _whole(_POSITION, self.positions)

    @property
    def repeats(self):
        """Whether an element of the map is more than one of the value."""
        return any(not factor.stride for factor in itertools.chain.from_iterable(self.axes))

    def places(self):
        """Return the numbers of the positions of the value, an array with a size for each of its axes, 1 for those along no positions.

        None if the parts of the index along the batch are not before those along the positions.
        """
        found = np.zeros((1,) * len(self.axes), np.int64)
        for axis, factors in enumerate(self.axes):
            along = np.zeros(1, np.int64)
            kinds = [factor.dimension for factor in factors]
            if len(set(kinds) - {_BATCH}) > 1 or kinds != sorted(kinds):
                return None
            for factor in factors:
                if factor.dimension == _POSITION:
                    along = (along[:, None] + factor.stride * np.arange(factor.size)).reshape(-1)
            found = found + along.reshape([-1 if other == axis else 1 for other in range(len(self.axes))])
        return found

    def with_positions(self, name, sizes):
        """Return the view of a map that has the positions of the value in its order; `sizes` are those of the array `places`."""
        stride, axes = math.prod(sizes), []
        for factors, size in zip(self.axes, sizes):
            stride //= size
            others = [factor for factor in factors if factor.dimension != _POSITION]
            axes.append(_joined([*others, _Factor(_POSITION, stride, size)]))
        return _View(name, (*self.sizes[:2], math.prod(sizes)), tuple(axes))

    def with_axis(self, axis, factors, **changes):
        """Return a view with other factors of an axis."""
        axes = list(self.axes)
        axes[axis] = _joined(factors)
        return dataclasses.replace(self, axes=tuple(axes), **changes)


def _reshaped(factors, shape):
    """Return the factors of each axis of a value that is reshaped, or None if an axis ends within a factor that cannot be divided there."""
    waiting, axes = list(_joined(itertools.chain.from_iterable(factors))), []
    for size in shape:
        axis = []
        while size > 1:
            if not waiting:
                return None
            factor = waiting.pop(0)
            if factor.size <= size:
                if size % factor.size:
                    return None
                axis.append(factor)
                size //= factor.size
            else:
                if factor.size % size:
                    return None
                rest = factor.size // size
                axis.append(_Factor(factor.dimension, factor.stride * rest, size))
                waiting.insert(0, _Factor(factor.dimension, factor.stride, rest))
                size = 1
        axes.append(_joined(axis))
    return None if waiting else tuple(axes)


class _Sequences:
    """The model being rewritten."""

    def __init__(self, evaluator):
        self._evaluator, self._onnx = evaluator, import_onnx_package()[0]
        self._views, self._nodes, self._initializers = {}, [], []
        self._made, self._names = {}, set()
        self._normalizations = _decomposed_normalizations(evaluator)

    def rewritten(self):
        """Return the ModelProto."""
        onnx, model = self._onnx, self._evaluator.model
        for operator, node in zip(model.operators, model.proto.graph.node):
            if not self._move(operator):
                copied = onnx.NodeProto()
                copied.CopyFrom(node)
                del copied.input[:]
                copied.input.extend(self._value(name, f'{operator.name}_input') if name else '' for name in operator.inputs)
                self._nodes.append(copied)
        for name in model.outputs:
            if name in self._views:
                made = self._value(name, name)
                self._nodes.append(onnx.helper.make_node('Identity', [made], [name], f'{name}_output'))
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        del proto.graph.node[:]
        proto.graph.node.extend(self._nodes)
        proto.graph.initializer.extend(self._initializers)
        proto.ir_version = max(proto.ir_version, 8)  # the first one with functions
        proto.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
        proto.functions.extend(_functions(onnx, _opset(self._evaluator)))
        return proto

    # --- nodes

    def _add(self, kind, inputs, of, domain='', **attributes):
        """Add a node; return the name of its output. `of` is the operator or the name of the value for which it is."""
        label = of if isinstance(of, str) else of.name
        name = label
        for number in itertools.count(1):
            if name not in self._names:
                break
            name = f'{label}_{kind}{number}'
        self._names.add(name)
        output = f'{of if isinstance(of, str) else of.outputs[0]}_map{len(self._nodes)}'
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=f'{name}', domain=domain, **attributes))
        return output

    def _constant(self, array, label):
        name = f'{label}_{len(self._initializers)}_of_sequence'
        self._initializers.append(self._onnx.numpy_helper.from_array(np.asarray(array, order='C'), name))
        return name

    def _reshape(self, name, shape, of):
        return self._add('Reshape', [name, self._constant(np.array(shape, np.int64), name)], of)

    # --- values

    def _shape(self, name):
        return self._evaluator.shape(name)

    def _constants_of(self, operator, first=0):
        return [self._evaluator.constant(name) if name else None for name in operator.inputs[first:]]

    def _view(self, name):
        """Return the view of a value: of itself as a map, unless it is known to be another one. None for constants and single numbers."""
        if name in self._views:
            return self._views[name]
        shape = self._shape(name) if name in self._evaluator.varying else ()
        if len(shape) < 2 or self._evaluator.sampled[name].dtype.kind not in 'fb':
            return None
        axes = _reshaped([[_Factor(dimension, 1, size)] for dimension, size in enumerate((*shape[:2], math.prod(shape[2:])))], shape)
        return _View(name, shape, axes)

    def _value(self, name, label):
        """Return the name of a value in its shape in the given model. `label` begins the names of nodes that give it this shape."""
        view = self._views.get(name)
        return name if view is None else self._materialized(view, self._shape(name), label)

    def _materialized(self, view, shape, of):
        view = self._in_order(view, of) if view.repeats else view
        order = _joined(itertools.chain.from_iterable(view.axes))
        if 1 in (view.channels, view.positions) and view.sizes != shape == (view.sizes[0], view.positions, view.channels):
            return self._exchanged(view, of).name
        if order == _joined([*view.batch, *view.all_channels, *view.all_positions]):
            return (
                view.name if shape == view.sizes else self._once(('shape', view.name, shape), lambda: self._reshape(view.name, shape, of))
            )
        if len(view.sizes) > 2 and order == _joined([*view.batch, *view.all_positions, *view.all_channels]):
            turned = self._exchanged(view, of)
            return self._materialized(turned, shape, of)
        by_dimension = sorted(order, key=lambda factor: (factor.dimension, -factor.stride))
        parts = self._reshape(view.name, [factor.size for factor in by_dimension], of)
        parts = self._add('Transpose', [parts], of, perm=[by_dimension.index(factor) for factor in order])
        return self._reshape(parts, shape, of)

    def _once(self, key, make):
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _with_sizes(self, view, sizes, of):
        """Return a view of the map with its positions in other rows."""
        sizes, of = (*view.sizes[:2], *sizes), _label(of)
        if view.sizes == sizes:
            return view
        return dataclasses.replace(
            view, name=self._once(('shape', view.name, sizes), lambda: self._reshape(view.name, sizes, of)), sizes=sizes
        )

    def _exchanged(self, view, of):
        """Return the view of the map whose channels are the positions, and the reverse."""
        line, of = self._with_sizes(view, (view.positions,), of), _label(of)
        name = self._once(('turned', line.name), lambda: self._add('Transpose', [line.name], of, perm=[0, 2, 1]))
        self._made.setdefault(('turned', name), line.name)
        exchanged = {_BATCH: _BATCH, _CHANNEL: _POSITION, _POSITION: _CHANNEL}
        axes = [tuple(dataclasses.replace(f, dimension=exchanged[f.dimension]) for f in factors) for factors in view.axes]
        return _View(name, (view.sizes[0], view.positions, view.channels), tuple(axes))

    def _gathered(self, views, view, places, of):
        """Return the view of a map of some positions of maps, which are counted one map after the other.

        `view` is a view with its channels and batch, and `places` an array as `_View.places` returns it.
        """
        of = _label(of)
        names = [self._with_sizes(one, (one.positions,), of).name for one in views]
        line = names[0] if len(names) == 1 else self._add('Concat', names, of, axis=2)
        made = self._once(
            ('gathered', line, places.tobytes()),
            lambda: self._add('Gather', [line, self._constant(places.reshape(-1), line)], of, axis=2),
        )
        found, rows = view.with_positions(made, places.shape), next((size for size in places.shape if size > 1), 1)
        return found if rows == places.size else self._with_sizes(found, (rows, places.size // rows), of)

    def _in_order(self, view, of):
        """Return a view of a map that has the positions of a value in its order, each once; None if the channels are not apart."""
        places = view.places() if len(view.sizes) > 2 else None
        if places is None or np.array_equal(places.reshape(-1), np.arange(view.positions)):
            return view if places is not None else None
        return self._gathered([view], view, places, of)

    def _with_channels_along(self, view, axis, of):
        """Return a view of a value in which an axis is all channels, and no other axis has a part of them; None if there is none."""
        factors = view.axes[axis]
        if len(view.sizes) > 2 and factors == view.all_channels and view.channels > 1:
            return view
        if len(view.sizes) > 2 and factors == view.all_positions:
            return self._exchanged(view, of)
        return view if len(view.sizes) > 2 and factors == view.all_channels else None

    # --- operators

    def _move(self, operator):
        """Set the views of the outputs of an operator, with the nodes that compute their maps; return whether they have such."""
        kind, name = operator.kind, operator.inputs[0] if operator.inputs else ''
        if kind not in _ARRANGING:
            self._require_single(operator)
        if operator.outputs[0] in self._normalizations:
            return self._normalize(operator, *self._normalizations[operator.outputs[0]])
        if kind in ('MatMul', 'Gemm'):
            return self._dense(operator) or self._product(operator)
        if kind in ELEMENTWISE:
            return self._elementwise(operator)
        if kind == 'Concat':
            repeats = any(source in self._views and self._views[source].repeats for source in operator.inputs)
            return not repeats and self._concatenate(operator) or self._concatenate_positions(operator)
        ids = _ids(self._evaluator, operator)
        if ids:
            return self._embed(operator, ids)
        view = self._view(name)
        if view is None:
            return False
        if kind == 'Transpose':
            order = operator.attributes.get('perm', range(len(view.axes))[::-1])
            return self._set_axes(operator, view, tuple(view.axes[axis] for axis in order))
        if kind in _REPETITIONS and self._shape(name) != self._shape(operator.outputs[0]):
            return self._repeat(operator, view)
        if kind in (*_RESHAPES, *_REPETITIONS):
            axes = _reshaped(view.axes, self._shape(operator.outputs[0]))
            return axes is not None and self._set_axes(operator, view, axes)
        if kind == 'Softmax':
            return self._softmax(operator, view)
        if kind == 'LayerNormalization':
            scale, *shift = self._constants_of(operator, 1)
            axis = operator.attributes.get('axis', -1) % len(view.axes)
            if axis != len(view.axes) - 1 or scale is None:
                return False
            shift = shift[0] if shift and shift[0] is not None else np.zeros_like(scale)
            return self._normalize(operator, name, operator.attributes.get('epsilon', 1e-5), True, scale, shift)
        if kind in _REDUCTIONS:
            return self._reduce(operator, view)
        if kind in _SELECTIONS:
            return self._select(operator, view)
        return False

    def _set(self, operator, view, output=0):
        """Set the view of an output, unless it is the map itself as the operator computes it; return True."""
        self._views[operator.outputs[output]] = view
        return True

    def _set_axes(self, operator, view, axes):
        """Set the view of the output of an operator that only rearranges axes; return True."""
        moved = dataclasses.replace(view, axes=axes)
        if view.repeats and moved.places() is None:
            self._require_single(operator)
            return self._move(operator)
        return self._set(operator, moved)

    def _require_single(self, operator):
        """Make the maps of inputs that repeat elements have them as often as the value."""
        for source in operator.inputs:
            if source in self._views and self._views[source].repeats:
                self._views[source] = self._in_order(self._views[source], operator)

    def _repeat(self, operator, view):
        """Set the view of a value that is repeated along axes of one element; return whether it is, and a sequence before."""
        before, after = self._shape(operator.inputs[0]), self._shape(operator.outputs[0])
        before = (1,) * (len(after) - len(before)) + before
        repeated = [one != size for one, size in zip(before, after)]
        axes = ((),) * (len(after) - len(view.axes)) + view.axes
        if operator.inputs[0] not in self._views or len(view.sizes) < 3 or any(r and one != 1 for r, one in zip(repeated, before)):
            return False
        axes = [(_Factor(_POSITION, 0, size),) if r else factors for factors, r, size in zip(axes, repeated, after)]
        return self._set(operator, dataclasses.replace(view, axes=tuple(axes))) if view.places() is not None else False

    # elementwise operators

    def _elementwise(self, operator):
        output, names = operator.outputs[0], operator.inputs
        shape = self._shape(output)
        varying = [name for name in names if name in self._evaluator.varying]
        whole = next((name for name in varying if self._shape(name) == shape), None)
        view = self._view(whole) if whole else None
        if view is None:
            return False
        if operator.kind in PARAMETERS_BY_CHANNEL:
            view = self._with_channels_along(view, 1, operator) if len(shape) > 2 else view
            constants = self._constants_of(operator, 1)
            if view is None or view.axes[1] != view.all_channels or operator.attributes.get('axis', 1) % len(shape) != 1:
                return False
            return self._again(operator, view, [view.name, *names[1:]]) if all(c is not None for c in constants) else False
        inputs = []
        for name in names:
            if not name:
                inputs.append('')
            elif name in self._evaluator.varying:
                other = self._like(self._view(name), self._shape(name), view, shape, operator)
                if other is None:
                    return False
                inputs.append(other.name)
            else:
                constant = self._as_map(self._evaluator.constant(name), view, shape)
                if constant is None:
                    return False
                inputs.append(self._constant(constant, name))
        return self._again(operator, view, inputs)

    def _again(self, operator, view, inputs):
        attributes = {
            name: self._onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            for name, value in operator.attributes.items()
        }
        return self._set(operator, dataclasses.replace(view, name=self._add(operator.kind, inputs, operator, **attributes)))

    def _like(self, other, other_shape, view, shape, operator):
        """Return a view of a value whose map can be combined with that of another view, whose shape its own one is repeated to; or None."""
        if other is None or len(other_shape) != len(shape):
            return None
        for candidate in (other, *([self._exchanged(other, operator)] if len(other.sizes) > 2 else [])):
            fits = all(size == 1 or a == b for size, a, b in zip(other_shape, candidate.axes, view.axes))
            if candidate.channels in (1, view.channels) and candidate.positions in (1, view.positions) and fits:
                sizes = view.sizes[2:] if candidate.positions > 1 else (1,) * (len(view.sizes) - 2)
                return self._with_sizes(candidate, sizes, operator)
        return None

    def _as_map(self, array, view, shape):
        """Return constants that are repeated to a shape as such of a map: (1, C or 1, ...); None if they differ between images."""
        if array.size == 1:
            return array.reshape(())
        if array.ndim > len(shape):
            return None
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        factors, sizes = [], []
        for axis, size in zip(view.axes, array.shape):
            factors += axis
            sizes += [factor.size if size > 1 else 1 for factor in axis]
        array = array.reshape(sizes)
        order = sorted(range(len(factors)), key=lambda i: (factors[i].dimension, -factors[i].stride))
        array = array.transpose(order)
        for i, number in enumerate(order):
            dimension = factors[number].dimension
            if dimension == _BATCH and array.shape[i] > 1:
                return None
            used = any(array.shape[j] > 1 for j, other in enumerate(order) if factors[other].dimension == dimension)
            if used and array.shape[i] == 1:
                array = array.repeat(factors[number].size, axis=i)
        sizes = {d: math.prod(array.shape[i] for i, n in enumerate(order) if factors[n].dimension == d) for d in (_CHANNEL, _POSITION)}
        spatial = view.sizes[2:] if sizes[_POSITION] > 1 else (1,) * (len(view.sizes) - 2)
        return array.reshape(1, sizes[_CHANNEL], *spatial)

    # layers

    def _embed(self, operator, ids):
        """Add the rows of a table that ids select, with the features as channels."""
        made = self._add('Embedding', [ids, operator.inputs[0]], operator, DOMAIN)
        batch, tokens, features = self._shape(operator.outputs[0])
        axes = tuple(_whole(dimension, size) for dimension, size in ((_BATCH, batch), (_POSITION, tokens), (_CHANNEL, features)))
        return self._set(operator, _View(made, (batch, features, tokens), axes))

    def _dense(self, operator):
        """Add a dense layer of an axis of a sequence with a constant matrix, a convolution of size 1."""
        left, right = operator.inputs[:2]
        weight, bias, axis, name = self._evaluator.constant(right), None, -1, left
        if operator.kind == 'MatMul' and weight is None and self._evaluator.constant(left) is not None:
            weight, axis, name = self._evaluator.constant(left), -2, right
            weight = np.swapaxes(weight, -1, -2)
        if weight is None or weight.ndim < 2 or math.prod(weight.shape) != math.prod(weight.shape[-2:]):
            return False
        weight = weight.reshape(weight.shape[-2:]).T
        if operator.kind == 'Gemm':
            a = operator.attributes
            if a.get('transA', 0):
                return False
            weight = (weight.T if a.get('transB', 0) else weight) * np.float32(a.get('alpha', 1))
            if len(operator.inputs) > 2 and operator.inputs[2]:
                bias = self._evaluator.constant(operator.inputs[2])
                if bias is None or bias.size not in (1, len(weight)):
                    return False
                bias = np.broadcast_to(bias.reshape(-1) * np.float32(a.get('beta', 1)), len(weight))
        view = self._view(name)
        view = self._with_channels_along(view, axis, operator) if view is not None else None
        if view is None:
            return False
        rank = len(view.sizes)
        inputs = [view.name, self._constant(weight.reshape(*weight.shape, *(1,) * (rank - 2)).astype(np.float32), operator.name)]
        inputs += [] if bias is None else [self._constant(bias.astype(np.float32), operator.name)]
        made = self._add('Conv', inputs, operator)
        sizes = (view.sizes[0], len(weight), *view.sizes[2:])
        return self._set(operator, view.with_axis(axis % len(view.axes), _whole(_CHANNEL, len(weight)), name=made, sizes=sizes))

    def _product(self, operator):
        """Add the product of two values: for each group of channels, whose matrices have positions as rows or as columns."""
        views = [self._view(name) for name in operator.inputs[:2]]
        if operator.kind != 'MatMul' or any(view is None or len(view.axes) < 3 or len(view.sizes) < 3 for view in views):
            return False
        for forms in itertools.product(*((lambda v=v: v, lambda v=v: self._exchanged(v, operator)) for v in views)):
            if self._product_of_groups(operator, *(form() for form in forms)):
                return True
        x, y = (self._in_order(view, operator) for view in views)  # of windows whose positions are apart from each other
        return x is not None and y is not None and self._product_of_groups(operator, x, y)

    def _product_of_groups(self, operator, x, y):
        (*batch, rows, inner), (*other_batch, other_inner, columns) = x.axes, y.axes
        groups = _groups(x, _joined(itertools.chain.from_iterable(batch)))
        if groups is None or groups != _groups(y, _joined(itertools.chain.from_iterable(other_batch))):
            return False
        windows, heads = groups
        in_head, in_other, positions, others = x.channels // heads, y.channels // heads, x.positions // windows, y.positions // windows
        if rows != _whole(_POSITION, positions) or inner != _whole(_CHANNEL, in_head) or len(batch) != len(other_batch):
            return False
        if other_inner == _whole(_CHANNEL, in_other) and columns == _whole(_POSITION, others) and in_head == in_other:
            kind, count = 'TransposedProduct', others
        elif other_inner == _whole(_POSITION, others) and columns == _whole(_CHANNEL, in_other) and in_head == others:
            kind, count = 'Product', in_other
        else:
            return False
        left, right = (0, heads, in_head, x.positions), (0, heads, in_other, y.positions)
        if windows > 1:
            kind = {'Product': 'RowProduct', 'TransposedProduct': 'TransposedRowProduct'}[kind]
            x, y = self._with_sizes(x, (windows, positions), operator), self._with_sizes(y, (windows, others), operator)
            left, right = (0, heads, in_head, windows, positions), (0, heads, in_other, windows, others)
        sizes = (x.sizes[0], heads * count, *x.sizes[2:])
        made = self._add(kind, [x.name, y.name], operator, DOMAIN, heads=heads, left=left, right=right, sizes=(0, *sizes[1:]))
        outer = [
            _joined([_Factor(f.dimension, f.stride // in_head * count, f.size) if f.dimension == _CHANNEL else f for f in factors])
            for factors in batch
        ]
        axes = (*outer, rows, _whole(_CHANNEL, count))
        return self._set(operator, _View(made, sizes, axes))

    def _softmax(self, operator, view):
        axis = operator.attributes.get('axis', -1) % len(view.axes)
        found = self._groups_along(view, axis, operator)
        if found is None:
            return False
        view, groups = found
        made = self._add('GroupSoftmax', [view.name], operator, DOMAIN, groups=groups, **_split(view, groups))
        return self._set(operator, dataclasses.replace(view, name=made))

    def _normalize(self, operator, name, eps, centers, scale=None, shift=None):
        """Add a normalization of the last axis; without `centers` by the mean square."""
        view = self._view(name)
        found = view and self._groups_along(view, len(view.axes) - 1, operator)
        if not found:
            return False
        view, groups = found
        in_group = view.channels // groups
        scale = np.ones(in_group) if scale is None else np.broadcast_to(scale.reshape(-1), in_group)
        shift = np.zeros(in_group) if shift is None else np.broadcast_to(shift.reshape(-1), in_group)
        shape = (1, -1, *(1,) * (len(view.sizes) - 2))
        parameters = [self._constant(np.tile(a, groups).astype(np.float32).reshape(shape), operator.name) for a in (scale, shift)]
        kind = 'ChannelNormalization' if centers else 'ChannelRmsNormalization'
        attributes = {'groups': groups, 'epsilon': float(eps), 'epsilons': [float(eps)], **_split(view, groups)}
        made = self._add(kind, [view.name, *parameters], operator, DOMAIN, **attributes)
        return self._set(operator, dataclasses.replace(view, name=made))

    def _groups_along(self, view, axis, operator):
        """Return a view in which an axis is the channels of each of some groups, and their number; None if there is none."""
        if len(view.sizes) < 3:
            return None
        for candidate in (view, self._exchanged(view, operator) if view.axes[axis] == view.all_positions else view):
            size = math.prod(factor.size for factor in candidate.axes[axis])
            if candidate.axes[axis] == _whole(_CHANNEL, size) and candidate.channels % size == 0:
                return candidate, candidate.channels // size
        return None

    def _reduce(self, operator, view):
        rank, keeps = len(view.axes), operator.attributes.get('keepdims', 1)
        axes = operator.attributes.get('axes')
        if axes is None and len(operator.inputs) > 1 and operator.inputs[1]:
            axes = self._evaluator.constant(operator.inputs[1])
        if axes is None or len(view.sizes) < 3:
            return False
        axes = sorted(int(axis) % rank for axis in axes)
        reduced = _joined(itertools.chain.from_iterable(view.axes[axis] for axis in axes))
        if not reduced:  # axes of one element
            kept = [factors for axis, factors in enumerate(view.axes) if keeps or axis not in axes]
            return self._set(operator, dataclasses.replace(view, axes=tuple(kept)))
        along = {view.all_positions: range(2, len(view.sizes)), view.all_channels: (1,)}.get(reduced)
        if along is None:
            view, along = self._with_rows_along(view, axes, operator), (2,)
        if view is None:
            return False
        kind = 'ReduceMean' if operator.kind == 'ReduceSum' else operator.kind
        inputs, attributes = [view.name], {'axes': list(along)}
        if _opset(self._evaluator) >= _AXES_AS_INPUT:
            inputs, attributes = [view.name, self._constant(np.array(along, np.int64), operator.name)], {}
        made = self._add(kind, inputs, operator, keepdims=1, **attributes)
        if operator.kind == 'ReduceSum':
            count = math.prod(factor.size for factor in reduced)
            made = self._add('Mul', [made, self._constant(np.float32(count), operator.name)], operator)
        sizes = tuple(1 if axis in along else size for axis, size in enumerate(view.sizes))
        kept = [() if axis in axes else factors for axis, factors in enumerate(view.axes) if keeps or axis not in axes]
        return self._set(operator, _View(made, sizes, tuple(kept)))

    def _with_rows_along(self, view, axes, operator):
        """Return a view of a map whose rows are some axes of positions of a value, and its columns the others; None if there is none."""
        order = [*axes, *(axis for axis in range(len(view.axes)) if axis not in axes)]
        if any(factor.dimension != _POSITION for axis in axes for factor in view.axes[axis]):
            return None
        turned = self._in_order(dataclasses.replace(view, axes=tuple(view.axes[axis] for axis in order)), operator)
        if turned is None:
            return None
        rows = math.prod(factor.size for axis in axes for factor in view.axes[axis])
        turned = dataclasses.replace(turned, axes=tuple(turned.axes[order.index(axis)] for axis in range(len(order))))
        return self._with_sizes(turned, (rows, turned.positions // rows), operator)

    # parts

    def _select(self, operator, view):
        shape, kind = self._shape(operator.inputs[0]), operator.kind
        if kind == 'Split':
            axis, begin = operator.attributes.get('axis', 0) % len(shape), 0
            for number, output in enumerate(operator.outputs):
                size = self._shape(output)[axis]
                part = self._part(operator, view, axis, begin, begin + size)
                if part is None:
                    for earlier in operator.outputs[:number]:
                        del self._views[earlier]
                    return False
                self._set(operator, part, number)
                begin += size
            return True
        if kind == 'Gather':
            axis, index = operator.attributes.get('axis', 0) % len(shape), self._evaluator.constant(operator.inputs[1])
            if index is None or index.ndim > 1 or not index.size:
                return False
            if index.size != 1 and shape[axis] == 1:
                return self._repeat(operator, view)
            if index.size != 1:
                places = view.places() if len(view.sizes) > 2 and {f.dimension for f in view.axes[axis]} == {_POSITION} else None
                return places is not None and self._set(operator, self._gathered([view], view, places.take(index, axis), operator))
            begin = int(index.reshape(-1)[0]) % shape[axis]
            part = self._part(operator, view, axis, begin, begin + 1)
            if part is not None and not index.ndim:
                part = dataclasses.replace(part, axes=(*part.axes[:axis], *part.axes[axis + 1 :]))
            return part is not None and self._set(operator, part)
        ranges = _slices(operator, self._constants_of(operator, 1), shape)
        if ranges is None:
            return False
        for axis, (begin, end) in ranges.items():
            view = view and self._part(operator, view, axis, begin, end)
        return view is not None and self._set(operator, view)

    def _part(self, operator, view, axis, begin, end):
        """Return the view of a part of an axis of positions, or one that is the slowest one of the channels; None if it is another one."""
        factors = view.axes[axis]
        size = math.prod(factor.size for factor in factors)
        if (begin, end) == (0, size):
            return view
        if len(view.sizes) < 3 or {factor.dimension for factor in factors} not in ({_POSITION}, {_CHANNEL}):
            return None
        if factors[0].dimension == _POSITION:
            places = view.places()
            return None if places is None else self._gathered([view], view, places.take(range(begin, end), axis), operator)
        (factor, *others) = factors
        if others or factor.stride * factor.size != view.channels:
            return None
        ends = [begin * factor.stride, end * factor.stride]
        made = self._add('Slice', [view.name, *(self._constant(np.array([n]), operator.name) for n in (*ends, 1))], operator)
        sizes = (view.sizes[0], ends[1] - ends[0], *view.sizes[2:])
        return view.with_axis(axis, [dataclasses.replace(factor, size=end - begin)], name=made, sizes=sizes)

    def _concatenate(self, operator):
        """Add the concatenation of sequences and constants along the channels, or along the positions: the sum of padded maps."""
        output = operator.outputs[0]
        shape, axis = self._shape(output), operator.attributes['axis']
        axis %= len(shape)
        varying = [name for name in operator.inputs if name in self._evaluator.varying]
        view = self._view(varying[0]) if varying else None
        if view is None or len(view.sizes) < 3:
            return False
        if view.axes[axis] not in (view.all_channels, view.all_positions) or view.axes[axis] == () and view.positions == 1 == view.channels:
            return False
        along_channels = view.axes[axis] == view.all_channels and view.channels > 1 or view.positions > 1 and view.axes[axis] == ()
        parts, begin = [], 0
        for name in operator.inputs:
            part, size = name, (self._shape(name) if name in varying else self._evaluator.constant(name).shape)[axis]
            if name in varying:
                part = self._view(name)
                candidates = (part, *([self._exchanged(part, operator)] if part is not None and len(part.sizes) > 2 else []))
                whole = [
                    c
                    for c in candidates
                    if c is not None
                    and len(c.sizes) > 2
                    and all(a == b for i, (a, b) in enumerate(zip(c.axes, view.axes)) if i != axis)
                    and (
                        c.channels == size and c.positions == view.positions
                        if along_channels
                        else c.positions == size and c.channels == view.channels
                    )
                ]
                if not whole:
                    return False
                part = whole[0]
            parts.append((part, begin, size))
            begin += size
        if along_channels:
            if len(varying) < len(parts):
                return False
            names = [self._with_sizes(part, view.sizes[2:], operator).name for part, _, _ in parts]
            made = self._add('Concat', names, operator, axis=1)
            sizes = (view.sizes[0], begin, *view.sizes[2:])
            return self._set(operator, view.with_axis(axis, _whole(_CHANNEL, begin), name=made, sizes=sizes))
        joined = _View('', (*view.sizes[:2], begin), view.with_axis(axis, _whole(_POSITION, begin)).axes)
        total, constant = None, np.zeros((1, 1, 1), np.float32)
        for part, first, size in parts:
            if isinstance(part, str):
                array = self._evaluator.constant(part)
                if array.dtype != np.float32 or array.ndim != len(shape) or (array != array[:1]).any():
                    return False
                array = np.broadcast_to(array[:1], (1, *(n if i == axis else m for i, (n, m) in enumerate(zip(array.shape, shape)) if i)))
                widths = [(first, begin - first - size) if i == axis else (0, 0) for i in range(len(shape))]
                constant = constant + self._as_map(np.pad(array, widths), joined, shape)
                continue
            line = self._with_sizes(part, (part.positions,), operator)
            pads = self._constant(np.array([0, 0, first, 0, 0, begin - first - size]), operator.name)
            padded = self._add('Pad', [line.name, pads], operator) if size < begin else line.name
            total = padded if total is None else self._add('Add', [total, padded], operator)
        if constant.any():
            total = self._add('Add', [total, self._constant(constant.astype(np.float32), operator.name)], operator)
        return self._set(operator, dataclasses.replace(joined, name=total))

    def _concatenate_positions(self, operator):
        """Add the concatenation of values along an axis of some of their positions, such as the tokens of windows."""
        axis = operator.attributes['axis'] % len(self._shape(operator.outputs[0]))
        views = [self._view(name) if name in self._evaluator.varying else None for name in operator.inputs]
        if any(view is None or len(view.sizes) < 3 for view in views):
            return False
        others = {(view.sizes[:2], *(tuple(f for f in factors if f.dimension != _POSITION) for factors in view.axes)) for view in views}
        places = [view.places() for view in views]
        if len(others) > 1 or any(factor.dimension != _POSITION for factor in views[0].axes[axis]) or any(p is None for p in places):
            return False
        begins = np.cumsum([0, *(view.positions for view in views)])
        joined = np.concatenate([begin + array for begin, array in zip(begins, places)], axis)
        return self._set(operator, self._gathered(views, views[0], joined, operator))


def _label(reader):
    """Return the beginning of the names of nodes that make what an operator reads; a label as it is."""
    return reader if isinstance(reader, str) else f'{reader.name}_input'


def _groups(view, batch):
    """Return the numbers of groups of positions, and of channels in these, that the batch of a product counts after the images.

    None if it counts something else.
    """
    images, rest = batch[: len(view.batch)], batch[len(view.batch) :]
    counts = {_POSITION: 1, _CHANNEL: 1}
    sizes = {_POSITION: view.positions, _CHANNEL: view.channels}
    dimensions = [factor.dimension for factor in rest]
    if images != view.batch or dimensions not in ([], [_POSITION], [_CHANNEL], [_POSITION, _CHANNEL]):
        return None
    for factor in rest:
        if factor.stride * factor.size != sizes[factor.dimension]:
            return None
        counts[factor.dimension] = factor.size
    return counts[_POSITION], counts[_CHANNEL]


def _split(view, groups):
    """Return the attributes of functions of groups of channels: the shape with an axis of groups, and the one without."""
    return {'parts': (0, groups, view.channels // groups, view.positions), 'sizes': (0, *view.sizes[1:])}


def _slices(operator, constants, shape):
    """Return a dict from each axis to the (begin, end) of the elements that a `Slice` takes; None for others than successive ones."""
    a = operator.attributes
    if 'starts' in a:
        starts, ends, axes, steps = a['starts'], a['ends'], a.get('axes'), None
    else:
        starts, ends, axes, steps = (*constants, None, None)[:4]
    if starts is None or ends is None:
        return None
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    ranges = {}
    for begin, end, axis, step in zip(starts, ends, axes, steps):
        taken = range(shape[int(axis)])[slice(int(begin), int(end), int(step))]
        if taken.step != 1 or not taken:
            return None
        ranges[int(axis) % len(shape)] = taken.start, taken.stop
    return ranges


# --- functions ----------------------------------------------------------------------------------------------------------------------------


def _functions(onnx, opset):
    """Return the functions that the new model calls, by which ONNX Runtime computes them."""
    helper = onnx.helper

    def list_of(attribute, output):
        node = helper.make_node('Constant', [], [output])
        node.attribute.append(onnx.AttributeProto(name='value_ints', ref_attr_name=attribute, type=onnx.AttributeProto.INTS))
        return node

    def function(name, inputs, attributes, nodes):
        opsets = [helper.make_opsetid('', opset)]
        return helper.make_function(DOMAIN, name, inputs, ['y'], nodes, opsets, attributes)

    def node(kind, inputs, output, **attributes):
        return helper.make_node(kind, inputs.split(), [output], **attributes)

    def mean(x, output):
        if opset < _AXES_AS_INPUT:
            return [node('ReduceMean', x, output, axes=[2])]
        return [helper.make_node('Constant', [], [f'{x}_axis'], value_ints=[2]), node('ReduceMean', f'{x} {x}_axis', output)]

    def of_rows(order):
        turned = [node('Transpose', 'columns', 't', perm=order), node('Transpose', 'rows', 's', perm=[0, 3, 1, 2, 4])]
        return [*turned, node('MatMul', 't s', 'r'), node('Transpose', 'r', 'z', perm=[0, 2, 3, 1, 4])]

    reshaped = [list_of('sizes', 'shape'), node('Reshape', 'z shape', 'y')]
    matrices = [list_of('left', 'a'), list_of('right', 'b'), node('Reshape', 'x a', 'rows'), node('Reshape', 'other b', 'columns')]
    parts = [list_of('parts', 'a'), node('Reshape', 'x a', 'p')]
    back = [node('Reshape', 'r shape', 'n'), node('Mul', 'n scale', 'm'), node('Add', 'm shift', 'y')]
    eps = helper.make_node('Constant', [], ['eps'])
    eps.attribute.append(onnx.AttributeProto(name='value_floats', ref_attr_name='epsilons', type=onnx.AttributeProto.FLOATS))
    divided = [eps, *mean('s', 'v'), node('Add', 'v eps', 'e'), node('Sqrt', 'e', 'd'), node('Div', 'c d', 'r')]
    pairs, groups = ['heads', 'left', 'right', 'sizes'], ['groups', 'parts', 'sizes']
    normal = [*groups, 'epsilon', 'epsilons']
    centred = [*mean('p', 'center'), node('Sub', 'p center', 'c'), node('Mul', 'c c', 's')]
    shape = [list_of('sizes', 'shape')]
    return [
        function(
            'TransposedProduct',
            ['x', 'other'],
            pairs,
            [*matrices, node('Transpose', 'columns', 't', perm=[0, 1, 3, 2]), node('MatMul', 't rows', 'z'), *reshaped],
        ),
        function(
            'Embedding',
            ['x', 'table'],
            [],
            [
                node('Cast', 'x', 'numbers', to=onnx.TensorProto.INT64),
                node('Gather', 'table numbers', 'rows', axis=0),
                node('Transpose', 'rows', 'y', perm=[0, 2, 1]),
            ],
        ),
        function('Product', ['x', 'other'], pairs, [*matrices, node('MatMul', 'columns rows', 'z'), *reshaped]),
        function('RowProduct', ['x', 'other'], pairs, [*matrices, *of_rows([0, 3, 1, 2, 4]), *reshaped]),
        function('TransposedRowProduct', ['x', 'other'], pairs, [*matrices, *of_rows([0, 3, 1, 4, 2]), *reshaped]),
        function('GroupSoftmax', ['x'], groups, [*parts, node('Softmax', 'p', 'z', axis=2), *reshaped]),
        function('ChannelNormalization', ['x', 'scale', 'shift'], normal, [*parts, *centred, *divided, *shape, *back]),
        function(
            'ChannelRmsNormalization',
            ['x', 'scale', 'shift'],
            normal,
            [*parts, node('Identity', 'p', 'c'), node('Mul', 'c c', 's'), *divided, *shape, *back],
        ),
    ]


# --- normalizations by single operators ---------------------------------------------------------------------------------------------------


def _decomposed_normalizations(evaluator):
    """Return the values that operators compute by normalization of the last axis: name -> (name of the input, eps, whether it centers)."""
    found = {}
    for operator in evaluator.model.operators:
        if operator.kind in ('Div', 'Mul') and len(operator.inputs) == 2:
            for value, factor in (operator.inputs, operator.inputs[::-1])[: 1 if operator.kind == 'Div' else 2]:
                result = _normalization(evaluator, operator.kind, value, factor)
                if result is not None:
                    found[operator.outputs[0]] = result
    return found


def _normalization(evaluator, kind, value, factor):
    """Return (input, eps, centers) if `value` divided by a deviation, or times its reciprocal, is a normalization; else None."""
    deviation = _source(evaluator, factor, 'Sqrt') if kind == 'Div' else None
    if kind == 'Mul':
        inverse = evaluator.producers.get(factor)
        if inverse is None or factor not in evaluator.varying:
            return None
        if inverse.kind == 'Reciprocal':
            deviation = _source(evaluator, inverse.inputs[0], 'Sqrt')
        elif inverse.kind == 'Div' and _number(evaluator, inverse.inputs[0]) == 1:
            deviation = _source(evaluator, inverse.inputs[1], 'Sqrt')
        elif inverse.kind == 'Pow' and _number(evaluator, inverse.inputs[1]) == -0.5:
            deviation = inverse.inputs[0]
    sum_ = evaluator.producers.get(deviation) if deviation else None
    if sum_ is None or sum_.kind != 'Add':
        return None
    variance, eps = sum_.inputs if _number(evaluator, sum_.inputs[1]) is not None else sum_.inputs[::-1]
    mean, eps = evaluator.producers.get(variance), _number(evaluator, eps)
    if eps is None or mean is None or not _is_mean_of_last(evaluator, mean):
        return None
    squared = _squared(evaluator, mean.inputs[0])
    if squared is None:
        return None
    centred = [_centred(evaluator, name) for name in (squared, value)]
    if squared == value and centred[0] is None:
        return value, eps, False
    return (centred[0], eps, True) if centred[0] is not None and centred[0] == centred[1] else None


def _source(evaluator, name, kind):
    operator = evaluator.producers.get(name)
    return operator.inputs[0] if operator is not None and operator.kind == kind else None


def _number(evaluator, name):
    array = evaluator.constant(name) if name not in evaluator.varying else None
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _is_mean_of_last(evaluator, operator):
    if operator.kind != 'ReduceMean' or not operator.attributes.get('keepdims', 1):
        return False
    axes = operator.attributes.get('axes')
    if axes is None:
        axes = evaluator.constant(operator.inputs[1]) if len(operator.inputs) > 1 else ()
    rank = len(evaluator.shape(operator.inputs[0]))
    return axes is not None and [int(axis) % rank for axis in axes] == [rank - 1] and rank > 2


def _squared(evaluator, name):
    """Return the name of the value whose square another one is, or None."""
    operator = evaluator.producers.get(name)
    if operator is not None and operator.kind == 'Pow' and _number(evaluator, operator.inputs[1]) == 2:
        return operator.inputs[0]
    return operator.inputs[0] if operator is not None and operator.kind == 'Mul' and len(set(operator.inputs)) == 1 else None


def _centred(evaluator, name):
    """Return the name of the value minus the mean of whose last axis another one is, or None."""
    operator = evaluator.producers.get(name)
    if operator is None or operator.kind != 'Sub':
        return None
    mean = evaluator.producers.get(operator.inputs[1])
    matches = mean is not None and _is_mean_of_last(evaluator, mean) and mean.inputs[0] == operator.inputs[0]
    return operator.inputs[0] if matches else None
