"""The file ``checkpoint.json``: names and checksums of the files of a checkpoint, protected by a separate checksum."""

import hashlib
import json
import os
import re

from ...errors import UserError, last_line
from ...files.io import sha256, write_json
from ..progress import is_progress

FORMAT = 3
_WITHOUT_CHECKSUMS = 2
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

    States of the previous format do not have the field ``sha256``.

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
    if state.get('format') not in (FORMAT, _WITHOUT_CHECKSUMS):
        raise UserError(
            f'{path} was written by another version of this program, or is damaged: its format is {state.get("format")!r}, '
            f'and this version reads {_WITHOUT_CHECKSUMS} and {FORMAT}'
        )
    checksum = state.pop(_CHECKSUM, None)
    if state['format'] == FORMAT and checksum != _checksum(state):
        raise Damaged(f'{path} is damaged or was changed: its checksum does not match its content')
    wrong = [name for name, fits in _FIELDS.items() if name not in state or not fits(state[name])]
    if not wrong and state['format'] == FORMAT and not _is_checksums(state.get('sha256'), files_of(state)):
        wrong = ['sha256']
    if wrong:
        raise Damaged(f'{path} is damaged: its field {wrong[0]!r} is missing or malformed')
    return state


def files_of(state):
    """Return the names of all files that belong to a checkpoint, a set."""
    return {state['weights'], state['states'], *state['kept'], *filter(None, [state['arrays']])}


def verify(path, state, name):
    """Raise `Damaged` unless the file `name` has the checksum in `state`, which was read from `path` in the same folder.

    States without checksums are not verified.
    """
    if 'sha256' not in state:
        return
    file = os.path.join(os.path.dirname(path), name)
    try:
        found = sha256(file)
    except FileNotFoundError as error:
        raise Damaged(f'{file}, which belongs to {path}, is missing') from error
    except OSError as error:
        raise Damaged(f'{file} cannot be read: {error.strerror}') from error
    if found != state['sha256'][name]:
        raise Damaged(f'{file} is damaged: its SHA-256 differs from the one in {path}')


def with_checksums(path, state):
    """Return `state` in the current format: if it has no checksums, add those of its files, and drop missing files from ``kept``."""
    if 'sha256' in state:
        return state
    folder = os.path.dirname(path)
    kept = [name for name in state['kept'] if os.path.exists(os.path.join(folder, name))]
    checksums = {name: sha256(os.path.join(folder, name)) for name in sorted(files_of({**state, 'kept': kept}))}
    return {**state, 'format': FORMAT, 'kept': kept, 'sha256': checksums}


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
