"""Properties of a program that decide how it is written in C: who reads a value last, and in which order the engine adds."""

import numpy as np

from ..program import reference
from ..program.ids import rows_by_input
from ..program.operation_table import EPILOGUE, MAX_BYTE, MAX_STEM_INPUTS, MAX_STEM_LAYERS, OPERATIONS

_ROUNDING = 0.25  # of normalized pixels that are scaled again, far less than half a pixel and far more than float32 needs


class Facts:
    """Readers of the values of a program, and what the planner of the engine decides too.

    tests/native/test_plan.py compares `is_view`, `is_fused`, `planar_convolutions` and `operations.range_of_sums` with the planner on
    random programs.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
    values : list of bmx_melius.deployment.program.operations.Value
        Of the inputs and operations, at the size of the export.
    spec : bmx_melius.vision.preprocessing.InputSpec, optional
        How the pixels of the only input are normalized.

    Attributes
    ----------
    first : int
        The value of operation 0.
    has_integers : bool
        Whether there are layers of 8-bit integers.
    ids : dict of int to int
        Numbers of inputs that are ids -> how many ids there are.
    pixels : tuple of int
        The numbers of the operations that compute the pixels again from which the only input was normalized, if nothing else reads it.
    """

    def __init__(self, program, values, spec=None):
        self.program, self.values, self.first = program, values, len(program.inputs)
        self.has_integers = any(operation.row.is_integer_layer for operation in program.operations)
        self.ids = rows_by_input(program)
        self._consumers = [[] for _ in values]
        for number, operation in enumerate(program.operations):
            for source in operation.inputs:
                self._consumers[source].append(number)
        self._outputs = set(program.outputs)
        self._readers = {}
        self.pixels = () if spec is None else self._pixels(spec)

    def _pixels(self, spec):
        scaling = self.only_consumer(0)
        if self.first > 1 or self.values[0].flat or self.values[0].channels != spec.channels or scaling is None:
            return ()
        rounding = self.follower(scaling, lambda row: row.scales and row.is_integer_layer)
        if rounding is None or not _scales_reals(self.program.operations[scaling].row):
            return ()
        pixels = np.broadcast_to(np.arange(MAX_BYTE + 1, dtype=np.uint8), (1, spec.channels, 1, MAX_BYTE + 1))
        scaled = reference.apply(self.program.operations[scaling], [spec.normalized(pixels)])
        rounded = reference.apply(self.program.operations[rounding], [pixels.astype(np.float32)])
        return (scaling, rounding) if np.abs(scaled - pixels).max() < _ROUNDING and (rounded == pixels).all() else ()

    def only_consumer(self, value):
        """Return the number of the only operation that reads a value, None if there are none or several or it is an output."""
        consumers = self._consumers[value]
        return consumers[0] if len(consumers) == 1 and value not in self._outputs else None

    def follower(self, operation, suits):
        """Return the number of the only operation that reads the result of another one, if its row of the table `suits`, else None."""
        consumer = self.only_consumer(self.first + operation)
        return consumer if consumer is not None and suits(self.program.operations[consumer].row) else None

    def is_view(self, number):
        """Return whether an operation moves no data: its result, if it is real, lies where its inputs do."""
        operation = self.program.operations[number]
        view, x = operation.row.view, self.values[operation.inputs[0]]
        return view == 'channels' or (view == 'shape' and x.height * x.width == 1)

    def is_deferred(self, number):
        """Return whether an operation is carried out after the pooling that follows it; see `layer_calls`."""
        deferred = self.program.operations[number].row.scales is not None and number not in self.pixels
        return deferred and self.follower(number, lambda row: row.reduces == 'maximum' and row.shape == 'pooling') is not None

    def common_scale(self, number):
        """Return scale and shift of an ``affine`` that only scales outputs, all their channels alike; else None."""
        operation = self.program.operations[number]
        if self.readers(self.first + number) != {len(self.program.operations)}:
            return None
        scale, shift = operation.arrays['scale'], operation.arrays['shift']
        return (scale[0], shift[0]) if scale[0] > 0 and (scale == scale[0]).all() and (shift == shift[0]).all() else None

    def readers(self, value):
        """Return the numbers of the operations that read the memory of a value, a set; the number of operations stands for an output."""
        if value not in self._readers:
            found = {len(self.program.operations)} if value in self._outputs else set()
            for number in self._consumers[value]:
                forwards = self.is_view(number) or self.is_deferred(number)
                found |= self.readers(self.first + number) if forwards else {number}
            self._readers[value] = found
        return self._readers[value]

    def is_fused(self, number):
        """Return whether the bias and the scale of a convolution are part of the scaling that follows, as in the engine."""
        operation = self.program.operations[number]
        scales = operation.row.products == 'floats' and (operation.attributes['has_bias'] or operation.row.weight_levels)
        return bool(scales) and self.follower(number, _scales_reals) is not None

    def planar_convolutions(self):
        """Return the numbers of the convolutions that add in the order of planar maps, as the engine's stems do: a set.

        A stem is a chain of convolutions from an input of the program on that no operation before them reads, except other stems
        (``csrc/plan/fusion.cc``). Other convolutions add the inputs of a pixel in succession.
        """
        planar, read = set(), set()
        for number, operation in enumerate(self.program.operations):
            source = operation.inputs[0]
            if source < self.first and source not in read and self._is_for_stem(number):
                planar |= self._stem_from(number)
            else:
                read.update(operation.inputs)
        return planar

    def _is_for_stem(self, number):
        operation = self.program.operations[number]
        x = self.values[operation.inputs[0]]
        return operation.row.products == 'floats' and not x.flat and x.channels // operation.attributes['groups'] <= MAX_STEM_INPUTS

    def _stem_from(self, number):
        layers = {number}
        while True:
            number = self._after_epilogue(number)
            if number is None or len(layers) == MAX_STEM_LAYERS or not self._is_for_stem(number) or self._is_faster_in_pixels(number):
                return layers
            layers.add(number)

    def _after_epilogue(self, number):
        """Return the only operation after a convolution and what it computes in its step; None if there are none or several."""
        for name in EPILOGUE:
            follower = self.follower(number, lambda row, name=name: row is OPERATIONS[name])
            number = number if follower is None else follower
        return self.only_consumer(self.first + number)

    def _is_faster_in_pixels(self, number):
        """Return whether a convolution has a window of one position, or is depthwise."""
        attributes = self.program.operations[number].attributes
        channels = self.values[self.program.operations[number].inputs[0]].channels
        depthwise = channels > 1 and attributes['groups'] == channels == attributes['out_channels']
        return depthwise or attributes['kernel_h'] * attributes['kernel_w'] == 1


def _scales_reals(row):
    return row.scales is not None and not row.is_integer_layer
