"""Training checkpoints: consistent sets of files from which an interrupted run resumes without any difference in the result."""

import contextlib
import dataclasses
import errno
import os

import mxnet as mx
import numpy as np

from ...analysis.finiteness import find_not_finite
from ...distributed.lockstep import divergence
from ...distributed.workers import Workers
from ...errors import UserError, last_line
from ...files.io import replacing, sha256
from ...files.npz import read_npz
from ...files.parameters import read_parameters
from ...reporting import LOG
from ..progress import Progress
from .optimizer_state import load_optimizer, save_optimizer
from .stored_checkpoints import FILE_NAME, FORMAT, LAST, PREVIOUS, files_of, find_best, find_intact, weights_name, write_state


class Checkpoints:
    """The last and the previous checkpoint in a folder.

    A checkpoint is described by ``checkpoint.json``, which has the names and checksums of the files with the weights (``.params``, for
    `load_parameters`), the state of the optimizer (``.states``, for `load_optimizer`) and other counters of the run (``.npz``). `save`
    writes files with new names, then copies ``checkpoint.json`` to ``checkpoint-previous.json``, and then replaces it, so a process killed
    at any time leaves either the old or the new checkpoint. Afterwards it deletes the files of older checkpoints, except the weights of
    the best epoch and of every `keep_every`-th epoch. Checksums detect files that were damaged later.

    Parameters
    ----------
    folder : str
        Created if it does not exist.
    options : dict
        Values of all flags of the run, which `json` can write.
    keep_every : int
        0 keeps only the best and the last weights.
    workers : Workers, optional
        Workers that train together; all of them call `save`, and rank 0 writes.
    description : dict, optional
        Description of the network (see `exported.description_fields`), for programs that read only the weights.
    """

    def __init__(self, folder, options, keep_every=0, workers=None, description=None):
        self._folder, self._options, self._keep_every, self._workers = folder, options, keep_every, workers or Workers()
        self._description = description
        self._last = self._previous = None  # states that this process has read or written

    def save(self, net, trainer, progress, arrays=None):
        """Write a checkpoint.

        Parameters
        ----------
        net : gluon.Block
        trainer : gluon.Trainer
        progress : Progress
        arrays : dict of str to numpy.ndarray, optional
            Additional state, which `load_arrays` returns.

        Raises
        ------
        UserError
            When it cannot be written, for example because the disk is full, or when a parameter is NaN or infinite. The previous
            checkpoint is left unchanged.
        """
        self._workers.average_statistics(net)
        name = find_not_finite(net)
        if name:
            raise UserError(divergence(progress, name))
        progress = progress.summed_over(self._workers)
        if self._workers.rank != 0:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            new = self._write_files(net, trainer, progress, arrays)
            previous = self._last if self._last and self._last['weights'] != new['weights'] else self._previous
            with replacing(self.path(LAST)) as temporary:
                write_state(temporary, new)
                if previous:
                    write_state(self.path(PREVIOUS), previous)
        except OSError as error:
            self._remove_others()  # incomplete new files may be what fills the disk
            hint = (
                f'the previous one is intact: fix the problem, then continue with --resume --save-dir {self._folder}'
                if self._last
                else 'fix the problem'
            )
            raise UserError(f'the checkpoint cannot be written: {error.filename}: {error.strerror}; {hint}') from error
        self._last, self._previous = new, previous
        self._remove_others()

    def _write_files(self, net, trainer, progress, arrays):
        """Write the files of a checkpoint; return the content of its ``checkpoint.json``."""
        weights = weights_name(progress.epoch, progress.batch)
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
        """Delete the files of all checkpoints except the last two."""
        kept = set().union(*(files_of(state) for state in (self._last, self._previous) if state))
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for file in os.listdir(self._folder):
                if FILE_NAME.fullmatch(file) and file not in kept:
                    os.unlink(self.path(file))

    def load(self, net, trainer):
        """Load the last checkpoint into network and optimizer; return its `Progress`.

        If one of its files is damaged or missing, load the previous checkpoint and log a warning.

        Raises
        ------
        UserError
            When neither checkpoint is intact, when the files belong to another network, or when a parameter is NaN or infinite.
        """
        state = self._find_intact()
        try:
            read_parameters(self.path(state['weights']))  # refuses damaged files, for which MXNet allocates whatever they announce
            net.load_parameters(self.path(state['weights']), ctx=net.collect_params().list_ctx())
            load_optimizer(trainer, self.path(state['states']))
            self._last = state
        except (AssertionError, OSError, ValueError, mx.MXNetError) as error:
            raise UserError(
                f'{self.path(LAST)} refers to files that are missing, damaged or of another network: {last_line(error)}'
            ) from error
        name = find_not_finite(net)
        if name:
            raise UserError(
                f'{self.path(state["weights"])}: {name} has values that are NaN or infinite, so the training diverged; start a new run '
                'with a lower --lr'
            )
        return Progress(**state['progress']).share(self._workers)

    def _find_intact(self):
        """Return the description of the last checkpoint whose files are intact."""
        state, self._previous, warning = find_intact(self._folder)
        if warning and self._workers.rank == 0:
            LOG.warning('%s', warning)
        return state

    @property
    def options(self):
        """Values of the flags in the checkpoint that was loaded or saved last."""
        return self._last['options']

    def load_arrays(self):
        """Return the `arrays` of the checkpoint that was loaded or saved last, empty if it has none. Raises like `load`."""
        file = (self._last or self._find_intact())['arrays']
        if not file:
            return {}
        try:
            return read_npz(self.path(file))
        except UserError as error:
            raise UserError(f'{self.path(LAST)} refers to files that are missing or damaged: {error}') from error

    def best(self, progress):
        """Return the row of the best epoch in the history of `progress` and the path of its weights. Call after `save` or `load`.

        Epochs whose weights were deleted are skipped with a warning. Raises `UserError` when the weights are damaged.
        """
        return find_best(self._folder, self._last, progress.history)

    def path(self, file):
        """Return the path of a file in the folder."""
        return os.path.join(self._folder, file)

    def _kept(self, progress):
        """Return the names of the weights to keep, of the best and of every `keep_every`-th epoch."""
        epochs = {row['epoch'] for row in progress.history if self._keep_every and row['epoch'] % self._keep_every == 0}
        return sorted(map(weights_name, epochs | ({progress.best['epoch']} if progress.best else set())))


def _save_parameters(net, path):
    """Write the weights and read them back, because MXNet does not report an error when the disk becomes full."""
    try:
        net.save_parameters(path)
        mx.nd.load(path)
    except mx.MXNetError as error:
        raise OSError(errno.ENOSPC, f'{os.strerror(errno.ENOSPC)}, or it fails ({last_line(error)})', path) from error
