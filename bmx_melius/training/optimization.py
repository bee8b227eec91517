"""Optimizer and learning-rate schedule: GluonCV's schedules, arranged so that no update has learning rate 0."""

import itertools
import math
import operator

import mxnet as mx

from ..errors import UserError
from ..gluon_cv import gluoncv
from ..nn.layers import binary_weights
from ..optimizers import BinarySplit
from ..reporting import LOG
from .optimizer_names import optimizer_defaults

MODES = ('cosine', 'step', 'poly')
BATCH = 64  # images per update in the authors' training logs, for which default learning rates are meant
SCALINGS = {'none': lambda ratio: 1.0, 'linear': lambda ratio: ratio, 'sqrt': math.sqrt}


def make_schedule(mode, lr, num_epochs, updates_per_epoch, warmup_epochs=0, warmup_lr=0.0, decay=0.1, decay_epochs=(), power=2):
    """Return the learning-rate schedule of a run of U = num_epochs * updates_per_epoch updates.

    W = warmup_epochs * updates_per_epoch of them are warm-up. Update u = 0 .. U-1 has the learning rate

    - warm-up, u < W: ``warmup_lr + (lr - warmup_lr) * (u + 1) / W``, which reaches `lr` in the last warm-up update;
    - ``cosine``: ``lr * (1 + cos(pi * x)) / 2`` with x = (u - W) / (U - W), so 0 <= x < 1;
    - ``poly``: ``lr * (1 - x) ** power``, for power 1 a line;
    - ``step``: ``lr * decay ** n``, where n is the number of `decay_epochs` that have begun; if `decay` is a list, lr times its first n.

    No update has rate 0 when `lr` and `warmup_lr` are positive: the first update after the warm-up has rate `lr`, and the curve would
    reach 0 in update U, which does not exist. MXNet counts updates from 1, so the schedule has an additional first entry that is not used.

    Parameters
    ----------
    mode : {'cosine', 'step', 'poly'}
    lr, warmup_lr : float
        Base learning rate, and initial rate of the warm-up.
    num_epochs, updates_per_epoch, warmup_epochs : int
    decay : float, or sequence of float
        Decay factor of mode step, or one for each of `decay_epochs`.
    decay_epochs : sequence of int
        Epochs, counted from 0 including the warm-up, at the beginning of which mode step decays the rate; ascending.
    power : float
        Exponent of mode poly.

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
        raise UserError(f'--warmup-epochs {warmup_epochs} leaves nothing of --num-epochs {num_epochs}: lower it')
    warmup = warmup_epochs * updates_per_epoch
    rest = num_epochs * updates_per_epoch - warmup
    piece = gluoncv.utils.LRScheduler
    beginning = piece('linear', warmup_lr, lr, niters=warmup + 1) if warmup else piece('constant', lr, niters=1)
    if mode == 'step':
        factors = [decay] * len(decay_epochs) if isinstance(decay, (int, float)) else decay
        pieces = _steps(lr, factors, [(epoch - warmup_epochs) * updates_per_epoch for epoch in decay_epochs], rest + 1)
    else:
        pieces = [piece(mode, lr, 0, niters=rest + 1, power=power)]
    schedule = gluoncv.utils.LRSequential([beginning, *pieces])
    schedule.base_lr = lr  # optimizers check that their learning rate agrees with it
    return schedule


def _steps(lr, factors, steps, updates):
    """Return constant schedules for `updates` updates, whose rates begin with `lr` and are multiplied by one of `factors` at each step."""
    ends, factors = zip(*sorted((min(max(0, step), updates), factor) for step, factor in zip(steps, factors))) if steps else ((), ())
    pieces = zip(itertools.accumulate((lr, *factors), operator.mul), (0, *ends), (*ends, updates))
    return [gluoncv.utils.LRScheduler('constant', rate, niters=end - begin) for rate, begin, end in pieces if end > begin]


def decay_epochs(listed, period, num_epochs):
    """Return the epochs at which mode step decays the rate: every `period` epochs if that is positive, else those in `listed`."""
    return tuple(range(period, num_epochs, period)) if period > 0 else tuple(listed)


def scaled_rate(lr, images_per_update, scaling):
    """Scale the base learning rate for updates of `images_per_update` images by one of the rules in `SCALINGS`.

    ``none`` returns `lr`, ``linear`` lr * images / 64 (Goyal et al., arXiv:1706.02677, for SGD), ``sqrt`` lr * sqrt(images / 64)
    (Malladi et al., arXiv:2205.10287, for adaptive optimizers).
    """
    return lr * SCALINGS[scaling](images_per_update / BATCH)


def make_trainer(
    net, updates, images_per_update, workers, *, optimizer, lr, num_epochs, wd=0.0, momentum=None, optimizer_params=None, no_wd=False,
    binary_optimizer=None, binary_lr=None, binary_optimizer_params=None, lr_mode='cosine', lr_scaling='none', lr_factor=1.0, lr_decay=0.1,
    lr_decay_epoch=(), lr_decay_period=0, lr_power=2.0, warmup_epochs=0, warmup_lr=0.0, num_training_samples=None, resume_epoch=0,
    dtype='float32', parameters=None,
):  # fmt: skip
    """Return the trainer of a run, with its optimizer and learning-rate schedule.

    Parameters
    ----------
    net : gluon.Block
    updates, images_per_update : int
        Updates per epoch, and images per update over all workers.
    workers : Workers
    optimizer, ... : optional
        Values of the flags with these names.
    parameters : list of Parameter, optional
        Parameters in the order in which checkpoints number them, by default ordered by name.

    Returns
    -------
    gluon.Trainer, or the equivalent of these workers
    """
    if no_wd:
        for parameter in net.collect_params('.*beta|.*gamma|.*bias').values():
            parameter.wd_mult = 0.0

    scheduled = num_training_samples // images_per_update if num_training_samples else updates
    if not scheduled:
        raise UserError(f'--num-training-samples {num_training_samples}: one update needs {images_per_update} images')
    if scheduled != updates:
        LOG.warning(
            '--num-training-samples %d: the learning rate decays as if epochs had %d updates, and they have %d',
            num_training_samples,
            scheduled,
            updates,
        )

    def arguments_of(optimizer, lr, params):
        """Return the arguments of an optimizer with the base rate `lr`; the schedules of all have the same form."""
        lr = lr_factor * scaled_rate(lr, images_per_update, lr_scaling)
        return {
            'learning_rate': lr,
            'wd': wd,
            'begin_num_update': resume_epoch * updates,
            'multi_precision': dtype != 'float32',
            'lr_scheduler': make_schedule(
                lr_mode,
                lr,
                num_epochs,
                updates_per_epoch=scheduled,
                warmup_epochs=warmup_epochs,
                warmup_lr=lr_factor * warmup_lr,
                decay=lr_decay,
                decay_epochs=decay_epochs(lr_decay_epoch, lr_decay_period, num_epochs),
                power=lr_power,
            ),
            **optimizer_defaults(optimizer).arguments,
            **(params or {}),
        }

    name, arguments = optimizer, arguments_of(optimizer, lr, optimizer_params)
    if momentum is not None:
        arguments['momentum'] = momentum
    if binary_optimizer:
        names = [weight.name for weight in binary_weights(net).values()]
        if not names:
            raise UserError(f'--binary-optimizer {binary_optimizer}: this network has no binary weights; leave the flag out')
        main = mx.optimizer.create(name, **arguments)
        binary_arguments = arguments_of(binary_optimizer, binary_lr, binary_optimizer_params)
        binary = mx.optimizer.create(binary_optimizer, **binary_arguments)
        name, arguments = BinarySplit.__name__, {'main': main, 'binary': binary, 'names': names}
    return workers.make_trainer(parameters or net.collect_params(), name, arguments)
