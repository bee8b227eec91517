"""Translation of the operators of ONNX to the operations of graphs, for which the converter has rules.

Each function translates one kind of operator: (translator, operator) -> None. What has no counterpart raises `UntranslatableError`; it
matters only if an output of the model depends on it.

Quantizers of more levels than bit planes have, such as the 8 bits of an input, round to integers. Next to a tie, a rounding error of one
bit before becomes one of a whole step. So what is rounded is computed by the operations of ONNX Runtime, each rounded once: a quotient by
`divide`, unless the divisor is a power of two, so that the product with its reciprocal is the same number; products and sums by an `affine`
each, which `folding` does not merge. The integers equal ONNX Runtime's, bit for bit, where sums, differences, products and quotients
with constants lead to them from an input of the network, or from sums that are exact. After operators that add in an order of their own,
as convolutions of real numbers, or that round several times, as BatchNormalization, a number next to a tie may be rounded to the integer on
its other side. Verification compares what a program makes of ONNX Runtime's numbers before the rounding: there no integer may differ.
"""

import dataclasses
import math

import numpy as np

from ...errors import UserError
from ...graph.mxnet_operators import operator_name
from ...graph.operations import (
    Activation,
    AxisSlice,
    BatchNormalization,
    Clip,
    Concatenation,
    Elementwise,
    GlobalPooling,
    HardSigmoid,
    Identity,
    Padding,
    Pooling,
    Reduction,
    Reshape,
    Rounding,
    ScalarArithmetic,
    Transpose,
    TransposedConvolution,
    Upsampling,
    Window,
)
from ...reporting import ProgressLine
from ..convert.builder import map_shape
from ..convert.network import Entry
from .axis_maps import add_axis_maps
from .evaluation import ELEMENTWISE
from .layout import to_last, to_second
from .moves import MOVING, add_positions, add_selection, moving_cone, selected_positions, selection
from .network import OnnxNetwork, by_channel
from .recognition import StepFunction, find_step, gelu_source, is_nonnegative, is_positive
from .sequences import is_of_sequences_as_maps

TRANSLATIONS = {}  # kind of operator -> function (translator, operator)


class UntranslatableError(Exception):
    """An operator has no counterpart; the message gives the reason."""


class RefusedError(UntranslatableError):
    """A value cannot be computed because an operator before it has no counterpart; the message names that operator."""


@dataclasses.dataclass
class Signs:
    """A value of two levels: signs, times `scale`, plus `shift`, each a number.

    In the channels for which `flipped` is -1 the signs are opposite; None: in no channel.
    """

    entry: Entry
    scale: float
    shift: float
    flipped: 'np.ndarray | None' = None


@dataclasses.dataclass
class PaddedSigns:
    """The signs of a value that is padded before its sign is taken.

    Attributes
    ----------
    signs : Signs
        Of the value without padding.
    before, after : list of int
        Padding of each axis.
    value : float
        What the padding is after the sign.
    """

    signs: Signs
    before: list
    after: list
    value: float


@dataclasses.dataclass
class ImportedLayer:
    """A convolution or dense layer of the model.

    Attributes
    ----------
    name : str
    weights : int
        Number of its weights.
    bits : float
        Bits that each takes in the program.
    reason : str
        Why it stays real-valued; '' if it is binary.
    few_levels : str
        Of a layer that stays real-valued, which one of 'weights' and 'input' takes few levels; '' if none or both do.
    """

    name: str
    weights: int
    bits: float
    reason: str = ''
    few_levels: str = ''


_AT_THE_END = (
    *('Softmax', 'LogSoftmax', 'Sigmoid', 'Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Transpose', 'Concat', 'Identity', 'Cast'),
    *('ArgMax', 'TopK'),
)
_DECODING = (*ELEMENTWISE, 'Slice', 'Split', 'Gather', 'ReduceMax')  # of what is arranged in another way, such as boxes


