"""Sign changes (flips) of binary weights during training (MeliusNet, supplement C)."""

import math

import numpy as np

from ...arithmetic import ceil_div
from ...errors import UserError
from ...nn.layers import binary_weights

PERCENTILES = (0, 5, 25, 50, 75, 95, 99, 100)
STATISTICS = ('mean', 'flipped', *(f'p{percent}' for percent in PERCENTILES))
ALL = 'all'


class FlipCounter:
    """Counter of the sign changes of every binary weight in an epoch, summarized in a table.

    Signs are stored as bits. Signs of successive updates differ in few bytes, and only these bytes are unpacked and counted.

    Parameters
    ----------
    net : gluon.Block
        Network with initialized parameters. Of several devices, which have equal weights, the first one is used.
    updates_per_epoch : int
        Maximum number of flips of a weight in an epoch; determines the data type of the counters.

    Attributes
    ----------
    layers : list of str
        `ALL`, which denotes all binary weights together, and the paths of the layers.
    sizes : list of int
        Number of weights of each item of `layers`.
    table : ndarray (epochs, layers, statistics), float64
        For each finished epoch and each of `layers` the `STATISTICS` of the number of flips per weight: the `mean`, the share of weights
        that `flipped` at least once (0 to 1), and percentiles; ``p95`` is the smallest number that 95 % of the weights do not exceed.

    Raises
    ------
    UserError
        When the network has no binary weights.
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
        """Store the current signs; continue from the saved `arrays` of a resumed run, empty for a new run."""
        self.table = arrays.get('flips', self.table)
        for number, name in enumerate(self._weights):
            self._counts[name][:] = arrays.get(f'flips_{number}', 0)
            self._signs[name] = self._pack(name)

    def arrays(self):
        """Return the state to be saved in a checkpoint, a dict of str to ndarray."""
        counts = {f'flips_{number}': self._counts[name] for number, name in enumerate(self._weights)}
        return {'flips': self.table, **(counts if any(map(np.any, counts.values())) else {})}

    def add_update(self):
        """Count the flips of the last update."""
        for name, before in self._signs.items():
            now = self._signs[name] = self._pack(name)
            changes = before ^ now
            changed = np.flatnonzero(changes)
            self._counts[name][changed] += np.unpackbits(changes[changed]).reshape(-1, 8)

    def end_epoch(self):
        """Append the statistics of the epoch to `table` and reset the counters."""
        histograms = []
        for counts, size in zip(self._counts.values(), self.sizes[1:]):
            histograms.append(np.bincount(counts.reshape(-1)[:size]))
            counts[:] = 0
        together = np.zeros(max(map(len, histograms)), int)
        for histogram in histograms:
            together[: len(histogram)] += histogram
        self.table = np.concatenate([self.table, [[statistics(histogram) for histogram in (together, *histograms)]]])

    def rows(self, epochs):
        """Return `table` as a list of dicts with the keys `epoch`, `layer`, `weights` (their number) and `STATISTICS`.

        `epochs` are the numbers of the epochs in the table.
        """
        return [
            {'epoch': epoch, 'layer': layer, 'weights': size, **dict(zip(STATISTICS, map(_plain, values)))}
            for epoch, part in zip(epochs, self.table)
            for layer, size, values in zip(self.layers, self.sizes, part)
        ]

    def _pack(self, name):
        """Return the signs of a layer's weights, one bit each."""
        weights = self._weights[name]
        # sign(0) = sign(-0) = +1, as in quantizers.sign
        return np.packbits(weights.data(weights.list_ctx()[0]).asnumpy() >= 0)


def _plain(number):
    """Return an int if the number is integral, else a float."""
    return int(number) if number == int(number) else float(number)


def statistics(histogram):
    """Return the `STATISTICS` of a histogram in which `histogram[n]` weights flipped n times."""
    cumulated = np.cumsum(histogram)
    size = cumulated[-1]
    ranks = [max(1, ceil_div(percent * size, 100)) for percent in PERCENTILES]
    return [np.arange(len(histogram)) @ histogram / size, (size - histogram[0]) / size, *np.searchsorted(cumulated, ranks)]
