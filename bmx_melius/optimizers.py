"""RAdam, the optimizer of the MeliusNet paper, and two optimizers for one network; both are registered with `mx.optimizer`."""

import math
from typing import Any, Collection, Dict, Optional, Tuple

import mxnet as mx

from .errors import UserError
from .signatures import hands_on


@mx.optimizer.register
class RAdam(mx.optimizer.Optimizer):
    r"""Rectified Adam: Adam with a variance correction of the adaptive step, and plain momentum steps at the start.

    For the gradient :math:`g_t` (rescaled, weight decay :math:`wd\,w` added, then clipped) of each parameter and update
    :math:`t = 1, 2, \dots`:

    .. math::

        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2 \\
        N_\infty &= 2 / (1 - \beta_2) - 1 \qquad N_t = N_\infty - 2 t \beta_2^t / (1 - \beta_2^t) \\
        r_t &= \sqrt{\frac{(N_t - 4)(N_t - 2) N_\infty}{(N_\infty - 4)(N_\infty - 2) N_t}} \\
        w_t &= w_{t-1} - \frac{lr}{1 - \beta_1^t} \cdot \begin{cases}
            r_t \sqrt{1 - \beta_2^t} \cdot m_t / (\sqrt{v_t} + \epsilon) & N_t > \text{threshold} \\
            m_t & \text{otherwise (a plain momentum step)}
        \end{cases}

    Source: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", ICLR 2020, Algorithm 2; epsilon and the threshold are
    used as in the authors' implementation. The defaults follow MeliusNet's training protocol.

    Parameters
    ----------
    learning_rate : float, optional
        Learning rate. Default: the base rate of `lr_scheduler` if given, else 0.002.
    beta1, beta2 : float
        Decay rates of the moving averages of the gradient and of the squared gradient, in [0, 1).
    epsilon : float
        Added to the square root of `v`, not under it. Must be positive, because v = 0 for a weight that has had no gradient.
    n_sma_threshold : float
        Length of the approximated simple moving average above which the step is rectified; at least 4, below which the variance is not
        defined.
    **kwargs
        Arguments of `mx.optimizer.Optimizer`: `wd`, `rescale_grad`, `clip_gradient`, `lr_scheduler`, `multi_precision` ...

    Raises
    ------
    UserError
        For an argument outside its range, and in the first update if the weight or its gradient is sparse.

    Examples
    --------
    >>> import mxnet as mx
    >>> import bmx_melius  # registers 'radam' with MXNet
    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'radam', {'learning_rate': 0.002})
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.ones((4, 3))).sum()
    >>> loss.backward()
    >>> trainer.step(batch_size=4)
    """

    @hands_on(mx.optimizer.Optimizer)
    def __init__(
        self,
        learning_rate: Optional[float] = None,
        beta1: float = 0.95,
        beta2: float = 0.999,
        epsilon: float = 1e-5,
        n_sma_threshold: float = 5,
        **kwargs: Any,
    ) -> None:
        for name, beta in (('beta1', beta1), ('beta2', beta2)):
            if not 0 <= beta < 1:
                raise UserError(f'RAdam: {name} must be at least 0 and below 1, not {beta}')
        if not epsilon > 0:
            raise UserError(f'RAdam: epsilon must be positive, not {epsilon}')
        if not n_sma_threshold >= 4:
            raise UserError(f'RAdam: n_sma_threshold must be at least 4 (below, the variance is not defined), not {n_sma_threshold}')
        if learning_rate is None and kwargs.get('lr_scheduler') is None:
            learning_rate = 0.002
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.n_sma_threshold = n_sma_threshold

    def __repr__(self) -> str:
        values = {'learning_rate': self.learning_rate, 'beta1': self.beta1, 'beta2': self.beta2, 'epsilon': self.epsilon, 'wd': self.wd}
        return f'RAdam({", ".join(f"{name}={value:g}" for name, value in values.items())})'

    def create_state(self, index: int, weight: mx.nd.NDArray) -> Tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Return the moving averages (m, v): zeros with the shape, dtype and device of the weight."""
        return tuple(mx.nd.zeros(weight.shape, ctx=weight.context, dtype=weight.dtype) for _ in range(2))

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Tuple[mx.nd.NDArray, mx.nd.NDArray]) -> None:
        """Update `weight` and `state` in place; `grad` is dense and has the shape and dtype of `weight`."""
        if weight.stype != 'default' or grad.stype != 'default':
            name = self.param_dict[index].name if index in self.param_dict else self.idx2name.get(index, index)
            raise UserError(
                f'RAdam: parameter {name} has a {weight.stype} weight and a {grad.stype} gradient, but only dense arrays are supported; '
                "use grad_stype='default' (sparse_grad=False in an Embedding) or another optimizer"
            )
        self._update_count(index)
        momentum_rate, adaptive_rate = self._rates(self._get_lr(index), self._index_update_count[index])
        mean, variance = state
        # One fused pass over m, v and w; with rate 0 it does not change w. The few momentum steps of a run need a second pass.
        mx.nd.adam_update(
            weight,
            grad,
            mean,
            variance,
            out=weight,
            lr=adaptive_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            wd=self._get_wd(index),
            rescale_grad=self.rescale_grad,
            clip_gradient=-1 if self.clip_gradient is None else self.clip_gradient,
        )
        if momentum_rate:
            mx.nd.sgd_update(weight, mean, out=weight, lr=momentum_rate, wd=0)

    def _rates(self, lr, t):
        """Return the factors of `m` and of `m / (sqrt(v) + epsilon)` in update `t`; one of them is 0."""
        n_infinity = 2 / (1 - self.beta2) - 1
        decay = self.beta2**t
        n_t = n_infinity - 2 * t * decay / (1 - decay)
        lr = lr / (1 - self.beta1**t)
        if n_t <= self.n_sma_threshold:
            return lr, 0
        return 0, lr * math.sqrt((1 - decay) * (n_t - 4) * (n_t - 2) * n_infinity / ((n_infinity - 4) * (n_infinity - 2) * n_t))


@mx.optimizer.register
class BinarySplit(mx.optimizer.Optimizer):
    """Two optimizers: one for the binary weights of a network, the other for all other parameters.

    QuickNet is trained so (github.com/larq/zoo, sota_experiments.py): its binary weights by Adam, all others by SGD.

    Parameters
    ----------
    main, binary : mx.optimizer.Optimizer
        The optimizers, each with its rate and schedule. The factors of parameters, ``lr_mult`` and ``wd_mult``, apply in both. Rates and
        counters of this optimizer are `main`'s.
    names : collection of str
        Names of the parameters that `binary` updates.
    **kwargs
        Arguments that a `gluon.Trainer` gives.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import QDense
    >>> from bmx_melius.optimizers import BinarySplit
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(QDense(4, in_units=3), mx.gluon.nn.Dense(2, in_units=4))
    >>> net.initialize()
    >>> main, binary = (mx.optimizer.create(name, learning_rate=rate) for name, rate in (('sgd', 0.1), ('adam', 0.01)))
    >>> trainer = mx.gluon.Trainer(net.collect_params(), BinarySplit(main, binary, [net[0].weight.name]), update_on_kvstore=False)
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.ones((4, 3))).sum()
    >>> loss.backward()
    >>> trainer.step(batch_size=4)
    """

    def __init__(self, main: mx.optimizer.Optimizer, binary: mx.optimizer.Optimizer, names: Collection[str], **kwargs: Any) -> None:
        super().__init__(
            learning_rate=main.lr, wd=main.wd, lr_scheduler=main.lr_scheduler, begin_num_update=main.begin_num_update, **kwargs
        )
        self._parts, self._names = {'main': main, 'binary': binary}, frozenset(names)

    @property
    def parts(self) -> Dict[str, mx.optimizer.Optimizer]:
        """The optimizers ``main`` and ``binary``."""
        return self._parts

    def create_state_multi_precision(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the state of the optimizer that updates the parameter."""
        return self._part(index).create_state_multi_precision(index, weight)

    def update_multi_precision(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any) -> None:
        """Update `weight` and `state` in place, by the optimizer of the parameter."""
        part = self._part(index)
        part.update_multi_precision(index, weight, grad, state)
        self.num_update = part.num_update

    def _part(self, index):
        """Return the optimizer of a parameter, with the settings and counters of this one, which the trainer sets."""
        part = self._parts['binary' if self.param_dict[index].name in self._names else 'main']
        for name in ('param_dict', 'rescale_grad', 'num_update', 'begin_num_update', '_all_index_update_counts', '_index_update_count'):
            setattr(part, name, getattr(self, name))
        return part
