"""Flags of a training run: parse them, merge them with those of a resumed run, check them, and return a `RunConfig`."""

import os

import mxnet as mx

from ...arguments import flag_of, require
from ...errors import UserError
from ..recording.scalars import check_installed
from ..saving.stored_checkpoints import read_last, refuse_run
from .config import RunConfig
from .flags import PROGRAM, make_parser
from .inherited import with_inherited
from .presets import with_defaults

# Flags that a resumed training may change, because they do not affect the result. (For num_workers with record files see RecordSource.)
# A single run may also change when it ends, by num_epochs and early_stop, which changes the result: see `start.py`.
CHANGEABLE = {
    'resume',
    'dry_run',
    'log_interval',
    'logging_file',
    'tensorboard',
    'write_summary',
    'interrupt_at',
    'gpus',
    'save_frequency',
    'save_interval',
    'save_dir',
    'num_workers',
    'data_dir',
    'rec_train',
    'rec_train_idx',
    'rec_val',
    'rec_val_idx',
    'teacher_params',
}


def parse_flags(arguments, zoo, program=PROGRAM):
    """Parse the flags of a run.

    Parameters
    ----------
    arguments : list of str or None
        Command-line arguments; None takes those of the process.
    zoo : module
        Module with the interface of `model_zoo`, which defines the available networks and published weights.
    program : str
        Name of the program in messages.

    Returns
    -------
    RunConfig

    Raises
    ------
    UserError
        When a flag, or a combination of flags, is invalid.
    """
    parser = make_parser(zoo, program)
    options = parser.parse_args(arguments)
    if not options.resume:
        if not options.dry_run:
            refuse_run(options.save_dir)
        return configure(with_inherited(vars(options)), zoo)
    saved = read_last(options.save_dir)
    if not saved:
        raise UserError(f'there is no run to resume in {options.save_dir}: point --save-dir to one')
    require_named_functions(saved['options'], vars(options))
    parser.set_defaults(**saved['options'])
    options, before = vars(parser.parse_args(arguments)), vars(parser.parse_args([]))
    config = configure(options, zoo)
    chosen = config.to_flags()
    _require_unchanged(saved['options'], before, chosen, CHANGEABLE | {'num_epochs', 'early_stop'})
    return config


def require_named_functions(saved, given):
    """Raise `UserError` if a run to be resumed was started with a network of the user that the command line does not name again.

    The name ``package.module:function`` would be executed, and the folder of the run may be someone else's.

    Parameters
    ----------
    saved, given : dict
        Values of the flags with which the run was started, and of those that are given now.
    """
    for name in ('model', 'teacher'):
        path = saved.get(name)
        if isinstance(path, str) and ':' in path and given[name] != path:
            raise UserError(
                f'the run in {given["save_dir"]} builds a network by the Python function {path}: give {flag_of(name)} {path} as well, '
                'if it may be executed'
            )


def configure(options, zoo):
    """Return the `RunConfig` for a dict of the values of all flags, and check that this machine can run it. Raises `UserError`."""
    return _check_availability(RunConfig.from_flags(with_defaults(options, zoo)))


def chosen_values(parser, saved, arguments):
    """Return the values of all flags of a resumed training, a namespace: the `saved` ones, a dict, changed by `arguments`.

    Raises `UserError` when a flag that affects the result is changed.
    """
    parser.set_defaults(**saved)
    options = parser.parse_args(arguments)
    _require_unchanged(saved, vars(parser.parse_args([])), vars(options), CHANGEABLE)
    return options


def _require_unchanged(saved, before, chosen, changeable):
    """Raise `UserError` if a flag among the `saved` ones that is not `changeable` has been changed from `before` to `chosen`."""
    if saved.get('bootstrap_sha256') and isinstance(chosen['bootstrap'], str):
        changeable = changeable | {'bootstrap'}
    changed = [name for name in saved if name in chosen and name not in changeable and chosen[name] != before[name]]
    if changed:
        flags = ', '.join(f'{flag_of(name)} {before[name]}' for name in changed)
        raise UserError(
            f'the run in {chosen["save_dir"]} was started with {flags}; leave these unchanged, or start a new run from its weights '
            'with --resume-params and another --save-dir'
        )


def _check_availability(config):
    """Return the configuration. Raises `UserError` when the machine or its installation of MXNet lacks a feature that it requires."""
    features, gpus = mx.runtime.Features(), mx.context.num_gpus()
    if config.output.tensorboard or config.output.write_summary:
        check_installed('--tensorboard' if config.output.tensorboard else '--write-summary')
    problem = f'this machine has {gpus}'
    if not features.is_enabled('CUDA'):
        problem = 'this MXNet was built without CUDA; install a build with CUDA, or leave the flag out'
    require(config.num_gpus <= gpus, f'--num-gpus {config.num_gpus}: {problem}')
    missing = [number for number in config.gpus or () if number >= gpus]
    require(not missing, f'--gpus {",".join(map(str, config.gpus or ()))}: this machine has no GPU {missing[:1]}, but {gpus}')
    require(
        config.kvstore != 'nccl' or features.is_enabled('NCCL'),
        '--kvstore nccl: this MXNet was built without NCCL; use --kvstore device',
    )
    require(
        not config.kvstore.startswith('dist') or 'DMLC_ROLE' in os.environ,
        f'--kvstore {config.kvstore}: start all processes with python -m bmx_melius.distributed.launcher, see docs/distributed.md',
    )
    return config
