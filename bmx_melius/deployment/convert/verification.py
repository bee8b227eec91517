"""Does a program compute what MXNet computes? Operation by operation, each on MXNet's own values.

A whole network cannot be compared: where a value is close to a threshold, the order of a sum decides its sign, and everything after it.
So each operation gets the values MXNet has for its inputs. Bits and what binary layers count must then be equal, numbers nearly so.
"""

import dataclasses

import numpy as np

from ...errors import UserError
from ..program.operations import BITS_KIND
from ..program.reference import apply
from .partition import is_binary_layer

TOLERANCE = 1e-4  # of the largest value an operation makes or adds
HALF_TOLERANCE = 5e-3  # float16 has 11 binary digits


class VerificationError(UserError):
    """A program does not compute what MXNet does."""


@dataclasses.dataclass
class Verification:
    """What was compared, and how well it agreed.

    Attributes
    ----------
    binary_layers : int
        Layers whose results were equal.
    bits, integers, floats : int
        How many values of activations, of binary layers and of other operations were compared.
    largest_deviation : float
        Of the numbers, as a fraction of the largest number that the operation makes or adds.
    deviating_node : str or None
        Where that is.
    """

    binary_layers: int = 0
    bits: int = 0
    integers: int = 0
    floats: int = 0
    largest_deviation: float = 0.0
    deviating_node: 'str | None' = None


def verify(network, lowered, inputs, half=False):
    """Compare programs with MXNet on a sample.

    Parameters
    ----------
    network : Network
    lowered : list of Lowered
    inputs : dict of str to numpy.ndarray
    half : bool
        Whether weights were stored as float16.

    Returns
    -------
    Verification

    Raises
    ------
    VerificationError
        Naming the node whose values differ, or are not finite in MXNet: those cannot be compared.
    """
    entries = list(dict.fromkeys(entry for part in lowered for entry in part.origins.values()))
    values = dict(zip(entries, network.compute(entries, inputs)))
    _require_finite(values)
    result = Verification()
    for part in lowered:
        _verify_program(network, part, values, result, HALF_TOLERANCE if half else TOLERANCE)
    return result


def _verify_program(network, lowered, values, result, tolerance):
    first = len(lowered.program.inputs)
    kinds = lowered.program.values()
    known = {number: values[lowered.inputs[number]] for number in range(first)}
    for number, operation in enumerate(lowered.program.operations, first):
        computed = apply(operation, [known[source] for source in operation.inputs])
        known[number] = computed
        entry = lowered.origins.get(number)
        if entry is None:
            continue
        expected = values[entry]
        if kinds[number].kind == BITS_KIND:
            expected = expected > 0  # of {-1, 1} or {0, 1}
            _require_equal(entry.node, computed, expected)
            result.bits += expected.size
        elif operation.name == 'binary_conv':
            _require_equal(entry.node, computed, expected)
            result.integers += expected.size
            result.binary_layers += is_binary_layer(entry.node)
        else:
            _compare_floats(entry.node, operation, computed, expected, result, tolerance)
        known[number] = expected


def _require_finite(values):
    for entry in sorted(values, key=lambda entry: (entry.node.index, entry.slot)):  # the first one is the cause of the others
        array = values[entry]
        wrong = int((~np.isfinite(array)).sum())
        if wrong:
            raise VerificationError(
                f'node {entry.node.name}: {wrong} of {array.size} values are not finite in MXNet, so that they cannot be compared: '
                'parameters there or before it are damaged or too large; nothing was written (convert without verification to pack it)'
            )


def _require_equal(node, computed, expected):
    wrong = int((computed != expected).sum())
    if wrong:
        raise VerificationError(f'node {node.name}: {wrong} of {expected.size} values differ from those of MXNet; nothing was written')


def _compare_floats(node, operation, computed, expected, result, tolerance):
    result.floats += expected.size
    added = max((np.abs(operation.arrays[name]).max() for name in ('shift', 'bias') if name in operation.arrays), default=0)
    scale = max(float(np.abs(expected).max()) + float(added), float(np.finfo(np.float32).tiny))
    deviation = float(np.abs(computed.astype(np.float64) - expected).max() / scale)
    if not deviation <= tolerance:  # it is NaN where an operation gives NaN
        raise VerificationError(
            f'node {node.name}: values differ from those of MXNet by {deviation:.1e} of the largest one; nothing was written'
        )
    if deviation >= result.largest_deviation:
        result.largest_deviation, result.deviating_node = deviation, node.name
