"""Which parts of a network become packed operators: as few as possible, such that no cycles arise."""

import dataclasses

from ... import marks
from .builder import UnsupportedError
from .lowering import requirements
from .traced_network import Entry

NOT_CONNECTED = 'no binary layer is connected to it'  # why a node stays that could be packed
_BINARY_LAYERS = (marks.CONVOLUTION, marks.DENSE)


@dataclasses.dataclass(eq=False)
class Region:
    """Nodes that become one operator, in topological order, and the values that are read from them outside."""

    nodes: list
    outputs: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Partition:
    """How a network is divided.

    Attributes
    ----------
    region_of : dict of Node to Region
        The nodes that become packed operators. All others stay as they are, if anything still needs them.
    reasons : dict of Node to str
        Nodes that stay -> why.
    """

    region_of: dict
    reasons: dict

    @property
    def regions(self):
        """The regions, in topological order of their first nodes."""
        return list(dict.fromkeys(self.region_of.values()))


def divide(network, thresholds):
    """Divide a network into regions with binary layers, and the rest.

    A network without binary layers is one region if all of it can be packed, else none: an operator of some float layers gains nothing.

    Parameters
    ----------
    network : Network
    thresholds : callable
        As for `lowering.lower`.

    Returns
    -------
    Partition
    """
    needs, reasons = _needs(network, thresholds)
    levels = _levels(network, needs, reasons)
    regions, region_of = {}, {}
    all_of_it = not reasons and not any(map(is_binary_layer, levels))
    for nodes in _connected(levels, needs):
        if all_of_it or any(map(is_binary_layer, nodes)):
            key = levels[nodes[0]], nodes[0].shape[0]  # an operator has one batch
            region = regions.setdefault(key, Region([]))
            region.nodes = sorted([*region.nodes, *nodes], key=lambda node: node.index)
            region_of.update(dict.fromkeys(nodes, region))
        else:
            reasons.update(dict.fromkeys(nodes, NOT_CONNECTED))
    partition = Partition(region_of, reasons)
    _find_outputs(network, partition, needs)
    return partition


def is_binary_layer(node):
    """Whether a node is a layer with weights of one bit, by its mark."""
    return node.marks.get(marks.ROLE) in _BINARY_LAYERS and node.marks.get('bits') == '1'


def _needs(network, thresholds):
    """Node -> the values it needs, for all nodes that outputs need after conversion; and nodes that cannot be converted -> why."""
    foreign = {}  # nodes inside an activation that stays
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
            needs[node] = requirements(network, node, thresholds)
        except UnsupportedError as error:
            reasons[node] = str(error)
            needs[node] = network.sources(node)
        waiting.extend(entry.node for entry in needs[node])
    return needs, reasons


def _levels(network, needs, reasons):
    """Node that can be converted -> how many times the way to it leaves and enters such nodes, at most.

    A path between two nodes of one level never passes a node that stays, so any nodes of a level may become one operator: no value
    leaves it and comes back, and operators only depend on those of lower levels.
    """
    levels = {}
    for node in network.graph.nodes:
        if node in needs:
            before = [source.node for source in needs[node] if source.node in needs]
            enters = node not in reasons
            levels[node] = max((levels[source] + (enters and source in reasons) for source in before), default=0)
    return {node: level for node, level in levels.items() if node not in reasons}


def _connected(levels, needs):
    """Lists of nodes, in topological order, that are connected within one level."""
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
    """Find what is read from each region: by outputs, by other regions, and by nodes that stay, which need all their inputs as before."""
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
