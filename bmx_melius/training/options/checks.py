"""Checks of the options of a run: values that are out of range, contradict each other, or name files that do not exist."""

import importlib.util
import os

import mxnet as mx

from ...arguments import flag_of, require, require_not_negative
from ...data.datasets import DATASETS
from ...data.random_operations import MAX_MAGNITUDE
from ...errors import counted
from ..optimizer_names import check_optimizer_params

TENSORBOARD_PACKAGE = 'tensorboardX'  # writes TensorBoard's files


def check_options(options):
    """Raise `UserError`, which names the flags, when `TrainingOptions` do not fit each other or this machine."""
    require_not_negative(
        options, 'crop_ratio', 'num_workers', 'lr', 'warmup_lr', 'wd', 'warmup_epochs', 'lr_decay_period', 'save_frequency',
        'save_interval', 'log_interval', 'num_gpus', 'seed', 'resume_epoch', 'early_stop',
    )  # fmt: skip
    for check in (_check_network, _check_data, _check_optimizer, _check_objective, _check_initial_weights, _check_machine):
        check(options)


def _check_network(options):
    require(
        None in (options.bits, options.weight_bits) or options.bits <= options.weight_bits,
        f'--weight-bits {options.weight_bits} with --bits {options.bits}: binary weights need binary activations',
    )
    if options.ema is not None:
        require(0 < options.ema < 1, f'--ema must be above 0 and below 1, for example 0.999, not {options.ema:g}')
        require(options.dtype == 'float32', f'--ema requires --dtype float32, not {options.dtype}')
        require(
            not options.kvstore.startswith('dist') and options.kvstore != 'horovod',
            f'--ema averages the weights of one process, which --kvstore {options.kvstore} does not train with; leave one of them out',
        )


def _check_data(options):
    dataset = options.dataset
    require(0 < options.crop_ratio <= 1, f'--crop-ratio must be above 0 and at most 1, not {options.crop_ratio:g}')
    require(
        dataset == 'imagenet' or not options.use_rec,
        f'--use-rec: {dataset} does not come from record files; leave out --use-rec or --dataset {dataset}',
    )
    require(
        not options.data_dir or DATASETS[dataset].data_dir is not None,
        f'--data-dir: {dataset} needs no files; leave out --data-dir or --dataset {dataset}',
    )
    require(
        not options.val_fraction or (dataset == 'imagenet' and not options.use_rec),
        f'--val-fraction {options.val_fraction} divides a folder of images with CLASS/*.jpg, which these data are not; leave the flag out',
    )
    require(
        options.channels is None or (dataset == 'imagenet' and not options.use_rec),
        f'--channels {options.channels} is for folders of images, which these data are not; leave the flag out',
    )
    require(
        (options.mean is None) == (options.std is None) or not options.channels,
        '--channels with one of --mean and --std: give both, or none of them, to measure them on the training images',
    )
    channels = options.channels or DATASETS[dataset].input.channels
    for name in ('mean', 'std'):
        count = len(getattr(options, name) or range(channels))
        require(
            count == channels or (count == 3 and not options.channels),  # of RGB images, without effect on gray images
            f'--{name} has {count} numbers, and the images have {channels} channels: give one for each channel',
        )
    require(
        not options.randaugment or options.channels in (None, 1, 3),
        f'--randaugment has operations for 1 or 3 channels, not {options.channels}; leave the flag out',
    )
    require(0 <= options.random_erasing <= 1, f'--random-erasing must be a probability, 0 to 1, not {options.random_erasing:g}')
    if options.randaugment:
        number, magnitude = options.randaugment
        require(
            number >= 1 and 0 <= magnitude <= MAX_MAGNITUDE,
            f'--randaugment {number},{magnitude}: give at least 1 operation, and a magnitude of 0 to {MAX_MAGNITUDE}',
        )
    single = '--randaugment' if options.randaugment else '--random-erasing' if options.random_erasing else ''
    require(not single or dataset != 'dummy', f'{single}: dummy has no images; leave the flag out')
    require(not options.bootstrap or dataset != 'dummy', '--bootstrap: dummy has no images to draw; leave the flag out')


