"""LQ-Net: Zhang et al. 2018, arXiv:1807.10029, section 3, with 1-bit weights and 2-bit activations.

A quantized value is an inner product of a binary code b and a basis v. With 2 bits for activations, b in {0, 1}^2 and one basis per layer;
with 1 bit for weights, b in {-1, +1} and one number per filter::

    q(x) = the level among 0, v1, v2, v1 + v2 that is nearest to x,    q(W) = v sign(W)

Backward: dx = dq 1[0 < x <= v1 + v2] and dW = dq. The bases have no gradient: each update of the network moves them towards the basis that
minimizes the quantization error for the current codes::

    v <- 0.9 v + 0.1 v*,    v* = argmin over v of sum (b v - x)^2 = (B^T B)^-1 B^T x

The minimization over codes and bases alternates, one step per update, as in algorithm 2 of the paper.

A basis is a parameter without a gradient, as the running statistics of a BatchNorm, but no stock operator can compute v*. `update_bases`,
which ``bmx-melius train`` calls after each update by `bmx_melius.nn.methods.updates.finish_update`, solves for it. For weights, v* =
mean |W| of the filter. For activations it needs the sums B^T B and B^T x over the batch, also from a hybridized network: they are the
gradient of the parameter ``moments`` with respect to an additional loss. Gradients are summed over devices and workers, and so are these.

The networks have the layers of the authors' code (github.com/microsoft/LQ-Nets, ``preresnet_group``): BN, ReLU and quantization before a
convolution, a further BN before the addition, and quantized projections in shortcuts. Differences: it uses the statistics of the first
device only; its weights enter v* before the update, here after it; its moving average is corrected for its start, so that the first update
sets v to v*; it regularizes v* of weights, here v* of activations (`REGULARIZATION`); the code of a weight of exactly 0 is -1, here +1.
"""

from typing import Any, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block

from ...errors import UserError
from ..fine_tuning import is_frozen
from ..layers import QActivation, QConv2D
from ..quantizers import FULL_PRECISION, Array, zero_with_gradient
from .low_bit import LowBitConv2D

MOMENTUM = 0.9  # of the moving averages (section 3.3)
QUARTILE = 0.6745  # of the standard normal distribution: initial bases of the authors' code
REGULARIZATION = 1e-4  # added to the diagonal of B^T B of activations, and times v to B^T x; that code adds them for weights only


class LQActivation(QActivation):
    """Activation with 2 bits and a learned basis: 0, v1, v2 or v1 + v2, whichever is nearest; thresholds take the lower level.

    Parameters
    ----------
    bits, method, threshold, encoding, prefix, params
        As in `QActivation`; `bits` is 2, or 32 for no quantization.

    The parameter ``basis`` has shape (2,). The order of v1 and v2 does not matter. Input and output (N, C, H, W).

    Raises
    ------
    UserError
        As `QActivation`, and for another number of bits.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.lq_net import LQActivation
    >>> layer = LQActivation(bits=2, method='round')
    >>> layer.initialize()
    >>> layer(mx.nd.array([[[[-1, 0.4, 0.7, 1.2, 9]]]])).asnumpy().ravel().round(2)
    array([0.  , 0.45, 0.9 , 1.35, 1.35], dtype=float32)
    """

    facts_of_method = {'method': 'lq_net'}

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.bits not in (2, FULL_PRECISION):
            raise UserError(f'activations of LQ-Net have 2 bits, or 32 for full precision, not {self.bits}')
        if self.bits != FULL_PRECISION:
            initial = mx.init.Constant(mx.nd.array([QUARTILE * 2 / 3, QUARTILE * 4 / 3]))
            with self.name_scope():
                self.basis = self.params.get('basis', shape=(2,), init=initial, grad_req='null', differentiable=False)
                # The value has no effect. The optimizer must not be able to make it anything but finite.
                self.moments = self.params.get('moments', shape=(1, 3, 3), init='zeros', lr_mult=0, wd_mult=0)

    def quantized_in_parts(self, F: Any, x: Array, basis: Array, moments: Array) -> Tuple[Array, Array]:  # type: ignore[override]
        basis = F.sort(basis, axis=0)
        small, large = (_spread(F, F.slice_axis(basis, axis=0, begin=i, end=i + 1), x) for i in range(2))
        top = small + large
        above = [x > threshold for threshold in (small / 2, top / 2, large + small / 2)]
        codes = [above[0] - above[1] + above[2], above[1]]
        surrogate = F.minimum(F.relu(x), F.BlockGrad(top))
        quantized = F.BlockGrad(codes[0] * small + codes[1] * large)
        return quantized, zero_with_gradient(F, surrogate) + _zero_with_moments(F, [*codes, x], moments)

    def update_basis(self) -> None:
        """Move the basis towards v* of the last batch. Has no effect before the first backward pass, or if the basis is frozen.

        Raises `UserError` if the statistics of the batch are not finite.
        """
        if self.bits == FULL_PRECISION or is_frozen(self.basis) or is_frozen(self.moments):
            return
        for basis, gradient in zip(self.basis.list_data(), self.moments.list_grad()):
            moments, before = gradient.asnumpy()[0].astype(np.float64), np.sort(basis.asnumpy().astype(np.float64))
            if not np.isfinite(moments).all():
                raise UserError(
                    f'the statistics of {self.prefix.rstrip("_")} are not finite: training diverged, or the sums exceed the range of '
                    'float16; train LQ-Net in float32'
                )
            if moments.any():
                best = best_basis(moments[:2, :2], moments[:2, 2], before)
                basis[:] = MOMENTUM * before + (1 - MOMENTUM) * best


