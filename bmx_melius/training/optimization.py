"""Optimizer and learning-rate schedule: GluonCV's schedules, arranged so that no update has learning rate 0."""

import dataclasses
import itertools
import math
import operator
from typing import Optional, Sequence, Union

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


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer of a run, by the flags with the names of the fields."""

    optimizer: str
    lr: float  # base rate, of which `ScheduleOptions` make the rate of each update
    wd: float = 0.0
    momentum: Optional[float] = None  # None: the optimizer has no such argument, or its default
    optimizer_params: Optional[dict] = None  # further arguments
    no_wd: bool = False  # no weight decay of biases and normalizations
    binary_optimizer: Optional[str] = None  # of binary weights; None: the same
    binary_lr: Optional[float] = None
    binary_optimizer_params: Optional[dict] = None
    dtype: str = 'float32'  # of the network; of others, the optimizer has the weights in float32, too


@dataclasses.dataclass(frozen=True)
class ScheduleOptions:
    """The learning rates of a run, see `make_schedule`, by the flags with the names of the fields."""

    num_epochs: int
    lr_mode: str = 'cosine'
    lr_scaling: str = 'none'  # rule in `SCALINGS`
    lr_factor: float = 1.0  # of all rates
    lr_decay: Union[float, Sequence[float]] = 0.1
    lr_decay_epoch: Sequence[int] = ()
    lr_decay_period: int = 0  # see `decay_epochs`
    lr_power: float = 2.0
    warmup_epochs: int = 0
    warmup_lr: float = 0.0
    num_training_samples: Optional[int] = None  # images of an epoch of the schedule; None: of the data
    resume_epoch: int = 0  # in which the run starts


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


def make_trainer(net, updates, images_per_update, workers, optimizer, schedule, parameters=None):
    """Return the trainer of a run, with its optimizer and learning-rate schedule.

    Parameters
    ----------
    net : gluon.Block
    updates, images_per_update : int
        Updates per epoch, and images per update over all workers.
    workers : Workers
    optimizer : OptimizerOptions
    schedule : ScheduleOptions
    parameters : list of Parameter, optional
        Parameters in the order in which checkpoints number them, by default ordered by name.

    Returns
    -------
    gluon.Trainer, or the equivalent of these workers
    """
    if optimizer.no_wd:
        for parameter in net.collect_params('.*beta|.*gamma|.*bias').values():
            parameter.wd_mult = 0.0

    samples = schedule.num_training_samples
    scheduled = samples // images_per_update if samples else updates
    if not scheduled:
        raise UserError(f'--num-training-samples {samples}: one update needs {images_per_update} images')
    if scheduled != updates:
        LOG.warning(
            '--num-training-samples %d: the learning rate decays as if epochs had %d updates, and they have %d', samples, scheduled, updates
        )

    def arguments_of(name, lr, params):
        """Return the arguments of an optimizer with the base rate `lr`; the schedules of all have the same form."""
        lr = schedule.lr_factor * scaled_rate(lr, images_per_update, schedule.lr_scaling)
        return {
            'learning_rate': lr,
            'wd': optimizer.wd,
            'begin_num_update': schedule.resume_epoch * updates,
            'multi_precision': optimizer.dtype != 'float32',
            'lr_scheduler': make_schedule(
                schedule.lr_mode,
                lr,
                schedule.num_epochs,
                updates_per_epoch=scheduled,
                warmup_epochs=schedule.warmup_epochs,
                warmup_lr=schedule.lr_factor * schedule.warmup_lr,
                decay=schedule.lr_decay,
                decay_epochs=decay_epochs(schedule.lr_decay_epoch, schedule.lr_decay_period, schedule.num_epochs),
                power=schedule.lr_power,
            ),
            **optimizer_defaults(name).arguments,
            **(params or {}),
        }

    name, arguments = optimizer.optimizer, arguments_of(optimizer.optimizer, optimizer.lr, optimizer.optimizer_params)
    if optimizer.momentum is not None:
        arguments['momentum'] = optimizer.momentum
    if optimizer.binary_optimizer:
        names = [weight.name for weight in binary_weights(net).values()]
        if not names:
            raise UserError(f'--binary-optimizer {optimizer.binary_optimizer}: this network has no binary weights; leave the flag out')
        main = mx.optimizer.create(name, **arguments)
        binary_arguments = arguments_of(optimizer.binary_optimizer, optimizer.binary_lr, optimizer.binary_optimizer_params)
        binary = mx.optimizer.create(optimizer.binary_optimizer, **binary_arguments)
        name, arguments = BinarySplit.__name__, {'main': main, 'binary': binary, 'names': names}
    return workers.make_trainer(parameters or net.collect_params(), name, arguments)
