"""What this package requires: importing this module raises a `ModuleNotFoundError` that says what to do where MXNet is not installed."""

from bmx_melius.process import require_mxnet

require_mxnet(__package__)
