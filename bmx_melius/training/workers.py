"""The processes that train one network together, on one machine or on several."""
import mxnet as mx
from mxnet import gluon

FIRST_KEY = 1 << 20  # in a store, of sums; below are the trainer's keys, the numbers of the parameters


class Workers:
    """One process alone.

    Attributes
    ----------
    rank, count : int
        This process's number, from 0, and how many there are. Process 0 writes the files of the run and the messages on the screen.
    """

    rank, count = 0, 1

    def __init__(self, kvstore):
        self._kvstore = kvstore

    def make_trainer(self, parameters, optimizer, arguments):
        """A `gluon.Trainer` whose `step` sums gradients over all devices and processes."""
        return gluon.Trainer(parameters, optimizer, arguments, kvstore=self._kvstore, update_on_kvstore=False)

    def sum(self, values):
        """The sums over all processes of some numbers; each process gives equally many and gets the same list back."""
        return list(values)


class StoreWorkers(Workers):
    """Processes that exchange gradients through the servers of a distributed `mx.kv.KVStore`.

    Parameters
    ----------
    kvstore : str
        A name of `mx.kv.create`, ``dist_...``.
    """

    def __init__(self, kvstore):
        super().__init__(mx.kv.create(kvstore))
        self.rank, self.count = self._kvstore.rank, self._kvstore.num_workers
        self._keys = set()

    def sum(self, values):
        key, total = FIRST_KEY + len(values), mx.nd.zeros(len(values))
        if key not in self._keys:
            self._kvstore.init(key, total)
            self._keys.add(key)
        self._kvstore.push(key, mx.nd.array(values))
        self._kvstore.pull(key, out=total)
        return total.asnumpy().tolist()


def join_workers(kvstore):
    """The `Workers` that the flag ``--kvstore`` names."""
    return (StoreWorkers if kvstore.startswith('dist') else Workers)(kvstore)
