"""Tables and plots of the history of a run, which ``train_imagenet.py`` and `fit` write to its folder."""

import contextlib
import csv
import os
import time

from ...files.io import replacing
from ...reporting import LOG
from . import plots

PLOTTING_SHARE = 0.05  # of the time of a run, at most; short epochs would otherwise wait for their plots


class HistoryFiles:
    """Writer of tables and plots.

    =================  ===============================================================================================
    ``metrics.csv``    a row for each finished epoch, with the columns of `Progress.history`; columns that epochs of an
                       earlier version lack are empty
    ``accuracy.png``   accuracy on training and validation images
    ``loss.png``       loss on training and validation images
    ``lr.png``         the learning rates, planned and used
    ``classes.csv``    `Confusion.rows` of the best epoch
    ``confusion.png``  confusion matrix of the best epoch
    ``flips.csv``      `FlipCounter.rows`, if flips are counted
    ``flips.png``      the distribution of flips over the epochs
    =================  ===============================================================================================

    Tables are rewritten after each epoch. Plots are left out after an epoch, except the last one, that ends so soon after the previous
    plots that they would take more than 5 % of the time. When one of the files cannot be written, a warning is logged once and training
    continues.

    Parameters
    ----------
    folder : str
        Must exist when files are written.
    title : str
        Title of the plots.
    schedule : plots.Schedule
    class_names : list of str, optional
        By default numbers.
    flips : FlipCounter, optional
    """

    def __init__(self, folder, title, schedule, class_names=None, flips=None):
        self._folder, self._title, self._schedule, self._class_names, self._flips = folder, title, schedule, class_names, flips
        self._failed, self._tabulated, self._drawn = set(), None, None
        self._next_plots = 0.0  # earliest time on the monotonic clock

    def show_epoch(self, progress, confusion=None, ends=False):
        """Update tables and plots after a checkpoint; the last row of the history describes the finished epoch.

        `confusion` is the `Confusion` of the best epoch, None if it is not known, and `ends` whether the run ends early with this epoch.
        """
        is_last = ends or progress.epoch == self._schedule.num_epochs
        self.write(progress, confusion, plot=is_last or time.monotonic() >= self._next_plots)

    def write(self, progress, confusion=None, plot=True):
        """Write all tables and, with `plot`, all plots."""
        history, flips = progress.history, []
        if history:
            self._tabulate('metrics.csv', history)
            if self._flips:
                flips = self._flips.rows([row['epoch'] for row in history])
                self._tabulate('flips.csv', flips)
        names = confusion and (self._class_names or [str(number) for number in range(len(confusion.counts))])
        if confusion is not self._tabulated:
            self._tabulate('classes.csv', confusion.rows(names))
            self._tabulated = confusion
        if plot:
            started = time.monotonic()
            self._draw('lr.png', plots.learning_rate, self._schedule, self._updates(progress), history)
            if history:
                self._draw('accuracy.png', plots.accuracy, history)
                self._draw('loss.png', plots.loss, history)
            if flips:
                self._draw('flips.png', plots.flips, flips)
            if confusion is not self._drawn:
                self._draw('confusion.png', plots.confusion, confusion.counts, names, progress.best)
                self._drawn = confusion
            ended = time.monotonic()
            self._next_plots = ended + (ended - started) / PLOTTING_SHARE

    def _updates(self, progress):
        """Return the number of updates since the start of the run."""
        return progress.epoch * self._schedule.updates_per_epoch + progress.batch

    def _tabulate(self, name, rows):
        with self._warn_once(name), replacing(self._path(name)) as temporary, open(temporary, 'w', newline='', encoding='utf-8') as file:
            table = csv.DictWriter(file, list(rows[-1]))
            table.writeheader()
            table.writerows(rows)

    def _draw(self, name, curve, *values):
        with self._warn_once(name), replacing(self._path(name)) as temporary:
            curve(*values, title=self._title).savefig(temporary)

    def _path(self, name):
        return os.path.join(self._folder, name)

    @contextlib.contextmanager
    def _warn_once(self, name):
        """Catch any error of the block and log it as a warning, once for each file."""
        try:
            yield
        except Exception as error:  # plotting libraries may raise any exception
            if name not in self._failed:
                LOG.warning('%s is not written: %s', name, error)
            self._failed.add(name)
