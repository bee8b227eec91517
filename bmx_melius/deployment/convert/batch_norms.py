"""Threshold folding of the batch normalizations and learned shifts that precede sign activations."""

from ... import marks
from ...errors import UserError
from . import thresholds
from .traced_network import Entry


class FoldedBatchNorms:
    """Fold batch normalizations and learned shifts into thresholds, with the rounding that MXNet applies to them in this network.

    Attributes
    ----------
    unclear : list of str
        Names of the batch normalizations whose rounding could not be determined.
    """

    def __init__(self, network, sample):
        self.unclear = []
        self._network, self._layouts, self._folded = network, {}, {}
        nodes = {}
        for node in network.graph.nodes:
            if node.marks.get(marks.ROLE) == marks.ACTIVATION and network.encoding(Entry(node, 0)):
                _, folded = network.before_comparison(network.activation_input(node))
                nodes.update(dict.fromkeys(each for each in folded if each.operator == 'BatchNorm'))
        entries = [entry for node in nodes for entry in (network.sources(node)[0], Entry(node, 0))]
        values = dict(zip(entries, network.compute(entries, sample))) if entries else {}
        for node in nodes:
            x, y = values[network.sources(node)[0]], values[Entry(node, 0)]
            layout = thresholds.layout_in_use(network.batch_norm(node), x, y)
            if layout is None:
                self.unclear.append(node.name)
            self._layouts[node] = layout or thresholds.PLAIN

    def __call__(self, nodes):
        """Return threshold and flip for the nodes of `Network.before_comparison`."""
        if nodes not in self._folded:
            first, last = nodes[0], nodes[-1]
            batch_norm = self._network.batch_norm(first) if first.operator == 'BatchNorm' else None
            shifts = [self._network.shift(node) for node in nodes[batch_norm is not None :]]
            try:
                if batch_norm is None:
                    self._folded[nodes] = thresholds.fold_shifts(shifts, last.shape[1])
                else:
                    self._folded[nodes] = thresholds.fold(batch_norm, len(first.shape), self._layouts[first], shifts)
            except thresholds.NotMonotoneError as error:
                raise UserError(f'the batch normalization {first.name} overflows, its statistics are damaged: {error}') from error
        return self._folded[nodes]
