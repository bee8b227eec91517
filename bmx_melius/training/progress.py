"""How far a run is, and what it has seen on the way."""

import collections
import dataclasses
import time
from typing import Optional

from ..analysis.evaluation import count_correct

PACE_SECONDS = 10
SUMS = ('loss', 'correct', 'correct5', 'seen', 'waiting', 'running')  # fields that each process counts by itself
TIMINGS = ('seconds', 'images_per_second', 'waiting')  # columns of the history in which equal runs differ


class Pace:
    """How fast training is now: over the last `seconds`, or the last update where that took longer.

    Attributes
    ----------
    updates_per_second : float
    waiting_share : float
        The share of the time that went by waiting for data, 0 to 1.
    """

    def __init__(self, seconds=PACE_SECONDS):
        self._seconds, self._points = seconds, collections.deque()

    def start(self, *point):
        """Forget all; training begins at a `point` as in `add`."""
        self._points.clear()
        self._points.append(point)

    def add(self, now, updates, waiting):
        """At the time `now` so many updates are over, and so many seconds of waiting: sums since any beginning."""
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
    """How far a run is, apart from the network and the optimizer.

    Attributes
    ----------
    images_per_update : int
        On all devices and processes together: a batch in the sense of `batch`.
    epoch, batch : int
        The next batch is number `batch` of `epoch`, both counted from 0. After the last batch of an epoch, validation is next.
    loss, correct, correct5, seen : float, int, int, int
        Sums over the images of the running epoch so far: of the loss, of those whose class was likeliest and among the likeliest 5, of all.
    waiting, running : float
        Seconds of the running epoch, in training: waiting for data, and all.
    history : list of dict
        One row for each finished epoch: `epoch` (finished epochs, this one included), `loss`, `train_top1`, `train_top5`, `top1`, `top5`
        (validation), `learning_rate` (of the last update) and, in `TIMINGS`, what differs between equal runs: `seconds` (validation
        included), `images_per_second` and `waiting` (share of the time of training in which it waited for data).
    pace : Pace
        Of the last seconds of the running epoch; a checkpoint does not keep it.
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
        """Yield the batches, and count how long each lets the caller wait, and how long it takes in all."""
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
        """Count the batch that was just trained: a list of logits, labels and losses for each device."""
        for output, label, loss in zip(outputs, labels, losses):
            correct, correct5 = count_correct(output, label)
            self.loss += float(loss.sum().asscalar())
            self.correct += correct
            self.correct5 += correct5
            self.seen += len(label)
        self.batch += 1
        self.pace.add(time.perf_counter(), self.batch, self.waiting)

    def of_all(self, workers):
        """A copy whose sums are over all `Workers`: what a checkpoint holds."""
        own = [getattr(self, name) for name in SUMS]
        return dataclasses.replace(self, **{name: type(value)(total) for name, value, total in zip(SUMS, own, workers.sum(own))})

    def share(self, workers):
        """A copy for each of the `Workers` that go on from here: process 0 keeps the sums, so they are counted once."""
        return self if workers.rank == 0 else dataclasses.replace(self, **{name: type(getattr(self, name))(0) for name in SUMS})

    def results(self, workers):
        """What the running epoch gave, over all `Workers`: a dict of columns of `history`."""
        total = self.of_all(workers)
        return {
            'loss': total.mean_loss,
            'train_top1': total.accuracy,
            'train_top5': total.correct5 / total.seen,
            'images_per_second': total.seen / (total.running / workers.count),
            'waiting': total.waiting / total.running,
        }

    @property
    def mean_loss(self):
        """Over the images of the running epoch, of this process."""
        return self.loss / self.seen

    @property
    def accuracy(self):
        """Top-1 on the images of the running epoch as this process trained on them, 0 to 1."""
        return self.correct / self.seen

    def end_epoch(self, **results):
        """Note the finished epoch with its `results` in the history, and move to the start of the next one."""
        self.history.append({'epoch': self.epoch + 1, **results})
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss, self.correct, self.correct5, self.seen, self.waiting, self.running = 0.0, 0, 0, 0, 0.0, 0.0

    @property
    def best(self) -> Optional[dict]:
        """The first row of the best top-1 accuracy, None before the first epoch is over."""
        return max(self.history, key=lambda row: row['top1'], default=None)


def is_progress(value):
    """Whether `value` holds all fields of a `Progress`, of their types, as JSON gives them back."""
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
