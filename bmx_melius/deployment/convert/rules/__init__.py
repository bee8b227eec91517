"""Conversion rules, one for each supported MXNet operator; see `bmx_melius.deployment.convert.lowering`."""

from . import activations, arithmetic, layers, moves
from .binary import inputs_meant_as_signs, quantized_activation
from .table import RULES
