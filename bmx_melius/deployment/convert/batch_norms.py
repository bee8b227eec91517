"""Threshold folding of the batch normalizations and learned shifts that precede sign activations."""

from ...errors import UserError
from ...nn import marks
from . import thresholds
from .traced_network import Entry, is_marked_shift


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
            entry = Entry(node, 0)
            if node.marks.get(marks.ROLE) == marks.ACTIVATION and (network.encoding(entry) or network.levels(entry)):
                _, folded = network.before_comparison(network.activation_input(node))
                nodes.update(dict.fromkeys(each for each in folded if _normalizes(each)))
        entries = [entry for node in nodes for entry in (network.sources(node)[0], Entry(node, 0))]
        values = dict(zip(entries, network.compute(entries, sample))) if entries else {}
        for node in nodes:
            x, y = values[network.sources(node)[0]], values[Entry(node, 0)]
            layout = thresholds.layout_in_use(network.batch_norm(node), x, y)
            if layout is None:
                self.unclear.append(node.name)
            self._layouts[node] = layout or thresholds.PLAIN

    def __call__(self, nodes, channels, activation=None, level=0):
        """Return threshold and flip of a comparison.

        Parameters
        ----------
        nodes : tuple of Node
            What precedes the comparison, from `Network.before_comparison`.
        channels : int
        activation : Node or None
            The last node of the activation that is applied to the number before the comparison; None: none.
        level : float
            With what the number is compared: x >= level.
        """
        key = nodes, channels, activation, level
        if key not in self._folded:
            batch_norm = self._network.batch_norm(nodes[0]) if nodes and _normalizes(nodes[0]) else None
            functions = [self._network.shift(node) for node in nodes[batch_norm is not None :]]
            if activation:
                function = self._network.activation_function(activation)
                functions.append(lambda x: function(x) - level)
            try:
                if batch_norm is None:
                    self._folded[key] = thresholds.fold_shifts(functions, channels)
                else:
                    self._folded[key] = thresholds.fold(batch_norm, len(nodes[0].shape), self._layouts[nodes[0]], functions)
            except thresholds.NotMonotoneError as error:
                raise UserError(f'the batch normalization {nodes[0].name} overflows, its statistics are damaged: {error}') from error
        return self._folded[key]


def _normalizes(node):
    """Return whether a folded node is a batch normalization, not a shift."""
    return node.operator == 'BatchNorm' and not is_marked_shift(node)