class LQWeights(QConv2D):
    """Convolution with the weights v sign(W), where v is the parameter ``basis`` of shape (channels, 1, 1, 1).

    Weight decay applies to W, whose magnitude v follows, as in the authors' code.
    """

    facts_of_method = {'method': 'lq_net', 'sign': 0}

    def __init__(self, channels: int, *geometry: Any, **arguments: Any) -> None:
        super().__init__(channels, *geometry, **{'weight_decay': True, **arguments})
        if not self.binarization.is_float:
            initial = QUARTILE * (2 / (channels * np.prod(self._kwargs['kernel']))) ** 0.5
            with self.name_scope():
                self.basis = self.params.get(
                    'basis', shape=(channels, 1, 1, 1), init=mx.init.Constant(initial), grad_req='null', differentiable=False
                )

    def quantized_weight(self, F, weight, basis):
        value = F.broadcast_mul(basis, super().quantized_weight(F, weight))
        return F.BlockGrad(value) + zero_with_gradient(F, weight)

    def update_basis(self) -> None:
        """Move the basis towards v*, the mean |W| of each filter, unless it is frozen."""
        if self.binarization.is_float or is_frozen(self.basis):
            return
        for basis, weight in zip(self.basis.list_data(), self.weight.list_data()):
            best = weight.abs().mean(axis=0, exclude=True, keepdims=True)
            basis[:] = MOMENTUM * basis + (1 - MOMENTUM) * best


class LQConv2D(LowBitConv2D):
    """2-bit activations and binary weights with learned bases. Parameters, input and output as in `LowBitConv2D`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.lq_net import LQConv2D
    >>> layer = LQConv2D(8, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.random.normal(shape=(1, 4, 5, 5))).shape
    (1, 8, 5, 5)
    """

    activation = LQActivation
    convolution = LQWeights


def best_basis(gram: np.ndarray, products: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the v that minimizes sum (b v - x)^2, from the sums B^T B and B^T x over all values.

    Parameters
    ----------
    gram : ndarray (2, 2)
        B^T B.
    products : ndarray (2,)
        B^T x.
    before : ndarray (2,)
        Result for elements of the basis that no code uses.
    """
    return np.linalg.solve(gram + REGULARIZATION * np.eye(len(gram)), products + REGULARIZATION * before)


def update_bases(net: Block) -> None:
    """Update the bases of all layers of LQ-Net in a network. Call it after ``Trainer.step``, once per backward pass.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.lq_net import LQConv2D, update_bases
    >>> net = LQConv2D(4, kernel_size=3, in_channels=2)
    >>> net.initialize()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd')
    >>> basis = net.collect_params('.*activation.*basis')
    >>> (before,) = (parameter.data().asnumpy() for parameter in basis.values())
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.random.uniform(shape=(2, 2, 8, 8))).sum()
    >>> loss.backward()
    >>> trainer.step(batch_size=2)
    >>> update_bases(net)
    >>> (after,) = (parameter.data().asnumpy() for parameter in basis.values())
    >>> bool((before != after).all())
    True
    """
    net.apply(lambda block: block.update_basis() if isinstance(block, (LQActivation, LQWeights)) else None)


def _spread(F, value, x):
    """Return an array of the shape of x with the only element of `value`, of shape (1,), everywhere."""
    return F.broadcast_like(F.reshape(value, shape=(1, 1, 1, 1)), x)


def _zero_with_moments(F, terms, moments):
    """Return a zero for each value of the last of `terms`. The gradient of `moments` are the sums of products of the terms over all values.

    ``make_loss`` has the gradient 1, whatever follows it.
    """
    rows = F.concat(*(F.reshape(term, shape=(1, 1, -1)) for term in terms), dim=1)
    sums = F.BlockGrad(F.batch_dot(rows, rows, transpose_b=True))
    loss = F.make_loss(F.sum(sums * moments))
    return _spread(F, loss * 0, terms[-1])
