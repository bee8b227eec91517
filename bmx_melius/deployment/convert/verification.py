"""Verification of converted programs against the framework of the network, by the interpreter and by the engine of this machine.

The results of a whole network cannot be compared: if a value is close to a threshold, the order of summation decides its sign and so
everything after it. So the interpreter evaluates each operation on the framework's values of its inputs. Bits and the integer results of
binary layers must then be equal, floats equal within a tolerance. The engine runs the program as a whole, with its own choice of kernels
and fused steps, but reads the framework's values where rounding errors would change what follows: before thresholds, rounding to integers,
and float layers.
"""

import dataclasses

import numpy as np

from ...errors import UserError
from ...reporting import ProgressLine
from ..program.operation_table import BITS_KIND
from ..program.program import Program
from ..program.reference import apply
from ..runtime import engine
from .builder import is_3d, map_shape

HALF_TOLERANCE = 5e-3  # float16 has 11 significant bits

_AT_THRESHOLD = 0.01  # share of signs that rounding errors may change


class VerificationError(UserError):
    """The results of a program differ from the results of the framework."""


@dataclasses.dataclass
class Verification:
    """Result of a verification.

    Attributes
    ----------
    framework : str
        With which the programs were compared.
    binary_layers : int
        Number of binary layers compared; their results are equal.
    bits, integers, floats : int
        Number of values compared: of sign activations, of binary layers and of other operations.
    largest_deviation : float
        Largest difference of a float, as a fraction of the largest value that the operation computes or adds.
    deviating_node : str or None
        Name of the node with that difference.
    deviations : dict of str to float
        That difference for each node, in the order of computation.
    engine : str or None
        Instruction set with which the engine computed the same sample; None if it has not been compiled, '' if it was not compared. The
        attributes above are the results of the interpreter.
    engine_values : int
        Number of values of the engine compared.
    engine_deviation : float
        Largest difference of a float of the engine, as a fraction like `largest_deviation`.
    """

    framework: str = 'MXNet'
    binary_layers: int = 0
    bits: int = 0
    integers: int = 0
    floats: int = 0
    largest_deviation: float = 0.0
    deviating_node: 'str | None' = None
    deviations: dict = dataclasses.field(default_factory=dict)
    engine: 'str | None' = None
    engine_values: int = 0
    engine_deviation: float = 0.0


def verify(network, lowered, inputs, half=False):
    """Compare programs with the framework of the network on sample inputs.

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
        If values of a node differ, or are not finite in the framework and so cannot be compared; the message names the node.
    """
    # A part after an operator that is left out may read what the framework does not compute: it cannot be compared.
    lowered = [part for part in lowered if all(map(network.has_value, part.inputs))]
    entries = list(dict.fromkeys(entry for part in lowered for entry in part.origins.values() if network.has_value(entry)))
    values = dict(zip(entries, network.compute(entries, inputs)))
    result = Verification(network.framework, engine=engine.instruction_sets()[0])
    _require_finite(values, result)
    tolerance = HALF_TOLERANCE if half else network.tolerance
    with ProgressLine(total=sum(len(part.program.operations) for part in lowered), description='verifying', unit='operations') as line:
        for part in lowered:
            known = _verify_program(part, values, network.computes_sums_exactly, result, tolerance, line)
            if result.engine:
                _verify_engine(part, known, result, tolerance)
    return result