def _check_optimizer(options):
    require(options.lr_factor > 0, f'--lr-factor must be positive, not {options.lr_factor:g}')
    factors = options.lr_decay if isinstance(options.lr_decay, (list, tuple)) else [options.lr_decay]
    require(min(factors) >= 0, '--lr-decay must not be negative')
    require(options.lr_power > 0, f'--lr-power must be positive, not {options.lr_power:g}')
    listed = options.lr_decay_epoch
    require(
        factors == [options.lr_decay] or (len(factors) == len(listed) and not options.lr_decay_period),
        f'--lr-decay has {len(factors)} factors, {",".join(map(str, factors))}: give one for all, or one for each epoch of '
        f'--lr-decay-epoch, here {",".join(map(str, listed))}, without --lr-decay-period',
    )
    check_optimizer_params('--optimizer-params', options.optimizer, options.optimizer_params)
    if options.binary_optimizer:
        require_not_negative(options, 'binary_lr')
        check_optimizer_params('--binary-optimizer-params', options.binary_optimizer, options.binary_optimizer_params)


def _check_objective(options):
    mixes = [flag for flag, given in (('--mixup', options.mixup), ('--cutmix', options.cutmix)) if given]
    require(len(mixes) < 2, '--mixup and --cutmix both mix the images of a batch: give only one of them')
    if mixes:
        require(options.images_per_batch > 1, f'{mixes[0]} mixes the images of a batch: raise --batch-size above 1')
    if options.mixup:
        require(options.mixup_alpha > 0, f'--mixup-alpha must be positive, not {options.mixup_alpha:g}')
        require(
            0 <= options.mixup_off_epoch < options.num_epochs,
            f'--mixup-off-epoch {options.mixup_off_epoch}: must be less than the number of epochs, {options.num_epochs}',
        )
    if options.teacher:
        require(options.temperature > 0, f'--temperature must be positive, not {options.temperature:g}')
        require(
            0 <= options.hard_weight < 1,
            f'--hard-weight must be at least 0 and below 1 (at 1 the teacher would have no influence), not {options.hard_weight:g}',
        )
        require_not_negative(options, 'attention_weight')
        for name in options.assistants or ():
            require(
                name and ':' not in name, f'--assistants: {name or "an empty name"} is neither an exported network nor a name of GluonCV'
            )
    require(not options.attention_weight or options.dtype == 'float32', f'--attention-weight requires --dtype float32, not {options.dtype}')


def _check_initial_weights(options):
    require(
        options.pretrained_lr_factor > 0,
        f'--pretrained-lr-factor must be positive, not {options.pretrained_lr_factor:g}; --freeze keeps weights unchanged',
    )
    require(
        options.resume_params or not (options.resume_states or options.resume_epoch),
        '--resume-states and --resume-epoch require --resume-params (to continue an interrupted run, use only --resume)',
    )
    require(
        not (options.use_pretrained and options.resume_params),
        '--use-pretrained and --resume-params both select the initial weights: give only one of them',
    )
    for name, default in (('freeze', None), ('pretrained_lr_factor', 1)):
        value = getattr(options, name)
        require(
            options.resume_params or options.use_pretrained or value == default,
            f'{flag_of(name)} {value} applies to loaded weights: give --resume-params FILE or --use-pretrained as well',
        )
    require(
        options.resume_epoch < options.num_epochs,
        f'--resume-epoch {options.resume_epoch}: the run has only {counted(options.num_epochs, "epoch")} (--num-epochs)',
    )
    for name in () if options.resume else ('resume_params', 'resume_states', 'teacher_params'):
        path = getattr(options, name)
        require(not path or os.path.isfile(path), f'{flag_of(name)}: there is no file {path}')


def _check_machine(options):
    features, gpus = mx.runtime.Features(), mx.context.num_gpus()
    if options.tensorboard or options.write_summary:
        require(
            importlib.util.find_spec(TENSORBOARD_PACKAGE),
            f'{"--tensorboard" if options.tensorboard else "--write-summary"} needs the package {TENSORBOARD_PACKAGE}: '
            f"pip install {TENSORBOARD_PACKAGE}, or 'bmx-melius[tensorboard]'",
        )
    problem = f'this machine has {gpus}'
    if not features.is_enabled('CUDA'):
        problem = 'this MXNet was built without CUDA; install a build with CUDA, or leave the flag out'
    require(options.num_gpus <= gpus, f'--num-gpus {options.num_gpus}: {problem}')
    missing = [number for number in options.gpus or () if number >= gpus]
    require(not missing, f'--gpus {",".join(map(str, options.gpus or ()))}: this machine has no GPU {missing[:1]}, but {gpus}')
    require(
        options.kvstore != 'nccl' or features.is_enabled('NCCL'),
        '--kvstore nccl: this MXNet was built without NCCL; use --kvstore device',
    )
    require(
        not options.kvstore.startswith('dist') or 'DMLC_ROLE' in os.environ,
        f'--kvstore {options.kvstore}: start all processes with python -m bmx_melius.distributed.launcher, see docs/distributed.md',
    )
