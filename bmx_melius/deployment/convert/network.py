"""A network to convert: its graph with the arrays of its variables, the encodings of its values, and the interface to its framework."""

import collections
import dataclasses

import numpy as np

from ...analysis.counting import marked_bits
from ...errors import UserError
from ...forking import lazy_attribute
from ...graph.nodes import first_node
from ...graph.operations import (
    AxisSlice,
    BatchNormalization,
    Concatenation,
    Dropout,
    Elementwise,
    Flatten,
    GlobalPooling,
    Identity,
    Pooling,
    Reshape,
    Split,
    SwapAxes,
    Transpose,
)
from ...nn import marks

Entry = collections.namedtuple('Entry', 'node slot')  # an output of a node: a value of the network

MAX_BITS = 2  # of the weights of layers that are packed as bit planes
MAX_PRODUCTS = 7  # of the planes of activations and of weights of such a layer, if its inputs are integers, whose sums are faster
MAX_ACTIVATION_BITS = 4  # of activations that have planes, up to 15 before weights of one bit: with AVX-512 less time than float32

_MOVES = (AxisSlice, Concatenation, Flatten, Identity, Reshape, Split, SwapAxes, Transpose)


@dataclasses.dataclass
class BatchNorm:
    """A batch normalization of axis 1 at inference, with its parameters as NumPy arrays (channels,)."""

    gamma: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    eps: float
    fix_gamma: bool

    @property
    def channels(self):
        """The number of channels."""
        return len(self.gamma)

    def affine(self):
        """Return float64 arrays scale and shift (channels,), such that the result is x * scale + shift up to rounding."""
        gamma = np.ones(self.channels) if self.fix_gamma else self.gamma.astype(np.float64)
        scale = gamma / np.sqrt(self.variance.astype(np.float64) + self.eps)
        return scale, self.beta - self.mean * scale


class Comparisons:
    """Comparisons of numbers with thresholds that stand for the activations of a network.

    Attributes
    ----------
    unclear : list of str
        Names of the nodes whose rounding could not be determined.
    """

    unclear: list

    def __call__(self, node):
        """Return what a marked activation, whose last node is `node`, compares.

        Returns
        -------
        x : Entry
            The value that is compared.
        thresholds : list of (numpy.ndarray of float32, numpy.ndarray of bool), each (channels,)
            For each level of the result except the lowest one, threshold and flip: the result has this level or a higher one where
            (x >= threshold) != flip. One for a sign.
        """
        raise NotImplementedError


