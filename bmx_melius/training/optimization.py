"""The optimizer and its learning-rate schedule: GluonCV's schedules, laid out so that no update has the rate 0."""

import math

from gluoncv.utils import LRScheduler, LRSequential

from ..errors import UserError
from .presets import OPTIMIZERS

MODES = ('cosine', 'step', 'poly')
BATCH = 64  # images of an update in the paper's protocol, which default learning rates are for
SCALINGS = {'none': lambda ratio: 1.0, 'linear': lambda ratio: ratio, 'sqrt': math.sqrt}
POWER = 2  # of mode poly, as in GluonCV's script


def make_schedule(mode, lr, num_epochs, updates_per_epoch, warmup_epochs=0, warmup_lr=0.0, decay=0.1, decay_epochs=()):
    """Build the schedule of a run of U = num_epochs * updates_per_epoch updates, W of them (whole epochs) warm-up.

    Update u = 0 .. U-1 has the rate

    - warm-up, u < W: ``warmup_lr + (lr - warmup_lr) * (u + 1) / W``, which reaches `lr` in the last of these updates;
    - ``cosine``: ``lr * (1 + cos(pi * x)) / 2`` with x = (u - W) / (U - W), so 0 <= x < 1;
    - ``poly``: ``lr * (1 - x) ** 2``;
    - ``step``: ``lr * decay ** n``, n being the number of `decay_epochs` that have begun.

    With `lr` and `warmup_lr` positive no update happens at rate 0: the first after the warm-up has `lr`, the end of the curve would be
    update U, which does not exist. (MXNet counts updates from 1, hence the schedule's place for update number 0, which is never made.)

    Parameters
    ----------
    mode : {'cosine', 'step', 'poly'}
    lr, warmup_lr : float
        The base rate and the rate the warm-up starts from.
    num_epochs, updates_per_epoch, warmup_epochs : int
    decay : float
        Factor of mode step.
    decay_epochs : sequence of int
        Epochs (counted from 0, warm-up included) at whose beginning mode step decays.

    Returns
    -------
    gluoncv.utils.LRSequential, for the argument `lr_scheduler` of an optimizer.

    Raises
    ------
    UserError
        When the warm-up does not leave an epoch.
    """
    if warmup_epochs >= num_epochs:
        raise UserError(f'{warmup_epochs} warm-up epochs leave nothing of {num_epochs} epochs: lower --warmup-epochs')
    warmup = warmup_epochs * updates_per_epoch
    rest = num_epochs * updates_per_epoch - warmup
    beginning = LRScheduler('linear', warmup_lr, lr, niters=warmup + 1) if warmup else LRScheduler('constant', lr, niters=1)
    steps = [(epoch - warmup_epochs) * updates_per_epoch for epoch in decay_epochs]
    schedule = LRSequential([beginning, LRScheduler(mode, lr, 0, niters=rest + 1, power=POWER, step_iter=steps, step_factor=decay)])
    schedule.base_lr = lr  # where an optimizer has a default rate of its own, it asks that both agree
    return schedule


def decay_epochs(listed, period, num_epochs):
    """The epochs at which mode step decays: every `period` epochs if that is positive, else those `listed`."""
    return tuple(range(period, num_epochs, period)) if period > 0 else tuple(listed)


def scaled_rate(lr, images_per_update, scaling):
    """The base rate of a run whose updates see `images_per_update` images, by one of the rules in `SCALINGS`.

    ``none`` takes `lr` as it is, ``linear`` lr * images / 64 (Goyal et al., arXiv:1706.02677, for SGD), ``sqrt`` lr * sqrt(images / 64)
    (Malladi et al., arXiv:2205.10287, for adaptive optimizers).
    """
    return lr * SCALINGS[scaling](images_per_update / BATCH)


def make_trainer(config, net, updates, images_per_update, workers):
    """Return the optimizer, with the learning rates of the whole run.

    Parameters
    ----------
    config : RunConfig
    net : gluon.Block
    updates, images_per_update : int
        Updates of an epoch, and images of all processes in one.
    workers : Workers

    Returns
    -------
    gluon.Trainer or what takes its place with these workers.
    """
    options = config.optimizer
    if options.no_wd:
        for parameter in net.collect_params('.*beta|.*gamma|.*bias').values():
            parameter.wd_mult = 0.0
    lr = scaled_rate(options.lr, images_per_update, options.lr_scaling)
    arguments = {
        'learning_rate': lr,
        'wd': options.wd,
        'begin_num_update': config.resume_epoch * updates,
        'multi_precision': config.network.dtype != 'float32',
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
