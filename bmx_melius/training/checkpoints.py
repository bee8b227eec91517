"""The state of a run on the disk: everything needed to continue as if nothing had happened, and always one consistent set."""

import contextlib
import dataclasses
import errno
import json
import os
import pickle
import re
import zipfile

import mxnet as mx
import numpy as np

from ..distributed.workers import Workers
from ..errors import UserError, last_line
from ..exported import Description
from ..files import replacing
from .progress import Progress

FORMAT = 2
COUNTERS = ('begin_num_update', 'num_update', '_index_update_count', '_all_index_update_counts')  # attributes of an optimizer
FILE_NAME = re.compile(r'checkpoint\.json|epoch-\d+(-\d+)?\.(params|states|npz)')


class Checkpoints:
    """The checkpoint in a folder.

    The state is ``checkpoint.json``; it names the files of weights (``.params``, for `load_parameters`) and of the optimizer
    (``.states``, for `Trainer.load_states`) that belong to it, and of what else the run counts (``.npz``). Each checkpoint writes files
    of new names and then replaces ``checkpoint.json``, so a kill at any time leaves the old set or the new one. Files of older
    checkpoints are deleted after that, except the weights of the best epoch and of every `keep_every`-th.

    Parameters
    ----------
    folder : str
        Made when needed.
    options : dict
        What the run was asked to do; `json` must know the values.
    keep_every : int
        0 keeps only the best and the last.
    workers : Workers, optional
        The processes that train together, all of which call `save`; number 0 writes.
    description : dict, optional
        Of the network, as `exported.describe` gives it; whoever reads the weights alone needs it.
    """

    STATE = 'checkpoint.json'

    def __init__(self, folder, options, keep_every=0, workers=None, description=None):
        self._folder, self._options, self._keep_every, self._workers = folder, options, keep_every, workers or Workers()
        self._description = description

    @classmethod
    def read(cls, folder):
        """The content of the checkpoint in `folder`, None where there is none.

        Raises
        ------
        UserError
            When there is one that cannot be read.
        """
        path = os.path.join(folder, cls.STATE)
        try:
            with open(path, encoding='utf-8') as file:
                state = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise UserError(f'{path} is damaged: {error}') from error
        if state.get('format') != FORMAT:
            raise UserError(f'{path} was written by another version of this program (format {state.get("format")}, not {FORMAT})')
        return state

    def save(self, net, trainer, progress, arrays=None):
        """Write the state between two batches.

        Parameters
        ----------
        net : gluon.Block
        trainer : gluon.Trainer
        progress : Progress
        arrays : dict of str to numpy.ndarray, optional
            What else belongs to the state; `load_arrays` gives it back.

        Raises
        ------
        UserError
            When it cannot be written, for example because the disk is full. The checkpoint before is as it was.
        """
        self._workers.average_statistics(net)
        progress = progress.of_all(self._workers)
        if self._workers.rank != 0:
            return
        old = self.read(self._folder)
        try:
            os.makedirs(self._folder, exist_ok=True)
            new = self._write(net, trainer, progress, arrays)
        except OSError as error:
            self._remove_all_but(old)  # what is new and not whole may be what fills the disk
            hint = f'the one before it is whole: mend that, then go on with --resume --save-dir {self._folder}' if old else 'mend that'
            raise UserError(f'no checkpoint can be written: {error.filename}: {error.strerror}; {hint}') from error
        self._remove_all_but(new)

    def _write(self, net, trainer, progress, arrays):
        """Write the files of a checkpoint; return the content of its ``checkpoint.json``."""
        weights = self._weights(progress.epoch, progress.batch)
        states, counted = (weights[: -len('params')] + suffix for suffix in ('states', 'npz'))
        with replacing(self.path(weights)) as temporary:
            _save_parameters(net, temporary)
        with replacing(self.path(states)) as temporary:
            trainer.save_states(temporary)
        if arrays:
            with replacing(self.path(counted)) as temporary:
                np.savez_compressed(temporary, **arrays)
        state = {
            'format': FORMAT,
            'options': self._options,
            'network': self._description,
            'weights': weights,
            'states': states,
            'arrays': counted if arrays else None,
            'kept': self._kept(progress),
            'progress': dataclasses.asdict(progress),
        }
        with replacing(self.path(self.STATE)) as temporary, open(temporary, 'w', encoding='utf-8') as file:
            json.dump(state, file, indent=1)
        return state

    def _remove_all_but(self, state):
        """Delete the files of all checkpoints but the one that `state` describes."""
        kept = {self.STATE, *_files(state)} if state else {self.STATE}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for file in os.listdir(self._folder):
                if FILE_NAME.fullmatch(file) and file not in kept:
                    os.unlink(self.path(file))

    def load(self, net, trainer):
        """Bring network and optimizer into the saved state; return the saved `Progress`.

        Raises
        ------
        UserError
            When files are missing, damaged, or of another network than `net`.
        """
        state = self.read(self._folder)
        try:
            net.load_parameters(self.path(state['weights']), ctx=net.collect_params().list_ctx())
            load_optimizer(trainer, self.path(state['states']))
        except (AssertionError, OSError, EOFError, ValueError, pickle.UnpicklingError, mx.MXNetError) as error:
            raise UserError(
                f'{self.path(self.STATE)} belongs to files that are missing, damaged or of another network: {last_line(error)}'
            ) from error
        return Progress(**state['progress']).share(self._workers)

    def load_arrays(self):
        """The `arrays` of the saved state, empty if it has none. Raises as `load` does."""
        file = self.read(self._folder)['arrays']
        if not file:
            return {}
        try:
            with np.load(self.path(file)) as arrays:
                return dict(arrays)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f'{self.path(self.STATE)} belongs to files that are missing or damaged: {last_line(error)}') from error

    def best_weights(self, progress):
        """Path of the weights of the best epoch."""
        return self.path(self._weights(progress.best['epoch']))

    def path(self, file):
        """Path of one of the files."""
        return os.path.join(self._folder, file)

    def _weights(self, epoch, batch=0):
        """The name of the weights before batch `batch` of `epoch`: ``epoch-0003.params`` after three epochs."""
        return f'epoch-{epoch:04d}' + (f'-{batch:06d}' if batch else '') + '.params'

    def _kept(self, progress):
        epochs = {row['epoch'] for row in progress.history if self._keep_every and row['epoch'] % self._keep_every == 0}
        return sorted(map(self._weights, epochs | ({progress.best['epoch']} if progress.best else set())))


