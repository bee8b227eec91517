"""Checkpoints that a folder holds: the last one, the last intact one, the best weights, and the one that a file belongs to."""

import contextlib
import os

from ...errors import UserError
from ...files.exported import Description
from ...reporting import LOG
from .checkpoint_state import LAST, PREVIOUS, Damaged, files_of, read_state, verify, weights_name


def read_last(folder):
    """Return the last checkpoint's description, or the previous one's if it is damaged; None if there is no checkpoint.

    Raises
    ------
    UserError
        When a description is damaged and there is no other one.
    """
    states = _read_states(folder)
    return states[0][1] if states else None


def refuse_run(folder):
    """Raise `UserError` if there is a checkpoint in `folder`."""
    if read_last(folder):
        raise UserError(f'{folder} holds a run already: continue it with --resume, or choose another --save-dir')


def find_intact(folder):
    """Find the last checkpoint whose files are intact.

    Returns
    -------
    state : dict
        Its description.
    previous : dict or None
        Description of the checkpoint before it.
    warning : str or None
        Why the last checkpoint was not used, and where the run continues instead.

    Raises
    ------
    UserError
        When neither the last nor the previous checkpoint is intact.
    """
    damages = []
    for name, before in ((LAST, PREVIOUS), (PREVIOUS, None)):
        path = os.path.join(folder, name)
        try:
            state = read_state(path)
            for file in filter(None, (state['weights'], state['states'], state['arrays'])) if state else ():
                verify(path, state, file)
        except Damaged as error:
            damages.append(str(error))
            continue
        if state is None:
            damages += [f'{path} is missing'] if before else []  # the first checkpoint has no previous one
            continue
        warning = previous = None
        if damages:
            progress = state['progress']
            place = f'epoch {progress["epoch"] + 1}, update {progress["batch"] + 1}'
            warning = f'{damages[0]}; continuing from the previous checkpoint, at {place}'
        with contextlib.suppress(Damaged):
            previous = before and read_state(os.path.join(folder, before))
        return state, previous, warning
    raise UserError(f'{"; ".join(damages)}: put back a copy, or start a new run, for example from intact weights (--resume-params FILE)')


def find_best(folder, state, history):
    """Return the row of the best epoch in a history (see `Progress`) and the path of its weights.

    Epochs whose weights were deleted are skipped with a warning.

    Parameters
    ----------
    folder : str
    state : dict
        Description of the last checkpoint.
    history : list of dict

    Raises
    ------
    UserError
        When the weights are damaged.
    """
    missing = []
    for row in sorted(history, key=lambda row: -row['top1']):  # stable: the first of several equal epochs comes first
        name = weights_name(row['epoch'])
        if name not in state['sha256']:
            continue
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            missing.append(name)
            continue
        try:
            verify(os.path.join(folder, LAST), state, name)
        except Damaged as error:
            raise UserError(
                f'the best weights are not exported: {error}; put back a copy, or remove the file: '
                f'--resume --save-dir {folder} then exports the best remaining weights'
            ) from error
        if missing:
            LOG.warning('%s is missing: the best remaining weights are those of epoch %d', ', '.join(missing), row['epoch'])
        return row, path
    raise UserError(f'{folder} has no weights of a finished epoch: {", ".join(missing)} are missing')


def description_of(weights):
    """Return the `Description` of the network of a file of weights, None if no checkpoint in its folder refers to the file.

    Raises
    ------
    UserError
        When the weights differ from those of the checkpoint, or when the checkpoint is damaged.
    """
    found = _find_checkpoint_of(weights)
    if found is None:
        return None
    path, state = found
    verify(path, state, os.path.basename(weights))
    return Description(state['network'], path) if state['network'] else None


def verify_file(file):
    """Raise `UserError` if a file belongs to a checkpoint in its folder and differs from what was written."""
    try:
        found = _find_checkpoint_of(file)
    except UserError as error:
        LOG.warning('%s cannot be verified: %s', file, error)
    else:
        if found:
            verify(*found, os.path.basename(file))


def _find_checkpoint_of(file):
    """Return path and content of the ``checkpoint.json`` that refers to a file in the same folder, None if there is none."""
    folder, name = os.path.split(file)
    return next(((path, state) for path, state in _read_states(folder) if name in files_of(state)), None)


def _read_states(folder):
    """Return path and content of the last and the previous ``checkpoint.json``.

    Damaged ones are left out. Raises `Damaged` if there are no others.
    """
    states, damage = [], None
    for path in (os.path.join(folder, name) for name in (LAST, PREVIOUS)):
        try:
            state = read_state(path)
        except Damaged as error:
            damage = damage or error
        else:
            states += [(path, state)] if state else []
    if damage and not states:
        raise damage
    return states
