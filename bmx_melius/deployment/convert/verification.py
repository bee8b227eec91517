"""Verification of converted programs against MXNet, one operation at a time.

The results of a whole network cannot be compared: if a value is close to a threshold, the order of summation decides its sign and so
everything after it. So each operation is evaluated on the values that MXNet computes for its inputs. Bits and the integer results of
binary layers must then be equal, floats equal within a tolerance.
"""

import dataclasses

import numpy as np

from ...errors import UserError
from ..program.operations import BITS_KIND
from ..program.reference import apply
from .builder import is_volume, map_shape

TOLERANCE = 1e-4  # relative to the largest value that an operation computes or adds
HALF_TOLERANCE = 5e-3  # float16 has 11 significant bits


class VerificationError(UserError):
    """The results of a program differ from those of MXNet."""


@dataclasses.dataclass
class Verification:
    """Result of a verification.

    Attributes
    ----------
    binary_layers : int
        Number of binary layers compared; their results are equal.
    bits, integers, floats : int
        Number of values compared: of sign activations, of binary layers and of other operations.
    largest_deviation : float
        Largest difference of a float, as a fraction of the largest value that the operation computes or adds.
    deviating_node : str or None
        Name of the node with that difference.
    """

    binary_layers: int = 0
    bits: int = 0
    integers: int = 0
    floats: int = 0
    largest_deviation: float = 0.0
    deviating_node: 'str | None' = None


def verify(network, lowered, inputs, half=False):
    """Compare programs with MXNet on sample inputs.

    Parameters
    ----------
    network : Network
    lowered : list of Lowered
    inputs : dict of str to numpy.ndarray
    half : bool
        Whether weights are stored in float16.

    Returns
    -------
    Verification

    Raises
    ------
    VerificationError
        If values of a node differ, or are not finite in MXNet and so cannot be compared; the message names the node.
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
    known = {number: _as_map(values[lowered.inputs[number]], by_depth=False) for number in range(first)}
    for number, operation in enumerate(lowered.program.operations, first):
        computed = apply(operation, [known[source] for source in operation.inputs])
        known[number] = computed
        entry = lowered.origins.get(number)
        if entry is None:
            continue
        expected = _as_map(values[entry])
        if kinds[number].kind == BITS_KIND:
            expected = np.concatenate([expected > middle for middle in lowered.middles.get(number, [0])], axis=1)  # 0: of signs
            _require_equal(entry.node, computed, expected)
            result.bits += expected.size
        elif operation.name == 'binary_conv' or is_volume(entry.node.shape) and entry.node in lowered.binary_layers:
            _require_equal(entry.node, computed, expected)
            result.integers += expected.size
            result.binary_layers += 1
        else:
            _compare_floats(entry.node, operation, computed, expected, result, tolerance)
        known[number] = expected


def _as_map(array, by_depth=True):
    """Return an array of the network as a program has it; the channels of a map with three axes are those of each depth if `by_depth`."""
    if array.ndim == 2:
        return array
    shape = map_shape(array.shape)
    return (array.swapaxes(1, 2) if by_depth and is_volume(array.shape) else array).reshape(len(array), *shape)


def _require_finite(values):
    for entry in sorted(values, key=lambda entry: (entry.node.index, entry.slot)):  # the first such node is the cause of the others
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
    if not deviation <= tolerance:  # written this way because a deviation may be NaN
        raise VerificationError(
            f'node {node.name}: values differ from those of MXNet by {deviation:.1e} of the largest one; nothing was written'
        )
    if deviation >= result.largest_deviation:
        result.largest_deviation, result.deviating_node = deviation, node.name
