"""What a conversion did, and which operators it left to MXNet."""

import collections
import dataclasses

from .verification import Verification


@dataclasses.dataclass
class Left:
    """A node that stays an operator of MXNet, and why."""

    node: str
    operator: str
    reason: str


@dataclasses.dataclass
class Report:
    """What a conversion did. Printed, it is a summary.

    Attributes
    ----------
    packed_operators : int
        In the new symbol.
    binary_layers : int
        That became part of them.
    converted : dict of str to int
        MXNet's operators that are gone: name -> number.
    left : list of Left
        Those that stay.
    unclear_thresholds : list of str
        Batch normalizations of which MXNet's way to round could not be told: values next to their thresholds may get another sign.
    half : bool
        Whether weights are stored in float16.
    verification : Verification or None
    symbol_file, params_file : str or None
        What was written.
    size_before, size_after : int or None
        Bytes of the parameter files.
    """

    packed_operators: int
    binary_layers: int
    converted: dict
    left: list
    unclear_thresholds: list
    half: bool
    verification: 'Verification | None'
    symbol_file: 'str | None' = None
    params_file: 'str | None' = None
    size_before: 'int | None' = None
    size_after: 'int | None' = None

    def to_json(self):
        """The report as an object that `json` can write."""
        return dataclasses.asdict(self)

    def __str__(self):
        nodes = sum(self.converted.values())
        lines = [f'{nodes} operators with {self.binary_layers} binary layers became {self.packed_operators} packed']
        if self.size_after is not None:
            lines.append(
                f'{self.params_file}: {self.size_after:,} bytes, {self.size_before / self.size_after:.1f} times smaller '
                f'than {self.size_before:,}' + (' (weights of float layers in half precision)' if self.half else '')
            )
        reasons = collections.defaultdict(list)
        for left in self.left:
            reasons[left.reason].append(f'{left.node} ({left.operator})')
        for reason, places in reasons.items():
            shown = ', '.join(places[:3]) + (f' and {len(places) - 3} more' if len(places) > 3 else '')
            lines.append(f'left to MXNet: {shown}: {reason}')
        if self.unclear_thresholds:
            lines.append(f'rounding unclear at {", ".join(self.unclear_thresholds)}: signs next to the threshold may differ')
        lines.append(self._verified())
        return '\n'.join(lines)

    def _verified(self):
        if self.verification is None:
            return 'not verified'
        found = self.verification
        binary = (
            f'{found.bits:,} signs and {found.integers:,} results of {found.binary_layers} binary layers equal those of MXNet; other '
            if self.binary_layers
            else ''
        )
        return (
            f'verified on a sample: {binary}values, {found.floats:,}, within {found.largest_deviation:.1e} of the largest one '
            f'(most at {found.deviating_node or "none"})'
        )
