"""Everything after training: from an exported graph to a packed program, and running it.

Called, ``bmx_melius.deploy(net, input_shape)`` is `converter.deploy`: the packed form of a live network or layer.
"""

import sys
import types


class _Package(types.ModuleType):
    """This package, which can be called."""

    def __call__(self, net, input_shape):
        from .converter import deploy  # needs MXNet, which the rest of the package can do without

        return deploy(net, input_shape)


sys.modules[__name__].__class__ = _Package
