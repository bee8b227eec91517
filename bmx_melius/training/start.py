"""Initial state of a run: its last checkpoint, or that of a new run, with an optimizer state if one is given."""

import math

from ..errors import UserError
from ..files.io import check_folder
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
        _accept_number_of_epochs(config, checkpoints.options, progress, trainer, source.updates_per_epoch)
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


def _accept_number_of_epochs(config, saved, progress, trainer, updates):
    """Log what another number of epochs than that of the checkpoint means for the learning rate. Raises `UserError` if it is too small."""
    optimizer, before = config.optimizer, saved['num_epochs']
    if optimizer.num_epochs == before:
        return
    begun = progress.epoch + (progress.batch > 0)
    if optimizer.num_epochs < begun:
        raise UserError(f'--num-epochs {optimizer.num_epochs}: the run in {config.output.save_dir} is in epoch {begun} already')
    change = f'the run is {"extended" if optimizer.num_epochs > before else "shortened"} from {before} to {optimizer.num_epochs} epochs'
    if optimizer.lr_mode == 'step':
        effect = 'the learning rate decays at the same epochs as before'
    else:
        effect = f'the {optimizer.lr_mode} schedule is computed anew over {optimizer.num_epochs} epochs'
    done = progress.epoch * updates + progress.batch
    rates = [row['learning_rate'] for row in progress.history[-1:] if 'learning_rate' in row]
    if done < optimizer.num_epochs * updates:
        last = f' (the last one was {rates[0]:.3g})' if rates else ''
        effect += f', so that it continues with {trainer.optimizer.lr_scheduler(done + 1):.3g}{last}'
    LOG.info('%s: %s', change, effect)


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
