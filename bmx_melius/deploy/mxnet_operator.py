"""Makes the operator ``bmx_melius_packed`` known to MXNet: the compiled one, or one in NumPy where it has not been compiled."""

import ctypes
import sys

import mxnet as mx
from mxnet.base import _LIB, OpHandle, c_str, check_call, mx_uint
from mxnet.ndarray.register import _make_ndarray_function
from mxnet.symbol.register import _make_symbol_function

from ..errors import UserError
from . import numpy_operator
from .native import OPERATOR_LIBRARY, missing
from .packed_operator import NAME


def register():
    """Register the operator, once a process."""
    if hasattr(mx.nd, NAME):
        return
    mx.nd.CachedOp = _CachedOp
    if missing() or not OPERATOR_LIBRARY.exists():
        numpy_operator.register()
        return
    # mx.library.load would make the functions of all operators anew, which takes as long as everything else here.
    check_call(_LIB.MXLoadLib(c_str(str(OPERATOR_LIBRARY)), mx_uint(0)))
    handle = OpHandle()
    check_call(_LIB.NNGetOpHandle(c_str(NAME), ctypes.byref(handle)))
    for module, make in ((mx.nd, _make_ndarray_function), (mx.sym, _make_symbol_function)):
        function = make(handle, NAME, NAME)
        function.__module__ = module.__name__
        for place in (module, sys.modules[module.__name__ + '.op']):
            setattr(place, NAME, function)


class _CachedOp(mx.nd.CachedOp):
    """MXNet's graph of a hybridized block, which refuses arrays without axes or elements where the graph has packed operators.

    To MXNet 0 is a size that is not known yet, and no axes are a rank that is not known: it infers no shapes, and for the rank writes past
    the end of a buffer before it asks an extension operator, so the operator cannot refuse that itself.
    """

    __slots__ = ['_has_packed']

    def __init__(self, sym, flags=()):
        super().__init__(sym, flags)
        self._has_packed = NAME in sym.tojson()

    def __call__(self, *args, **kwargs):
        if self._has_packed:
            for array in args:
                if not array.shape or 0 in array.shape:
                    raise UserError(
                        f'{NAME}: an input has the shape {array.shape}; (batch, channels, height, width) or (batch, channels) is needed, '
                        'with a batch of 1 or more'
                    )
        return super().__call__(*args, **kwargs)


def compiled():
    """Whether MXNet runs the compiled operator."""
    return not missing() and OPERATOR_LIBRARY.exists()
