"""Binary neural networks on stock MXNet 1.9.1 / Gluon: layers, quantizers, counting, and what surrounds them."""
from .bmxnet_v2 import load_reference_parameters
from .errors import UserError
from .layers import (
    BinaryConv2D, ChannelShuffle, GroupedConv2D, QActivation, QConv1D, QConv2D, QConv3D, QDense, ScaledBinaryConv2D,
)  # fmt: skip
