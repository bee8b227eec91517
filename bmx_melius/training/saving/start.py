"""Initial state of a run: its last checkpoint, or that of a new run, with an optimizer state if one is given."""

import math

from ...errors import UserError
from ...files.io import check_folder
from ...reporting import LOG
from ..progress import Progress
from .optimizer_state import load_optimizer
from .stored_checkpoints import verify_file


def start(options, checkpoints, net, trainer, source):
    """Load the state of a run into network and optimizer, and return its `Progress`. A new run has its initial weights already.

    A new run, except a dry run, writes a checkpoint at once, so that it can always be resumed.
    """
    if options.resume:
        progress = checkpoints.load(net, trainer)
        if progress.images_per_update != source.images_per_update:
            raise UserError(
                f'the run in {options.save_dir} was started with {progress.images_per_update} images per update, but would continue '
                f'with {source.images_per_update}: start as many processes as before'
            )
        _accept_number_of_epochs(options, checkpoints.options, progress, trainer, source.updates_per_epoch)
        LOG.info('continuing at epoch %d, update %d', progress.epoch + 1, progress.batch + 1)
        return progress
    if options.resume_states:
        try:
            verify_file(options.resume_states)
            load_optimizer(trainer, options.resume_states)
        except UserError as error:
            raise UserError(f'--resume-states: {error}') from error
    progress = Progress(source.images_per_update, epoch=options.resume_epoch)
    if not options.dry_run:
        checkpoints.save(net, trainer, progress)
    return progress


def _accept_number_of_epochs(options, saved, progress, trainer, updates):
    """Log what another number of epochs than that of the checkpoint means for the learning rate. Raises `UserError` if it is too small."""
    before = saved['num_epochs']
    if options.num_epochs == before:
        return
    begun = progress.epoch + (progress.batch > 0)
    if options.num_epochs < begun:
        raise UserError(f'--num-epochs {options.num_epochs}: the run in {options.save_dir} is in epoch {begun} already')
    change = f'the run is {"extended" if options.num_epochs > before else "shortened"} from {before} to {options.num_epochs} epochs'
    if options.lr_mode == 'step':
        effect = 'the learning rate decays at the same epochs as before'
    else:
        effect = f'the {options.lr_mode} schedule is computed anew over {options.num_epochs} epochs'
    done = progress.epoch * updates + progress.batch
    rates = [row['learning_rate'] for row in progress.history[-1:] if 'learning_rate' in row]
    if done < options.num_epochs * updates:
        last = f' (the last one was {rates[0]:.3g})' if rates else ''
        effect += f', so that it continues with {trainer.optimizer.lr_scheduler(done + 1):.3g}{last}'
    LOG.info('%s: %s', change, effect)


def warn_if_disk_space_is_low(options, net):
    """Log a warning when the disk does not have enough space for the checkpoints of the run."""
    size = sum(4 * math.prod(parameter.shape) for parameter in net.collect_params().values())
    every_nth = options.num_epochs // options.save_frequency if options.save_frequency else 0
    weights = 4 + every_nth  # those of the new, the last, the previous and the best checkpoint
    needed = size * (weights + 3 * 2)  # up to two moments per weight, for the new, the last and the previous checkpoint
    free = check_folder(options.save_dir)
    if free < needed:
        LOG.warning(
            '%s has %.3g MB free, and the checkpoints will take about %.3g MB: free some space, or raise --save-frequency',
            options.save_dir,
            free / 1e6,
            needed / 1e6,
        )
