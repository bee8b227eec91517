"""Series of training runs, one after the other: the stages of a preset, and the members of an ensemble."""

import json
import os

from ...arguments import require
from ...errors import UserError, last_line
from ...files.io import read_text
from ..options.parsing import merge, require_unchanged, saved_values
from ..options.presets import JOINT, STAGES
from ..saving.stored_checkpoints import read_last
from .ensembles import EnsembleTraining
from .run_series import FILE
from .stages import StagedTraining


def read_series(arguments, zoo):
    """Return the series of runs that the arguments describe, None for a single run.

    Parameters
    ----------
    arguments, zoo
        As in `read_options`.

    Raises
    ------
    UserError
        As `read_options` does, and when the flags do not fit the series.
    """
    values = arguments.values(zoo)
    saved = _read(arguments, values['save_dir'], zoo)
    if values['resume']:
        if not saved:
            return None
        values = merge(zoo, arguments.defaults, saved, arguments.given)
        require_unchanged(saved, values)
        return _series(values, zoo)
    require(
        values['dry_run'] or not saved, f'{values["save_dir"]} holds a run already: continue it with --resume, or choose another --save-dir'
    )
    series = _series(values, zoo)
    if series:
        series.check(arguments.defaults)
    return series


def _series(options, zoo):
    """Return the series of runs for the values of all flags, None for a single run. Raises `UserError` when they contradict each other."""
    is_ensemble = zoo.get_members(options['model'], options['model_options']) is not None
    if is_ensemble and options.get('ensemble_training') != JOINT:
        return EnsembleTraining(options, zoo)
    return StagedTraining(options, zoo) if options['preset'] in STAGES else None


def _read(arguments, folder, zoo):
    """Return the flags of the series in a folder, None if there is none with a checkpoint."""
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return None
    try:
        options = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if isinstance(options, dict) and arguments.values(zoo)['resume']:
        options = saved_values(options, arguments, zoo)
    try:
        series = _series({**options, 'save_dir': folder}, zoo)
        if series is None:
            raise ValueError('its flags describe a single run')
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, error) from error
    return series.options if read_last(series.folder(0)) else None


def _damaged(path, error):
    return UserError(f'{path} is damaged: {last_line(error)}; put back a copy, or continue each run in its subfolder with --resume')
