"""Numbers of a method that follow the progress of the training, such as the steepness of the gradient of a sign."""

from typing import Any, Callable, Optional, Set

import mxnet as mx
from mxnet.gluon import Block, HybridBlock, Parameter

from ..quantizers import Array, everywhere

SLOPE_AT_START, SLOPE_AT_END = 1e-3, 1e1  # of the error decay estimator in the authors' code of IR-Net for ResNet-20 (arXiv:1909.10788)


class ScheduledNumber(HybridBlock):
    """A number that is constant within an epoch and has no gradient: the parameter ``value`` of shape (1, 1, 1, 1).

    Parameters
    ----------
    schedule : callable (progress) -> float
        The number for a progress from 0, the first epoch, to 1.
    initial : float or None
        The number until `begin_epoch` is called; None: ``schedule(0)``.
    prefix, params
        As in every Gluon block.

    Input: an array with four axes. Output: an array of its shape and dtype that holds the number everywhere.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.schedules import ScheduledNumber, begin_epoch
    >>> number = ScheduledNumber(lambda progress: 1 + progress)
    >>> number.initialize()
    >>> begin_epoch(number, 0.5)
    >>> number(mx.nd.zeros((1, 2, 1, 1))).asnumpy().ravel()
    array([1.5, 1.5], dtype=float32)
    """

    def __init__(
        self, schedule: Callable[[float], float], initial: Optional[float] = None, prefix: Optional[str] = None, params: Any = None
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self._schedule = schedule
        with self.name_scope():
            init = mx.init.Constant(schedule(0.0) if initial is None else initial)
            self.value = self.params.get('value', shape=(1, 1, 1, 1), init=init, grad_req='null', differentiable=False)

    def set_progress(self, progress: float) -> None:
        """Set the number to that of this progress, 0 to 1, on all devices."""
        for value in self.value.list_data():
            value[:] = self._schedule(progress)

    def hybrid_forward(self, F: Any, x: Array, value: Array) -> Array:
        return F.BlockGrad(everywhere(F, value, x))


def begin_epoch(net: Block, progress: float) -> None:
    """Set all scheduled numbers of a network. Call it before each epoch; networks without such numbers do not change.

    Parameters
    ----------
    net : Block
        Initialized.
    progress : float
        Number of epochs before this one / number of all epochs.
    """
    net.apply(lambda block: block.set_progress(progress) if isinstance(block, ScheduledNumber) else None)


def scheduled_parameters(net: Block) -> Set[Parameter]:
    """Return the parameters of all scheduled numbers of a network."""
    found = set()
    net.apply(lambda block: found.add(block.value) if isinstance(block, ScheduledNumber) else None)
    return found


def slope(start: float) -> ScheduledNumber:
    """Return t, which rises from `start` to 10 exponentially."""
    return ScheduledNumber(lambda progress: start ** (1 - progress) * SLOPE_AT_END**progress)


def decaying_surrogate(F: Any, x: Array, slope: Array) -> Array:
    """Return k tanh(t x) with k = max(1 / t, 1); gradient k t (1 - tanh(t x)^2). t is an array of the shape of x."""
    return F.tanh(x * slope) * F.maximum(1 / slope, 1)
