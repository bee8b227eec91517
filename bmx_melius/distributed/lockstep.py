"""Synchronous stopping: all workers of a run make the same updates and stop after the same one."""

import math
import signal

from ..errors import DataError, UserError


class Lockstep:
    """Agreement of all workers on whether to continue, reached before each update and after each evaluation.

    Parameters
    ----------
    workers : Workers
    interruption : Interruption
        Signals received by this process.

    Attributes
    ----------
    error : UserError or None
        Set when a worker cannot continue; in that worker it names the data that cannot be read.
    signal : int or None
        Signal that some worker received.
    """

    def __init__(self, workers, interruption):
        self._workers, self._interruption = workers, interruption
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
            When training diverged; raised in all workers.
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
        got = self._interruption.signal
        interrupted, terminated, failed, loss = self._workers.sum(
            [got == signal.SIGINT, got == signal.SIGTERM, self.error is not None, progress.loss]
        )
        if not math.isfinite(loss):
            raise UserError(f'training diverged in epoch {progress.epoch + 1}: the loss is {loss}; start again with a lower --lr')
        if failed and not self.error:
            self.error = DataError('another worker cannot read its data; see its output')
        if interrupted or terminated:
            self.signal = signal.SIGINT if interrupted else signal.SIGTERM
