"""New programs from old ones, operation by operation, by rules for some operations."""

import dataclasses

from ..program.operations import Operation
from ..program.program import Program


class Rewriting:
    """Builder of a program from an old one, with facts about the values of the old program.

    Attributes
    ----------
    old : Program
    operations : list of Operation
        Of the new program, so far.
    number_of : dict of int to int
        Number in the old program -> number in the new one.
    known : dict of int to object
        Number in the old program -> a fact about the value, which a rule has added.
    """

    def __init__(self, program):
        self.old, self.operations = program, []
        self.number_of = {number: number for number in range(len(program.inputs))}
        self.known = {}

    def emit(self, name, inputs, attributes=None, arrays=None):
        """Add an operation; return the number of its result."""
        self.operations.append(Operation(name, tuple(inputs), attributes or {}, arrays or {}))
        return len(self.old.inputs) + len(self.operations) - 1

    def copy(self, operation, inputs):
        """Add an operation on other inputs; return the number of its result."""
        return self.emit(operation.name, inputs, operation.attributes, operation.arrays)

    def run(self, rules):
        """Add all operations, those of `rules` by these, and drop what nothing reads.

        Parameters
        ----------
        rules : dict of str to callable
            Functions by the name of the operation: (rewriting, old number, operation, what is known of its inputs or None) -> number of the
            result, which `emit` or `copy` returned, or None for the operation as it was. They may add to `known`.

        Returns
        -------
        program : Program
        number_of : dict of int to int
            Old number -> number of each remaining value.
        final : dict of int to int
            Number that `emit` returned -> number of each remaining value.
        """
        first = len(self.old.inputs)
        for number, operation in enumerate(self.old.operations, first):
            rule, inputs = rules.get(operation.name), [self.known.get(source) for source in operation.inputs]
            made = rule(self, number, operation, inputs) if rule else None
            if made is None:
                made = self.copy(operation, [self.number_of[source] for source in operation.inputs])
            self.number_of[number] = made
        return _without_dead(self.old.inputs, self.operations, [self.number_of[number] for number in self.old.outputs], self.number_of)


def _without_dead(inputs, operations, outputs, number_of):
    """Return what `Rewriting.run` does: the program of the operations on which outputs depend, and the numbers of its values."""
    read, kept, first = set(outputs), [], len(inputs)
    for number, operation in reversed(list(enumerate(operations, first))):
        if number in read:
            read.update(operation.inputs)
            kept.append((number, operation))
    final = {number: number for number in range(first)}
    final.update({number: first + position for position, (number, _) in enumerate(kept[::-1])})
    operations = [dataclasses.replace(each, inputs=tuple(final[source] for source in each.inputs)) for _, each in kept[::-1]]
    program = Program(inputs, operations, [final[number] for number in outputs])
    return program, {old: final[new] for old, new in number_of.items() if new in final}, final
