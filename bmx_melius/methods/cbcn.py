"""CBCN: Liu et al. 2019, *Circulant Binary Convolutional Networks*, arXiv:1910.10853.

A circulant filter consists of a learned filter W and its rotations by 90, 180 and 270 degrees; each rotation is a separate filter::

    y = conv(sign(x), [sign(W), sign(R W), sign(R^2 W), sign(R^3 W)]),    R: rotation of the kernel by 90 degrees

Backward ("circulant back propagation"): the gradients of the four filters, rotated back, are added::

    dW = dW_0 + R^-1 dW_1 + R^-2 dW_2 + R^-3 dW_3

with the straight-through estimator for the signs of weights, and that of Bi-Real Net (arXiv:1808.00278) for the signs of activations. Only
W is stored. The center loss and the filter loss of the paper are a matter of the training loop, and not part of this project.

In the zoo, these networks have twice the channels of ResNet, hence as many learned weights, and four times the binary operations, the "x4"
of the MeliusNet paper, table 3. These widths are a choice of this project.
"""

from typing import Any, Dict

from ..errors import UserError
from ..layers import BinaryConv2D, QConv2D
from ..signatures import hands_on

ORIENTATIONS = 4


class CirculantWeights(QConv2D):
    """Convolution with binary filters and their rotations.

    The weight has channels / 4 filters. The output has `channels` channels, those of one orientation after those of another. Arguments as
    in `QConv2D`, without groups and bias; the kernel must be square and `channels` a multiple of 4.
    """

    def __init__(self, channels: int, *geometry: Any, **arguments: Any) -> None:
        if channels % ORIENTATIONS:
            raise UserError(f'{channels} channels are not a multiple of the {ORIENTATIONS} orientations of a circulant filter')
        super().__init__(channels // ORIENTATIONS, *geometry, **arguments)
        if len(set(self._kwargs['kernel'])) > 1:
            raise UserError(f'a kernel of size {self._kwargs["kernel"]} cannot be rotated by 90 degrees; use a square kernel')
        if self._kwargs['num_group'] > 1:
            raise UserError('circulant filters have no grouped convolutions: use groups=1')
        self._channels = self._kwargs['num_filter'] = channels  # after the shape of the weight has been determined

    @property
    def facts(self) -> Dict[str, object]:
        return {**super().facts, 'method': 'cbcn'}

    def hybrid_forward(self, F, x, weight):
        filters = [weight]
        for _ in range(1, ORIENTATIONS):
            filters.append(F.reverse(F.swapaxes(filters[-1], 2, 3), axis=2))
        return super().hybrid_forward(F, x, F.concat(*filters, dim=0))


class CirculantConv2D(BinaryConv2D):
    """Sign and convolution with binary circulant filters.

    Parameters, input, output and errors as in `BinaryConv2D`, without groups and bias. The kernel must be square and `channels` a multiple
    of 4.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.methods.cbcn import CirculantConv2D
    >>> layer = CirculantConv2D(4, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.random.normal(shape=(1, 2, 5, 5))).shape
    (1, 4, 5, 5)
    >>> [parameter.shape for parameter in layer.collect_params().values()]  # a filter for each of the 4 rotations
    [(1, 2, 3, 3)]
    """

    convolution = CirculantWeights

    @hands_on(BinaryConv2D, without=['use_bias', 'bias_initializer'])
    def __init__(self, *geometry: Any, activation_method: str = 'approx_sign', **arguments: Any) -> None:
        super().__init__(*geometry, activation_method=activation_method, **arguments)
