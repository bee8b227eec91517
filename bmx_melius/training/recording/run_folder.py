"""Folder of a run: settings, tables and plots that document the training, except checkpoints."""

import contextlib
import csv
import datetime
import json
import os
import shutil
import sys
import time

from ...analysis import drawing
from ...files.io import replacing, write_json
from ...reporting import LOG
from . import environment, plots

LOG_FILE = 'experiment.log'
CONFIG, DRAWING = 'config.json', 'network.pdf'
PLOTTING_SHARE = 0.05  # of the time of a run, at most; short epochs would otherwise wait for their plots


class RunFolder:
    """Writer of the tables, plots and settings in the folder of a run; checkpoints, log and export are written elsewhere.

    =================  ===============================================================================================
    ``config.json``    the network's name and counts, and for each session (the start of the run and every resumption) the
                       arguments, the command, the epoch and update, and `environment.environment_fields`
    ``network.pdf``    drawing of the network's layers, if graphviz's `dot` is installed
    ``metrics.csv``    a row for each finished epoch, with the columns of `Progress.history`
    ``accuracy.png``   accuracy on training and validation images
    ``loss.png``       loss on training and validation images
    ``lr.png``         the learning rates, planned and used
    ``flips.csv``      `FlipCounter.rows`, if flips are counted
    ``flips.png``      the distribution of flips over the epochs
    ``tensorboard``    the same numbers as scalars, if requested
    =================  ===============================================================================================

    Tables and plots are written from the history at the start of each session, so a resumed run continues them, and after each epoch; plots
    are left out after an epoch, except the last one, that ends so soon after the previous plots that they would take more than 5 % of the
    time. When one of the files cannot be written, a warning is logged once and training continues.

    Parameters
    ----------
    folder : str
        Must exist.
    model : str
        Name of the network.
    counts : dict
        As in `Summary.counts`.
    schedule : plots.Schedule
    flips : FlipCounter, optional
    writes : bool
        False in all workers except rank 0: no file is written.
    summary : str, optional
        Folder for TensorBoard in place of ``tensorboard``, which then also gets histograms.
    """

    def __init__(self, folder, model, counts, schedule, flips=None, writes=True, summary=None):
        self._folder, self._model, self._counts, self._schedule, self._writes = folder, model, counts, schedule, writes
        self._flips, self._scalars, self._failed, self._summary = flips, None, set(), summary
        self._next_plots = 0.0  # earliest time on the monotonic clock
        self._title = f'{model}: {counts["size_bytes"] / 2**20:.2f} MB, {counts["ops"] / 1e6:,.4g} M OPs'

    def start(self, arguments, graph, progress, scalars=None):
        """Begin a session at the current `progress`.

        Parameters
        ----------
        arguments : dict
            Values of all flags, which `json` can write.
        graph : Graph
            Graph of the network.
        progress : Progress
        scalars : type, optional
            `Scalars`, if they are requested.
        """
        if not self._writes:
            return
        with self._warn_once(CONFIG):
            self._add_session(arguments, progress)
        self._draw_network(graph)
        if scalars:
            with self._warn_once('tensorboard'):
                self._scalars = scalars(self._summary or self._path('tensorboard'), self._updates(progress))
        self._write_history(progress, plot=True)

    def end_update(self):
        """Record the end of an update."""
        if self._flips:
            self._flips.add_update()

    def end_epoch(self):
        """Record the end of an epoch and reset the counters of the epoch. Call this before the checkpoint is written."""
        if self._flips:
            self._flips.end_epoch()

    def arrays(self):
        """Return the arrays that a checkpoint must contain besides weights and optimizer."""
        return self._flips.arrays() if self._flips else {}

    def add_scalars(self, values, progress):
        """Add a point to TensorBoard curves, a dict of names to values, at the current `progress`."""
        if self._scalars:
            with self._warn_once('tensorboard'):
                self._scalars.add(values, self._updates(progress))

    def add_histograms(self, net, progress):
        """Add histograms of the weights and biases of a network, and of their gradients in the last update, if they are requested."""
        if not (self._scalars and self._summary):
            return
        arrays = {}
        for name, parameter in net.collect_params('.*weight|.*bias').items():
            arrays[name] = parameter.list_data()[0].asnumpy()
            if parameter.grad_req != 'null':
                arrays[f'{name}/gradient'] = parameter.list_grad()[0].asnumpy()
        with self._warn_once('tensorboard'):
            self._scalars.add_histograms(arrays, self._updates(progress))

    def show_epoch(self, progress, ends=False):
        """Update tables and plots after a checkpoint; the last row of the history is that of the finished epoch.

        `ends` is whether the run ends early with it.
        """
        if self._writes:
            is_last = ends or progress.epoch == self._schedule.num_epochs
            self._write_history(progress, plot=is_last or time.monotonic() >= self._next_plots)
            self.add_scalars({f'epoch/{name}': value for name, value in progress.history[-1].items()}, progress)

    def _updates(self, progress):
        """Return the number of updates since the start of the run."""
        return progress.epoch * self._schedule.updates_per_epoch + progress.batch

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
        write_json(self._path(CONFIG), {'model': self._model, 'counts': self._counts, 'sessions': [*sessions, session]})

    def _draw_network(self, graph):
        if os.path.exists(self._path(DRAWING)):
            return
        if not shutil.which('dot'):
            LOG.info(
                '%s is not drawn: this requires the program `dot` of graphviz (apt-get install graphviz, brew install graphviz)', DRAWING
            )
            return
        with self._warn_once(DRAWING):
            drawing.save(drawing.draw(graph, self._title), self._path(DRAWING))

    def _write_history(self, progress, plot):
        history, flips = progress.history, []
        if history:
            self._tabulate('metrics.csv', history)
            if self._flips:
                flips = self._flips.rows([row['epoch'] for row in history])
                self._tabulate('flips.csv', flips)
        if plot:
            started = time.monotonic()
            self._draw('lr.png', plots.learning_rate, self._schedule, self._updates(progress))
            if history:
                self._draw('accuracy.png', plots.accuracy, history)
                self._draw('loss.png', plots.loss, history)
            if flips:
                self._draw('flips.png', plots.flips, flips)
            ended = time.monotonic()
            self._next_plots = ended + (ended - started) / PLOTTING_SHARE

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
