"""Checkpoints that a folder holds: ``checkpoint.json``, which has the names and checksums of the files of one, and what is found by it."""

import contextlib
import hashlib
import json
import os
import re

from ...errors import UserError, last_line
from ...files.exported import Description
from ...files.io import sha256, write_json
from ...reporting import LOG
from ..progress import is_progress

FORMAT = 3
LAST, PREVIOUS = 'checkpoint.json', 'checkpoint-previous.json'
FILE_NAME = re.compile(r'epoch-\d+(-\d+)?\.(params|states|npz)')
_CHECKSUM = 'checksum'  # field with the checksum of all other fields


def weights_name(epoch, batch=0):
    """Return the file name of the weights before batch `batch` of `epoch`: ``epoch-0003.params`` after three epochs."""
    return f'epoch-{epoch:04d}' + (f'-{batch:06d}' if batch else '') + '.params'


class Damaged(UserError):
    """Raised when a file of a checkpoint is missing, cannot be read, or differs from what was written."""


def write_state(path, state):
    """Write the description of a checkpoint.

    Parameters
    ----------
    path : str
    state : dict
        Fields: ``format``, ``options``, ``network``, the file names ``weights``, ``states``, ``arrays`` (or None) and ``kept`` (a list),
        ``sha256`` (a dict of these file names to checksums) and ``progress``.
    """
    write_json(path, {**state, _CHECKSUM: _checksum(state)})


def read_state(path):
    """Read the description of a checkpoint written by `write_state`; return None if there is no file.

    Raises
    ------
    Damaged
        When the file cannot be read or its content is invalid.
    UserError
        When the file has an unknown format.
    """
    try:
        with open(path, encoding='utf-8') as file:
            state = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f'{path} cannot be read: {error.strerror}') from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f'{path} is damaged: {last_line(error)}') from error
    if not isinstance(state, dict):
        raise Damaged(f'{path} is damaged: it does not contain a JSON object')
    if state.get('format') != FORMAT:
        raise UserError(
            f'{path} was written by another version of this program, or is damaged: its format is {state.get("format")!r}, '
            f'and this version reads {FORMAT}'
        )
    checksum = state.pop(_CHECKSUM, None)
    if checksum != _checksum(state):
        raise Damaged(f'{path} is damaged or was changed: its checksum does not match its content')
    wrong = [name for name, fits in _FIELDS.items() if name not in state or not fits(state[name])]
    if not wrong and not _is_checksums(state.get('sha256'), files_of(state)):
        wrong = ['sha256']
    if wrong:
        raise Damaged(f'{path} is damaged: its field {wrong[0]!r} is missing or malformed')
    return state


def files_of(state):
    """Return the names of all files that belong to a checkpoint, a set."""
    return {state['weights'], state['states'], *state['kept'], *filter(None, [state['arrays']])}


def verify(path, state, name):
    """Raise `Damaged` unless the file `name` has the checksum in `state`, which was read from `path` in the same folder."""
    file = os.path.join(os.path.dirname(path), name)
    try:
        found = sha256(file)
    except FileNotFoundError as error:
        raise Damaged(f'{file}, which belongs to {path}, is missing') from error
    except OSError as error:
        raise Damaged(f'{file} cannot be read: {error.strerror}') from error
    if found != state['sha256'][name]:
        raise Damaged(f'{file} is damaged: its SHA-256 differs from the one in {path}')


def _checksum(state):
    """Return the SHA-256 of a state in a canonical JSON form, which does not depend on whitespace and field order."""
    as_read = json.loads(json.dumps(state))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True, separators=(',', ':')).encode()).hexdigest()


def _is_file(value):
    return isinstance(value, str) and FILE_NAME.fullmatch(value) is not None


def _is_checksums(value, files):
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in files)


_FIELDS = {
    'options': lambda value: isinstance(value, dict),
    'network': lambda value: value is None or isinstance(value, dict),
    'weights': _is_file,
    'states': _is_file,
    'arrays': lambda value: value is None or _is_file(value),
    'kept': lambda value: isinstance(value, list) and all(map(_is_file, value)),
    'progress': is_progress,
}


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
            LOG.warning('%s is missing: the best remaining weights are from epoch %d', ', '.join(missing), row['epoch'])
        return row, path
    raise UserError(f'{folder} has no weights of a finished epoch: {", ".join(missing)} are missing')


def description_of(weights):
    """Return the `Description` of the network of a file of weights, None if no checkpoint in its folder refers to the file.

    Raises
    ------
    UserError
        When the weights differ from the checkpoint, or when the checkpoint is damaged.
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

    Damaged checkpoints are left out. Raises `Damaged` if there are no others.
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
