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
_SUMMANDS = ByOperation()  # (operation, numbers of maps of one pixel) -> the maps of which the result is the sum, or a multiple


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
        first = len(program.inputs)
        self._operations = dict(enumerate(program.operations, first))
        self._reads = collections.Counter(source for operation in program.operations for source in operation.inputs)
        self._reads.update(program.outputs)
        self._made = {}  # number in the old program -> number of the mean in the new one
        self._points = set()
        for number, operation in self._operations.items():
            same = operation.row.elementwise or _reads_single_pixels(operation)
            if operation.row.shape in _POINTS or same and self._points.issuperset(operation.inputs):
                self._points.add(number)

    def mean_of(self, rewriting, _, operation, __):
        """Add the mean that the operation computes; return its number. A rule of `Rewriting`."""
        (x,) = operation.inputs
        maps = collections.Counter()
        self._collect(x, maps)
        if any(self._reads[number] == reads for number, reads in maps.items()):
            maps = collections.Counter([x])  # a map that the sum alone reads is made in one step with it
        for number in maps:
            if number not in self._made:
                self._made[number] = rewriting.copy(operation, [rewriting.number_of[number]])
        return self._mean(rewriting, x)

    def _collect(self, number, maps):
        """Count in `maps` how often the sum `number` reads each map whose mean has to be made."""
        if self._is_known(number):
            return
        if self._summands(number) and self._reads[number] == 1:
            for source in self._summands(number):
                self._collect(source, maps)
        else:
            maps[number] += 1

    def _is_known(self, number):
        """Return whether the mean of a value has been made, or follows from means that have been."""
        summands = self._summands(number)
        return number in self._made or bool(summands) and all(map(self._is_known, summands))

    def _summands(self, number):
        """Return the maps of which a value is the sum, or a multiple; none for other values."""
        operation = self._operations.get(number)
        rule = operation and _SUMMANDS.get(operation.name)
        return rule(operation, self._points) if rule else ()

    def _mean(self, rewriting, number):
        if number not in self._made:
            operation, summands = self._operations[number], self._summands(number)
            means = [self._mean(rewriting, source) for source in summands]
            factors = [rewriting.number_of[source] for source in operation.inputs[len(summands) :]]
            self._made[number] = rewriting.copy(operation, [*means, *factors])
        return self._made[number]


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
