"""The processes that train one network together, on one machine or on several."""

import mxnet as mx
import numpy as np
from mxnet import gluon


class Workers:
    """One process alone; other ways to train are its subclasses.

    It is a context, in which the processes work together. Leaving it waits for the others, unless an exception does.

    Attributes
    ----------
    rank, count : int
        This process's number, from 0, and how many there are. Process 0 writes the files of the run and the messages on the screen.
    """

    rank, count = 0, 1

    def __init__(self, kvstore=None):
        self._kvstore = kvstore

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def devices(self, num_gpus):
        """The contexts that this process trains on; 0 means the CPU."""
        return [mx.gpu(number) for number in range(num_gpus)] or [mx.cpu()]

    def make_trainer(self, parameters, optimizer, arguments):
        """A `gluon.Trainer` whose `step` sums gradients over all devices and processes."""
        return gluon.Trainer(parameters, optimizer, arguments, kvstore=self._kvstore, update_on_kvstore=False)

    def sum(self, values):
        """The sums over all processes of some numbers, in float32; each process gives equally many and gets the same list back."""
        return list(values) if self.count == 1 else self._sum(np.asarray(values, dtype=np.float32)).tolist()

    def average_statistics(self, net):
        """Bring the running statistics of batch normalization to one value on all devices and processes: their mean.

        Each device sees other images in training, so the statistics differ. Training does not read them, but evaluation does, and a
        checkpoint holds one value. Averaging early changes no later average but by rounding, because the statistics follow the images
        linearly.
        """
        statistics = [parameter for parameter in net.collect_params().values() if parameter.grad_req == 'null']
        devices = len(statistics[0].list_ctx()) if statistics else 1
        if devices * self.count == 1 or not statistics:
            return
        sums = self._sum(np.concatenate([sum(array.asnumpy() for array in one.list_data()).ravel() for one in statistics]))
        sizes = [int(np.prod(one.shape)) for one in statistics]
        for one, values in zip(statistics, np.split(sums / (devices * self.count), np.cumsum(sizes)[:-1])):
            one.set_data(values.reshape(one.shape))

    def _sum(self, array):
        """The sum over all processes of an array (N,) float32."""
        return array
