"""Optimizer and learning-rate schedule: GluonCV's schedules, arranged so that no update has learning rate 0."""

import math

from gluoncv.utils import LRScheduler, LRSequential

from ..errors import UserError
from .presets import OPTIMIZERS

MODES = ('cosine', 'step', 'poly')
BATCH = 64  # images per update in the authors' training logs, for which default learning rates are meant
SCALINGS = {'none': lambda ratio: 1.0, 'linear': lambda ratio: ratio, 'sqrt': math.sqrt}
POWER = 2  # exponent of mode poly, as in GluonCV's script


def make_schedule(mode, lr, num_epochs, updates_per_epoch, warmup_epochs=0, warmup_lr=0.0, decay=0.1, decay_epochs=()):
    """Return the learning-rate schedule of a run of U = num_epochs * updates_per_epoch updates.

    W = warmup_epochs * updates_per_epoch of them are warm-up. Update u = 0 .. U-1 has the learning rate

    - warm-up, u < W: ``warmup_lr + (lr - warmup_lr) * (u + 1) / W``, which reaches `lr` in the last warm-up update;
    - ``cosine``: ``lr * (1 + cos(pi * x)) / 2`` with x = (u - W) / (U - W), so 0 <= x < 1;
    - ``poly``: ``lr * (1 - x) ** 2``;
    - ``step``: ``lr * decay ** n``, where n is the number of `decay_epochs` that have begun.

    No update has rate 0 when `lr` and `warmup_lr` are positive: the first update after the warm-up has rate `lr`, and the curve would
    reach 0 in update U, which does not exist. MXNet counts updates from 1, so the schedule has an additional first entry that is not used.

    Parameters
    ----------
    mode : {'cosine', 'step', 'poly'}
    lr, warmup_lr : float
        Base learning rate, and initial rate of the warm-up.
    num_epochs, updates_per_epoch, warmup_epochs : int
    decay : float
        Decay factor of mode step.
    decay_epochs : sequence of int
        Epochs, counted from 0 including the warm-up, at the beginning of which mode step decays the rate.

    Returns
    -------
    gluoncv.utils.LRSequential
        For the argument `lr_scheduler` of an optimizer.

    Raises
    ------
    UserError
        When no epoch is left after the warm-up.
    """
    if warmup_epochs >= num_epochs:
        raise UserError(f'{warmup_epochs} warm-up epochs leave nothing of {num_epochs} epochs: lower --warmup-epochs')
    warmup = warmup_epochs * updates_per_epoch
    rest = num_epochs * updates_per_epoch - warmup
    beginning = LRScheduler('linear', warmup_lr, lr, niters=warmup + 1) if warmup else LRScheduler('constant', lr, niters=1)
    steps = [(epoch - warmup_epochs) * updates_per_epoch for epoch in decay_epochs]
    schedule = LRSequential([beginning, LRScheduler(mode, lr, 0, niters=rest + 1, power=POWER, step_iter=steps, step_factor=decay)])
    schedule.base_lr = lr  # optimizers check that their learning rate agrees with it
    return schedule


def decay_epochs(listed, period, num_epochs):
    """Return the epochs at which mode step decays the rate: every `period` epochs if that is positive, else those in `listed`."""
    return tuple(range(period, num_epochs, period)) if period > 0 else tuple(listed)


def scaled_rate(lr, images_per_update, scaling):
    """Scale the base learning rate for updates of `images_per_update` images by one of the rules in `SCALINGS`.

    ``none`` returns `lr`, ``linear`` lr * images / 64 (Goyal et al., arXiv:1706.02677, for SGD), ``sqrt`` lr * sqrt(images / 64)
    (Malladi et al., arXiv:2205.10287, for adaptive optimizers).
    """
    return lr * SCALINGS[scaling](images_per_update / BATCH)


def make_trainer(config, net, updates, images_per_update, workers):
    """Return the trainer of a run, with its optimizer and learning-rate schedule.

    Parameters
    ----------
    config : RunConfig
    net : gluon.Block
    updates, images_per_update : int
        Updates per epoch, and images per update over all workers.
    workers : Workers

    Returns
    -------
    gluon.Trainer, or the equivalent of these workers
    """
    options = config.optimizer
    if options.no_wd:
        for parameter in net.collect_params('.*beta|.*gamma|.*bias').values():
            parameter.wd_mult = 0.0
    lr = options.lr_factor * scaled_rate(options.lr, images_per_update, options.lr_scaling)
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
            options.lr_factor * options.warmup_lr,
            options.lr_decay,
            decay_epochs(options.lr_decay_epoch, options.lr_decay_period, options.num_epochs),
        ),
        **OPTIMIZERS[options.optimizer].arguments,
    }
    if options.momentum is not None:
        arguments['momentum'] = options.momentum
    return workers.make_trainer(net.collect_params(), options.optimizer, arguments)
