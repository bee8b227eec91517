"""Initial state of a run: its last checkpoint, or that of a new run, with an optimizer state if one is given."""

import math

from ..errors import UserError
from ..files import check_folder
from ..reporting import LOG
from .progress import Progress
from .saving.optimizer_state import load_optimizer
from .saving.stored_checkpoints import verify_file


def start(config, checkpoints, net, trainer, source):
    """Load the state of a run into network and optimizer, and return its `Progress`. A new run has its initial weights already.

    A new run, except a dry run, writes a checkpoint at once, so that it can always be resumed.
    """
    if config.resume:
        progress = checkpoints.load(net, trainer)
        if progress.images_per_update != source.images_per_update:
            raise UserError(
                f'the run in {config.output.save_dir} was started with {progress.images_per_update} images per update, but would continue '
                f'with {source.images_per_update}: start as many processes as before'
            )
        LOG.info('continuing at epoch %d, update %d', progress.epoch + 1, progress.batch + 1)
        return progress
    if config.resume_states:
        try:
            verify_file(config.resume_states)
            load_optimizer(trainer, config.resume_states)
        except UserError as error:
            raise UserError(f'--resume-states: {error}') from error
    progress = Progress(source.images_per_update, epoch=config.resume_epoch)
    if not config.dry_run:
        checkpoints.save(net, trainer, progress)
    return progress


def warn_if_disk_space_is_low(config, net):
    """Log a warning when the disk does not have enough space for the checkpoints of the run."""
    output = config.output
    size = sum(4 * math.prod(parameter.shape) for parameter in net.collect_params().values())
    every_nth = config.optimizer.num_epochs // output.save_frequency if output.save_frequency else 0
    weights = 4 + every_nth  # those of the new, the last, the previous and the best checkpoint
    needed = size * (weights + 3 * 2)  # up to two moments per weight, for the new, the last and the previous checkpoint
    free = check_folder(output.save_dir)
    if free < needed:
        LOG.warning(
            '%s has %.3g MB free, and the checkpoints will take about %.3g MB: free some space, or raise --save-frequency',
            output.save_dir,
            free / 1e6,
            needed / 1e6,
        )
