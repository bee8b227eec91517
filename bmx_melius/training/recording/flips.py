"""Counting how often binary weights change their sign (MeliusNet, supplementary material, Optimizer Comparison)."""

import math

import numpy as np

from ...arithmetic import ceil_div
from ...errors import UserError
from ...layers import QConv1D, QConv2D, QConv3D, QDense
from ...quantizers import rounds_to_sign

PERCENTILES = (0, 5, 25, 50, 75, 95, 99, 100)
STATISTICS = ('mean', 'flipped', *(f'p{percent}' for percent in PERCENTILES))
ALL = 'all'
_LAYERS = (QConv1D, QConv2D, QConv3D, QDense)


def binary_weights(block, path=''):
    """The binary weights of a network: a dict of each layer's path (as in the names of a ``.params`` file) to its `Parameter`.

    These are the weights of which the network sees the sign. (With one bit, the quantizer ``round`` compares with 1/2, and ``dorefa`` takes
    negative numbers next to 0 for +1: both are left out.)
    """
    if isinstance(block, _LAYERS) and rounds_to_sign(block.binarization.quantization, block.binarization.bits):
        return {path: block.weight}
    return {
        name: weight
        for key, child in block._children.items()
        for name, weight in binary_weights(child, f'{path}.{key}' if path else key).items()
    }


class FlipCounter:
    """Counts the changes of sign of every binary weight over an epoch, and sums them up at its end.

    Signs are kept as bits: those of an update and of the one before differ in few bytes, and only these are unpacked and counted.

    Parameters
    ----------
    net : gluon.Block
        Its parameters are initialized. Several devices hold equal weights; those of the first are looked at.
    updates_per_epoch : int
        No weight flips more often than that.

    Attributes
    ----------
    layers : list of str
        `ALL`, which stands for all binary weights together, and the paths of the layers.
    sizes : list of int
        How many weights each has.
    table : ndarray (epochs, layers, statistics), float64
        For each finished epoch and each of `layers` the `STATISTICS` of the number of flips of a weight: their `mean`, the share of
        weights that `flipped` at all (0 to 1), and percentiles: ``p95`` is the least number that 95 % of the weights do not exceed.

    Raises
    ------
    UserError
        When no weight is binary.
    """

    def __init__(self, net, updates_per_epoch):
        self._weights = binary_weights(net)
        if not self._weights:
            raise UserError('--track-flips: this network has no binary weights; leave the flag out')
        sizes = [math.prod(weight.shape) for weight in self._weights.values()]
        self.layers, self.sizes = [ALL, *self._weights], [sum(sizes), *sizes]
        self.table = np.empty((0, len(self.layers), len(STATISTICS)))
        dtype = np.min_scalar_type(updates_per_epoch)
        # a row for each byte of signs
        self._counts = {name: np.zeros((ceil_div(size, 8), 8), dtype) for name, size in zip(self._weights, sizes)}
        self._signs = {}

    def start(self, arrays):
        """Begin with the signs as they are now, at the beginning of a run (no `arrays`) or where these `arrays` were saved."""
        self.table = arrays.get('flips', self.table)
        for number, name in enumerate(self._weights):
            self._counts[name][:] = arrays.get(f'flips_{number}', 0)
            self._signs[name] = self._pack(name)

    def arrays(self):
        """The state as a dict of str to ndarray."""
        counts = {f'flips_{number}': self._counts[name] for number, name in enumerate(self._weights)}
        return {'flips': self.table, **(counts if any(map(np.any, counts.values())) else {})}

    def add_update(self):
        """Count the flips of the update that was just made."""
        for name, before in self._signs.items():
            now = self._signs[name] = self._pack(name)
            changes = before ^ now
            changed = np.flatnonzero(changes)
            self._counts[name][changed] += np.unpackbits(changes[changed]).reshape(-1, 8)

    def end_epoch(self):
        """Add the statistics of the epoch to the `table`, and count from 0 again."""
        histograms = []
        for counts, size in zip(self._counts.values(), self.sizes[1:]):
            histograms.append(np.bincount(counts.reshape(-1)[:size]))
            counts[:] = 0
        together = np.zeros(max(map(len, histograms)), int)
        for histogram in histograms:
            together[: len(histogram)] += histogram
        self.table = np.concatenate([self.table, [[statistics(histogram) for histogram in (together, *histograms)]]])

    def rows(self, epochs):
        """The `table` as a list of dict with the columns `epoch`, `layer`, `weights` (how many) and `STATISTICS`.

        `epochs` are the numbers of the epochs.
        """
        return [
            {'epoch': epoch, 'layer': layer, 'weights': size, **dict(zip(STATISTICS, map(_plain, values)))}
            for epoch, part in zip(epochs, self.table)
            for layer, size, values in zip(self.layers, self.sizes, part)
        ]

    def _pack(self, name):
        weights = self._weights[name]
        # the sign of both zeros is +1, as in quantizers.sign
        return np.packbits(weights.data(weights.list_ctx()[0]).asnumpy() >= 0)


def _plain(number):
    """A float, or an int where it is one."""
    return int(number) if number == int(number) else float(number)


def statistics(histogram):
    """The `STATISTICS` of numbers of flips; `histogram[n]` weights flipped n times."""
    cumulated = np.cumsum(histogram)
    size = cumulated[-1]
    ranks = [max(1, ceil_div(percent * size, 100)) for percent in PERCENTILES]
    return [np.arange(len(histogram)) @ histogram / size, (size - histogram[0]) / size, *np.searchsorted(cumulated, ranks)]
