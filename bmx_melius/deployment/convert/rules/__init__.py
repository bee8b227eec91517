"""Conversion rules, one for each class of operations, or kind of it, that can be packed; see `bmx_melius.deployment.convert.lowering`."""

from . import activations, arithmetic, axis_maps, layers, moves, normalization, resizing, selections, sequences
from .binary import inputs_meant_as_signs
from .table import MARKED_RULES, TAKES_3D, missing_rule, rule_of
