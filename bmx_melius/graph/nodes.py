"""Graphs of networks: nodes in topological order, with marks and shapes.

A graph is read from a network of MXNet (`tracing`), an ONNX model or a packed network. It is the input of counting, checking, drawing and
conversion, which depend neither on MXNet nor on the Python classes that built the network.
"""

import dataclasses
import math
import numbers
from typing import Dict, List, Optional, Sequence, Tuple, Union

from ..errors import UserError
from ..nn.marks import ROLE
from .operations import Operation

InputShape = Union[Sequence[int], Dict[str, Sequence[int]]]  # shape of the only input, or shapes of all inputs by name

# Operators that read only the shapes of some inputs -> the number of inputs before these.
_VALUES_READ = {'ones_like': 0, 'zeros_like': 0, 'reshape_like': 1}

_MAX_ELEMENTS = (1 << 31) - 1  # per array, the limit of MXNet


@dataclasses.dataclass(eq=False)
class Node:
    """One node of the graph.

    Attributes
    ----------
    index : int
        Position in `Graph.nodes`.
    name : str
    operator : str or None
        Name of the operator in MXNet; None for a variable (an input, a parameter, a running statistic).
    attributes : dict of str to str
        Of the operator, as MXNet writes them; none in graphs of other frameworks and of programs.
    operation : Operation or None
        What the node computes; None for a variable.
    marks : dict of str to str
        Facts that the layer attached to the node, see `bmx_melius.nn.marks`.
    inputs : list of Node
    input_slots : list of int
        Index of the output used of each input node; 0 unless its operator has several outputs.
    shapes : list of tuple of int
        Shapes of the node's outputs.
    depends_on_data : bool
        False for parameters and for values that are computed only from parameters, such as a binarized weight.
    """

    index: int
    name: str
    operator: Optional[str]
    attributes: Dict[str, str]
    operation: Optional[Operation]
    marks: Dict[str, str]
    inputs: List['Node'] = dataclasses.field(repr=False)  # otherwise repr would print all nodes upstream repeatedly
    input_slots: List[int]
    shapes: List[Tuple[int, ...]]
    depends_on_data: bool

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of the first output."""
        return self.shapes[0]

    @property
    def sources(self) -> List['Node']:
        """Inputs whose values the node reads, not only their shape."""
        return self.inputs[: _VALUES_READ.get(self.operator or '')]


@dataclasses.dataclass(eq=False)
class Graph:
    """Graph of a network.

    Attributes
    ----------
    nodes : list of Node
        In topological order: the inputs of a node come before it.
    parameters : list of Node
        Variables that are trained: not inputs, labels or running statistics.
    statistics : list of Node
        Auxiliary variables: running means and variances.
    outputs : list of Node
    output_slots : list of int
        Index of the output of each node in `outputs`.
    """

    nodes: List[Node]
    parameters: List[Node]
    statistics: List[Node]
    outputs: List[Node]
    output_slots: List[int]


def first_node(node: Node, role: str) -> Optional[Node]:
    """Return the node marked with `role`, such as ``activation_input``, with which the computation of `node` begins.

    Returns None if the marks do not determine one.
    """
    found, seen, waiting = set(), set(), [node]
    while waiting:
        inner = waiting.pop()
        if inner in seen:
            continue
        seen.add(inner)
        if inner.marks.get(ROLE) == role:
            found.add(inner)
        elif inner.operator is not None:
            waiting.extend(inner.sources)
        elif inner.depends_on_data:
            return None
    return found.pop() if len(found) == 1 else None


def shapes_by_name(input_shape: InputShape, name: str = 'data') -> Dict[str, Tuple[int, ...]]:
    """Return the shape of each input by name. A single shape is for the input `name`.

    Raises `UserError` for values that are not shapes and for shapes that are too large for MXNet.
    """
    shapes = dict(input_shape) if isinstance(input_shape, dict) else {name: input_shape}
    for given, shape in shapes.items():
        if (
            not isinstance(shape, (tuple, list))
            or not shape
            or not all(isinstance(size, numbers.Integral) and int(size) > 0 for size in shape)
        ):
            raise UserError(f'the shape of the input {given} must be a tuple of whole numbers from 1 on, batch first, not {shape!r}')
        if math.prod(shape) > _MAX_ELEMENTS:
            raise UserError(
                f'the input {given} of shape {tuple(shape)} has {math.prod(shape)} elements; MXNet computes with {_MAX_ELEMENTS} at most'
            )
    return {given: tuple(map(int, shape)) for given, shape in shapes.items()}
