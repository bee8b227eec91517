"""Lowering of network nodes to program operations, by rules for their classes and kinds (`rules`).

A rule is a function of a `Builder` and a node. It requests the values it reads from the builder, as float32 (`real`) or as bits
(`bits`), and adds operations. The requested values are what the node depends on in a program: a binary convolution reads the bits of
an activation, and an activation reads the input of the batch normalization that is folded into its threshold. Applying the rule to a
single node therefore shows whether it can be converted and what it depends on (`requirements`); applying the rules of many nodes to
one builder writes the program (`lower`).
"""

from ...errors import UserError
from ...graph.operations import Unknown
from ...nn import marks
from ..program.operations import ProgramError
from .builder import Builder, UnsupportedError, is_3d
from .network import Entry
from .rules import MARKED_RULES, TAKES_3D, missing_rule, rule_of


def requirements(network, node, comparisons):
    """Return the values that a node depends on in a program.

    Raises
    ------
    UnsupportedError
        If the node cannot be converted.
    """
    builder = Builder(network, comparisons)
    _add(builder, node)
    return builder.inputs


def lower(network, nodes, outputs, comparisons):
    """Lower nodes to a program that computes the values `outputs`.

    Parameters
    ----------
    network : Network
    nodes : list of Node
        Convertible nodes in topological order.
    outputs : list of Entry
    comparisons : network.Comparisons

    Returns
    -------
    Lowered
    """
    builder = Builder(network, comparisons)
    for node in nodes:
        _add(builder, node)
    builder.takes_3d = True
    numbers = [builder.output(entry) for entry in outputs]
    return builder.finish(numbers, outputs)


def _add(builder, node):
    """Add the operations of a node, or raise `UnsupportedError`."""
    network, builder.node = builder.network, node
    for entry in [Entry(node, slot) for slot in range(len(node.shapes))]:
        if len(network.shape(entry)) not in (2, 3, 4, 5):
            raise UnsupportedError(f'it makes a value of shape {network.shape(entry)}; 1-D, 2-D and 3-D maps and vectors can be packed')
        if not network.is_float32(entry):
            raise UnsupportedError('it does not compute in float32')
    rule = MARKED_RULES.get(node.marks.get(marks.ROLE)) or rule_of(node.operation)
    if rule is None and isinstance(node.operation, Unknown) and node.operation.reason:
        raise UnsupportedError(f'its attributes are malformed: {node.operation.reason}')
    if rule is None:
        raise UnsupportedError(missing_rule(node.operator))
    builder.takes_3d = rule in TAKES_3D
    if is_3d(node.shape) and not builder.takes_3d:
        raise UnsupportedError('it makes a 3-D map, for which it has no packed form')
    try:
        rule(builder, node)
    except ProgramError as error:
        raise UnsupportedError(str(error)) from error
    except UserError:
        raise
    except (KeyError, ValueError) as error:
        raise UnsupportedError(f'its attributes are malformed: {error}') from error
