"""All processes of a run make the same updates: what stops one of them stops all at the same place."""

import math
import signal

from ..errors import DataError, UserError


class Lockstep:
    """The agreement of all processes on going on, once before each update and once after each evaluation.

    Parameters
    ----------
    workers : Workers
    interruption : Interruption
        Of this process.

    Attributes
    ----------
    error : UserError or None
        What keeps some process from going on; in that process it names the data that cannot be read.
    signal : int or None
        Or the signal that some process got.
    """

    def __init__(self, workers, interruption):
        self._workers, self._interruption = workers, interruption
        self.error = self.signal = None

    @property
    def stops(self):
        """Whether the processes have agreed to stop."""
        return bool(self.error or self.signal)

    def updates(self, batches, progress):
        """Yield batches until one of the processes cannot go on; all of them have equally many.

        Raises
        ------
        UserError
            When training diverged; the same in all processes.
        """
        batches = self.batches(batches)
        while True:
            batch = next(batches, None)
            self.agree(progress)
            if batch is None or self.stops:
                return
            yield batch

    def batches(self, batches):
        """Yield batches until this process cannot go on; the others learn it in `agree`."""
        try:
            for batch in batches:
                yield batch
                if self._interruption.signal:
                    return
        except DataError as error:
            self.error = error

    def agree(self, progress):
        """Learn whether all processes can go on. Raises as `updates` does."""
        got = self._interruption.signal
        interrupted, terminated, failed, loss = self._workers.sum(
            [got == signal.SIGINT, got == signal.SIGTERM, self.error is not None, progress.loss]
        )
        if not math.isfinite(loss):
            raise UserError(f'training diverged in epoch {progress.epoch + 1}: the loss is {loss}; start again with a lower --lr')
        if failed and not self.error:
            self.error = DataError('another process cannot read its data, as it says')
        if interrupted or terminated:
            self.signal = signal.SIGINT if interrupted else signal.SIGTERM
