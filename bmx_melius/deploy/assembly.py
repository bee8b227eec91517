"""A symbol of packed operators and of the nodes that stay."""

from ..symbol_json import VARIABLE, SymbolJson
from .packed_operator import NAME, operator_attributes

_MXNET_VERSION = ['int', 10901]  # whose format the symbol has


def assemble(network, partition, programs, words):
    """Put the network together again.

    Parameters
    ----------
    network : bmx_melius.deploy.network.Network
    partition : bmx_melius.deploy.partition.Partition
    programs : dict of Region to Lowered
    words : dict of Region to numpy.ndarray
        The words of its program.

    Returns
    -------
    The new symbol as JSON text, its arrays by name with ``arg:`` or ``aux:``, and the set of nodes that were kept.
    """
    symbol = SymbolJson(attributes={'mxnet_version': _MXNET_VERSION})
    arrays, position, kept = {}, {}, set()

    def finish(item):
        """Write an item, a region or a node, all of whose inputs are written."""
        if item not in programs:
            kept.add(item)
            inputs = [reference(entry) for entry in network.sources(item)]
            position[item] = symbol.add(item.operator or VARIABLE, item.name, inputs, item.attributes)
            if item.operator is None and item.name in network.arrays:
                kind = 'aux:' if item in network.graph.statistics else 'arg:'
                arrays[kind + item.name] = network.arrays[item.name]
            return
        lowered, vector = programs[item], words[item]
        name = lowered.outputs[-1].node.name
        inputs = [reference(entry) for entry in lowered.inputs]
        attributes = {'__dtype__': '4', '__shape__': f'({len(vector)},)'}  # 4: int32
        inputs.append([symbol.add(VARIABLE, f'{name}_program', attributes=attributes), 0, 0])
        arrays[f'arg:{name}_program'] = vector
        position[item] = symbol.add(NAME, name, inputs, operator_attributes(lowered.program, vector))

    def reference(entry):
        region = partition.region_of.get(entry.node)
        if region is None:
            return [position[entry.node], entry.slot, 0]
        return [position[region], programs[region].outputs.index(entry), 0]

    def item_of(entry):
        return partition.region_of.get(entry.node, entry.node)

    waiting = [item_of(entry) for entry in reversed(network.outputs)]
    while waiting:
        item = waiting[-1]
        if item not in position:
            entries = programs[item].inputs if item in programs else network.sources(item)
            missing = [item_of(entry) for entry in reversed(entries) if item_of(entry) not in position]
            if missing:
                waiting.extend(missing)
                continue
            finish(item)
        waiting.pop()
    symbol.heads = [reference(entry) for entry in network.outputs]
    return symbol.text(indent=2), arrays, kept
