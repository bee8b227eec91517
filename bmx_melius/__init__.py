"""Binary neural networks on stock MXNet 1.9.1 / Gluon: quantizers, layers, optimizer, counting, conversion to bit instructions.

Importing this package also registers the optimizer ``radam`` and the operator ``bmx_melius_packed`` with MXNet. Where MXNet is not
installed it offers `Session` alone, which runs packed networks.
"""

import importlib.util as _importlib_util

from . import startup as _startup  # before everything that takes time

# isort: split
from ._version import __version__
from .deployment.runtime.session import Session
from .errors import UserError

__all__ = ['Session', 'UserError', '__version__']

if _importlib_util.find_spec('mxnet'):
    from .analysis.checking import check
    from .analysis.summary import summary
    from .channels import ChannelShuffle, GroupedConv2D
    from .deployment.convert.conversion import convert, deploy
    from .deployment.runtime import mxnet_operator as _mxnet_operator
    from .importers.bmxnet_v2 import load_reference_parameters
    from .layers import BinaryConv2D, QActivation, QConv1D, QConv2D, QConv3D, QDense, ScaledBinaryConv2D
    from .optimizers import RAdam
    from .preprocessing import InputSpec

    __all__ += [
        'BinaryConv2D',
        'ChannelShuffle',
        'GroupedConv2D',
        'InputSpec',
        'QActivation',
        'QConv1D',
        'QConv2D',
        'QConv3D',
        'QDense',
        'RAdam',
        'ScaledBinaryConv2D',
        'check',
        'convert',
        'deploy',
        'load_reference_parameters',
        'summary',
    ]

    _mxnet_operator.register()
else:

    def __getattr__(name):
        if name.startswith('_'):
            raise AttributeError(name)
        message = f'bmx_melius.{name} needs MXNet, which is not installed (pip install mxnet); without it there is Session'
        raise ModuleNotFoundError(message, name='mxnet')


_startup.end()