def _verify_program(lowered, values, exact_sums, result, tolerance, line):
    """Compare the interpreter with the framework; return the value of each number: the framework's, or computed where it has none.

    `exact_sums` is whether the results of binary layers must be equal.
    """
    first = len(lowered.program.inputs)
    kinds = lowered.program.values()
    known = {number: _as_map(values[lowered.inputs[number]], by_depth=False) for number in range(first)}
    for number, operation in enumerate(lowered.program.operations, first):
        computed = apply(operation, [known[source] for source in operation.inputs])
        known[number] = computed
        line.update()
        entry = lowered.origins.get(number)
        if entry not in values:
            continue
        expected = _as_map(values[entry])
        if kinds[number].kind == BITS_KIND:
            expected = np.concatenate([expected > midpoint for midpoint in lowered.midpoints.get(number, [0])], axis=1)  # 0: of signs
        elif number in lowered.midpoints:
            expected = sum((expected > midpoint).astype(np.float32) for midpoint in lowered.midpoints[number])
        _require_shape(entry.node, computed, expected)
        if kinds[number].kind == BITS_KIND or number in lowered.midpoints:
            _require_equal(entry.node, computed, expected, result)
            result.bits += expected.size
        elif operation.row.products == 'binary' or is_3d(entry.node.shape) and entry.node in lowered.binary_layers:
            result.integers += expected.size
            result.binary_layers += 1
            if not exact_sums:
                _compare_floats(entry.node, computed, expected, _scale(operation, expected), result, tolerance)
                continue
            _require_equal(entry.node, computed, expected, result)
        else:
            scale = _scale(operation, expected)
            if operation.row.reduces == 'mean':  # of numbers that cancel out, it has the rounding errors of these numbers
                scale = max(scale, float(apply(operation, [np.abs(known[source]) for source in operation.inputs]).max()))
            _compare_floats(entry.node, computed, expected, scale, result, tolerance)
        known[number] = expected
    return known


def _verify_engine(lowered, known, result, tolerance):
    """Compare the engine with the values `known`, from which its inputs are taken as well."""
    program, sources, compared, exact = _restarted(lowered.program)
    if not compared:
        return
    runner = engine.Runner(program, program.to_words())
    computed = runner.run([np.ascontiguousarray(known[number], np.float32) for number in sources])
    first = len(lowered.program.inputs)
    magnitudes = _magnitudes(lowered.program, known, exact)
    for number, values in zip(compared, computed):
        expected, entry = known[number], lowered.origins.get(number)
        place = f'node {entry.node.name}' if entry else f'operation {number - first} ({lowered.program.operations[number - first].name})'
        if number in exact:
            wrong = int((values != expected).sum())
            deviation = f'{wrong} of {expected.size} values differ from {result.framework}' if wrong else ''
        else:
            largest = float(np.abs(values.astype(np.float64) - expected).max() / magnitudes[number])
            deviation = '' if largest <= tolerance else f'values differ from {result.framework} by {largest:.1e} of the largest one'
            result.engine_deviation = max(result.engine_deviation, largest)
        if deviation:
            raise VerificationError(
                f'{place}: in the engine ({result.engine}) {deviation}, in the interpreter they do not; nothing was written: '
                'run `bmx-melius info --self-test`, which shows whether the engine is correct on this processor'
            )
        result.engine_values += expected.size
    _require_distance_from_thresholds(lowered, known, dict(zip(compared, computed)), result)


def _require_distance_from_thresholds(lowered, known, computed, result):
    """Refuse signs of values of few levels one of which is the threshold: rounding errors within the tolerance decide all of them."""
    for number, operation in enumerate(lowered.program.operations, len(lowered.program.inputs)):
        (source, *_), entry = operation.inputs, lowered.origins.get(number)
        if not operation.row.compares or source not in computed:
            continue
        wrong = int((apply(operation, [computed[source]]) != apply(operation, [known[source]])).sum())
        if wrong > _AT_THRESHOLD * known[source].size:
            place = f'node {entry.node.name}' if entry else 'a sign'
            raise VerificationError(
                f'{place}: {wrong} of {known[source].size} signs of the sample belong to numbers at their threshold, where the rounding '
                f'of {result.framework} decides; nothing was written. A normalization or a bias before the sign takes the numbers away '
                'from it; without verification (--no-verify, verify=False) the network is packed, and its own rounding decides'
            )