class Translator:
    """A model being translated.

    Parameters
    ----------
    evaluator : Evaluator
    steps : dict of str to recognition.StepFunction
        Steps that are known already, by the names of their values.

    Attributes
    ----------
    network : OnnxNetwork
    layers : list of ImportedLayer
    notes : list of str
        What was left out.
    signs_with_ties : dict of str to recognition.StepFunction
        Values that are signs, but 0 where their argument is.
    steps : dict of str to (recognition.StepFunction or None)
        By the name of each value that was looked at.
    """

    def __init__(self, evaluator, steps=None):
        self.evaluator, self.network = evaluator, OnnxNetwork(evaluator)
        self.layers, self.notes, self.signs_with_ties = [], [], {}
        self._entries, self._refused = {}, {}  # name of a value -> Entry, or the reason
        self.signs = {}  # Entry -> Signs
        self.padded_signs = {}  # name of a value -> PaddedSigns
        self.reshaped, self.last = {}, {}  # name of a value with the elements of a map, in another shape or the channels last -> Entry
        self.steps = dict(steps or {})
        self._rounded = _rounded_values(evaluator.model.operators)
        self._moves = [self._select, self._map_axes, self._select_positions]  # the first ones are for inputs of other sizes, too
        if is_of_sequences_as_maps(evaluator.model):
            self._moves.reverse()

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def entry(self, name):
        """Return the `Entry` of a value; constants become parameters."""
        if name in self._refused:
            raise RefusedError(self._refused[name])
        if name not in self._entries:
            constant = self.constant(name)
            if constant is None or constant.dtype != np.float32:
                raise UntranslatableError(f'it reads {name}, which is not translated')
            self._entries[name] = self.network.add_constant(constant, name)
        return self._entries[name]

    def set(self, name, entry):
        """Record the `Entry` of a value."""
        self._entries[name] = entry

    def map_of(self, name):
        """Return the `Entry` of the map whose elements a value has, in its own shape or another one."""
        return self.reshaped.get(name) or self.last.get(name) or self.entry(name)

    def set_map(self, operator, entry):
        """Record the map whose elements the output of an operator has, in the shape of its first input."""
        name, output = operator.inputs[0], operator.outputs[0]
        if name not in self.reshaped and name not in self.last:
            return self.set(output, entry)
        (self.reshaped if name in self.reshaped else self.last)[output] = entry
        raise RefusedError(self._refused[name])  # what other operators would read

    def constant(self, name):
        """Return the array of a constant, or None."""
        return self.evaluator.constant(name)

    def shape(self, name):
        """Return the shape of a value."""
        return self.evaluator.shape(name)

    def is_rounded(self, name):
        """Return whether a value, or what elementwise operators and moves make of it, is rounded to integers."""
        return name in self._rounded

    def require_constant(self, operator, position, default=None):
        """Return the array of input `position` of an operator, or `default` if there is none."""
        if len(operator.inputs) <= position or not operator.inputs[position]:
            return default
        array = self.constant(operator.inputs[position])
        if array is None:
            raise UntranslatableError(f'its input {operator.inputs[position]} depends on the data; constants can be packed')
        return array

    def add(self, operator, operation, inputs=None):
        """Add the node that an operator of ONNX becomes: with its first input unless others are given, and its first output."""
        inputs = [self.entry(operator.inputs[0])] if inputs is None else inputs
        output = operator.outputs[0]
        value = output
        if operator.kind in _SAME_ON_INTEGERS and self.evaluator.sampled[output].dtype in _INTEGERS:
            value = output, _as_float32
        self.set(output, self.network.add(operation, operator.name, inputs, self.shape(output), value=value))

    def add_inner(self, operator, operation, inputs, shape):
        """Add one of several nodes of an operator, whose result is not a value of the model; return its `Entry`."""
        return self.network.add(operation, f'{operator.name}_{operator_name(operation).strip("_")}', inputs, shape)

    # --- translation ----------------------------------------------------------------------------------------------------------------

    def translate(self, outputs):
        """Translate what the given outputs of the model depend on; return the names of the values that the network outputs.

        Operators at the end that have no packed form and no weights are left out: softmax, after which the largest number is still the
        largest, and what arranges the elements of maps in another way, as detectors do.
        """
        for name in self.network.shapes:
            self.set(name, self.network.add_input(name))
        with ProgressLine(total=len(self.evaluator.model.operators), description='looking for signs', unit='operators') as line:
            needed = self._needed(outputs, line)
        for operator in needed:
            try:
                self._translate(operator)
            except UntranslatableError as error:
                if operator.kind in MOVING and any(move(operator) for move in self._moves):
                    continue
                reason = str(error) if isinstance(error, RefusedError) else self._cause(operator)
                reason = reason or f'node {operator.name} ({operator.kind}): {error}'
                self._refused.update(dict.fromkeys(operator.outputs, reason))
        try:
            outputs = [value for name in outputs for value in self._packable(name)]
            self.network.finish([self.entry(name) for name in outputs])
        except UntranslatableError as error:
            raise UserError(f'{self.evaluator.model.path}: {error}') from error
        return outputs

    def _select(self, operator):
        """Add the outputs of an operator that moves elements as selections from a map; return whether all of them are such."""
        for number, output in enumerate(operator.outputs):
            cone = moving_cone(self.evaluator, output, self._is_map)
            chosen = cone and selection(self.evaluator, cone, output)
            piece = dataclasses.replace(operator, name=f'{operator.name}_{number}' if number else operator.name, outputs=[output])
            if not chosen or not add_selection(self, piece, cone, chosen):
                return False
        return True

    def _map_axes(self, operator):
        """Add the output of an operator as a selection of rows and columns of a map; return whether it is one."""
        cone = moving_cone(self.evaluator, operator.outputs[0], self._is_map_before_moves)
        return len(operator.outputs) == 1 and cone is not None and add_axis_maps(self, operator, cone)

    def _select_positions(self, operator):
        """Add the outputs of an operator that moves elements as selections of positions of maps; return whether all of them are such."""
        for number, output in enumerate(operator.outputs):
            ways = (selected_positions(self.evaluator, output, is_map) for is_map in (self._is_map_before_moves, self._is_map))
            chosen = next((way for way in ways if way is not None), None)
            if chosen is None:
                return False
            piece = dataclasses.replace(operator, name=f'{operator.name}_{number}' if number else operator.name, outputs=[output])
            add_positions(self, piece, chosen)
        return True

    def _is_map_before_moves(self, name):
        producer = self.evaluator.producers.get(name)
        return self._is_map(name) and (producer is None or producer.kind not in MOVING)

    def _is_map(self, name):
        return name in self._entries and self.evaluator.sampled[name].dtype == np.float32

    def keep_signs(self, operator, source):
        """Make the output of an operator signs if the value whose elements it has are signs: those above the middle of both levels."""
        signs, name = self.levels_of(source), operator.outputs[0]
        if signs is None or signs.flipped is not None or signs.scale <= 0 or self.network.has_planes(signs.entry.node):
            return
        channels = self.shape(name)[1]
        levels = np.array([[signs.shift - signs.scale], [signs.shift + signs.scale]]).repeat(channels, axis=1)
        step = StepFunction('', levels, [(np.full(channels, signs.shift, np.float32), np.zeros(channels, bool))], 1.0, 0.0)
        activation = self.network.add_step(f'{operator.name}_signs', self.entry(name), step, name)
        self.set_signs(operator, activation, signs.scale, signs.shift)

    def set_signs(self, operator, activation, scale, shift):
        """Set the output of an operator: signs times `scale` plus `shift`."""
        name = operator.outputs[0]
        self.set(name, activation if (scale, shift) == (1, 0) else self._scaled(operator, activation, name, scale, shift))
        self.signs[self.entry(name)] = Signs(activation, scale, shift)

    def shuffled(self, operator, entry, groups, shape):
        """Add a channel shuffle; return its `Entry`."""
        split = (shape[0], groups, shape[1] // groups, *shape[2:])
        swapped = (split[0], split[2], split[1], *split[3:])
        parts = self.add_inner(operator, Reshape(), [entry], split)
        parts = self.add_inner(operator, Transpose((0, 2, 1, *range(3, len(split)))), [parts], swapped)
        return self.add_inner(operator, Reshape(), [parts], shape)

    def _cause(self, operator):
        """Return why a value that an operator reads is refused, '' if none is. Padding is not a cause: layers read its input."""
        producers = self.evaluator.producers
        refused = (name for name in operator.inputs if name in self._refused and name not in self.padded_signs)
        return next((self._refused[name] for name in refused if producers[name].kind != 'Pad'), '')

    def _packable(self, output):
        """Return the values from which an output is computed, without the operators at the end that move or normalize its elements."""
        waiting, values, left_out = [output], [], []
        while waiting:
            name = waiting.pop()
            operator = self.evaluator.producers.get(name)
            if operator is not None and name in self._refused and not self.steps.get(name) and self._may_be_left_out(operator):
                left_out.append(operator)
                waiting.extend(source for source in reversed(operator.inputs) if source in self.evaluator.varying)
            else:
                self.entry(name)
                values.append(name)
        if left_out:
            names = ', '.join(dict.fromkeys(operator.kind for operator in left_out))
            self.notes.append(f'left out at the end: {names}; in place of the output {output}: {", ".join(dict.fromkeys(values))}')
        return list(dict.fromkeys(values))

    def _may_be_left_out(self, operator):
        sources = [name for name in operator.inputs if name in self.evaluator.varying]
        decodes = operator.kind in _DECODING and all(name in self._refused for name in sources)
        return operator.kind in _AT_THE_END or decodes

    def unused_inputs(self):
        """Return the names of the inputs that nothing reads."""
        read = {name for operator in self.evaluator.model.operators for name in operator.inputs}
        return [name for name in self.network.shapes if name not in read]

    def _needed(self, outputs, line):
        """Return the operators on which outputs depend, in topological order. What only leads to a step is not among them."""
        waiting, needed = list(outputs), set()
        while waiting:
            name = waiting.pop()
            operator = self.evaluator.producers.get(name)
            if operator is None or name not in self.evaluator.varying or (operator, name) in needed:
                continue
            needed.add((operator, name))
            line.update()
            step = self.step(name)
            padding = step and self._padding_before(step)
            waiting.extend([padding.inputs[0] if padding else step.source] if step else operator.inputs)
        chosen = {operator for operator, _ in needed}
        return [operator for operator in self.evaluator.model.operators if operator in chosen]

    def step(self, name):
        """Return the `StepFunction` by which a value is computed, or None."""
        if name not in self.steps:
            step = find_step(self.evaluator, name) if name in self.evaluator.producers else None
            self.steps[name] = step and self._without_positive_factors(step)
        return self.steps[name]

    def _without_positive_factors(self, step):
        """Return a step of what is before positive factors and divisors that depend on the data, such as a deviation.

        A step at 0 is the same one there.
        """
        while len(step.comparisons) == 1 and not step.comparisons[0][0].any():
            operator = self.evaluator.producers.get(step.source)
            if operator is None or operator.kind not in ('Mul', 'Div'):
                break
            factor = is_positive if operator.kind == 'Mul' else is_nonnegative  # a quotient of 0 is not a number
            first, second = operator.inputs
            numbers = [(first, second), *([(second, first)] if operator.kind == 'Mul' else [])]
            sources = [
                a
                for a, b in numbers
                if a in self.evaluator.varying and self.shape(a) == self.shape(step.source) and factor(self.evaluator, b)
            ]
            if not sources:
                break
            step = dataclasses.replace(step, source=sources[0])
        return step

    def _padding_before(self, step):
        """Return the operator that pads the map that a step compares with a constant, or None."""
        operator = self.evaluator.producers.get(step.source)
        if operator is None or operator.kind != 'Pad':
            return None
        try:
            before, after, _ = padding_of(self, operator)
        except UntranslatableError:
            return None
        return None if any(before[:2]) or any(after[:2]) else operator

    def _translate(self, operator):
        for name in operator.outputs:
            if name in self.steps and self.steps[name]:
                self._add_step(operator, name, self.steps[name])
                return
        source, factor = gelu_source(self.evaluator, operator)
        if source and factor == 1:
            return self.add(operator, Activation('gelu'), [self.entry(source)])
        if source:
            gelu = self.add_inner(operator, Activation('gelu'), [self.entry(source)], self.shape(source))
            return self.add(operator, ScalarArithmetic('multiply', factor), [gelu])
        if operator.kind not in TRANSLATIONS:
            raise UntranslatableError('there is no packed form of this operator')
        TRANSLATIONS[operator.kind](self, operator)

    def _add_step(self, operator, name, step):
        padding = self._padding_before(step)
        if padding is not None:
            return self._add_padded_step(operator, name, step, padding)
        source = self.entry(step.source)
        if step.tie_channels:
            self.signs_with_ties[name] = step
        levels = step.levels
        uniform = (np.ptp(levels, axis=1) <= self.network.tolerance * np.abs(levels).max()).all()
        if len(levels) > 2 and not uniform:
            return self._add_scaled_levels(operator, name, step)
        lowest, highest = levels[0], levels[-1]
        activation = self.network.add_step(operator.name, source, step, name)
        if len(levels) > 2:
            shift = float(lowest.mean())
            self.set(name, activation if not shift else self._scaled(operator, activation, name, 1.0, shift))
            self.signs[self.entry(name)] = Signs(activation, 1.0, shift)
            return
        scale, shift = (highest - lowest) / 2, (highest + lowest) / 2
        if uniform:
            self.set_signs(operator, activation, *(_rounded(number.mean(), np.abs(levels).max()) for number in (scale, shift)))
        else:
            self.set(name, self._scaled(operator, activation, name, scale, shift))

    def _add_scaled_levels(self, operator, name, step):
        """Add a step of more than two levels that differ between channels by a factor and a summand, as a step size for each head does."""
        count, lowest = len(step.levels) - 1, step.levels[0]
        scale = (step.levels[-1] - lowest) / count
        with np.errstate(all='ignore'):
            multiples = (step.levels - lowest) / scale
        if not np.ptp(multiples, axis=1).max() <= _SAME_LEVEL * count:
            raise UntranslatableError('it has other levels in each channel, which are not multiples of one number')
        numbers = np.array([_rounded(number, 1) for number in multiples.mean(axis=1)])

        def nearest(array):
            found = (array - by_channel(lowest, array)) / by_channel(scale, array)
            return numbers[np.abs(found[..., None] - numbers).argmin(axis=-1)].astype(np.float32)

        equal = dataclasses.replace(step, levels=np.repeat(numbers[:, None], step.levels.shape[1], axis=1))
        activation = self.network.add_step(operator.name, self.entry(step.source), equal, (name, nearest))
        self.set(name, self._scaled(operator, activation, name, scale, lowest))

    def _add_padded_step(self, operator, name, step, padding):
        """Add the step of the value without padding. A convolution that reads it pads with the step of the padding."""
        before, after, value = padding_of(self, padding)
        levels, largest = step.levels, np.abs(step.levels).max()
        (cone,) = (cone for cone in self.evaluator.cones(name) if cone.source == step.source)
        padded = self.evaluator.function(cone, name)(np.full((levels.shape[1], 1), value, np.float32)).astype(np.float64)
        if len(levels) > 2 or np.ptp(levels, axis=1).max() > self.network.tolerance * largest:
            raise UntranslatableError(f'it is the sign of a map padded with {value:g}, and has other levels in each channel')
        if step.tie_channels:
            self.signs_with_ties[name] = step
        scale, shift = (_rounded(number.mean(), largest) for number in ((levels[1] - levels[0]) / 2, (levels[1] + levels[0]) / 2))
        flipped, beyond = None, (padded[:, 0] - shift) / scale
        if np.ptp(beyond) > self.network.tolerance:
            # a layer pads with one number: let that be 1, and turn around the channels in which it is -1
            flipped = np.rint(beyond)
            if (np.abs(np.abs(beyond) - 1) > self.network.tolerance).any():
                raise UntranslatableError(f'it is the sign of a map padded with {value:g}, which is 0 in some channels')
            ((threshold, flip),), beyond = step.comparisons, np.ones(1)
            step = dataclasses.replace(step, comparisons=[(threshold, flip != (flipped < 0))])
        activation = self.network.add_step(operator.name, self.entry(padding.inputs[0]), step, None)
        signs = Signs(activation, scale, shift, flipped)
        self.padded_signs[name] = PaddedSigns(signs, before, after, _rounded(beyond.mean(), 1) * scale + shift)
        self._refused[name] = f'node {padding.name} (Pad): what it pads is read by other operators than a sign and a convolution'

    def _scaled(self, operator, entry, name, scale, shift):
        """Add entry * scale + shift, whose result is the value `name` of the model."""
        shape = self.shape(name)
        if np.ndim(scale):
            array = self.evaluator.sampled[name]
            factor = self.network.add_constant(by_channel(scale, array), f'{operator.name}_scale')
            summand = self.network.add_constant(by_channel(shift, array), f'{operator.name}_shift')
            scaled = self.add_inner(operator, _PRODUCT, [entry, factor], shape)
            return self.network.add(_SUM, f'{operator.name}_levels', [scaled, summand], shape, value=name)
        scaled = self.add_inner(operator, ScalarArithmetic('multiply', scale), [entry], shape)
        value = name if self.evaluator.sampled[name].dtype == np.float32 else (name, _as_float32)  # conditions are bool
        return self.network.add(ScalarArithmetic('add', shift), f'{operator.name}_levels', [scaled], shape, value=value)

    def levels_of(self, name):
        """Return the `Signs` of a value that takes few levels, or None."""
        return self.signs.get(self._entries.get(name))


# Operators whose results on integers equal the results on the same numbers in float32, and the integers that float32 has.
_SAME_ON_INTEGERS = ('Clip', 'Concat', 'Flatten', 'Identity', 'Max', 'MaxPool', 'Min', 'QuantizeLinear', 'Reshape', 'Squeeze', 'Unsqueeze')
_INTEGERS = (np.int8, np.uint8, np.int16, np.uint16)
_ROUNDING = ('Round', 'QuantizeLinear')
_MOVES = ('Concat', 'Flatten', 'Reshape', 'Slice', 'Split', 'Squeeze', 'Transpose', 'Unsqueeze')


def _as_float32(array):
    return array.astype(np.float32)


def _rounded_values(operators):
    """Return the names of the values that are rounded, and of the values from which elementwise operators and moves compute these."""
    rounded = set()
    for operator in reversed(operators):
        if operator.kind in _ROUNDING or rounded.intersection(operator.outputs) and operator.kind in (*ELEMENTWISE, *_MOVES):
            rounded.update(operator.inputs)
    return rounded


_SAME_LEVEL = 1e-4  # difference of levels of channels, in parts of a step


def _rounded(number, largest):
    """Return a level, without the rounding error of the exporter's chain of operations."""
    nearest = float(np.rint(number * 64) / 64)
    return nearest if abs(number - nearest) <= 1e-5 * largest else float(number)


def translate(*kinds):
    """Register the decorated function for operators of these kinds."""

    def add(function):
        TRANSLATIONS.update(dict.fromkeys(kinds, function))
        return function

    return add


# --- elementwise ------------------------------------------------------------------------------------------------------------------------

_UNARY = {
    'Relu': Activation('relu'),
    'Sigmoid': Activation('sigmoid'),
    'Tanh': Activation('tanh'),
    'Softplus': Activation('softrelu'),
    'Abs': Elementwise('abs'),
    'Neg': Elementwise('negative'),
    'Identity': Identity(),
}


@translate(*_UNARY)
def _unary(t, operator):
    t.add(operator, _UNARY[operator.kind])
    signs = t.levels_of(operator.inputs[0])
    if operator.kind == 'Identity' and signs:
        t.signs[t.entry(operator.outputs[0])] = signs


@translate('Dropout')
def _dropout(t, operator):
    t.add(operator, Identity())


@translate('Cast')
def _cast(t, operator):
    before, after = (t.evaluator.sampled[name].dtype for name in (operator.inputs[0], operator.outputs[0]))
    if after != np.float32 or before not in (np.float32, bool, *_INTEGERS):
        raise UntranslatableError(f'there is no packed form of a cast from {before} to {after}')
    t.add(operator, Identity())


@translate('Mish')
def _mish(t, operator):
    x = t.entry(operator.inputs[0])
    softplus = t.add_inner(operator, Activation('softrelu'), [x], t.network.shape(x))
    factor = t.add_inner(operator, Activation('tanh'), [softplus], t.network.shape(x))
    t.add(operator, Elementwise('multiply'), [x, factor])


@translate('LeakyRelu')
def _leaky_relu(t, operator):
    t.add(operator, Activation('leaky', operator.attributes.get('alpha', 0.01)))


@translate('Elu')
def _elu(t, operator):
    t.add(operator, Activation('elu', operator.attributes.get('alpha', 1.0)))


@translate('Selu')
def _selu(t, operator):
    a = operator.attributes
    if abs(a.get('alpha', _SELU[0]) - _SELU[0]) > 1e-6 or abs(a.get('gamma', _SELU[1]) - _SELU[1]) > 1e-6:
        raise UntranslatableError('its alpha or gamma differs from SELU')
    t.add(operator, Activation('selu'))


_SELU = 1.6732632, 1.0507009  # alpha and gamma


@translate('Gelu')
def _gelu(t, operator):
    if operator.attributes.get('approximate', 'none') == 'none':
        return t.add(operator, Activation('gelu'))
    x = t.entry(operator.inputs[0])
    shape, factor = t.network.shape(x), 2 * math.sqrt(2 / math.pi)
    y = t.add_inner(operator, Elementwise('square'), [x], shape)
    y = t.add_inner(operator, ScalarArithmetic('multiply', _TANH_GELU * factor), [y], shape)
    y = t.add_inner(operator, ScalarArithmetic('add', factor), [y], shape)
    y = t.add_inner(operator, Elementwise('multiply'), [x, y], shape)
    gate = t.add_inner(operator, Activation('sigmoid'), [y], shape)  # (1 + tanh(y / 2)) / 2
    t.add(operator, Elementwise('multiply'), [x, gate])


_TANH_GELU = 0.044715  # factor of the cube in GELU by tanh


@translate('HardSigmoid')
def _hard_sigmoid(t, operator):
    t.add(operator, HardSigmoid(operator.attributes.get('alpha', 0.2), operator.attributes.get('beta', 0.5)))


@translate('HardSwish')
def _hard_swish(t, operator):
    x = t.entry(operator.inputs[0])
    gate = t.add_inner(operator, HardSigmoid(1 / 6, 0.5), [x], t.network.shape(x))
    t.add(operator, Elementwise('multiply'), [x, gate])


@translate('PRelu')
def _prelu(t, operator):
    slope = _of_channels(t.require_constant(operator, 1), t.shape(operator.inputs[0]))
    slope = t.network.add_constant(slope, f'{operator.name}_slope')
    t.add(operator, Activation('prelu'), [t.entry(operator.inputs[0]), slope])


def _of_channels(array, shape):
    """Return constants (channels,) or (1,) from an array that is repeated to `shape`."""
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if array.size != array.shape[1]:
        raise UntranslatableError('its constants differ within a channel')
    return array.reshape(-1)


@translate('Clip')
def _clip(t, operator):
    largest = float(np.finfo(np.float32).max)
    if 'min' in operator.attributes or 'max' in operator.attributes:
        low, high = operator.attributes.get('min', -largest), operator.attributes.get('max', largest)
    else:
        low, high = (float(t.require_constant(operator, i, default)) for i, default in ((1, -largest), (2, largest)))
    t.add(operator, Clip(low, high))


_SUM, _DIFFERENCE, _PRODUCT = (Elementwise(kind, repeats=True) for kind in ('add', 'subtract', 'multiply'))
_ARITHMETIC = {'Add': _SUM, 'Sub': _DIFFERENCE, 'Mul': _PRODUCT}
_EXTREMES = {'Max': 'maximum', 'Min': 'minimum'}


@translate(*_ARITHMETIC)
def _arithmetic(t, operator):
    operands = [_operand(t, operator, name) for name in operator.inputs]
    if operator.kind != 'Mul':
        operands = _of_one_shape(t, operator, operands)
    t.add(operator, _ARITHMETIC[operator.kind], operands)


def _of_one_shape(t, operator, operands):
    """Return two values of which one is repeated to the shape of the other: a program repeats only in products: by 1s."""
    shape = t.shape(operator.outputs[0])
    whole = next((entry for entry in operands if entry.node.depends_on_data and t.network.shape(entry) == shape), None)
    repeated = []
    for entry in operands:
        if whole is not None and entry.node.depends_on_data and t.network.shape(entry) != shape:
            zeros = t.add_inner(operator, ScalarArithmetic('multiply', 0.0), [whole], shape)
            ones = t.add_inner(operator, ScalarArithmetic('add', 1.0), [zeros], shape)
            entry = t.add_inner(operator, _PRODUCT, [ones, entry], shape)
        repeated.append(entry)
    return repeated


@translate('Div')
def _quotient(t, operator):
    divisor, output = t.constant(operator.inputs[1]), operator.outputs[0]
    exact = divisor is not None and t.is_rounded(output) and _is_by_channel(divisor, t.shape(output))
    quotient = _exact_quotient(divisor) if exact else Elementwise('divide', repeats=True)
    t.add(operator, quotient, [_operand(t, operator, name) for name in operator.inputs])


def _is_by_channel(array, shape):
    """Return whether an array that is repeated to `shape` is one number or one for each channel."""
    sizes = (1,) * (len(shape) - array.ndim) + array.shape
    return all(size == 1 for axis, size in enumerate(sizes) if axis != 1)


def _exact_quotient(divisor):
    """Return the operation whose quotient has the bits of ONNX Runtime. For ``divide``, a program multiplies by the reciprocal."""
    with np.errstate(all='ignore'):
        powers_of_two = np.abs(np.frexp(divisor)[0]) == 0.5
        has_reciprocal = powers_of_two & np.isfinite(1 / divisor)
    return Elementwise('divide' if has_reciprocal.all() else 'true_divide', repeats=True)


def _operand(t, operator, name):
    """Return the `Entry` of an input; of a constant, with as many axes as the result has."""
    array, shape = t.constant(name), t.shape(operator.outputs[0])
    if array is None:
        return t.entry(name)
    if array.dtype != np.float32:
        raise UntranslatableError(f'it reads constants of {array.dtype}')
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    for axis in (axis for axis in range(len(shape)) if axis != 1 and array.shape[axis] > 1):
        first = array.take([0], axis)
        if np.array_equal(np.broadcast_to(first, array.shape), array):
            array = first
    return t.network.add_constant(array, f'{operator.name}_constant')


@translate('Max', 'Min')
def _extreme(t, operator):
    kind = _EXTREMES[operator.kind]
    constants = [t.constant(name) for name in operator.inputs]
    numbers = [array for array in constants if array is not None]
    if len(operator.inputs) != 2 or len(numbers) == 2:
        raise UntranslatableError(f'it compares {len(operator.inputs)} values; two can be packed')
    if not numbers:
        t.add(operator, Elementwise(kind, repeats=True), [t.entry(name) for name in operator.inputs])
    elif np.unique(numbers[0]).size == 1:
        x = next(name for name, array in zip(operator.inputs, constants) if array is None)
        t.add(operator, ScalarArithmetic(kind, float(numbers[0].reshape(-1)[0])), [t.entry(x)])
    else:
        raise UntranslatableError('it compares with several numbers')


@translate('Where')
def _where(t, operator):
    """Add condition * first + (1 - condition) * second, whose condition is a step."""
    condition, *choices = operator.inputs
    shape, terms = t.shape(operator.outputs[0]), []
    if t.constant(condition) is not None:
        raise UntranslatableError('its condition is a constant')
    chosen = t.entry(condition)
    other = t.add_inner(operator, _NOT, [chosen], t.network.shape(chosen))
    for mask, name in ((chosen, choices[0]), (other, choices[1])):
        constant = t.constant(name)
        if constant is None or constant.any():
            terms.append(t.add_inner(operator, _PRODUCT, [mask, _operand(t, operator, name)], shape))
    t.add(operator, Elementwise('add') if len(terms) == 2 else Identity(), terms or [t.entry(condition)])


_NOT = ScalarArithmetic('subtract_from', 1.0)
_LOGIC = {'Not': _NOT, 'And': _PRODUCT, 'Or': Elementwise('maximum', repeats=True)}  # of numbers 0 and 1


@translate(*_LOGIC)
def _logic(t, operator):
    output, inputs = operator.outputs[0], [t.entry(name) for name in operator.inputs]
    operation = _LOGIC[operator.kind]
    t.set(output, t.network.add(operation, operator.name, inputs, t.shape(output), value=(output, _as_float32)))


@translate('Sum')
def _sum(t, operator):
    t.add(operator, Elementwise('sum'), [t.entry(name) for name in operator.inputs])


@translate('Pow')
def _power(t, operator):
    exponent, x = t.require_constant(operator, 1), t.entry(operator.inputs[0])
    if exponent.size != 1 or float(exponent.reshape(-1)[0]) not in (2, 3):
        raise UntranslatableError('only squares and cubes can be packed')
    if float(exponent.reshape(-1)[0]) == 2:
        return t.add(operator, Elementwise('square'))
    square = t.add_inner(operator, Elementwise('square'), [x], t.network.shape(x))
    t.add(operator, Elementwise('multiply'), [square, x])


# --- quantizers -------------------------------------------------------------------------------------------------------------------------


@translate('Round')
def _round(t, operator):
    t.add(operator, Rounding())


@translate('QuantizeLinear')
def _quantize(t, operator):
    """Add saturate(round(x / scale) + zero_point), whose integers a program has in float32."""
    output = operator.outputs[0]
    dtype, shape = t.evaluator.sampled[output].dtype, t.shape(output)
    if dtype not in _INTEGERS:
        raise UntranslatableError(f'it quantizes to {dtype}; integers of 8 or 16 bits can be packed')
    scale, zero_point = _quantization(t, operator)
    divisor = t.network.add_constant(scale, f'{operator.name}_scale')
    y = t.add_inner(operator, _exact_quotient(scale), [t.entry(operator.inputs[0]), divisor], shape)
    y = t.add_inner(operator, Rounding(), [y], shape)
    if zero_point.any():
        y = t.add_inner(operator, _SUM, [y, t.network.add_constant(zero_point, f'{operator.name}_zero_point')], shape)
    t.add(operator, Clip(np.iinfo(dtype).min, np.iinfo(dtype).max), [y])


@translate('DequantizeLinear')
def _dequantize(t, operator):
    """Add (x - zero_point) * scale."""
    scale, zero_point = _quantization(t, operator)
    x, shape = t.entry(operator.inputs[0]), t.shape(operator.outputs[0])
    if zero_point.any():
        x = t.add_inner(operator, _DIFFERENCE, [x, t.network.add_constant(zero_point, f'{operator.name}_zero_point')], shape)
    t.add(operator, _PRODUCT, [x, t.network.add_constant(scale, f'{operator.name}_scale')])


def _quantization(t, operator):
    """Return scale and zero point of a quantizer, float32, each one number or one for each channel, with as many axes as its input."""
    shape = t.shape(operator.inputs[0])
    if len(shape) < 2:
        raise UntranslatableError('its input has no channels')
    rank, channels = len(shape), shape[1]
    scale = t.require_constant(operator, 1)
    zero_point = t.require_constant(operator, 2, np.zeros(scale.shape, np.float32))
    sizes = {scale.size, zero_point.size} - {1}
    by_channel = sizes == {channels} and operator.attributes.get('axis', 1) % rank == 1
    if scale.dtype != np.float32 or operator.attributes.get('block_size', 0) or sizes and not by_channel:
        raise UntranslatableError('its scales are not float32 numbers, one in all or one for each channel')
    return tuple(array.astype(np.float32).reshape(1, -1, *(1,) * (rank - 2)) for array in (scale, zero_point))


# --- normalization and pooling ----------------------------------------------------------------------------------------------------------


@translate('BatchNormalization')
def _batch_normalization(t, operator):
    parameters = [t.network.add_constant(t.require_constant(operator, position), name) for position, name in _statistics(operator)]
    operation = BatchNormalization(eps=operator.attributes.get('epsilon', 1e-5), fixes_gamma=False)
    t.add(operator, operation, [t.entry(operator.inputs[0]), *parameters])


def _statistics(operator):
    return [(position, f'{operator.name}_{name}') for position, name in enumerate(('gamma', 'beta', 'mean', 'variance'), 1)]


def window_of(t, operator, kernel, dilation=True):
    """Return the `Window` of a convolution or pooling. Without `dilation`, a dilated one is refused."""
    a, axes = operator.attributes, len(kernel)
    strides, dilations = list(a.get('strides', [1] * axes)), list(a.get('dilations', [1] * axes))
    pads = list(a.get('pads', [0] * (2 * axes)))
    automatic = a.get('auto_pad', 'NOTSET')
    if automatic in ('SAME_UPPER', 'SAME_LOWER'):
        begins, ends = [], []
        for size, extent, stride, distance in zip(t.shape(operator.inputs[0])[2:], kernel, strides, dilations):
            total = max(0, (-(-size // stride) - 1) * stride + (extent - 1) * distance + 1 - size)
            smaller, larger = total // 2, total - total // 2
            begins.append(smaller if automatic == 'SAME_UPPER' else larger)
            ends.append(larger if automatic == 'SAME_UPPER' else smaller)
        pads = begins + ends
    elif automatic == 'VALID':
        pads = [0] * (2 * axes)
    if min(pads) < 0:
        raise UntranslatableError('its padding is negative')
    if not dilation and set(dilations) != {1}:
        raise UntranslatableError('its window is dilated')
    if axes == 3 and pads[0] != pads[axes]:
        raise UntranslatableError('its padding of the depth differs at both ends')
    return Window(tuple(kernel), tuple(strides), tuple(zip(pads[:axes], pads[axes:])), tuple(dilations))


@translate('MaxPool', 'AveragePool')
def _pool(t, operator):
    window = window_of(t, operator, operator.attributes['kernel_shape'], dilation=False)
    if operator.kind == 'MaxPool':
        operator, window = _with_padding_before(t, operator, window)
    kind = 'max' if operator.kind == 'MaxPool' else 'avg'
    beyond = operator.attributes.get('ceil_mode', 0) and _has_windows_beyond(t.shape(operator.inputs[0]), window)
    counts_padding = kind == 'avg' and bool(operator.attributes.get('count_include_pad', 0))
    if counts_padding and beyond:  # PyTorch and ONNX Runtime divide by different numbers there
        raise UntranslatableError('it counts padding, and has windows beyond it (ceil_mode); export it with count_include_pad=False')
    if len(operator.outputs) > 1 and operator.outputs[1]:
        raise UntranslatableError('it returns indices')
    _moved(t, operator, Pooling(kind, window, 'full' if beyond else 'valid', counts_padding), keeps_levels=kind == 'max')


def _with_padding_before(t, operator, window):
    """Return a maximum pooling that reads what an operator pads, and its window with that padding, if the padding is never the maximum.

    That is minus infinity, and the element at the edge, which is in each window that has padding.
    """
    producer = t.evaluator.producers.get(operator.inputs[0])
    mode = 'none' if producer is None or producer.kind != 'Pad' else producer.attributes.get('mode', 'constant')
    if mode not in ('constant', 'edge') or window.is_padded:
        return operator, window
    before, after, value = padding_of(t, producer, mode)
    pads = tuple(zip(before[2:], after[2:]))
    within = all(max(sizes) < kernel for sizes, kernel in zip(pads, window.kernel))
    if any(before[:2]) or any(after[:2]) or not within or mode == 'constant' and value > _NEVER_LARGEST:
        return operator, window
    operator = dataclasses.replace(operator, inputs=[producer.inputs[0], *operator.inputs[1:]])
    return operator, dataclasses.replace(window, pads=pads)


_NEVER_LARGEST = -1e30  # networks that have no infinity pad with the lowest number of their precision


def _has_windows_beyond(shape, window):
    """Return whether windows whose number is rounded up do not end with the padded map."""
    sizes = zip(shape[2:], window.kernel, window.strides, window.pads)
    return any((size + sum(pads) - kernel) % stride for size, kernel, stride, pads in sizes)


def _moved(t, operator, operation, keeps_levels=True):
    """Add a node that selects elements of its inputs: of signs, if all of them have the same two levels and the higher one is positive."""
    signs = [t.levels_of(name) for name in operator.inputs[: len(operator.inputs) if isinstance(operation, Concatenation) else 1]]
    inputs, output, first = [t.entry(name) for name in operator.inputs[: len(signs)]], operator.outputs[0], signs[0]
    has_planes = first is not None and t.network.has_planes(first.entry.node)
    two_levels = keeps_levels and all(signs) and not has_planes and len({(each.scale, each.shift) for each in signs}) == 1
    if not two_levels or first.scale <= 0 or (first.scale, first.shift) == (1, 0):
        t.add(operator, operation, inputs)
        if two_levels and first.scale > 0:
            t.signs[t.entry(output)] = Signs(t.entry(output), 1.0, 0.0)
        elif has_planes and isinstance(operation, Reshape) and len(t.shape(output)) == 2:
            t.signs[t.entry(output)] = first  # a dense layer flattens the planes that it reads
        return
    made = output, lambda array: np.where(array > first.shift, 1, -1).astype(np.float32)
    moved = t.network.add(operation, operator.name, [each.entry for each in signs], t.shape(output), value=made)
    t.set(output, t._scaled(operator, moved, output, first.scale, first.shift))
    t.signs[t.entry(output)] = Signs(moved, first.scale, first.shift)


@translate('GlobalAveragePool', 'GlobalMaxPool')
def _global_pool(t, operator):
    t.add(operator, GlobalPooling('avg' if operator.kind == 'GlobalAveragePool' else 'max'))


@translate('ReduceMean', 'ReduceMax')
def _reduction(t, operator):
    rank, axes = len(t.shape(operator.inputs[0])), _reduced_axes(t, operator)
    before = t.evaluator.producers.get(operator.inputs[0])
    if before is not None and before.kind == operator.kind and rank == 3 and not before.attributes.get('keepdims', 1):
        first = _reduced_axes(t, before)
        if axes == first == (2,):  # one axis after the other, as in x.mean(dim=2).mean(dim=2)
            return _add_reduction(t, operator, before.inputs[0], (2, 3))
    _add_reduction(t, operator, operator.inputs[0], axes)


def _reduced_axes(t, operator):
    rank = len(t.shape(operator.inputs[0]))
    axes = operator.attributes.get('axes')
    if axes is None:
        axes = t.require_constant(operator, 1, np.arange(rank))
    return tuple(sorted(int(axis) % rank for axis in axes))


def _add_reduction(t, operator, name, axes):
    keeps, entry = bool(operator.attributes.get('keepdims', 1)), t.entry(name)
    if axes in ((2,), (3,)) and len(t.shape(name)) == 4:
        return _add_reduction_of_lines(t, operator, name, axes[0])
    if operator.kind == 'ReduceMean' and keeps and len(axes) > 1 and axes == tuple(range(1, len(t.shape(name)))):
        shape = (*t.shape(name)[:2], *(1,) * (len(axes) - 1))
        entry, axes = t.add_inner(operator, Reduction('mean', axes[1:], keeps_axes=True), [entry], shape), (1,)
    if operator.kind == 'ReduceMax' and keeps and axes == (1,) and t.shape(name)[1] > 1:
        return t.add(operator, Elementwise('maximum', repeats=True), _halves_of_channels(t, operator, entry))
    t.add(operator, Reduction('mean' if operator.kind == 'ReduceMean' else 'max', axes, keeps), [entry])


def _add_reduction_of_lines(t, operator, name, axis):
    """Add the mean or the maximum of the columns (axis 2) or of the rows (3) of a map, whose windows are whole lines."""
    shape = list(t.shape(name))
    kernel = [1, 1]
    kernel[axis - 2], shape[axis] = shape[axis], 1
    pooled = Pooling('avg' if operator.kind == 'ReduceMean' else 'max', Window(tuple(kernel), tuple(kernel)))
    if operator.attributes.get('keepdims', 1):
        return t.add(operator, pooled, [t.entry(name)])
    t.add(operator, Reshape(), [t.add_inner(operator, pooled, [t.entry(name)], tuple(shape))])


def _halves_of_channels(t, operator, entry):
    """Return two values of one channel, the larger of which is the largest of all channels."""
    while True:
        batch, channels, *sizes = t.network.shape(entry)
        count, halves = (channels + 1) // 2, []
        for begin in (0, channels - count):  # of an odd number, the middle one is in both
            halves.append(t.add_inner(operator, AxisSlice(1, begin, begin + count), [entry], (batch, count, *sizes)))
        if count == 1:
            return halves
        entry = t.add_inner(operator, Elementwise('maximum', repeats=True), halves, (batch, count, *sizes))


# --- moves ------------------------------------------------------------------------------------------------------------------------------


@translate('Concat')
def _concat(t, operator):
    if any(t.constant(name) is not None for name in operator.inputs):
        raise UntranslatableError('it concatenates constants')
    axis = operator.attributes['axis'] % len(t.shape(operator.outputs[0]))
    if axis != 1:
        raise UntranslatableError(f'it concatenates along axis {axis}; channels can be concatenated')
    _moved(t, operator, Concatenation(axis))


@translate('Reshape', 'Flatten', 'Squeeze', 'Unsqueeze')
def _reshape(t, operator):
    name, shape = operator.inputs[0], t.shape(operator.outputs[0])
    if name in t.reshaped and t.network.shape(t.reshaped[name]) == shape:
        return t.add(operator, Identity(), [t.reshaped[name]])
    try:
        _require_flattening(t, operator, t.shape(name), shape)
    except UntranslatableError:
        if t.shape(name)[:1] == shape[:1] and len(t.shape(name)) > 2:
            t.reshaped[operator.outputs[0]] = t.entry(name)
        raise
    _moved(t, operator, Reshape())


_SHUFFLE = [0, 2, 1, 3, 4]  # of the axes of a map whose channels are split in groups


def _require_flattening(t, operator, before, after):
    """Raise `UntranslatableError` unless a reshape flattens a map, makes one of a vector, arranges positions, or is part of a shuffle."""
    flattens = len(after) == 2 or len(before) == 2 and set(after[2:]) == {1}
    if before[:2] == after[:2] and {len(before), len(after)} <= {3, 4}:
        return
    maps = min(len(before), len(after)) > 2 and max(len(before), len(after)) < 5
    if before[:1] == after[:1] and (flattens or maps and map_shape(before) == map_shape(after)):
        return
    readers = [other for other in t.evaluator.model.operators if operator.outputs[0] in other.inputs]
    beside = [t.evaluator.producers.get(operator.inputs[0]), *readers]
    if not any(other is not None and other.kind == 'Transpose' and other.attributes.get('perm') == _SHUFFLE for other in beside):
        raise UntranslatableError(f'it reshapes {before} to {after}; flattening and channel shuffles can be packed')


@translate('Transpose')
def _transpose(t, operator):
    rank = len(t.shape(operator.inputs[0]))
    order = tuple(operator.attributes.get('perm', reversed(range(rank))))
    if order == tuple(range(rank)):
        t.add(operator, Identity())
    elif order == tuple(_SHUFFLE):
        _moved(t, operator, Transpose(order))
    elif operator.inputs[0] in t.last and list(order) == to_second(rank):
        t.add(operator, Identity(), [t.last[operator.inputs[0]]])
    elif list(order) == to_last(3):
        _moved(t, operator, Transpose(order))
        t.last[operator.outputs[0]] = t.entry(operator.inputs[0])
    else:
        if list(order) == to_last(rank):
            t.last[operator.outputs[0]] = t.entry(operator.inputs[0])
        raise UntranslatableError(f'it permutes the axes by {order}; channel shuffles can be packed')


@translate('Slice')
def _slice(t, operator):
    name, shape = operator.inputs[0], t.shape(operator.inputs[0])
    if 'starts' in operator.attributes:
        starts, ends = operator.attributes['starts'], operator.attributes['ends']
        axes, steps = operator.attributes.get('axes', range(len(starts))), [1] * len(starts)
    else:
        starts, ends = (t.require_constant(operator, position) for position in (1, 2))
        axes = t.require_constant(operator, 3, range(len(starts)))
        steps = t.require_constant(operator, 4, [1] * len(starts))
    entry, ranges = t.entry(name), {}
    for begin, end, axis, step in zip(starts, ends, axes, steps):
        taken = range(shape[int(axis)])[slice(int(begin), int(end), int(step))]
        if taken != range(shape[int(axis)]):
            ranges[int(axis) % len(shape)] = taken
    if not ranges:
        return t.add(operator, Identity(), [entry])
    channels = ranges.get(1)
    if 0 in ranges:
        raise UntranslatableError('it slices the batch')
    if len(ranges) > 1 or channels is None:
        raise UntranslatableError('it takes a part of the map; channels, and rows and columns that are equally far apart, can be packed')
    if channels.step != 1:
        raise UntranslatableError('it takes every n-th channel')
    _moved(t, operator, AxisSlice(1, channels.start, channels.stop))


@translate('Split')
def _split(t, operator):
    name = operator.inputs[0]
    shape = t.shape(name)
    axis = operator.attributes.get('axis', 0) % len(shape)
    if axis != 1:
        raise UntranslatableError(f'it splits axis {axis}; the channels can be split')
    begin = 0
    for number, output in enumerate(operator.outputs):
        size = t.shape(output)[1]
        piece = dataclasses.replace(operator, name=f'{operator.name}_{number}', outputs=[output])
        _moved(t, piece, AxisSlice(1, begin, begin + size))
        begin += size


@translate('Pad')
def _pad(t, operator):
    if operator.attributes.get('mode', 'constant') != 'constant':
        if not add_axis_maps(t, operator):
            raise UntranslatableError('it pads the batch, the channels or a 3-D map by its elements; rows and columns can be padded so')
        return
    before, after, value = padding_of(t, operator)
    shape = t.shape(operator.inputs[0])
    if value or before[0] or after[0]:
        ways = 'zeros can be packed, -1 and 1 before a binary layer, and minus infinity before maximum pooling'
        raise UntranslatableError(f'it pads with {value:g}; {ways}')
    entry = t.entry(operator.inputs[0])
    if before[1] or after[1]:
        if any(before[2:]) or any(after[2:]):
            raise UntranslatableError('it pads the channels and the map')
        parts = [entry]
        for count, at_start in ((before[1], True), (after[1], False)):
            zeros = _zeros(t, operator, entry, count) if count else []
            parts = [*zeros, *parts] if at_start else [*parts, *zeros]
        return t.add(operator, Concatenation(1), parts)
    if len(shape) not in (3, 4):
        raise UntranslatableError('it pads a map that is neither 1-D nor 2-D')
    pads = list(zip(before, after))
    t.add(operator, Padding('constant', (*pads[:2], *[(0, 0)] * (4 - len(shape)), *pads[2:])), [entry])


def _zeros(t, operator, entry, count):
    """Return a list of entries with `count` channels of zeros beside a value."""
    shape, zeros = t.network.shape(entry), []
    while count:
        size = min(count, shape[1])
        part = entry if size == shape[1] else t.add_inner(operator, AxisSlice(1, 0, size), [entry], (shape[0], size, *shape[2:]))
        zeros.append(t.add_inner(operator, ScalarArithmetic('multiply', 0.0), [part], (shape[0], size, *shape[2:])))
        count -= size
    return zeros


def padding_of(t, operator, mode='constant'):
    """Return the padding of an operator `Pad` before and after each axis, and its value. Another mode than the given one is refused."""
    rank = len(t.shape(operator.inputs[0]))
    if operator.attributes.get('mode', 'constant') != mode:
        raise UntranslatableError(f'it pads by {operator.attributes["mode"]}; constants can be packed')
    pads = operator.attributes.get('pads')
    pads = t.require_constant(operator, 1) if pads is None else pads
    value = operator.attributes.get('value', 0.0)
    value = t.require_constant(operator, 2, np.float32(value))
    axes = t.require_constant(operator, 3, range(rank))
    before, after = [0] * rank, [0] * rank
    for axis, first, last in zip(axes, pads[: len(pads) // 2], pads[len(pads) // 2 :]):
        before[int(axis) % rank], after[int(axis) % rank] = int(first), int(last)
    if min(before + after) < 0:
        raise UntranslatableError('its padding is negative')
    return before, after, float(np.reshape(value, -1)[0])


@translate('Resize', 'Upsample')
def _resize(t, operator):
    for position in range(1, len(operator.inputs)):
        t.require_constant(operator, position)
    if not add_axis_maps(t, operator):
        raise UntranslatableError(
            'it changes the batch or the channels, is not a sum of rows and columns, or too large; lines and maps can be resized'
        )


@translate('DepthToSpace')
def _depth_to_space(t, operator):
    size, name = operator.attributes['blocksize'], operator.inputs[0]
    shape = t.shape(name)
    channels, entry = shape[1] // (size * size), t.entry(name)
    if operator.attributes.get('mode', 'DCR') == 'DCR':  # all channels of the first position of a block, then of the next
        entry = t.shuffled(operator, entry, size * size, shape)
    kernel = np.zeros((channels, size * size, 1, size, size), np.float32)
    for position in range(size * size):
        kernel[:, position, 0, position // size, position % size] = 1
    weight = t.network.add_constant(kernel.reshape(-1, 1, size, size), f'{operator.name}_weight')
    t.add(operator, TransposedConvolution(Window((size, size), (size, size)), channels), [entry, weight])
    t.keep_signs(operator, name)


_MAX_RATIO = 64  # elements of a kernel that repeats what a whole number does not


@translate('Expand')
def _expand(t, operator):
    name, before, after = operator.inputs[0], t.shape(operator.inputs[0]), t.shape(operator.outputs[0])
    if before == after:
        return t.add(operator, Identity())
    if len(after) != 4 or before != (*after[:2], 1, 1):
        raise UntranslatableError(f'it repeats {before} to {after}; channels of one element can be repeated to maps')
    scale = math.gcd(*after[2:])
    squares, rest = (*after[:2], scale, scale), tuple(size // scale for size in after[2:])
    if math.prod(rest) > _MAX_RATIO:
        raise UntranslatableError(f'it repeats one element to {after[2]} x {after[3]}, whose ratio has too large numbers')
    entry = t.add_inner(operator, Upsampling('nearest', scale), [t.entry(name)], squares)
    if rest == (1, 1):
        t.add(operator, Identity(), [entry])
    else:
        weight = t.network.add_constant(np.ones((after[1], 1, *rest)), f'{operator.name}_weight')
        t.add(operator, TransposedConvolution(Window(rest, rest), after[1]), [entry, weight])
    t.keep_signs(operator, name)


@translate('Softmax', 'LogSoftmax')
def _softmax(t, operator):
    raise UntranslatableError('it divides by a number that depends on the value; at the end of a network it can be left out')
