"""Conversion rules, one for each supported MXNet operator; see `bmx_melius.deployment.convert.lowering`."""

from . import activations, arithmetic, axis_maps, layers, moves, normalization, resizing
from .binary import inputs_meant_as_signs
from .table import MARKED_RULES, RULES, TAKES_3D, missing_rule
