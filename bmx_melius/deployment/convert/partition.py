"""Partitioning of a network into the fewest packed operators that create no cycle."""

import dataclasses

from ...analysis.counting import marked_bits
from ...nn import marks
from ...reporting import ProgressLine
from ..program.operation_table import MAX_LEVEL_BITS
from .builder import UnsupportedError
from .lowering import requirements
from .network import Entry

NOT_CONNECTED = 'no binary layer is connected to it'  # reason for leaving a convertible node to MXNet
_BINARY_LAYERS = (marks.CONVOLUTION, marks.DENSE)


@dataclasses.dataclass(eq=False)
class Region:
    """Nodes that become one operator, in topological order, and their values that are read outside the region."""

    nodes: list
    outputs: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Partition:
    """The division of a network into regions and unconverted nodes.

    Attributes
    ----------
    region_of : dict of Node to Region
        The nodes that become packed operators. Other nodes are kept unchanged if anything still reads them.
    reasons : dict of Node to str
        Unconverted node -> the reason.
    """

    region_of: dict
    reasons: dict

    @property
    def regions(self):
        """List of the regions, in topological order of their first nodes."""
        return list(dict.fromkeys(self.region_of.values()))


def divide(network, comparisons):
    """Divide a network into regions with binary layers and unconverted nodes.

    A network without binary layers becomes one region if all of it can be converted, otherwise none, because packing only some float
    layers gains nothing.

    Parameters
    ----------
    network : Network
    comparisons : network.Comparisons

    Returns
    -------
    Partition
    """
    with ProgressLine(total=len(network.graph.nodes), description='converting', unit='operators') as line:
        needs, reasons = _needs(network, comparisons, line)
    levels = _levels(network, needs, reasons)
    regions, region_of = {}, {}
    all_of_it = not reasons and not any(map(_is_low_bit_layer, levels))
    for nodes in _connected(levels, needs):
        if all_of_it or any(map(_is_low_bit_layer, nodes)):
            key = levels[nodes[0]], nodes[0].shape[0]  # all values of an operator have the same batch size
            region = regions.setdefault(key, Region([]))
            region.nodes = sorted([*region.nodes, *nodes], key=lambda node: node.index)
            region_of.update(dict.fromkeys(nodes, region))
        else:
            reasons.update(dict.fromkeys(nodes, NOT_CONNECTED))
    partition = Partition(region_of, reasons)
    _find_outputs(network, partition, needs)
    return partition


def _is_low_bit_layer(node):
    """Return whether a node is marked as a layer with weights of few bits."""
    return node.marks.get(marks.ROLE) in _BINARY_LAYERS and marked_bits(node) <= MAX_LEVEL_BITS


def _needs(network, comparisons, line):
    """Find what each node reads after conversion, and which nodes cannot be converted.

    Returns
    -------
    needs : dict of Node to list of Entry
        For each node that the outputs depend on after conversion, the values it reads.
    reasons : dict of Node to str
        Node that cannot be converted -> the reason.
    """
    foreign = {}  # nodes inside an activation that cannot be converted -> the reason
    for node in network.graph.nodes:
        is_activation = node.marks.get(marks.ROLE) == marks.ACTIVATION and network.activation_input(node)
        if is_activation and not network.encoding(Entry(node, 0)):
            foreign.update(dict.fromkeys(network.activation_interior(node), f'it is part of the activation {node.name}'))
    needs, reasons = {}, {}
    waiting = [entry.node for entry in network.outputs]
    while waiting:
        node = waiting.pop()
        if node in needs or not node.depends_on_data or node.operator is None:
            continue
        try:
            if node in foreign:
                raise UnsupportedError(foreign[node])
            needs[node] = requirements(network, node, comparisons)
        except UnsupportedError as error:
            reasons[node] = str(error)
            needs[node] = network.sources(node)
        line.update()
        waiting.extend(entry.node for entry in needs[node])
    return needs, reasons


def _levels(network, needs, reasons):
    """Return the level of each convertible node: the largest number of unconverted stretches on a path from an input to it.

    A path between two nodes of one level never contains an unconverted node. So any nodes of a level may become one operator without
    creating a cycle: operators depend only on operators of lower levels.
    """
    levels = {}
    for node in network.graph.nodes:
        if node in needs:
            before = [source.node for source in needs[node] if source.node in needs]
            enters = node not in reasons
            levels[node] = max((levels[source] + (enters and source in reasons) for source in before), default=0)
    return {node: level for node, level in levels.items() if node not in reasons}


def _connected(levels, needs):
    """Return the connected components within each level, as lists of nodes in topological order."""
    parent = {node: node for node in levels}

    def root(node):
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node, level in levels.items():
        for source in needs[node]:
            if levels.get(source.node) == level:
                parent[root(source.node)] = root(node)
    groups = {}
    for node in levels:
        groups.setdefault(root(node), []).append(node)
    return list(groups.values())


def _find_outputs(network, partition, needs):
    """Set the outputs of each region: its values that network outputs, other regions or unconverted nodes read."""
    seen, waiting = set(), list(network.outputs)
    while waiting:
        entry = waiting.pop()
        if entry in seen:
            continue
        seen.add(entry)
        region = partition.region_of.get(entry.node)
        if region is None:
            waiting.extend(network.sources(entry.node))
        else:
            region.outputs.append(entry)
            for node in region.nodes:
                waiting.extend(source for source in needs[node] if partition.region_of.get(source.node) is not region)
    for region in partition.regions:
        region.outputs.sort(key=lambda entry: (entry.node.index, entry.slot))
