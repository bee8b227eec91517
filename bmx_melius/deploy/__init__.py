"""Everything after training: from an exported graph to a packed program, and running it.

The package can be called: ``bmx_melius.deploy(net, input_shape)`` is `bmx_melius.deploy.converter.deploy`.
"""

import sys as _sys
import types as _types


class _Deploy(_types.ModuleType):
    def __call__(self, net, input_shape):
        """See `bmx_melius.deploy.converter.deploy`."""
        from .converter import deploy

        return deploy(net, input_shape)


_sys.modules[__name__].__class__ = _Deploy