def _save_parameters(net, path):
    """Write the weights. MXNet does not notice when the last bytes do not fit on the disk, so they are read back."""
    try:
        net.save_parameters(path)
        mx.nd.load(path)
    except mx.MXNetError as error:
        raise OSError(errno.ENOSPC, f'{os.strerror(errno.ENOSPC)}, or it fails ({last_line(error)})', path) from error


def _files(state):
    """The names of all files that belong to the content of a ``checkpoint.json``."""
    return {state['weights'], state['states'], *state['kept'], *filter(None, [state['arrays']])}


def description_of(weights):
    """The `Description` of the network that a file of weights is of, None where it belongs to no checkpoint beside it."""
    folder, name = os.path.split(weights)
    state = Checkpoints.read(folder)
    if state is None or name not in _files(state) or not state.get('network'):
        return None
    return Description(state['network'], os.path.join(folder, Checkpoints.STATE))


def load_optimizer(trainer, path):
    """Bring the moments and counters of `trainer` into a state that `Trainer.save_states` wrote.

    The file has the whole optimizer; its settings and schedule stay those of `trainer`. Raises `ValueError` where it is of another kind.
    """
    own = trainer.optimizer
    trainer.load_states(path)
    loaded = trainer.optimizer
    if type(loaded) is not type(own):
        raise ValueError(f'it is the state of {type(loaded).__name__}, not of {type(own).__name__}')
    vars(loaded).update({name: value for name, value in vars(own).items() if name not in COUNTERS})
