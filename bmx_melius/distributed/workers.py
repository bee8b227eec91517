"""Workers: the processes that train one network together, on one or several machines."""

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..nn.fine_tuning import is_frozen


class Workers:
    """Training with a single worker, and base class of distributed training.

    Workers cooperate within the context ``with workers``. On leaving it without an exception, each waits for the others.

    Attributes
    ----------
    rank, count : int
        Rank of this worker, from 0, and number of workers. Rank 0 writes the files of the run and the messages on the screen.
    """

    rank, count = 0, 1

    def __init__(self, kvstore=None):
        self._kvstore = kvstore

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def devices(self, num_gpus, gpus=None):
        """Return the devices of this worker, a list of `mx.Context`: `gpus`, or the first GPUs; ``num_gpus=0`` selects the CPU."""
        return [mx.gpu(number) for number in gpus or range(num_gpus)] or [mx.cpu()]

    def make_trainer(self, parameters, optimizer, arguments):
        """Return a `gluon.Trainer` whose `step` sums gradients over all devices and workers."""
        return gluon.Trainer(parameters, optimizer, arguments, kvstore=self._kvstore, update_on_kvstore=False)

    def sum(self, values):
        """Return the elementwise sum of lists of numbers over all workers, in float32. The lists must have equal lengths."""
        return list(values) if self.count == 1 else self._sum(np.asarray(values, dtype=np.float32)).tolist()

    def average_statistics(self, net):
        """Replace the running statistics of batch normalization by their mean over all devices and workers.

        Each device sees different images, so the statistics differ. Training does not use them, but evaluation does, and a checkpoint
        stores one value. Averaging more often changes later averages only by rounding, because the statistics depend linearly on the
        statistics of the batches.
        """
        statistics = [parameter for parameter in net.collect_params().values() if parameter.grad_req == 'null' and not is_frozen(parameter)]
        devices = len(statistics[0].list_ctx()) if statistics else 1
        if devices * self.count == 1 or not statistics:
            return
        sums = self._sum(np.concatenate([sum(array.asnumpy() for array in one.list_data()).ravel() for one in statistics]))
        sizes = [int(np.prod(one.shape)) for one in statistics]
        for one, values in zip(statistics, np.split(sums / (devices * self.count), np.cumsum(sizes)[:-1])):
            one.set_data(values.reshape(one.shape))

    def _sum(self, array):
        """Return the sum of an array (N,) float32 over all workers."""
        return array
