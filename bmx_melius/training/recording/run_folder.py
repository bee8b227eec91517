"""Folder of a run: settings, tables and plots that document the training, except checkpoints."""

import datetime
import json
import os
import shutil
import sys

from ...analysis import drawing
from ...files.io import write_json
from ...reporting import LOG
from . import environment
from .history_files import HistoryFiles

LOG_FILE = 'experiment.log'
CONFIG, DRAWING = 'config.json', 'network.pdf'


class RunFolder(HistoryFiles):
    """Writer of the tables, plots and settings in the folder of a run; checkpoints, log and export are written elsewhere.

    Besides the files of `HistoryFiles`:

    =================  ===============================================================================================
    ``config.json``    the network's name and counts, and for each session (the start of the run and every resumption) the
                       arguments, the command, the epoch and update, and `environment.environment_fields`
    ``network.pdf``    drawing of the network's layers, if graphviz's `dot` is installed
    ``tensorboard``    the numbers of ``metrics.csv`` as scalars, if requested
    =================  ===============================================================================================

    Tables and plots are written from the history at the start of each session, so a resumed run continues them, and after each epoch.

    Parameters
    ----------
    folder : str
        Must exist.
    model : str
        Name of the network.
    counts : dict
        As in `Summary.counts`.
    schedule : plots.Schedule
    class_names : list of str, optional
    flips : FlipCounter, optional
    writes : bool
        False in all workers except rank 0: no file is written.
    summary : str, optional
        Folder for TensorBoard in place of ``tensorboard``, which then also gets histograms.
    """

    def __init__(self, folder, model, counts, schedule, class_names=None, flips=None, writes=True, summary=None):
        title = f'{model}: {counts["size_bytes"] / 2**20:.2f} MB, {counts["ops"] / 1e6:,.4g} M OPs'
        super().__init__(folder, title, schedule, class_names, flips)
        self._model, self._counts, self._writes, self._summary, self._scalars = model, counts, writes, summary, None

    def start(self, arguments, graph, progress, scalars=None, confusion=None):
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
        confusion : Confusion, optional
            Of the best epoch so far.
        """
        if not self._writes:
            return
        with self._warn_once(CONFIG):
            self._add_session(arguments, progress)
        self._draw_network(graph)
        if scalars:
            with self._warn_once('tensorboard'):
                self._scalars = scalars(self._summary or self._path('tensorboard'), self._updates(progress))
        self.write(progress, confusion)

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

    def show_epoch(self, progress, confusion=None, ends=False):
        if self._writes:
            super().show_epoch(progress, confusion, ends)
            self.add_scalars({f'epoch/{name}': value for name, value in progress.history[-1].items()}, progress)

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