def _restarted(program):
    """Return a program that reads known values where rounding errors would change what follows, and outputs what it computes for them.

    Returns
    -------
    program : Program
    sources : list of int
        The numbers in the given program of the inputs of that program.
    compared : list of int
        The numbers of its outputs.
    exact : set of int
        The numbers of values without rounding errors.
    """
    first, values = len(program.inputs), program.values()
    exact = set(range(first))
    for number, operation in enumerate(program.operations, first):
        if operation.row.is_exact or operation.row.rounds == 'never' and exact.issuperset(operation.inputs):
            exact.add(number)
    readers = [operation for operation in program.operations if operation.row.amplifies]
    restarts = sorted({source for operation in readers for source in operation.inputs} - exact)
    sources = [*range(first), *restarts]
    compared = sorted(number for number in {*restarts, *program.outputs} if number >= first)
    number_of = {number: number + len(restarts) for number in range(first, len(values))}
    number_of.update({number: number for number in range(first)})
    known = {number: position for position, number in enumerate(sources)}
    operations = [
        dataclasses.replace(
            operation,
            inputs=tuple(
                known.get(source, number_of[source]) if operation.row.amplifies else number_of[source] for source in operation.inputs
            ),
        )
        for operation in program.operations
    ]
    restarted = Program([values[number] for number in sources], operations, [number_of[number] for number in compared])
    return restarted, sources, compared, exact


def _magnitudes(program, known, exact):
    """Return for each value with rounding errors the largest magnitude among it and those from which it inherits errors."""
    first, magnitudes = len(program.inputs), {}
    for number, operation in enumerate(program.operations, first):
        if number not in exact:
            inherited = [magnitudes[source] for source in operation.inputs if source in magnitudes and not operation.row.amplifies]
            magnitudes[number] = max([_scale(operation, known[number]), *inherited])
    return magnitudes


def _as_map(array, by_depth=True):
    """Return an array of the network as a program has it; with `by_depth`, the channels of a 3-D map are ordered by depth."""
    if array.ndim == 2:
        return array
    shape = map_shape(array.shape)
    return (array.swapaxes(1, 2) if by_depth and is_3d(array.shape) else array).reshape(len(array), *shape)


def _require_finite(values, result):
    for entry in sorted(values, key=lambda entry: (entry.node.index, entry.slot)):  # the first such node is the cause of the others
        array = values[entry]
        wrong = int((~np.isfinite(array)).sum())
        if wrong:
            raise VerificationError(
                f'node {entry.node.name}: {wrong} of {array.size} values are not finite in {result.framework} and cannot be compared: '
                'parameters there or before it are damaged or too large; nothing was written (convert without verification to pack it)'
            )


def _require_shape(node, computed, expected):
    if computed.shape != expected.shape:
        raise VerificationError(f'node {node.name} has the shape {expected.shape}, its packed form {computed.shape}; nothing was written')


def _require_equal(node, computed, expected, result):
    wrong = int((computed != expected).sum())
    if wrong:
        raise VerificationError(f'node {node.name}: {wrong} of {expected.size} values differ from {result.framework}; nothing was written')


def _compare_floats(node, computed, expected, scale, result, tolerance):
    result.floats += expected.size
    deviation = float(np.abs(computed.astype(np.float64) - expected).max() / scale)
    if not deviation <= tolerance:  # written this way because a deviation may be NaN
        raise VerificationError(
            f'node {node.name}: values differ from {result.framework} by {deviation:.1e} of the largest one; nothing was written'
        )
    result.deviations[node.name] = deviation
    if deviation >= result.largest_deviation:
        result.largest_deviation, result.deviating_node = deviation, node.name


def _scale(operation, expected):
    """Return the largest value that an operation computes or adds."""
    added = max((np.abs(operation.arrays[name]).max() for name in ('shift', 'bias') if name in operation.arrays), default=0)
    return max(float(np.abs(expected).max()) + float(added), float(np.finfo(np.float32).tiny))
