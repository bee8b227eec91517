"""Offsets of buffers in one block of memory: buffers that are needed at the same time do not overlap."""

ALIGNMENT = 4


class Arena:
    """The memory of a run.

    Parameters
    ----------
    calls : list of calls.Call
        In the order of their execution. A buffer is needed from the first to the last call that has it as an argument.

    Attributes
    ----------
    bytes : int
        Size of the block.
    """

    def __init__(self, calls):
        self._spans = {}  # buffer -> [first, last] call
        for number, call in enumerate(calls):
            for buffer in call.buffers:
                if not buffer.external:
                    self._spans.setdefault(buffer, [number, number])[1] = number
        orders = (
            lambda buffer: -buffer.bytes,
            lambda buffer: -buffer.bytes * (1 + self._spans[buffer][1] - self._spans[buffer][0]),
            lambda buffer: self._spans[buffer][0],
        )
        plans = [self._placed(sorted(self._spans, key=order)) for order in orders]
        self.bytes, self._offsets = min(plans, key=lambda plan: plan[0])

    def offset(self, buffer):
        """Return the position of a buffer in bytes."""
        return self._offsets[buffer]

    def _placed(self, buffers):
        """Place buffers in this order, each at the lowest possible offset. Return the total size and a dict of offsets."""
        offsets, total = {}, 0
        for buffer in buffers:
            first, last = self._spans[buffer]
            taken = sorted(
                (offset, offset + _aligned(other.bytes))
                for other, offset in offsets.items()
                if self._spans[other][0] <= last and first <= self._spans[other][1]
            )
            offset = 0
            for begin, end in taken:
                if offset + buffer.bytes <= begin:
                    break
                offset = max(offset, end)
            offsets[buffer] = offset
            total = max(total, offset + _aligned(buffer.bytes))
        return total, offsets


def _aligned(size):
    return -(-size // ALIGNMENT) * ALIGNMENT
