"""Binary neural networks on stock MXNet 1.9.1 / Gluon: quantizers, layers, optimizer, counting.

Importing this package also registers the optimizer ``radam`` with MXNet.
"""
from ._version import __version__
from .bmxnet_v2 import load_reference_parameters
from .errors import UserError
from .layers import (
    BinaryConv2D,
    ChannelShuffle,
    GroupedConv2D,
    QActivation,
    QConv1D,
    QConv2D,
    QConv3D,
    QDense,
    ScaledBinaryConv2D,
)
from .optimizers import RAdam
from .preprocessing import InputSpec
from .summary import summary
