"""Assembly of the converted symbol from packed operators and the nodes that were not converted."""

from ...files.symbol_json import VARIABLE
from ..program.borders import border_of
from ..program.packed_operator import add_operator, new_symbol


def assemble(network, partition, programs, words):
    """Build the symbol of the converted network, each region replaced by one packed operator.

    Parameters
    ----------
    network : bmx_melius.deployment.convert.network.Network
    partition : bmx_melius.deployment.convert.partition.Partition
    programs : dict of Region to Lowered
    words : dict of Region to numpy.ndarray
        The serialized program of each region.

    Returns
    -------
    symbol : str
        The new symbol as JSON text.
    arrays : dict of str to numpy.ndarray
        Its parameters, named with the prefix ``arg:`` or ``aux:``.
    kept : set of Node
        The nodes that were not converted.
    """
    symbol = new_symbol()
    arrays, position, kept = {}, {}, set()
    outer, maps = {}, {}  # Entry -> reference to a node that gives it the shape of a map of a program, or the reverse (`borders`)

    def finish(item):
        """Append an item (a region or a node) whose inputs have all been appended."""
        if item not in programs:
            kept.add(item)
            inputs = [reference(entry) for entry in network.sources(item)]
            position[item] = symbol.add(item.operator or VARIABLE, item.name, inputs, item.attributes)
            if item.operator is None and item.name in network.arrays:
                kind = 'aux:' if item in network.graph.statistics else 'arg:'
                arrays[kind + item.name] = network.arrays[item.name]
            return
        lowered = programs[item]
        inputs = [map_of(entry) for entry in lowered.inputs]
        position[item], program_words = add_operator(symbol, lowered.outputs[-1].node.name, inputs, lowered.program, words[item])
        arrays.update(program_words)

    def chained(source, nodes):
        """Add nodes one after the other to the value of the reference `source`; return the reference to the result."""
        for operator, name, attributes in nodes:
            source = [symbol.add(operator, name, [source], attributes), 0, 0]
        return source

    def reference(entry):
        region = partition.region_of.get(entry.node)
        if region is None:
            return [position[entry.node], entry.slot, 0]
        number = programs[region].outputs.index(entry)
        border = border_of(network.shape(entry))
        if border is None:
            return [position[region], number, 0]
        if entry not in outer:
            outer[entry] = chained([position[region], number, 0], border.after(entry.node.name, number))
        return outer[entry]

    def map_of(entry):
        """Return the reference to a value as an input of a packed operator."""
        border = border_of(network.shape(entry))
        if border is None:
            return reference(entry)
        region = partition.region_of.get(entry.node)
        if region is not None:
            return [position[region], programs[region].outputs.index(entry), 0]
        if entry not in maps:
            maps[entry] = chained(reference(entry), border.before(entry.node.name, entry.slot))
        return maps[entry]

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
