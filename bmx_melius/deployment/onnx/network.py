"""Networks of ONNX models for the converter: values computed by ONNX Runtime, activations recognized by evaluation."""

import math

import numpy as np

from ...errors import UserError
from ...graph.mxnet_operators import operator_name
from ...graph.nodes import Graph, Node
from ...graph.operations import StepFunction
from ...nn import marks
from ..convert.network import Comparisons, Entry, Network


class OnnxNetwork(Network):
    """A network of an ONNX model.

    `translation.translate` builds it. Each node is an operator of the model, or one of several that an operator becomes.

    Parameters
    ----------
    evaluator : Evaluator
    """

    framework = 'ONNX Runtime'
    tolerance = 1e-5
    computes_sums_exactly = False  # of signs: these are -1 and 1 up to rounding in ONNX Runtime

    def __init__(self, evaluator):
        super().__init__(Graph([], [], [], [], []), {}, dict(evaluator.shapes))
        self.evaluator, self.ids = evaluator, evaluator.model.ids
        self.steps = {}  # activation Node -> StepFunction
        self.weights = {}  # Node of a layer of few levels -> WeightParts
        self._values = {}  # Entry -> (name of a value of the model, function that makes the entry from its array)
        self._names = set()

    # --- construction ---------------------------------------------------------------------------------------------------------------

    def add_input(self, name):
        """Add an input of the model; return its `Entry`."""
        return self._add(name, None, (), {}, self.evaluator.shape(name), True, name)

    def add_constant(self, array, name):
        """Add an array; return its `Entry`. Raises `UserError` if an element is not finite: such a model has no meaningful result."""
        array = np.ascontiguousarray(array, np.float32)
        if not np.isfinite(array).all():
            raise UserError(
                f'{self.evaluator.model.path}: {name} has elements that are infinite or NaN: training diverged, or it is damaged'
            )
        entry = self._add(name, None, (), {}, array.shape, False, None)
        self.arrays[entry.node.name] = array
        self.graph.parameters.append(entry.node)
        return entry

    def add(self, operation, name, inputs, shape, facts=None, value=None):
        """Add a node with one output; return its `Entry`.

        Parameters
        ----------
        operation : Operation
        name : str
        inputs : list of Entry
        shape : tuple of int
        facts : dict of str to object
            Marks.
        value : str or (str, callable) or None
            The value of the model that it computes, or one from which a function of arrays makes it; None: it is not compared.
        """
        return self._add(name, operation, inputs, {k: str(v) for k, v in (facts or {}).items()}, tuple(shape), True, value)

    def _add(self, name, operation, inputs, facts, shape, varies, value):
        node = Node(
            index=len(self.graph.nodes),
            name=self._free_name(name),
            operator=operation and operator_name(operation),
            attributes={},
            operation=operation,
            marks=facts,
            inputs=[entry.node for entry in inputs],
            input_slots=[entry.slot for entry in inputs],
            shapes=[shape],
            depends_on_data=varies,
        )
        self.graph.nodes.append(node)
        entry = Entry(node, 0)
        if value is not None:
            self._values[entry] = (value, None) if isinstance(value, str) else value
        return entry

    def _free_name(self, name):
        while name in self._names:
            name += '_'
        self._names.add(name)
        return name

    def add_step(self, name, source, step, value):
        """Add the activation of a `StepFunction`; return its `Entry`: signs -1 and 1, or levels from 0 on.

        `value` is the name of the value of the model that has the levels of the step, or one and the function of arrays that makes these of
        it; None if there is none.
        """
        name_of_value, levels_of = value if isinstance(value, tuple) else (value, lambda array: array)
        lowest, *others = (float(level) for level in step.levels.mean(axis=1))
        if len(others) == 1:
            facts = {'bits': 1, 'sign': 1, 'method': 'sign', 'encoding': 'sign'}
            limit = step.levels[0] * 0.75 + step.levels[1] * 0.25  # what is between both levels counts as the higher one
            made = name_of_value, lambda array: np.where(levels_of(array) > by_channel(limit, array), 1, -1).astype(np.float32)
        else:
            facts = {'bits': math.ceil(math.log2(len(step.levels))), 'sign': 0, 'method': 'levels'}
            made = name_of_value, lambda array: levels_of(array) - np.float32(lowest)
        made = made if value else None
        entry = self.add(StepFunction(), name, [source], self.shape(source), {marks.ROLE: marks.ACTIVATION, **facts}, made)
        self.steps[entry.node] = step
        return entry

    def finish(self, outputs):
        """Set the outputs, a list of `Entry`."""
        self.outputs = list(outputs)
        self.graph.outputs, self.graph.output_slots = [entry.node for entry in outputs], [entry.slot for entry in outputs]

    # --- what the converter asks ----------------------------------------------------------------------------------------------------

    def has_value(self, entry):
        return entry in self._values or not entry.node.depends_on_data

    def compute(self, entries, inputs):
        made = [self._values[entry] for entry in entries]
        arrays = self.evaluator.values([name for name, _ in made], inputs)
        return [arrays[name] if function is None else function(arrays[name]) for name, function in made]

    def is_float32(self, entry):
        value = self._values.get(entry)
        return value is None or value[1] is not None or self.evaluator.sampled[value[0]].dtype == np.float32

    def activation_input(self, node):
        return self.sources(node)[0]

    def activation_interior(self, node):
        return set()

    def has_planes(self, node):
        """Return whether a node is an activation of more than two levels, which become bit planes."""
        return node in self.steps and len(self.steps[node].levels) > 2

    def levels(self, entry):
        node = self.before_identities(entry).node
        if not self.has_planes(node):
            return None
        levels = self.steps[node].levels.mean(axis=1)
        return tuple(float(level) for level in levels - levels[0])

    def weight_parts(self, node):
        return self.weights.get(node)

    def comparisons(self, sample):
        return StepComparisons(self)


class StepComparisons(Comparisons):
    """The comparisons of the steps that were recognized."""

    def __init__(self, network):
        self.unclear = []
        self._network = network

    def __call__(self, node):
        return self._network.sources(node)[0], self._network.steps[node].comparisons


def by_channel(numbers, array):
    """Return numbers, one for each channel, in a shape in which they are repeated to an array."""
    return numbers.reshape(1, -1, *(1,) * (array.ndim - 2))
