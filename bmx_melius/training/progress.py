"""Progress of a training run: position, running sums of loss and accuracy, timing, and history of finished epochs."""

import collections
import dataclasses
import math
import time
from typing import Optional

from ..analysis.evaluation import count_correct

PACE_SECONDS = 10  # time over which the current speed is averaged
SUMS = ('loss', 'correct', 'correct5', 'seen', 'waiting', 'running')  # fields that each worker counts separately
TIMINGS = ('seconds', 'images_per_second', 'waiting')  # columns of the history that differ between identical runs


class Pace:
    """Current speed of training, averaged over the last `seconds`, or over the last update if it took longer.

    Attributes
    ----------
    updates_per_second : float
    waiting_share : float
        Share of the time spent waiting for data, 0 to 1.
    """

    def __init__(self, seconds=PACE_SECONDS):
        self._seconds, self._points = seconds, collections.deque()

    def start(self, *point):
        """Reset to a single `point`, the arguments of `add`."""
        self._points.clear()
        self._points.append(point)

    def add(self, now, updates, waiting):
        """Add a point: time, number of finished updates, and seconds spent waiting, each since an arbitrary start."""
        self._points.append((now, updates, waiting))
        while len(self._points) > 2 and self._points[1][0] <= now - self._seconds:
            self._points.popleft()

    @property
    def updates_per_second(self):
        seconds, updates, _ = self._passed()
        return updates / seconds

    @property
    def waiting_share(self):
        seconds, _, waiting = self._passed()
        return waiting / seconds

    def _passed(self):
        return [last - first for first, last in zip(self._points[0], self._points[-1])]


@dataclasses.dataclass
class Progress:
    """Progress of a training run: its state except for network and optimizer.

    Attributes
    ----------
    images_per_update : int
        Images per update over all devices and workers: a batch in the sense of `batch`.
    epoch, batch : int
        The next batch is number `batch` of `epoch`, both counted from 0. The last batch of an epoch is followed by validation.
    loss, correct, correct5, seen : float, int, int, int
        Sums over the images of the current epoch so far: of the loss, of correct top-1 and top-5 predictions, and of images.
    waiting, running : float
        Training time of the current epoch in seconds: waiting for data, and in total.
    history : list of dict
        One row per finished epoch: `epoch` (from 1), `loss`, `train_top1`, `train_top5`, `top1`, `top5`, `macro_f1` (as in
        `Confusion.macro`), `validation_loss` (the mean cross-entropy), `learning_rate` (of the last update), and the `TIMINGS`: `seconds`
        (including validation), `images_per_second`, and `waiting` (share of the training time spent waiting for data).
    pace : Pace
        Current speed; not stored in checkpoints.
    """

    images_per_update: int = 0
    epoch: int = 0
    batch: int = 0
    loss: float = 0.0
    correct: int = 0
    correct5: int = 0
    seen: int = 0
    waiting: float = 0.0
    running: float = 0.0
    history: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.pace = Pace()

    def timed(self, batches):
        """Yield the batches; add the time spent waiting for them to `waiting`, and the total time to `running`."""
        started = time.perf_counter()
        self.pace.start(started, self.batch, self.waiting)
        for batch in batches:
            self.waiting += time.perf_counter() - started
            try:
                yield batch
            finally:
                now = time.perf_counter()
                self.running += now - started
                started = now

    def add(self, outputs, labels, losses):
        """Add the results of an update: lists of logits, labels and losses, with one item per device."""
        for output, label, loss in zip(outputs, labels, losses):
            correct, correct5 = count_correct(output, label)
            self.loss += float(loss.sum().asscalar())
            self.correct += correct
            self.correct5 += correct5
            self.seen += len(label)
        self.batch += 1
        self.pace.add(time.perf_counter(), self.batch, self.waiting)

    def summed_over(self, workers):
        """Return a copy with the sums over all `Workers`, as stored in a checkpoint."""
        own = [getattr(self, name) for name in SUMS]
        return dataclasses.replace(self, **{name: type(value)(total) for name, value, total in zip(SUMS, own, workers.sum(own))})

    def share(self, workers):
        """Return the progress of each of the `Workers` that continue from here: only rank 0 keeps the sums, so they are counted once."""
        return self if workers.rank == 0 else dataclasses.replace(self, **{name: type(getattr(self, name))(0) for name in SUMS})

    def results(self, workers):
        """Return the training results of the current epoch over all `Workers`, a dict of columns of `history`."""
        total = self.summed_over(workers)
        return {
            'loss': total.mean_loss,
            'train_top1': total.accuracy,
            'train_top5': total.correct5 / total.seen,
            'images_per_second': total.seen / (total.running / workers.count),
            'waiting': total.waiting / total.running,
        }

    @property
    def mean_loss(self):
        """Mean loss over the images of the current epoch in this worker."""
        return self.loss / self.seen

    @property
    def accuracy(self):
        """Top-1 accuracy on the training images of the current epoch in this worker, 0 to 1."""
        return self.correct / self.seen

    def end_epoch(self, **results):
        """Add the finished epoch with its `results` to the history, and move to the start of the next epoch."""
        self.history.append({'epoch': self.epoch + 1, **results})
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss, self.correct, self.correct5, self.seen, self.waiting, self.running = 0.0, 0, 0, 0, 0.0, 0.0

    def stops_early(self, patience):
        """Return whether the last `patience` epochs were not better than the best one (`--early-stop`); 0: never."""
        return bool(patience and self.history and self.history[-1]['epoch'] - self.best['epoch'] >= patience)

    @property
    def best(self) -> Optional[dict]:
        """Row of the history with the best top-1 accuracy (the first of several), None before the first epoch has finished.

        Without validation images it is the last one.
        """
        validated = [row for row in self.history if not math.isnan(row['top1'])]
        return max(validated or self.history[-1:], key=lambda row: row['top1'], default=None)


def is_progress(value):
    """Return whether `value`, read from JSON, has all fields of a `Progress` with their types."""
    if not isinstance(value, dict) or value.keys() != {field.name for field in dataclasses.fields(Progress)}:
        return False
    numbers = {field.name: field.type for field in dataclasses.fields(Progress) if field.name != 'history'}
    return (
        all(_is_number(value[name], kind) for name, kind in numbers.items())
        and isinstance(value['history'], list)
        and all(isinstance(row, dict) and _is_number(row.get('epoch'), int) and _is_number(row.get('top1')) for row in value['history'])
    )


def _is_number(value, kind=float):
    return type(value) is int and value >= 0 if kind is int else type(value) in (int, float)
