"""Threshold folding of the batch normalizations that precede sign activations."""

from ... import marks
from ...errors import UserError
from . import thresholds
from .traced_network import Entry


class FoldedBatchNorms:
    """Fold batch normalizations into thresholds, each with the rounding that MXNet applies to it in this network.

    Attributes
    ----------
    unclear : list of str
        Names of the batch normalizations whose rounding could not be determined.
    """

    def __init__(self, network, sample):
        self.unclear = []
        self._network, self._folded = network, {}
        nodes = {}
        for node in network.graph.nodes:
            if node.marks.get(marks.ROLE) == marks.ACTIVATION and network.encoding(Entry(node, 0)):
                batch_norm = network.batch_norm_before(network.activation_input(node))
                if batch_norm:
                    nodes[batch_norm] = None
        entries = [entry for node in nodes for entry in (network.sources(node)[0], Entry(node, 0))]
        values = dict(zip(entries, network.compute(entries, sample))) if entries else {}
        for node in nodes:
            x, y = values[network.sources(node)[0]], values[Entry(node, 0)]
            layout = thresholds.layout_in_use(network.batch_norm(node), x, y)
            if layout is None:
                self.unclear.append(node.name)
            self._folded[node] = layout or thresholds.PLAIN

    def __call__(self, node):
        if isinstance(self._folded[node], str):
            try:
                folded = thresholds.fold(self._network.batch_norm(node), len(node.shape), self._folded[node])
            except thresholds.NotMonotoneError as error:
                raise UserError(f'the batch normalization {node.name} overflows, its statistics are damaged: {error}') from error
            self._folded[node] = folded
        return self._folded[node]
