"""Workers that exchange gradients through Horovod, an optional dependency."""

import mxnet as mx

from ..errors import UserError
from .workers import Workers


class HorovodWorkers(Workers):
    """Workers started by ``horovodrun`` or ``mpirun``, one device each.

    Horovod itself ends all processes when one is missing.

    Raises
    ------
    UserError
        When Horovod is not installed, or was built without MXNet.
    """

    def __init__(self):
        try:
            import horovod.mxnet as hvd
        except ImportError as error:
            raise UserError(
                '--kvstore horovod: install Horovod with support for MXNet: '
                'HOROVOD_WITH_MXNET=1 pip install --no-build-isolation horovod (see docs/distributed.md)'
            ) from error
        super().__init__()
        hvd.init()
        self._hvd, self.rank, self.count = hvd, hvd.rank(), hvd.size()

    def devices(self, num_gpus, gpus=None):
        if num_gpus > 1 or gpus:
            raise UserError(f'--num-gpus {num_gpus}: with --kvstore horovod each process trains on one device; start more processes')
        return [mx.gpu(self._hvd.local_rank())] if num_gpus else [mx.cpu()]

    def make_trainer(self, parameters, optimizer, arguments):
        self._hvd.broadcast_parameters(parameters)
        # `step` of the distributed trainer also divides by the number of processes; `rescale_grad` cancels this.
        return self._hvd.DistributedTrainer(parameters, optimizer, {'rescale_grad': self.count, **arguments})

    def _sum(self, array):
        return self._hvd.allreduce(mx.nd.array(array), average=False, name=f'sum of {len(array)}').asnumpy()
