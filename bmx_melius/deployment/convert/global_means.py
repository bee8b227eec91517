"""Global means of sums, computed as sums of the means of what is added up.

A gate of BNext is computed from the mean of a map that nothing else reads, a sum of scaled maps which other operations read, too:

    mean(s x + t + y) = s mean(x) + t + mean(y)       mean(g x) = g mean(x), for factors g of channels

The means are those of maps that exist anyway, and the map of the sum is never made. Its mean is rounded differently.
"""

import collections

from ..program.by_operation import ByOperation
from ..program.operation_table import PADDING
from .rewriting import Rewriting

_POINTS = ('global', 'map')  # shapes of results that are maps of one pixel
_SUMMANDS = ByOperation()  # (operation, numbers of maps of one pixel) -> the maps of whose means that of the result consists


def with_means_of_summands(program):
    """Return the program with global means of sums computed from those of their summands, where no further map has to be made for this.

    Parameters
    ----------
    program : Program

    Returns
    -------
    program : Program
    number_of : dict of int to int
        Old number -> new number of each remaining value.
    """
    return Rewriting(program).run({'global_avg_pool': _Means(program).mean_of})[:2]


class _Means:
    """The means of the values of a program."""

    def __init__(self, program):
        self._first = len(program.inputs)
        self._operations = dict(enumerate(program.operations, self._first))
        self._reads = collections.Counter(source for operation in program.operations for source in operation.inputs)
        self._reads.update(program.outputs)
        self._made = {}  # number in the old program -> number of the mean in the new one
        points, self._summands = set(), dict.fromkeys(range(self._first), ())
        for number, operation in self._operations.items():
            same = operation.row.elementwise or _reads_single_pixels(operation)
            if operation.row.shape in _POINTS or same and points.issuperset(operation.inputs):
                points.add(number)
            rule = _SUMMANDS.get(operation.name)
            self._summands[number] = rule(operation, points) if rule else ()

    def mean_of(self, rewriting, _, operation, __):
        """Add the mean that the operation computes; return its number. A rule of `Rewriting`."""
        (x,) = operation.inputs
        maps = self._maps_of(x, self._known_before(x))
        if any(self._reads[number] == reads for number, reads in maps.items() if number >= self._first):
            maps = collections.Counter([x])  # a map that the sum alone reads is made in one step with it
        for number in maps:
            if number not in self._made:
                self._made[number] = rewriting.copy(operation, [rewriting.number_of[number]])
        for number in self._walk(x, self._unmade_summands):
            if number not in self._made:
                of_value, summands = self._operations[number], self._summands[number]
                means = [self._made[source] for source in summands]
                factors = [rewriting.number_of[source] for source in of_value.inputs[len(summands) :]]
                self._made[number] = rewriting.copy(of_value, [*means, *factors])
        return self._made[x]

    def _unmade_summands(self, number):
        return () if number in self._made else self._summands[number]

    @staticmethod
    def _walk(x, before):
        """Return value `x` and all before it, as a function of a number tells: each once and ascending, so that sources come first."""
        found, waiting = set(), [x]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting.extend(before(number))
        return sorted(found)

    def _known_before(self, x):
        """Return the values, of those that `x` sums up, whose mean has been made or follows from means that have been."""
        known = set()
        for number in self._walk(x, self._unmade_summands):
            summands = self._summands[number]
            if number in self._made or summands and known.issuperset(summands):
                known.add(number)
        return known

    def _maps_of(self, x, known):
        """Return how often the sum `x` reads each map whose mean has to be made: none if its mean is known."""

        def added(number):
            """The summands of a sum that has no other reader."""
            return self._summands[number] if self._reads[number] == 1 and number not in known else ()

        ends = [source for number in self._walk(x, added) for source in added(number) if source not in known and not added(source)]
        return collections.Counter(ends if added(x) or x in known else [x])


def _reads_single_pixels(operation):
    """Return whether each pixel of the result of an operation is computed from one pixel at the same place."""
    geometry = operation.attributes
    return geometry.get('kernel_h') == geometry.get('kernel_w') == 1 and not any(geometry[side] for side in PADDING)


@_SUMMANDS.of('affine', 'add')
def _all_inputs(operation, _):
    return operation.inputs


@_SUMMANDS.of('multiply')
def _first_factor(operation, points):
    return operation.inputs[:1] if operation.inputs[1] in points else ()
