"""Binary neural networks on stock MXNet 1.9.1 / Gluon: quantizers, layers, optimizer, operation counts, conversion to bit operations.

Importing this package also imports MXNet and registers the optimizer ``radam`` and the operator ``bmx_melius_packed`` with it. If MXNet is
not installed, or if the environment variable ``BMX_MELIUS_WITHOUT_MXNET=1`` disables its import, only `Session`, which runs packed networks
without MXNet, and `InputSpec` are available.
"""

import importlib as _importlib
import importlib.util as _importlib_util
import os as _os
import sys as _sys
import typing as _typing

from ._version import __version__
from .deployment.runtime.session import Session
from .errors import UserError
from .preprocessing import InputSpec
from .process import how_to_install_mxnet as _how_to_install_mxnet
from .process import ignore_invalid_thread_count as _ignore_invalid_thread_count
from .process import is_command_line as _is_command_line

__all__ = ['InputSpec', 'Session', 'UserError', '__version__']

if 'mxnet' not in _sys.modules:
    _ignore_invalid_thread_count()
_installed = _importlib_util.find_spec('mxnet') is not None

if _installed and ('mxnet' in _sys.modules or not (_is_command_line() or _os.environ.get('BMX_MELIUS_WITHOUT_MXNET'))):
    from . import with_mxnet as _with_mxnet
    from .deployment.runtime import mxnet_operator as _mxnet_operator
    from .with_mxnet import *  # noqa: F403

    __all__ += _with_mxnet.__all__

    _mxnet_operator.register()
elif not _typing.TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name):
        is_module = _importlib_util.find_spec(f'{__name__}.{name}')  # `from bmx_melius import module` looks for an attribute first
        if 'mxnet' in _sys.modules and _is_command_line() and not is_module:  # a network of the user (package.module:function)
            public = _importlib.import_module(f'{__name__}.with_mxnet')
            if name in public.__all__:
                return getattr(public, name)
        if _installed:
            why = 'is not imported because BMX_MELIUS_WITHOUT_MXNET is set: unset it, or import mxnet first'
        else:
            why = f'is not installed ({_how_to_install_mxnet()})'
        message = f'bmx_melius.{name} needs MXNet, which {why}; only Session and InputSpec work without MXNet'
        if name.startswith('_') or is_module:
            raise AttributeError(message)
        raise ModuleNotFoundError(message, name='mxnet')
