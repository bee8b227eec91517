"""Initial state of a run: new weights, its last checkpoint, or the weights of another run."""

import functools
import math

import mxnet as mx

from ..container import difference, read_arrays
from ..errors import UserError, last_line
from ..files import check_folder
from ..reporting import LOG
from .progress import Progress
from .saving.optimizer_state import load_optimizer
from .saving.stored_checkpoints import verify_file

OUTPUT_LAYER = ('output.weight', 'output.bias')  # the parameters whose shapes depend on the number of classes
OTHER_CLASSES = 'it was trained with another number of classes: use data with as many classes, or other weights'
OTHER_NETWORK = 'give the flags that it was trained with, such as --model, --model-options and --initial-layers, or use other weights'


def start(config, checkpoints, net, trainer, source):
    """Load the initial state of a run into network and optimizer, and return its `Progress`.

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
    for flag, file, load in (
        ('--resume-params', config.resume_params, functools.partial(_load_weights, net, config.network.model)),
        ('--resume-states', config.resume_states, functools.partial(load_optimizer, trainer)),
    ):
        try:
            if file:
                verify_file(file)
                load(file)
        except UserError as error:
            raise UserError(f'{flag}: {error}') from error
        except (AssertionError, ValueError, mx.MXNetError) as error:
            raise UserError(f'{flag} {file} is damaged or of another network: {last_line(error)}') from error
    progress = Progress(source.images_per_update, epoch=config.resume_epoch)
    if not config.dry_run:
        checkpoints.save(net, trainer, progress)
    return progress


def _load_weights(net, model, file):
    """Load a file of weights into a network named `model`. Raises `UserError` when names or shapes of parameters do not match."""
    stored = {name: array.shape for name, array in read_arrays(file).items()}
    needed = {name: parameter.shape for name, parameter in net._collect_params_with_prefix().items()}
    if any('.' in name for name in stored):  # structural names; `load_parameters` distinguishes them from full names in the same way
        wrong = difference(stored, needed)
        if wrong:
            others = {name for name, shape in stored.items() if needed.get(name) != shape} - set(OUTPUT_LAYER)
            raise UserError(f'{file} does not fit {model}: {wrong}; ' + (OTHER_NETWORK if others else OTHER_CLASSES))
    net.load_parameters(file, ctx=net.collect_params().list_ctx(), cast_dtype=True)


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
