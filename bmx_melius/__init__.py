"""Binary neural networks on stock MXNet 1.9.1 / Gluon: quantizers, layers, optimizer, operation counts, conversion to bit operations.

Importing this package does not import MXNet. The names that need it (`bmx_melius.with_mxnet`) are loaded when one is first used
(PEP 562); where MXNet is not installed, they raise ModuleNotFoundError, and only `Session`, which runs packed networks, `import_onnx` and
`import_torch`, which make them of networks of other libraries, and `InputSpec` are available. Whichever of the two packages is imported
first, MXNet has the optimizer ``radam`` and the operator ``bmx_melius_packed`` as soon as both are.
"""

import importlib as _importlib
import importlib.util as _importlib_util
import sys as _sys
import typing as _typing

from . import forking as _forking
from . import import_hooks as _import_hooks
from ._version import __version__
from .errors import UserError
from .process import how_to_install_mxnet as _how_to_install_mxnet
from .process import ignore_invalid_thread_count as _ignore_invalid_thread_count

if _typing.TYPE_CHECKING:  # type checkers do not look into __getattr__
    from .deployment.onnx.conversion import import_onnx
    from .deployment.pytorch.conversion import import_torch
    from .deployment.runtime.session import Session
    from .vision.preprocessing import InputSpec
    from .with_mxnet import *  # noqa: F403

_WITHOUT_MXNET = {  # name -> its module
    'Session': '.deployment.runtime.session',
    'InputSpec': '.vision.preprocessing',
    'import_onnx': '.deployment.onnx.conversion',
    'import_torch': '.deployment.pytorch.conversion',
}


def _register_with_mxnet() -> None:
    from . import optimizers  # noqa: F401  registers RAdam
    from .deployment.runtime import engine, mxnet_operator
    from .nn import fusion

    mxnet_operator.register()
    fusion.register(engine.instruction_sets)


if 'mxnet' not in _sys.modules:
    _ignore_invalid_thread_count()
_import_hooks.after_import('mxnet', _register_with_mxnet)
_import_hooks.add_former_names(
    {f'{__name__}.{name}': f'{__name__}.nn.{name}' for name in ('channels', 'channelwise', 'layers', 'methods', 'quantizers')}
)


def __getattr__(name: str) -> _typing.Any:
    with _forking.importing:
        return _imported(name)


def _imported(name: str) -> _typing.Any:
    """Return a public name or a module of the package, imported now if it has not been used before."""
    if name in _WITHOUT_MXNET:
        return getattr(_importlib.import_module(_WITHOUT_MXNET[name], __name__), name)
    available = _importlib_util.find_spec('mxnet') is not None
    if name == '__all__':
        names = [*_WITHOUT_MXNET, 'UserError', '__version__']
        return names + (_importlib.import_module('.with_mxnet', __name__).__all__ if available else [])
    if not name.startswith('_'):
        if _importlib_util.find_spec(f'{__name__}.{name}'):
            return _importlib.import_module(f'{__name__}.{name}')
        if not available:
            message = (
                f'bmx_melius.{name} needs MXNet, which is not installed ({_how_to_install_mxnet()}); only Session, import_onnx, '
                'import_torch and InputSpec work without MXNet'
            )
            raise ModuleNotFoundError(message, name='mxnet')
        public = _importlib.import_module('.with_mxnet', __name__)
        if name in public.__all__:
            return getattr(public, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> _typing.List[str]:
    return sorted({*globals(), *__getattr__('__all__')})
