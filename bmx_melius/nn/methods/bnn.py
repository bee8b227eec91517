"""BNN: Courbariaux, Hubara et al. 2016, *Binarized Neural Networks*, arXiv:1602.02830.

Forward (equation 1), with sign(0) = +1::

    y = conv(sign(x), sign(w))

Backward (section 1.3 and algorithm 1)::

    dx = d sign(x) 1[|x| <= 1],    dw = d sign(w),    then w <- clip(w - update, -1, 1)

Networks have the order of the authors' ResNet for CIFAR-10 (github.com/itayhubara/BinaryNet.pytorch, models/resnet_binary.py; its ResNets
for ImageNet fail when they are called): sign, convolution, BN, hard tanh, sign, convolution; then addition of the shortcut, BN and hard
tanh, which the last block lacks; pooling, BN, hard tanh and the output layer. Shortcuts that change the shape are sign, a binary 1x1
convolution and BN (`get_model(..., quantized_shortcuts=False)`: a float convolution and BN, which has the size that is printed in the
MeliusNet paper, table 3). The gradient of a sign after a hard tanh is 1[|x| <= 1], in the code 1[|x| < 1].

Other differences from the code: the first convolution and the output layer are float, and the latter has no BN after it; padding is -1
instead of 0, and sign(0) is +1 instead of 0. Weights are clipped as in the paper and in earlier versions of the code; the current one clips
biases only.

This is ``BinaryConv2D(threshold=1, weight_threshold=1, no_offset=True)`` and `clip_latent_weights` after each update, which
``bmx-melius train`` calls. As long as the weights are clipped, the gradient 1[|w| <= 1] of `weight_threshold` equals the paper's. In a
training loop that does not clip them, a weight that leaves [-1, 1] keeps its sign for the rest of the training, whereas in the paper it
stops at the bound and can return.
"""

from mxnet.gluon import Block

from ..binarization import QuantizedConvolution
from ..fine_tuning import is_frozen
from ..quantizers import FULL_PRECISION


def clip_latent_weights(net: Block) -> None:
    """Clip the latent weights of all quantized convolutions with a `weight_threshold` t to [-t, t]. Call it after ``Trainer.step``.

    Layers without a `weight_threshold` or with ``clip_weights=False``, layers with real weights (``weight_bits=32``) and frozen weights
    are not changed. Copies of the weights that parameter servers or an optimizer with ``multi_precision`` hold are not clipped.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import QConv2D
    >>> from bmx_melius.nn.methods.bnn import clip_latent_weights
    >>> layer = QConv2D(1, kernel_size=1, in_channels=3, weight_threshold=1)
    >>> layer.initialize()
    >>> layer.weight.set_data(mx.nd.array([-1.5, 0.25, 2]).reshape((1, 3, 1, 1)))
    >>> clip_latent_weights(layer)
    >>> layer.weight.data().asnumpy().ravel()
    array([-1.  ,  0.25,  1.  ], dtype=float32)
    """
    net.apply(_clip_own)


def _clip_own(block):
    if not isinstance(block, QuantizedConvolution) or is_frozen(block.weight):
        return
    threshold = block.binarization.weight_threshold
    if threshold is not None and block.binarization.clip_weights and block.binarization.stored_bits != FULL_PRECISION:
        for weight in block.weight.list_data():
            weight.clip(-threshold, threshold, out=weight)
