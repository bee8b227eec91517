"""Marks: node attributes by which layers describe themselves to the tools that read a graph (counting, checking, conversion).

A layer wraps the one call that creates its anchor node in ``with mark(ROLE, ...):``. Marks are ordinary node attributes of the form
``__bmx_*__``. They survive export and import, and MXNet ignores them, so a marked graph runs on any MXNet.

==================  =====================================================  ============================================================
role                anchor node                                            facts
==================  =====================================================  ============================================================
activation_input    first node of a quantized activation; input 0 is x     none
activation          last node of a quantized activation                    method, bits, sign, encoding (``sign`` or ``bit``), threshold
float_activation    nodes of a quantizer of activations with 32 bits       none
convolution_input   node that subtracts the padding value from the input   pad_value
convolution         the Convolution node of a quantized convolution        bits, method, sign, encoding, pad_value, offset
dense               the FullyConnected node of a quantized dense layer     bits, method, sign, encoding, offset
scale               BatchNorm that multiplies channels by input 1          none
shift               BatchNorm that adds input 2 to channels                none
prelu               sum of relu(x), whose input 0 is x, or a ``scale`` of  none
                    it, and a ``scale`` of min(x, 0) by the slopes
repetition_input    node whose input 0 is the value that is repeated       none
repetition          last node of a repetition along some axes              none
mean_input          node whose input 0 is the value that is averaged       none
mean                last node of a mean                                    over (``channels`` or ``positions``)
==================  =====================================================  ============================================================

The weight of ``convolution`` and ``dense`` is the largest of the variables from which input 1 of the anchor node is computed; others are
float scales. ``method`` and ``bits`` are its quantizer. ``sign`` is 1 if the quantizer rounds to the sign, else 0. The optional fact
``stored_bits`` is the number of bits per value of the variable if several quantized weights are computed from it.
"""

from typing import TYPE_CHECKING, Dict, Mapping

if TYPE_CHECKING:
    import mxnet as mx

ROLE = 'role'
ACTIVATION_INPUT = 'activation_input'
ACTIVATION = 'activation'
FLOAT_ACTIVATION = 'float_activation'
CONVOLUTION_INPUT = 'convolution_input'
CONVOLUTION = 'convolution'
DENSE = 'dense'
SCALE = 'scale'
SHIFT = 'shift'
PRELU = 'prelu'
REPETITION_INPUT = 'repetition_input'
REPETITION = 'repetition'
MEAN_INPUT = 'mean_input'
MEAN = 'mean'


def key(name: str) -> str:
    """Return the node attribute that holds the fact `name`."""
    return f'__bmx_{name}__'


def mark(role: str, **facts: object) -> 'mx.AttrScope':
    """Return a scope that marks the nodes created in it with `role` and `facts` (names and values; values are converted by str)."""
    import mxnet as mx  # not above: marks of ONNX models are read without MXNet

    return mx.AttrScope(**{key(ROLE): role}, **{key(name): str(value) for name, value in facts.items()})


def read_marks(attributes: Mapping[str, str]) -> Dict[str, str]:
    """Return the marks among the attributes of a node, a dict of fact names to str; empty for an unmarked node."""
    prefix, suffix = key('|').split('|')
    return {k[len(prefix) : -len(suffix)]: v for k, v in attributes.items() if k.startswith(prefix) and k.endswith(suffix)}


def is_sign(facts: Mapping[str, str]) -> bool:
    """Return whether the quantizer in the facts of a mark, as returned by `read_marks`, rounds to the sign."""
    return facts.get('sign') == '1'
