"""Marks on graph nodes: what a layer tells the tools that read a graph (counting, checking, conversion).

A layer wraps the one call that creates its anchor node in ``with mark(ROLE, ...):``. Marks are ordinary node attributes of the form
``__bmx_*__``; they survive export and import and mean nothing to MXNet itself, so a marked graph runs anywhere.

==================  =====================================================  ===================================================
role                anchor node                                            facts
==================  =====================================================  ===================================================
activation_input    first node of a quantized activation; input 0 is x     none
activation          last node of a quantized activation                    method, bits, encoding (``sign`` or ``bit``), threshold
convolution_input   node that moves a convolution's input to its padding   pad_value
convolution         the Convolution node of a quantized convolution        bits, method, encoding, pad_value, offset
dense               the FullyConnected node of a quantized dense layer     bits, method, encoding, offset
==================  =====================================================  ===================================================

The weight of ``convolution`` and ``dense`` is the only variable above the anchor's input 1; its ``method`` and ``bits`` say how it is
quantized there.
"""

from typing import Dict, Mapping

import mxnet as mx

ROLE = 'role'
ACTIVATION_INPUT = 'activation_input'
ACTIVATION = 'activation'
CONVOLUTION_INPUT = 'convolution_input'
CONVOLUTION = 'convolution'
DENSE = 'dense'


def key(name: str) -> str:
    """Return the node attribute that holds the fact `name`."""
    return f'__bmx_{name}__'


def mark(role: str, **facts: object) -> mx.AttrScope:
    """Return a scope in which created nodes carry `role` and `facts` (names to values; values are written with str)."""
    return mx.AttrScope(**{key(ROLE): role}, **{key(name): str(value) for name, value in facts.items()})


def read_marks(attributes: Mapping[str, str]) -> Dict[str, str]:
    """Return the marks among a node's attributes as a dict of fact name to str; empty for an unmarked node."""
    prefix, suffix = key('|').split('|')
    return {k[len(prefix) : -len(suffix)]: v for k, v in attributes.items() if k.startswith(prefix) and k.endswith(suffix)}
