"""Properties of a program that decide how it is written in C: who reads a value last, and in which order the engine adds."""

from ..program.operation_table import EPILOGUE, MAX_STEM_INPUTS, MAX_STEM_LAYERS, OPERATIONS


class Facts:
    """Readers of the values of a program, and what the planner of the engine decides too.

    tests/native/test_plan.py compares `is_view`, `is_fused_bias`, `planar_convolutions` and `operations.range_of_sums` with the planner on
    random programs.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
    values : list of bmx_melius.deployment.program.operations.Value
        Of the inputs and operations, at the size of the export.

    Attributes
    ----------
    first : int
        The value of operation 0.
    """

    def __init__(self, program, values):
        self.program, self.values, self.first = program, values, len(program.inputs)
        self._consumers = [[] for _ in values]
        for number, operation in enumerate(program.operations):
            for source in operation.inputs:
                self._consumers[source].append(number)
        self._outputs = set(program.outputs)
        self._readers = {}

    def only_consumer(self, value):
        """Return the number of the only operation that reads a value, None if there are none or several or it is an output."""
        consumers = self._consumers[value]
        return consumers[0] if len(consumers) == 1 and value not in self._outputs else None

    def follower(self, operation, name):
        """Return the number of the only operation that reads the result of another one, if it has that name, else None."""
        consumer = self.only_consumer(self.first + operation)
        return consumer if consumer is not None and self.program.operations[consumer].name == name else None

    def is_view(self, number):
        """Return whether an operation moves no data: its result, if it is real, lies where its inputs do."""
        operation = self.program.operations[number]
        view, x = OPERATIONS[operation.name].view, self.values[operation.inputs[0]]
        return view == 'channels' or (view == 'shape' and x.height * x.width == 1)

    def is_deferred(self, number):
        """Return whether an operation is carried out after the pooling that follows it; see `layer_calls`."""
        return self.program.operations[number].name == 'affine' and self.follower(number, 'max_pool') is not None

    def readers(self, value):
        """Return the numbers of the operations that read the memory of a value, a set; the number of operations stands for an output."""
        if value not in self._readers:
            found = {len(self.program.operations)} if value in self._outputs else set()
            for number in self._consumers[value]:
                forwards = self.is_view(number) or self.is_deferred(number)
                found |= self.readers(self.first + number) if forwards else {number}
            self._readers[value] = found
        return self._readers[value]

    def is_fused_bias(self, number):
        """Return whether the bias of a convolution is part of the shift that follows, as in the engine."""
        operation = self.program.operations[number]
        return operation.name == 'conv' and operation.attributes['has_bias'] and self.follower(number, 'affine') is not None

    def planar_convolutions(self):
        """Return the numbers of the convolutions that add in the order of planar maps: those of the engine's stems, a set.

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
        return operation.name == 'conv' and not x.flat and x.channels // operation.attributes['groups'] <= MAX_STEM_INPUTS

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
            follower = self.follower(number, name)
            number = number if follower is None else follower
        return self.only_consumer(self.first + number)

    def _is_faster_in_pixels(self, number):
        """Return whether a convolution has a window of one position, or is depthwise."""
        attributes = self.program.operations[number].attributes
        channels = self.values[self.program.operations[number].inputs[0]].channels
        depthwise = channels > 1 and attributes['groups'] == channels == attributes['out_channels']
        return depthwise or attributes['kernel_h'] * attributes['kernel_w'] == 1
