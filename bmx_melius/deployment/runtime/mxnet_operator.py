"""Registration of the operator ``bmx_melius_packed`` with MXNet: the compiled one, or one in Python if it is not compiled."""

import ctypes
import sys

import mxnet as mx
from mxnet.base import _LIB, OpHandle, c_str, check_call, mx_uint
from mxnet.ndarray.register import _make_ndarray_function
from mxnet.symbol.register import _make_symbol_function

from ...errors import UserError
from ..program.packed_operator import NAME
from .engine import OPERATOR_LIBRARY, missing


def register():
    """Register the operator, once per process."""
    if hasattr(mx.nd, NAME):
        return
    mx.nd.CachedOp = _CachedOp
    if not compiled():
        from . import numpy_operator

        numpy_operator.register()
        return
    # mx.library.load would regenerate the functions of all operators, which takes as long as everything else here.
    check_call(_LIB.MXLoadLib(c_str(str(OPERATOR_LIBRARY)), mx_uint(0)))
    handle = OpHandle()
    check_call(_LIB.NNGetOpHandle(c_str(NAME), ctypes.byref(handle)))
    for module, make in ((mx.nd, _make_ndarray_function), (mx.sym, _make_symbol_function)):
        function = make(handle, NAME, NAME)
        function.__module__ = module.__name__
        for place in (module, sys.modules[module.__name__ + '.op']):
            setattr(place, NAME, function)


class _CachedOp(mx.nd._internal.CachedOp):
    """CachedOp of a hybridized block with packed operators that rejects arrays without axes or elements; for others, MXNet's CachedOp.

    In MXNet a size of 0 and a rank of 0 mean unknown. MXNet then does not infer shapes, and for an unknown rank writes past the end of a
    buffer before it calls the extension operator, so the operator cannot reject such arrays.
    """

    __slots__ = []

    def __new__(cls, sym, flags=()):
        return super().__new__(cls) if NAME in sym.tojson() else mx.nd._internal.CachedOp(sym, flags)

    def __call__(self, *args, **kwargs):
        for array in args:
            if not array.shape or 0 in array.shape:
                raise UserError(
                    f'{NAME}: an input has the shape {array.shape}; (batch, channels, height, width) or (batch, channels) is needed, '
                    'with a batch of 1 or more'
                )
        return super().__call__(*args, **kwargs)


def compiled():
    """Return whether MXNet runs the compiled operator."""
    return not missing() and OPERATOR_LIBRARY.exists()
