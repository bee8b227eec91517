"""The state of a run on the disk: everything needed to continue as if nothing had happened, and always one consistent set."""

import contextlib
import dataclasses
import errno
import os
import zipfile

import mxnet as mx
import numpy as np

from ...distributed.workers import Workers
from ...errors import UserError, last_line
from ...exported import Description
from ...files import replacing, sha256
from ...reporting import LOG
from ..progress import Progress
from .checkpoint_state import FILE_NAME, FORMAT, Damaged, files_of, read_state, verify, with_checksums, write_state
from .optimizer_state import load_optimizer, save_optimizer


class Checkpoints:
    """The last checkpoint in a folder, and the one before it.

    The state is ``checkpoint.json``; it names the files of weights (``.params``, for `load_parameters`) and of the optimizer
    (``.states``, for `load_optimizer`) that belong to it, and of what else the run counts (``.npz``), with their checksums. Each
    checkpoint writes files of new names, then copies ``checkpoint.json`` to ``checkpoint-previous.json``, and then replaces it, so a kill
    at any time leaves the old set or the new one. Files of older checkpoints are deleted after that, except the weights of the best
    epoch and of every `keep_every`-th. A file that was damaged since, on the disk or on the way to it, is noticed when it is read.

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

    STATE, PREVIOUS = 'checkpoint.json', 'checkpoint-previous.json'

    def __init__(self, folder, options, keep_every=0, workers=None, description=None):
        self._folder, self._options, self._keep_every, self._workers = folder, options, keep_every, workers or Workers()
        self._description = description
        self._last = self._previous = None  # the states that this process has read or written

    @classmethod
    def read(cls, folder):
        """The content of ``checkpoint.json`` in `folder`, or of that before it where it is damaged; None where there is none.

        Raises
        ------
        UserError
            When there is one that cannot be read, and none before it.
        """
        states = _read_states(folder)
        return states[0][1] if states else None

    @classmethod
    def refuse_run(cls, folder):
        """Raise `UserError` where there is a checkpoint in `folder`."""
        if cls.read(folder):
            raise UserError(f'{folder} holds a run already: continue it with --resume, or choose another --save-dir')

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
        try:
            os.makedirs(self._folder, exist_ok=True)
            new = self._write_files(net, trainer, progress, arrays)
            previous = self._last if self._last and self._last['weights'] != new['weights'] else self._previous
            with replacing(self.path(self.STATE)) as temporary:
                write_state(temporary, new)
                if previous:
                    write_state(self.path(self.PREVIOUS), previous)
        except OSError as error:
            self._remove_others()  # what is new and not whole may be what fills the disk
            hint = (
                f'the one before it is whole: mend that, then go on with --resume --save-dir {self._folder}' if self._last else 'mend that'
            )
            raise UserError(f'no checkpoint can be written: {error.filename}: {error.strerror}; {hint}') from error
        self._last, self._previous = new, previous
        self._remove_others()

    def _write_files(self, net, trainer, progress, arrays):
        """Write the files of a checkpoint; return what is to be the content of its ``checkpoint.json``."""
        weights = self._weights(progress.epoch, progress.batch)
        states, counted = (weights[: -len('params')] + suffix for suffix in ('states', 'npz'))
        with replacing(self.path(weights)) as temporary:
            _save_parameters(net, temporary)
        save_optimizer(trainer, self.path(states))
        if arrays:
            with replacing(self.path(counted)) as temporary:
                np.savez_compressed(temporary, **arrays)
        checksums = {name: sha256(self.path(name)) for name in (weights, states, *([counted] if arrays else []))}
        known = {**(self._last['sha256'] if self._last else {}), **checksums}
        kept = [name for name in self._kept(progress) if name in known]
        return {
            'format': FORMAT,
            'options': self._options,
            'network': self._description,
            'weights': weights,
            'states': states,
            'arrays': counted if arrays else None,
            'kept': kept,
            'sha256': {**checksums, **{name: known[name] for name in kept}},
            'progress': dataclasses.asdict(progress),
        }

    def _remove_others(self):
        """Delete the files of all checkpoints but the last and the one before it."""
        kept = set().union(*(files_of(state) for state in (self._last, self._previous) if state))
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for file in os.listdir(self._folder):
                if FILE_NAME.fullmatch(file) and file not in kept:
                    os.unlink(self.path(file))

    def load(self, net, trainer):
        """Bring network and optimizer into the saved state; return the saved `Progress`.

        Where a file of the last checkpoint is damaged or missing, that is the state of the checkpoint before, with a warning.

        Raises
        ------
        UserError
            When files are damaged or missing and there is no whole checkpoint before, or when they are of another network than `net`.
        """
        state = self._find_whole()
        try:
            net.load_parameters(self.path(state['weights']), ctx=net.collect_params().list_ctx())
            load_optimizer(trainer, self.path(state['states']))
            self._last = with_checksums(self.path(self.STATE), state)
        except (AssertionError, OSError, ValueError, mx.MXNetError) as error:
            raise UserError(
                f'{self.path(self.STATE)} belongs to files that are missing, damaged or of another network: {last_line(error)}'
            ) from error
        return Progress(**state['progress']).share(self._workers)

    def _find_whole(self):
        """The state of the last checkpoint whose files are as they were written."""
        damages = []
        for name, before in ((self.STATE, self.PREVIOUS), (self.PREVIOUS, None)):
            path = self.path(name)
            try:
                state = read_state(path)
                for file in filter(None, (state['weights'], state['states'], state['arrays'])) if state else ():
                    verify(path, state, file)
            except Damaged as error:
                damages.append(str(error))
                continue
            if state is None:
                damages += [f'{path} is missing'] if before else []  # the first checkpoint has none before it
                continue
            if damages and self._workers.rank == 0:
                place = f'epoch {state["progress"]["epoch"] + 1}, update {state["progress"]["batch"] + 1}'
                LOG.warning('%s; going on from the checkpoint before it, at %s', damages[0], place)
            with contextlib.suppress(Damaged):
                self._previous = before and read_state(self.path(before))
            return state
        raise UserError(
            f'{"; ".join(damages)}: put back a copy, or start a new run, perhaps from weights that are whole (--resume-params FILE)'
        )

    def load_arrays(self):
        """The `arrays` of the state that was loaded or saved last, empty if it has none. Raises as `load` does."""
        file = (self._last or self._find_whole())['arrays']
        if not file:
            return {}
        try:
            with np.load(self.path(file)) as arrays:
                return dict(arrays)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f'{self.path(self.STATE)} belongs to files that are missing or damaged: {last_line(error)}') from error

    def best(self, progress):
        """The row of the best epoch in the history of `progress`, and the path of its weights, after `save` or `load`.

        Weights that somebody removed are passed over, with a warning.

        Raises
        ------
        UserError
            When the weights are damaged.
        """
        missing = []
        for row in sorted(progress.history, key=lambda row: -row['top1']):  # the first of equals stays the first
            name = self._weights(row['epoch'])
            if name not in self._last['sha256']:
                continue
            if not os.path.exists(self.path(name)):
                missing.append(name)
                continue
            try:
                verify(self.path(self.STATE), self._last, name)
            except Damaged as error:
                raise UserError(
                    f'the best weights are not exported: {error}; put back a copy, or remove the file: '
                    f'--resume --save-dir {self._folder} exports the best that are there'
                ) from error
            if missing:
                LOG.warning('%s is missing: the best weights that are left are those of epoch %d', ', '.join(missing), row['epoch'])
            return row, self.path(name)
        raise UserError(f'{self._folder} has no weights of a finished epoch: {", ".join(missing)} are missing')

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


def description_of(weights):
    """The `Description` of the network that a file of weights is of, None where it belongs to no checkpoint beside it.

    Raises
    ------
    UserError
        When the weights are not the ones that the checkpoint had, or when it is damaged itself.
    """
    found = _find_checkpoint_of(weights)
    if found is None:
        return None
    path, state = found
    verify(path, state, os.path.basename(weights))
    return Description(state['network'], path) if state['network'] else None


def verify_file(file):
    """Raise `UserError` unless a file, if it belongs to a checkpoint beside it, is as it was written."""
    try:
        found = _find_checkpoint_of(file)
    except UserError as error:
        LOG.warning('%s cannot be verified: %s', file, error)
    else:
        if found:
            verify(*found, os.path.basename(file))


def _find_checkpoint_of(file):
    """The path and the content of the ``checkpoint.json`` that a file beside it belongs to; None where there is none."""
    folder, name = os.path.split(file)
    return next(((path, state) for path, state in _read_states(folder) if name in files_of(state)), None)


def _read_states(folder):
    """The path and the content of the last ``checkpoint.json`` and of that before. Damaged ones are left out; raises if that is all."""
    states, damage = [], None
    for path in (os.path.join(folder, name) for name in (Checkpoints.STATE, Checkpoints.PREVIOUS)):
        try:
            state = read_state(path)
        except Damaged as error:
            damage = damage or error
        else:
            states += [(path, state)] if state else []
    if damage and not states:
        raise damage
    return states
