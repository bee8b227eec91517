"""Makes the operator ``bmx_melius_packed`` known to MXNet: the compiled one, or one in NumPy where it has not been compiled."""

import ctypes
import sys

import mxnet as mx
from mxnet.base import _LIB, OpHandle, c_str, check_call, mx_uint
from mxnet.ndarray.register import _make_ndarray_function
from mxnet.symbol.register import _make_symbol_function

from ..program.packed_operator import NAME
from . import numpy_operator
from .engine import OPERATOR_LIBRARY, missing


def register():
    """Register the operator, once a process."""
    if hasattr(mx.nd, NAME):
        return
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


def compiled():
    """Whether MXNet runs the compiled operator."""
    return not missing() and OPERATOR_LIBRARY.exists()
