"""Where a run begins: at the beginning, at its last checkpoint, or with the weights of another one."""

import math

import mxnet as mx

from ..errors import UserError, last_line
from ..files import check_folder
from .checkpoints import verify_file
from .optimizer_state import load_optimizer
from .progress import Progress
from .report import LOG


def start(options, checkpoints, net, trainer, source):
    """Bring network and optimizer to where the run starts or goes on; return the `Progress` there."""
    if options.resume:
        progress = checkpoints.load(net, trainer)
        if progress.images_per_update != source.images_per_update:
            raise UserError(
                f'the run in {options.save_dir} was started with updates of {progress.images_per_update} images, now they '
                f'would have {source.images_per_update}: start as many processes as then'
            )
        LOG.info('going on at epoch %d, update %d', progress.epoch + 1, progress.batch + 1)
        return progress
    if options.resume_params:
        try:
            verify_file(options.resume_params)
            net.load_parameters(options.resume_params, ctx=net.collect_params().list_ctx(), cast_dtype=True)
        except (AssertionError, ValueError, mx.MXNetError) as error:
            raise UserError(f'--resume-params {options.resume_params} is damaged or of another network: {last_line(error)}') from error
    if options.resume_states:
        try:
            verify_file(options.resume_states)
            load_optimizer(trainer, options.resume_states)
        except UserError as error:
            raise UserError(f'--resume-states: {error}') from error
    progress = Progress(source.images_per_update, epoch=options.resume_epoch)
    checkpoints.save(net, trainer, progress)  # whatever happens from now on, there is something to resume
    return progress


def warn_of_little_space(options, net):
    """Say so when the disk will not hold the checkpoints of the run."""
    size = sum(4 * math.prod(parameter.shape) for parameter in net.collect_params().values())
    weights = 4 + (options.num_epochs // options.save_frequency if options.save_frequency else 0)  # new, last, previous, best, every N-th
    needed = size * (weights + 3 * 2)  # an optimizer has up to two moments, and there are the new state, the last and the previous one
    free = check_folder(options.save_dir)
    if free < needed:
        LOG.warning(
            '%s has %.3g MB free, and the checkpoints will take about %.3g MB: make room, or raise --save-frequency',
            options.save_dir,
            free / 1e6,
            needed / 1e6,
        )
