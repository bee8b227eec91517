"""CBCN: Liu et al. 2019, *Circulant Binary Convolutional Networks*, arXiv:1910.10853; layers as in github.com/EnzoDuan/Circulant-Binary.

Four adjacent channels of a map are the orientations of one feature. A circulant filter consists of a learned filter W and its rotations by
90, 180 and 270 degrees, clockwise; each rotation is a separate filter, and adjacent to the others. A rotation turns the kernel and passes
each orientation of the input on to the next one, cyclically::

    (R W)[feature, orientation + 1 mod 4] = W[feature, orientation], turned by 90 degrees
    y = a conv(sign(x), [sign(W), sign(R W), sign(R^2 W), sign(R^3 W)]),    a = mean |W| of the layer

Backward ("circulant back propagation"): the gradients of the four filters, rotated back, are added::

    dW = dW_0 + R^-1 dW_1 + R^-2 dW_2 + R^-3 dW_3

The signs of activations and weights have the gradient of Bi-Real Net, (2 - 2|x|) 1[|x| <= 1], and a has its derivative. Only W is stored.
The order of a layer in the network is BN, sign, convolution, addition of the shortcut, PReLU.

Differences from the code: padding is -1 instead of 0, and sign(0) is +1 instead of 0. The code has a network for images of 32 x 32 only, of
16, 16, 32 and 64 features; here the structure is a ResNet with twice its channels, hence as many learned weights, and four times the
binary operations, the "x4" of the MeliusNet paper, table 3. The center loss and the filter loss of the paper are a matter of the training
loop, and not part of this project; neither are they in the code.
"""

from typing import Any

from ...errors import UserError
from ...signatures import hands_on
from ..layers import BinaryConv2D, QConv2D
from ..quantizers import Array

ORIENTATIONS = 4


def rotated(F: Any, weight: Array) -> Array:
    """Return filters (O, 4 I, K, K) rotated by 90 degrees: kernels clockwise, and the four orientations of each of I features by one."""
    by_orientation = F.reshape(weight, shape=(0, -4, -1, ORIENTATIONS, 0, 0))
    last = F.slice_axis(by_orientation, axis=2, begin=ORIENTATIONS - 1, end=ORIENTATIONS)
    moved = F.concat(last, F.slice_axis(by_orientation, axis=2, begin=0, end=ORIENTATIONS - 1), dim=2)
    return F.reshape(F.reverse(F.swapaxes(moved, 3, 4), axis=4), shape=(0, -3, 0, 0))


class CirculantWeights(QConv2D):
    """Convolution with binary filters and their rotations.

    The weight has channels / 4 filters. The output has `channels` channels, the four orientations of a feature one after the other.
    Arguments as in `QConv2D`, without groups and bias; the kernel must be square, and input and output channels multiples of 4.
    """

    facts_of_method = {'method': 'cbcn'}

    def __init__(self, channels: int, *geometry: Any, in_channels: int = 0, **arguments: Any) -> None:
        for name, number in (('channels', channels), ('in_channels', in_channels)):
            if number % ORIENTATIONS:
                raise UserError(f'{name}={number} is not a multiple of the {ORIENTATIONS} orientations of a circulant filter')
        super().__init__(channels // ORIENTATIONS, *geometry, in_channels=in_channels, **arguments)
        if len(set(self._kwargs['kernel'])) > 1:
            raise UserError(f'a kernel of size {self._kwargs["kernel"]} cannot be rotated by 90 degrees; use a square kernel')
        if self._kwargs['num_group'] > 1:
            raise UserError('circulant filters have no grouped convolutions: use groups=1')
        self._channels = self._kwargs['num_filter'] = channels  # after the shape of the weight has been determined

    def hybrid_forward(self, F, x, weight):
        filters = [weight]
        for _ in range(1, ORIENTATIONS):
            filters.append(rotated(F, filters[-1]))
        adjacent = F.concat(*(F.expand_dims(each, axis=1) for each in filters), dim=1)
        return super().hybrid_forward(F, x, F.reshape(adjacent, shape=(-3, 0, 0, 0)))


class CirculantConv2D(BinaryConv2D):
    """Sign and convolution with binary circulant filters, scaled by the mean magnitude of the weight.

    Parameters, input, output and errors as in `BinaryConv2D`, without groups, offset, scaling and bias. The kernel must be square, and
    input and output channels multiples of 4.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.cbcn import CirculantConv2D
    >>> layer = CirculantConv2D(4, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.random.normal(shape=(1, 8, 5, 5))).shape
    (1, 4, 5, 5)
    >>> [parameter.shape for parameter in layer.collect_params().values()]  # a filter for each of the 4 rotations
    [(1, 8, 3, 3)]
    """

    convolution = CirculantWeights

    @hands_on(BinaryConv2D, without=['use_bias', 'bias_initializer', 'no_offset', 'apply_scaling', 'scaling_gradient', 'scale_over'])
    def __init__(
        self,
        *geometry: Any,
        threshold: Any = 1.0,
        activation_method: str = 'approx_sign',
        quantization: str = 'approx_sign',
        weight_threshold: Any = 1.0,
        clip_weights: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__(
            *geometry,
            threshold=threshold,
            activation_method=activation_method,
            quantization=quantization,
            weight_threshold=weight_threshold,
            clip_weights=clip_weights,
            apply_scaling=True,
            scale_over='layer',
            **arguments,
        )