class Network:
    """A graph with the arrays of its variables, and queries about its values. Subclasses compute values with the framework of the network.

    Parameters
    ----------
    graph : Graph
    arrays : dict of str to numpy.ndarray
        The parameters and running statistics by name.
    shapes : dict of str to tuple of int
        Shape of each input.

    Attributes
    ----------
    framework : str
        Name of the library whose results are the definition of what the network computes.
    outputs : list of Entry
    ids : dict of str to int
        Inputs that are numbers of rows of embeddings -> how many rows there are.
    """

    framework: str
    tolerance = 1e-4  # of a float of the program, relative to the largest value that an operation computes or adds
    computes_sums_exactly = True  # of signs

    def __init__(self, graph, arrays, shapes):
        self.graph, self.arrays, self.shapes = graph, arrays, shapes
        self.outputs = [Entry(*output) for output in zip(graph.outputs, graph.output_slots)]
        self.ids, self._constants = {}, {}

    # --- the framework --------------------------------------------------------------------------------------------------------------

    def compute(self, entries, inputs):
        """Run the network and return internal values.

        Parameters
        ----------
        entries : list of Entry
        inputs : dict of str to numpy.ndarray

        Returns
        -------
        list of numpy.ndarray
        """
        raise NotImplementedError

    def has_value(self, entry):
        """Return whether `compute` can return a value."""
        return True

    def is_float32(self, entry):
        """Return whether a value is computed in float32."""
        raise NotImplementedError

    def levels(self, entry):
        """Return the levels to which a marked activation of few bits rounds a value: 0 and positive numbers, ascending.

        Few are up to `MAX_ACTIVATION_BITS`. None for other values, and for activations whose levels do not rise with the input or depend on
        other elements.
        """
        raise NotImplementedError

    def comparisons(self, sample):
        """Return a `Comparisons` for the activations of this network.

        Parameters
        ----------
        sample : dict of str to numpy.ndarray
            An array for each input.
        """
        raise NotImplementedError

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def sources(self, node):
        """Return the inputs of a node."""
        return [Entry(*source) for source in zip(node.inputs, node.input_slots)]

    def shape(self, entry):
        """Return the shape of a value, batch included."""
        return entry.node.shapes[entry.slot]

    @property
    def input_names(self):
        """Names of the inputs, in the order of the graph."""
        return [node.name for node in self.graph.nodes if node.operator is None and node.name in self.shapes]

    def is_input(self, entry):
        """Return whether a value is an input of the network."""
        return entry.node.operator is None and entry.node.name in self.shapes

    def constant(self, entry):
        """Return the array of a value that does not depend on the inputs."""
        if entry.node.operator is None:
            return self.arrays[entry.node.name]
        if entry not in self._constants:
            self._constants[entry] = self.compute([entry], {})[0]
        return self._constants[entry]

    def require_positive_variances(self):
        """Raise `UserError` unless variance + eps is positive. The result would be NaN, which no program can reproduce."""
        for node in self.graph.nodes:
            if not isinstance(node.operation, BatchNormalization) or self.sources(node)[4].node.depends_on_data:
                continue
            eps, variance = node.operation.eps, self.constant(self.sources(node)[4])
            if not np.isfinite(eps):
                raise UserError(f'node {node.name} (BatchNorm) has eps={eps}: the symbol is damaged')
            # in both precisions, because a framework may use either
            positive = (variance.astype(np.float64) + eps > 0) & (variance.astype(np.float32) + np.float32(eps) > 0)
            if not positive.all():
                channel = int(np.argmin(positive))
                raise UserError(
                    f'node {node.name} (BatchNorm): {self.sources(node)[4].node.name} is {variance[channel]:g} in channel {channel}, and '
                    f'with eps={eps:g} the sum must be positive: the file is damaged or training diverged'
                )

    def weight_parts(self, node):
        """Return the `WeightParts` of a marked layer; None if its marks describe its weight."""
        return None

    # --- marked layers and activations ----------------------------------------------------------------------------------------------

    def activation_input(self, node):
        """Return the input of a marked activation whose last node is `node`, or None if its marks are inconsistent."""
        return self.marked_input(node, marks.ACTIVATION_INPUT)

    def marked_input(self, node, role):
        """Return input 0 of the node marked with `role` with which the computation of `node` begins, or None (`graph.first_node`)."""
        first = first_node(node, role)
        return self.sources(first)[0] if first else None

    def operands(self, node):
        """Return the inputs of a node that combines them elementwise, each before it is repeated to the shape of the others."""
        return [self._before_repetition(source) for source in self.sources(node)]

    def _before_repetition(self, entry):
        entry = self.before_identities(entry)
        while entry.node.marks.get(marks.ROLE) == marks.REPETITION:
            value = self.marked_input(entry.node, marks.REPETITION_INPUT)
            if value is None:
                break
            entry = self.before_identities(value)
        return entry

    def activation_interior(self, node):
        """Return the nodes of the marked activation whose last node is `node`, except `node`."""
        interior, waiting = set(), list(node.inputs)
        while waiting:
            inner = waiting.pop()
            if inner not in interior and inner.depends_on_data and inner.operator is not None:
                interior.add(inner)
                if inner.marks.get(marks.ROLE) != marks.ACTIVATION_INPUT:
                    waiting.extend(inner.inputs)
        return interior

    def encoding(self, entry):
        """Return ``sign`` for a value marked as {-1, +1}, ``bit`` for one marked as {0, 1}, otherwise None."""
        return self._encodings.get(entry.node)

    @lazy_attribute
    def _encodings(self):
        encodings = {}
        for node in self.graph.nodes:
            if node.marks.get(marks.ROLE) == marks.ACTIVATION:
                if is_sign(node) and self.activation_input(node):
                    encodings[node] = node.marks.get('encoding', 'sign')
            elif _moves_elements(node.operation):
                found = {encodings.get(source) for source in node.inputs}
                if len(found) == 1:
                    encodings[node] = found.pop()
        return encodings

    def is_identity(self, node):
        """Return whether the result of a node equals its input."""
        operation = node.operation
        if isinstance(operation, Identity):
            return True
        if isinstance(operation, Dropout):
            return not operation.always
        if isinstance(operation, AxisSlice) and operation.axis != 1 and operation.end is not None:
            return False  # it is an identity for this input size only
        if combines(node, 'add') and not node.marks:
            return self._is_gradient_estimator(self.sources(node)[1])
        return isinstance(operation, (Reshape, AxisSlice)) and node.shape == self.shape(self.sources(node)[0])

    def _is_gradient_estimator(self, entry):
        """Return whether a value is s - BlockGrad(s) for a value s: a zero that only has a gradient."""
        if not combines(entry.node, 'subtract'):
            return False
        value, blocked = self.sources(entry.node)
        return isinstance(blocked.node.operation, Identity) and self.sources(blocked.node)[0] == value

    def before_identities(self, entry):
        """Return the value before the identity nodes that end with `entry`."""
        while self.is_identity(entry.node):
            entry = self.sources(entry.node)[0]
        return entry

    def batch_norm(self, node):
        """Return the `BatchNorm` of a node with constant parameters."""
        gamma, beta, mean, variance = (self.constant(source) for source in self.sources(node)[1:])
        return BatchNorm(gamma, beta, mean, variance, node.operation.eps, node.operation.fixes_gamma)


def combines(node, *kinds):
    """Return whether a node combines values elementwise, in one of these kinds of `Elementwise`."""
    return isinstance(node.operation, Elementwise) and node.operation.kind in kinds


def _moves_elements(operation):
    """Return whether the elements of a result are elements of the inputs."""
    if isinstance(operation, Dropout):
        return not operation.always
    if isinstance(operation, (Pooling, GlobalPooling)):
        return operation.kind == 'max'
    return isinstance(operation, _MOVES)


def is_sign(node):
    """Return whether a node is marked with a quantizer that is the sign."""
    return marked_bits(node) == 1 and marks.is_sign(node.marks)


def is_marked_shift(node):
    """Return whether a node is marked as learned shifts of channels."""
    return node.marks.get(marks.ROLE) == marks.SHIFT


def is_channelwise_batch_norm(node):
    """Return whether a node is a BatchNorm of axis 1 of a map or a vector, with constant parameters."""
    operation = node.operation
    return (
        isinstance(operation, BatchNormalization)
        and operation.axis == 1
        and len(node.shape) in (2, 3, 4, 5)
        and not any(source.depends_on_data for source in node.inputs[1:])
        and not operation.returns_statistics
    )
