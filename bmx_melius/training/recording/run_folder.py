"""The folder of a run, apart from its checkpoints: what happened, to be read and looked at."""

import contextlib
import csv
import datetime
import json
import os
import shutil
import sys

from ...analysis import drawing
from ...files import replacing
from ...reporting import LOG
from . import environment, plots

LOG_FILE = 'experiment.log'
CONFIG, DRAWING = 'config.json', 'network.pdf'


class RunFolder:
    """Keeps the files of a run's folder up to date, but for its checkpoints, log and export.

    =================  ===============================================================================================
    ``config.json``    the network's name and counts, and of each session (the start of the run, every resumption) the
                       arguments, the command, where it began, and on what: `environment.environment_fields`
    ``network.pdf``    the network's layers, where graphviz's `dot` is installed
    ``metrics.csv``    a row for each finished epoch, with the columns of `Progress.history`
    ``accuracy.png``   on training and validation images
    ``lr.png``         the learning rates, planned and used
    ``flips.csv``      if flips are counted: `FlipCounter.rows`
    ``flips.png``      their distribution over the epochs
    ``tensorboard``    if `scalars` are wanted: the same numbers
    =================  ===============================================================================================

    Tables and plots are written anew from the history whenever an epoch is over or the run goes on, so a resumed run continues them.
    Where one cannot be written, that is said once: no run ends for the lack of a picture.

    Parameters
    ----------
    folder : str
        Exists.
    model : str
        The network's name.
    counts : dict
        Of `Summary.counts`.
    rate : callable int -> float
        The learning rate of an update; they are counted from 1.
    updates_per_epoch, num_epochs : int
    flips : FlipCounter, optional
    writes : bool
        False on all processes but one of several that train together: no file is written.
    """

    def __init__(self, folder, model, counts, rate, updates_per_epoch, num_epochs, flips=None, writes=True):
        self._folder, self._model, self._counts, self._writes = folder, model, counts, writes
        self._rate, self._updates_per_epoch, self._num_epochs = rate, updates_per_epoch, num_epochs
        self._flips, self._scalars, self._failed = flips, None, set()
        self._title = f'{model}: {counts["size_bytes"] / 2**20:.2f} MB, {counts["ops"] / 1e6:,.4g} M OPs'

    def start(self, arguments, graph, progress, scalars=None):
        """A session begins where `progress` is.

        Parameters
        ----------
        arguments : dict
            `json` must know the values.
        graph : Graph
            Of the network.
        progress : Progress
        scalars : type, optional
            `Scalars`, if they are wanted.
        """
        if not self._writes:
            return
        with self._told_once(CONFIG):
            self._add_session(arguments, progress)
        self._draw_network(graph)
        if scalars:
            with self._told_once('tensorboard'):
                self._scalars = scalars(self._path('tensorboard'), self._updates(progress))
        self._write_history(progress)

    def end_update(self):
        """An update is over."""
        if self._flips:
            self._flips.add_update()

    def end_epoch(self):
        """The last update of an epoch is over; what is counted over an epoch begins anew. The next checkpoint keeps the result."""
        if self._flips:
            self._flips.end_epoch()

    def arrays(self):
        """What a checkpoint must keep beside weights and optimizer."""
        return self._flips.arrays() if self._flips else {}

    def add_scalars(self, values, progress):
        """Points of curves, by name, where `progress` is."""
        if self._scalars:
            with self._told_once('tensorboard'):
                self._scalars.add(values, self._updates(progress))

    def show_epoch(self, progress):
        """An epoch is over and saved, and its row is the last one of the history."""
        if self._writes:
            self._write_history(progress)
            self.add_scalars({f'epoch/{name}': value for name, value in progress.history[-1].items()}, progress)

    def _updates(self, progress):
        return progress.epoch * self._updates_per_epoch + progress.batch

    def _add_session(self, arguments, progress):
        sessions = []
        if os.path.exists(self._path(CONFIG)):
            with open(self._path(CONFIG), encoding='utf-8') as file:
                sessions = json.load(file)['sessions']
        session = {
            'started': datetime.datetime.now().astimezone().isoformat(timespec='seconds'),
            'command': sys.argv,
            'epoch': progress.epoch,
            'update': progress.batch,
            'arguments': arguments,
            **environment.environment_fields(),
        }
        with replacing(self._path(CONFIG)) as temporary, open(temporary, 'w', encoding='utf-8') as file:
            json.dump({'model': self._model, 'counts': self._counts, 'sessions': [*sessions, session]}, file, indent=1)

    def _draw_network(self, graph):
        if os.path.exists(self._path(DRAWING)):
            return
        if not shutil.which('dot'):
            LOG.info('%s is not drawn: that needs the program `dot` of graphviz (apt-get install graphviz, brew install graphviz)', DRAWING)
            return
        with self._told_once(DRAWING):
            drawing.save(drawing.draw(graph, self._title), self._path(DRAWING))

    def _write_history(self, progress):
        history = progress.history
        self._draw('lr.png', plots.learning_rate, self._rate, self._updates_per_epoch, self._num_epochs, self._updates(progress))
        if not history:
            return
        self._tabulate('metrics.csv', history)
        self._draw('accuracy.png', plots.accuracy, history)
        if self._flips:
            rows = self._flips.rows([row['epoch'] for row in history])
            self._tabulate('flips.csv', rows)
            self._draw('flips.png', plots.flips, rows)

    def _tabulate(self, name, rows):
        with self._told_once(name), replacing(self._path(name)) as temporary, open(temporary, 'w', newline='', encoding='utf-8') as file:
            table = csv.DictWriter(file, list(rows[-1]))
            table.writeheader()
            table.writerows(rows)

    def _draw(self, name, curve, *values):
        with self._told_once(name), replacing(self._path(name)) as temporary:
            curve(*values, title=self._title).savefig(temporary)

    def _path(self, name):
        return os.path.join(self._folder, name)

    @contextlib.contextmanager
    def _told_once(self, name):
        try:
            yield
        except Exception as error:  # whatever a library for drawings may raise
            if name not in self._failed:
                LOG.warning('%s is not written: %s', name, error)
            self._failed.add(name)
