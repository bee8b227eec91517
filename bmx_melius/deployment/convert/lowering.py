"""From the nodes of a network to the operations of a program: one rule for each of MXNet's operators (`rules`).

A rule is a function of a `Builder` and a node. It asks the builder for the values it reads, as numbers (`real`) or as bits (`bits`),
and adds operations. What it asks for is what the node depends on in a program: a binary convolution reads the bits of an activation,
and an activation reads what comes before the batch normalization that its threshold contains. So a rule run alone tells whether and
on what a node can be converted (`requirements`), and run together with others it writes the program (`lower`).
"""

from ... import marks
from ...errors import UserError
from ..program.operations import ProgramError
from .builder import Builder, UnsupportedError
from .rules import RULES, quantized_activation
from .traced_network import Entry


def requirements(network, node, thresholds):
    """The values that a node depends on in a program. Raises `UnsupportedError` if it cannot be part of one."""
    builder = Builder(network, thresholds)
    _add(builder, node)
    return builder.inputs


def lower(network, nodes, outputs, thresholds):
    """Convert nodes that can be converted, in topological order, to a program that makes the values `outputs`.

    Parameters
    ----------
    network : Network
    nodes : list of Node
    outputs : list of Entry
    thresholds : callable (node) -> (threshold, flip)
        Folds a BatchNorm node.

    Returns
    -------
    Lowered
    """
    builder = Builder(network, thresholds)
    for node in nodes:
        _add(builder, node)
    numbers = [builder.real(entry) for entry in outputs]
    return builder.finish(numbers, outputs)


def _add(builder, node):
    """Add the operations of a node. Raises `UnsupportedError`."""
    network = builder.network
    for entry in [Entry(node, slot) for slot in range(len(node.shapes))]:
        if len(network.shape(entry)) not in (2, 4):
            raise UnsupportedError(f'it makes a value of shape {network.shape(entry)}; maps and vectors can be packed')
        if not network.is_float32(entry):
            raise UnsupportedError('it does not compute in float32')
    rule = quantized_activation if node.marks.get(marks.ROLE) == marks.ACTIVATION else RULES.get(node.operator)
    if rule is None:
        raise UnsupportedError(f'the operator {node.operator} has no packed form')
    try:
        rule(builder, node)
    except ProgramError as error:
        raise UnsupportedError(str(error)) from error
    except UserError:
        raise
    except (KeyError, ValueError) as error:
        raise UnsupportedError(f'its attributes are malformed: {error}') from error
