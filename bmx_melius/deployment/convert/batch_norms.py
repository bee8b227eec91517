"""Threshold folding of the batch normalizations and learned shifts that precede sign activations in a network of MXNet."""

import numpy as np

from ...errors import UserError
from ...graph.operations import BatchNormalization
from ...nn import marks
from . import mxnet_rounding
from .network import Comparisons, Entry, is_marked_shift
from .thresholds import NotMonotoneError


class FoldedBatchNorms(Comparisons):
    """Fold batch normalizations and learned shifts into thresholds, with the rounding that MXNet applies to them in this network.

    Parameters
    ----------
    network : TracedNetwork
    sample : dict of str to numpy.ndarray
        An array for each input; from its values the rounding is determined.
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
            layout = mxnet_rounding.layout_in_use(network.batch_norm(node), x, y)
            if layout is None:
                self.unclear.append(node.name)
            self._layouts[node] = layout or mxnet_rounding.PLAIN

    def __call__(self, node):
        network = self._network
        x, folded = network.before_comparison(network.activation_input(node))
        channels, levels = network.shape(x)[1], network.levels(Entry(node, 0))
        if levels:
            return x, [self._comparison(folded, channels, node, level) for level in levels[1:]]
        if not folded:
            return x, [(np.zeros(channels, dtype=np.float32), np.zeros(channels, dtype=bool))]
        return x, [self._comparison(folded, channels)]

    def _comparison(self, nodes, channels, activation=None, level=0):
        """Return threshold and flip of the comparison of the values of `nodes`, to which an activation may be applied, with `level`."""
        key = nodes, channels, activation, level
        if key not in self._folded:
            batch_norm = self._network.batch_norm(nodes[0]) if nodes and _normalizes(nodes[0]) else None
            functions = [self._network.shift(node) for node in nodes[batch_norm is not None :]]
            if activation:
                function = self._network.activation_function(activation)
                functions.append(lambda x: function(x) - level)
            try:
                if batch_norm is None:
                    self._folded[key] = mxnet_rounding.fold_shifts(functions, channels)
                else:
                    self._folded[key] = mxnet_rounding.fold(batch_norm, len(nodes[0].shape), self._layouts[nodes[0]], functions)
            except NotMonotoneError as error:
                raise UserError(f'the batch normalization {nodes[0].name} overflows, its statistics are damaged: {error}') from error
        return self._folded[key]


def _normalizes(node):
    """Return whether a folded node is a batch normalization, not a shift."""
    return isinstance(node.operation, BatchNormalization) and not is_marked_shift(node)
