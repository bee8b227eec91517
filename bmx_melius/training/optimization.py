"""From the flags to the optimizer and its learning rates."""

from .presets import OPTIMIZERS
from .schedules import decay_epochs, make_schedule, scaled_rate


def make_trainer(options, net, updates, images_per_update, workers):
    """The optimizer, with the learning rates of the whole run.

    Parameters
    ----------
    options : argparse.Namespace
        Of train_imagenet.py.
    net : gluon.Block
    updates, images_per_update : int
        Updates of an epoch, and images of all processes in one.
    workers : Workers

    Returns
    -------
    gluon.Trainer or what takes its place with these workers.
    """
    lr = scaled_rate(options.lr, images_per_update, options.lr_scaling)
    arguments = {
        'learning_rate': lr,
        'wd': options.wd,
        'begin_num_update': options.resume_epoch * updates,
        'multi_precision': options.dtype != 'float32',
        'lr_scheduler': make_schedule(
            options.lr_mode,
            lr,
            options.num_epochs,
            updates,
            options.warmup_epochs,
            options.warmup_lr,
            options.lr_decay,
            decay_epochs(options.lr_decay_epoch, options.lr_decay_period, options.num_epochs),
        ),
        **OPTIMIZERS[options.optimizer].arguments,
    }
    if options.momentum is not None:
        arguments['momentum'] = options.momentum
    return workers.make_trainer(net.collect_params(), options.optimizer, arguments)
