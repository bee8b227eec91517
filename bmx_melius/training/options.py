"""What follows from the flags of train_imagenet.py: defaults that depend on other flags, and everything that cannot be honoured."""

import argparse
import os

import mxnet as mx

from ..data.datasets import DATASETS
from ..errors import UserError
from .checkpoints import Checkpoints
from .presets import OPTIMIZERS, preset_values
from .scalars import check_installed

INITIALIZERS = {
    'gaussian': mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2),
    'msraprelu': mx.init.MSRAPrelu(),
    'xavier': mx.init.Xavier(),
}
KVSTORES = ('device', 'local', 'nccl', 'dist_sync', 'dist_device_sync', 'horovod')

# Flags of GluonCV's scripts that ask for something this program does not do.
REFUSED = {
    '--use-dali': 'NVIDIA DALI is not supported; record files are read by MXNet (--use-rec)',
    '--dali-cpu': 'NVIDIA DALI is not supported; record files are read by MXNet (--use-rec)',
    '--use_se': 'no network of this zoo has squeeze-and-excitation layers',
    '--use-gn': 'group normalization is not implemented',
    '--batch-norm': 'every network of this zoo has batch normalization',
}

# A resumed run may change these: they decide neither what is computed nor on what. (For record files see RecordSource on threads.)
CHANGEABLE = {
    'resume',
    'dry_run',
    'log_interval',
    'logging_file',
    'tensorboard',
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

# Flags that mean nothing without another one -> that one, and their defaults beside it (GluonCV's).
DEPENDENT = {
    'mixup': {'mixup_alpha': 0.2, 'mixup_off_epoch': 0},
    'teacher': {'temperature': 20.0, 'hard_weight': 0.5, 'teacher_params': None, 'teacher_pretrained': False, 'teacher_options': None},
}


class Refuse(argparse.Action):
    """The action of a flag in `REFUSED`."""

    def __call__(self, parser, namespace, values, flag=None):
        parser.error(f'{flag}: {REFUSED[flag]}')


def parse(make_parser, arguments):
    """Flags as a complete namespace, those of an earlier run included if it is resumed.

    Parameters
    ----------
    make_parser : function without arguments that returns an `argparse.ArgumentParser`
    arguments : list of str or None
        None takes those of the process.

    Raises
    ------
    UserError
        For every flag that cannot be honoured, alone or beside the others.
    """
    options = make_parser().parse_args(arguments)
    if not options.resume:
        if not options.dry_run:
            Checkpoints.refuse_run(options.save_dir)
        _complete(options)
        return options
    saved = Checkpoints.read(options.save_dir)
    if not saved:
        raise UserError(f'there is no run to resume in {options.save_dir}: point --save-dir to one')
    parser = make_parser()
    parser.set_defaults(**saved['options'])
    options, before = parser.parse_args(arguments), parser.parse_args([])
    _complete(options)
    changed = [name for name in saved['options'] if name not in CHANGEABLE and getattr(options, name) != getattr(before, name)]
    if changed:
        flags = ', '.join(f'{_flag(name)} {getattr(before, name)}' for name in changed)
        raise UserError(
            f'the run in {options.save_dir} was started with {flags}; leave that as it is, or start a new run from its weights '
            'with --resume-params and another --save-dir'
        )
    return options


def _complete(options):
    """Fill in defaults that depend on other flags, then check."""
    if not options.model:
        raise UserError('which network? Give --model, for example --model meliusnet22')
    options.use_rec = bool(options.use_rec or options.rec_train or options.rec_val)
    dataset = DATASETS[options.dataset]
    _default(options, 'data_dir', dataset.data_dir)
    _default(options, 'input_size', dataset.input.size)
    _default(options, 'crop_ratio', dataset.crop_ratio)
    if not options.use_pretrained:  # its weights say which
        _default(options, 'initial_layers', dataset.initial_layers)
    _default(options, 'num_workers', dataset.num_workers)
    optimizer = options.optimizer or preset_values(options.preset, dataset)['optimizer']
    if options.momentum is not None and OPTIMIZERS[optimizer].momentum is None:
        raise UserError(f'--momentum {options.momentum:g}: {optimizer} has no momentum of this kind; leave it out, or take sgd or nag')
    for name, value in preset_values(options.preset, dataset, options.optimizer, options.num_epochs).items():
        _default(options, name, value)
    _default(options, 'weight_bits', options.bits)
    for needed, dependent in DEPENDENT.items():
        for name, value in dependent.items():
            if getattr(options, needed):
                _default(options, name, value)
            elif getattr(options, name) is not None and getattr(options, name) is not False:
                raise UserError(f'{_flag(name)} means nothing without {_flag(needed)}')
    _check(options)


def _default(options, name, value):
    if getattr(options, name) is None:
        setattr(options, name, value)


def _flag(name):
    return '--' + name.replace('_', '-')


def _check(options):
    for name in (
        'lr',
        'warmup_lr',
        'wd',
        'crop_ratio',
        'lr_decay',
        'seed',
        'num_gpus',
        'num_workers',
        'warmup_epochs',
        'lr_decay_period',
        'save_frequency',
        'save_interval',
        'log_interval',
        'resume_epoch',
    ):
        if not getattr(options, name) >= 0:
            raise UserError(f'{_flag(name)} must not be negative')
    if options.bits > options.weight_bits:
        raise UserError(f'--weight-bits {options.weight_bits} with --bits {options.bits}: binary weights go with binary activations alone')
    if options.mixup:
        if not options.mixup_alpha > 0:
            raise UserError(f'--mixup-alpha must be positive, not {options.mixup_alpha:g}')
        if not 0 <= options.mixup_off_epoch < options.num_epochs:
            raise UserError(
                f'--mixup-off-epoch {options.mixup_off_epoch}: the last epochs without mixup must be fewer than all {options.num_epochs}'
            )
        if options.batch_size * max(1, options.num_gpus) == 1:
            raise UserError('--mixup mixes the images of a batch: raise --batch-size above 1')
    if options.teacher:
        if not options.temperature > 0:
            raise UserError(f'--temperature must be positive, not {options.temperature:g}')
        if not 0 <= options.hard_weight < 1:
            raise UserError(f'--hard-weight must be at least 0 and below 1, where the teacher has no say, not {options.hard_weight:g}')
    if options.dataset != 'imagenet' and options.use_rec:
        raise UserError(f'--use-rec: {options.dataset} does not come from record files; leave out --use-rec or --dataset {options.dataset}')
    if options.data_dir and DATASETS[options.dataset].data_dir is None:
        raise UserError(f'--data-dir: {options.dataset} needs no files; leave out --data-dir or --dataset {options.dataset}')
    if options.tensorboard:
        check_installed()
    features = mx.runtime.Features()
    if options.num_gpus > mx.context.num_gpus():
        raise UserError(
            f'--num-gpus {options.num_gpus}: '
            + (
                f'this machine has {mx.context.num_gpus()}'
                if features.is_enabled('CUDA')
                else 'this MXNet was built without CUDA; install a build with it, or leave the flag out'
            )
        )
    if options.kvstore == 'nccl' and not features.is_enabled('NCCL'):
        raise UserError('--kvstore nccl: this MXNet was built without NCCL; take --kvstore device')
    if options.kvstore.startswith('dist') and 'DMLC_ROLE' not in os.environ:
        raise UserError(
            f'--kvstore {options.kvstore}: start all processes by python -m bmx_melius.distributed.launcher, or as docs/distributed.md says'
        )
    if options.resume_states and not options.resume_params or options.resume_epoch and not options.resume_params:
        raise UserError('--resume-states and --resume-epoch go with --resume-params (to continue a run as it was, use --resume alone)')
    if options.use_pretrained and options.resume_params:
        raise UserError('--use-pretrained and --resume-params both say with which weights to start: leave one of them out')
    for name in ('resume_params', 'resume_states', 'teacher_params'):
        if getattr(options, name) and not options.resume and not os.path.isfile(getattr(options, name)):
            raise UserError(f'{_flag(name)}: there is no file {getattr(options, name)}')
    if options.resume_epoch >= options.num_epochs:
        raise UserError(f'--resume-epoch {options.resume_epoch}: only {options.num_epochs} epochs are to be trained (--num-epochs)')
    if not 0 < options.crop_ratio <= 1:
        raise UserError(f'--crop-ratio must be above 0 and at most 1, not {options.crop_ratio:g}')
