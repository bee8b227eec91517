"""Programs that ask for much with few words, written word by word: `Program.to_words` would refuse some of them."""

import numpy as np

from bmx_melius.deployment.program.operations import OPERATIONS, Operation, array_shapes
from bmx_melius.deployment.program.words import MAGIC, VERSION, checksum_of


def words_of(inputs, records, outputs):
    """The words of a program.

    Parameters
    ----------
    inputs : list of (rank, channels, height, width)
    records : list of numpy.ndarray
        Of the operations, as `record` makes them.
    outputs : list of int
    """
    body = [len(inputs), len(records), len(outputs), 0, *(number for one in inputs for number in one)]
    rest = np.concatenate([np.array(body, np.int32), *records, np.array(outputs, np.int32)])
    return np.concatenate([np.array([MAGIC, VERSION, len(rest) + 4, checksum_of(rest)], np.int32), rest])


def record(name, inputs, array_words=0, **attributes):
    """The words of an operation: attributes that are not named do nothing special, its arrays are `array_words` zeros."""
    rule = OPERATIONS[name]
    plain = {attribute: max(low, 0) for attribute, (low, _) in rule.attributes.items()}
    assert set(attributes) <= set(plain)
    attributes = {**plain, **attributes}
    body = [*inputs, *attributes.values()]
    array_words += len(array_shapes(Operation(name, (), attributes), 1))  # their numbers, 0 as well
    return np.array([rule.opcode, 3 + len(body) + array_words, len(inputs), *body, *[0] * array_words], np.int32)


def chain(operations):
    """One relu after the other, on maps of 2 x 2."""
    return words_of([(4, 1, 2, 2)], [record('relu', [number]) for number in range(operations)], [operations])


def concatenations(slices, count, operands):
    """Slices of a value joined in reverse order, and that joined again and again."""
    records = [record('slice', [0], begin=slices - 1 - i, end=slices - i) for i in range(slices)]
    records.append(record('concat', range(1, slices + 1)))
    records += [record('concat', [slices + 1] * operands) for _ in range(count)]
    return words_of([(4, slices, 1, 1)], records, [len(records)])


def sums(count, side):
    """Values that all live until they are added up: much memory for each word."""
    records = [record('add', [0, 0])] + [record('add', [number, 0]) for number in range(1, count)]
    records += [record('add', [count + number, 1 + number]) for number in range(count - 1)]
    return words_of([(4, 64, side, side)], records, [len(records)])
