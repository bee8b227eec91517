"""Marks on graph nodes: what a layer tells the tools that read a graph (counting, checking, conversion).

A layer wraps the one call that creates its anchor node in ``with mark(ROLE, ...):``. Marks are ordinary node attributes of the form
``__bmx_*__``; they survive export and import and mean nothing to MXNet itself, so a marked graph runs anywhere.

==================  =====================================================  ============================================================
role                anchor node                                            facts
==================  =====================================================  ============================================================
activation_input    first node of a quantized activation; input 0 is x     none
activation          last node of a quantized activation                    method, bits, sign, encoding (``sign`` or ``bit``), threshold
convolution_input   node that moves a convolution's input to its padding   pad_value
convolution         the Convolution node of a quantized convolution        bits, method, sign, encoding, pad_value, offset
dense               the FullyConnected node of a quantized dense layer     bits, method, sign, encoding, offset
==================  =====================================================  ============================================================

The weight of ``convolution`` and ``dense`` is the only variable above the anchor's input 1; its ``method`` and ``bits`` say how it is
quantized there, and ``sign`` whether that rounds to the sign: 1 or 0.
"""

from typing import Dict, Mapping

import mxnet as mx

ROLE = 'role'
ACTIVATION_INPUT = 'activation_input'
ACTIVATION = 'activation'
CONVOLUTION_INPUT = 'convolution_input'
CONVOLUTION = 'convolution'
DENSE = 'dense'

_SIGN_METHODS = ('sign', 'approx_sign')  # of networks without the fact ``sign``


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


def is_sign(facts: Mapping[str, str]) -> bool:
    """Whether the facts of a mark, as `read_marks` gives them, name a quantizer that rounds to the sign.

    Networks that were exported before marks said so are known by the methods and bits that did then.
    """
    if 'sign' in facts:
        return facts['sign'] == '1'
    return facts.get('bits') == '1' and facts.get('method') in _SIGN_METHODS
