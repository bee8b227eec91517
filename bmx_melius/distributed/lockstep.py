"""Synchronous stopping: all workers of a run make the same updates and stop after the same one."""

import math
import signal

from ..analysis.finiteness import find_not_finite
from ..errors import DataError, UserError


class Lockstep:
    """Agreement of all workers on whether to continue, reached before each update and after each evaluation.

    Parameters
    ----------
    workers : Workers
    interruption : Interruption
        Signals received by this process.
    net : gluon.Block
        Network whose parameters are checked after each update.

    Attributes
    ----------
    error : UserError or None
        Set when a worker cannot continue; in that worker it names the data that cannot be read.
    signal : int or None
        Signal that some worker received.
    """

    def __init__(self, workers, interruption, net):
        self._workers, self._interruption, self._net = workers, interruption, net
        self.error = self.signal = None

    @property
    def stops(self):
        """Whether the workers have agreed to stop."""
        return bool(self.error or self.signal)

    def updates(self, batches, progress):
        """Yield batches until one of the workers has to stop; every worker yields equally many.

        Raises
        ------
        UserError
            When training diverged: the loss or a parameter is not finite. Raised in all workers.
        """
        batches = self.batches(batches)
        while True:
            batch = next(batches, None)
            self.agree(progress)
            if batch is None or self.stops:
                return
            yield batch

    def batches(self, batches):
        """Yield batches until this worker has to stop; `agree` informs the others."""
        try:
            for batch in batches:
                yield batch
                if self._interruption.signal:
                    return
        except DataError as error:
            self.error = error

    def agree(self, progress):
        """Exchange signals and errors with all workers, and set `error` and `signal`. Raises like `updates`."""
        got, name = self._interruption.signal, find_not_finite(self._net)
        interrupted, terminated, failed, diverged, loss = self._workers.sum(
            [got == signal.SIGINT, got == signal.SIGTERM, self.error is not None, name is not None, progress.loss]
        )
        if diverged or not math.isfinite(loss):
            raise UserError(divergence(progress, name, loss))
        if failed and not self.error:
            self.error = DataError('another worker cannot read its data; see its output')
        if interrupted or terminated:
            self.signal = signal.SIGINT if interrupted else signal.SIGTERM


def divergence(progress, name, loss=0.0):
    """Return the message that training diverged.

    Parameters
    ----------
    progress : Progress
    name : str or None
        Parameter that is not finite in this process.
    loss : float
        Sum of the loss over the epoch.
    """
    place = f'update {progress.batch} of epoch {progress.epoch + 1}' if progress.batch else f'epoch {progress.epoch}'
    reasons = [] if math.isfinite(loss) else [f'the loss is {loss}']
    if name or not reasons:
        reasons.append(f'{name or "a parameter of another worker"} has values that are NaN or infinite')
    return (
        f'training diverged in {place}: {" and ".join(reasons)}; start again with a lower --lr, or give the last checkpoint, which was '
        'written before that, as --resume-params of a new run with a lower --lr'
    )
