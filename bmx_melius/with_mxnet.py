"""Public names of the package that need MXNet; `bmx_melius` loads them when one is first used."""

from .analysis.checking import check
from .analysis.summary import summary
from .deployment.convert.conversion import convert, deploy
from .importers.bmxnet_v2 import load_reference_parameters
from .nn.channels import ChannelShuffle, GroupedConv2D
from .nn.layers import BinaryConv2D, QActivation, QConv1D, QConv2D, QConv3D, QDense
from .nn.methods.xnor_net import ScaledBinaryConv2D
from .nn.quantizers import Quantizer, register_quantizer
from .optimizers import RAdam

__all__ = [
    'BinaryConv2D',
    'ChannelShuffle',
    'GroupedConv2D',
    'QActivation',
    'QConv1D',
    'QConv2D',
    'QConv3D',
    'QDense',
    'Quantizer',
    'RAdam',
    'ScaledBinaryConv2D',
    'check',
    'convert',
    'deploy',
    'load_reference_parameters',
    'register_quantizer',
    'summary',
]
