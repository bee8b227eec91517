"""Binary neural networks on stock MXNet 1.9.1 / Gluon: quantizers, layers, optimizer, operation counts, conversion to bit operations.

Importing this package also imports MXNet and registers the optimizer ``radam`` and the operator ``bmx_melius_packed`` with it. If MXNet is
not installed, or if the environment variable ``BMX_MELIUS_WITHOUT_MXNET=1`` disables its import, only `Session`, which runs packed networks
without MXNet, and `InputSpec` are available.
"""

import importlib.util as _importlib_util
import os as _os
import sys as _sys
import typing as _typing

from ._version import __version__
from .deployment.runtime.session import Session
from .errors import UserError
from .preprocessing import InputSpec
from .process import is_command_line as _is_command_line

__all__ = ['InputSpec', 'Session', 'UserError', '__version__']

_installed = _importlib_util.find_spec('mxnet') is not None

if _installed and ('mxnet' in _sys.modules or not (_is_command_line() or _os.environ.get('BMX_MELIUS_WITHOUT_MXNET'))):
    from .analysis.checking import check
    from .analysis.summary import summary
    from .channels import ChannelShuffle, GroupedConv2D
    from .deployment.convert.conversion import convert, deploy
    from .deployment.runtime import mxnet_operator as _mxnet_operator
    from .importers.bmxnet_v2 import load_reference_parameters
    from .layers import BinaryConv2D, QActivation, QConv1D, QConv2D, QConv3D, QDense
    from .methods.xnor_net import ScaledBinaryConv2D
    from .optimizers import RAdam

    __all__ += [
        'BinaryConv2D',
        'ChannelShuffle',
        'GroupedConv2D',
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
elif not _typing.TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name):
        if _installed:
            why = 'is not imported because BMX_MELIUS_WITHOUT_MXNET is set: unset it, or import mxnet first'
        else:
            why = 'is not installed (pip install mxnet==1.9.1)'
        message = f'bmx_melius.{name} needs MXNet, which {why}; only Session and InputSpec work without MXNet'
        if name.startswith('_') or _importlib_util.find_spec(f'{__name__}.{name}'):
            raise AttributeError(message)  # `from bmx_melius import module` looks for an attribute before it imports the module
        raise ModuleNotFoundError(message, name='mxnet')
