"""Conversion report: converted operators, operators left to MXNet, and the verification result."""

import collections
import dataclasses

from ...errors import counted, name_some
from .calibration import QuantizationReport
from .verification import Verification


@dataclasses.dataclass
class Left:
    """A node that remains an MXNet operator, and the reason."""

    node: str
    operator: str
    reason: str


@dataclasses.dataclass
class Report:
    """Result of a conversion; ``str`` of it is a summary.

    Attributes
    ----------
    packed_operators : int
        Number of packed operators in the new symbol.
    binary_layers : int
        Numbers of layers in them that are computed by bit operations: of signs, and of two bits.
    converted : dict of str to int
        MXNet operator name -> number of its nodes that were converted.
    left : list of Left
        The nodes that remain MXNet operators.
    float_signs : list of str
        Layers with binary weights that are not computed by bit operations, because what they read is not known to be signs.
    unclear_thresholds : list of str
        Batch normalizations whose rounding in MXNet could not be determined: values next to their thresholds may get the other sign.
    half : bool
        Whether the weights of float layers are stored in float16.
    verification : Verification or None
        None if the conversion was not verified.
    level_bits : dict of str to int
        Layers of real numbers, or of 8-bit integers, whose weights have few levels -> bits of a weight.
    integer_bits : dict of str to (int, int)
        Layers that are exact sums of integers -> bits of a weight and of an input.
    quantization : QuantizationReport or None
        What 8-bit layers change on the calibration images; None if real-valued layers were not quantized.
    symbol_file, params_file : str or None
        Paths of the written files.
    size_before, size_after : int or None
        Sizes of the parameter files in bytes.
    """

    packed_operators: int
    binary_layers: int
    converted: dict
    left: list
    float_signs: list
    unclear_thresholds: list
    half: bool
    verification: 'Verification | None'
    level_bits: dict = dataclasses.field(default_factory=dict)
    integer_bits: dict = dataclasses.field(default_factory=dict)
    quantization: 'QuantizationReport | None' = None
    symbol_file: 'str | None' = None
    params_file: 'str | None' = None
    size_before: 'int | None' = None
    size_after: 'int | None' = None

    def to_json(self):
        """Return the report as a dict that `json` can serialize."""
        return dataclasses.asdict(self)

    def __str__(self):
        nodes = sum(self.converted.values())
        lines = [f'{counted(nodes, "operator")} with {counted(self.binary_layers, "binary layer")} became {self.packed_operators} packed']
        if self.size_after is not None:
            lines.append(
                f'{self.params_file}: {self.size_after:,} bytes, {_compared(self.size_after, self.size_before)}'
                + (' (weights of float layers in half precision)' if self.half else '')
            )
        for (weight, read), names in _by_bits(self.integer_bits):
            lines.append(
                f'{counted(len(names), "layer")} of {weight}-bit weights x {read}-bit inputs, sums of integers: {name_some(names)}'
            )
        kept = self.quantization.keep_float if self.quantization else list(self.level_bits)
        read = {name: (bits, 'real numbers' if name in kept else 'bytes') for name, bits in self.level_bits.items()}
        for (bits, numbers), names in _by_bits(read):
            lines.append(f'{counted(len(names), "layer")} with {counted(bits, "bit")} a weight, times {numbers}: {name_some(names)}')
        reasons = collections.defaultdict(list)
        for left in self.left:
            reasons[left.reason].append(f'{left.node} ({left.operator})')
        for reason, places in reasons.items():
            lines.append(f'left to MXNet: {name_some(places)}: {reason}')
        if self.left or self.packed_operators > 1:
            lines.append(
                'runs only in MXNet (SymbolBlock.imports, Module, predict, evaluate): Session, the C library, serve, score, export-c and '
                'export-onnx need a network that became one packed operator and refuse this one'
            )
        if self.float_signs:
            lines.append(f'warning: {self.not_binary()}')
        if self.unclear_thresholds:
            lines.append(f'rounding unclear at {", ".join(self.unclear_thresholds)}: signs next to the threshold may differ')
        lines.append(self._verified())
        if self.quantization:
            lines.append(str(self.quantization))
        return '\n'.join(lines)

    def not_binary(self):
        """Return a line about `float_signs`, with the way to make these layers binary."""
        return (
            f'{counted(self.binary_layers, "binary layer")}; with binary weights, but not computed by bit operations: '
            f'{name_some(self.float_signs)}: what they read is not known to be signs. If it is, use QActivation, or register the function '
            'with bmx.register_quantizer (docs/networks.md, "Your own quantizers")'
        )

    def _verified(self):
        if self.verification is None:
            return 'not verified'
        found = self.verification
        results = (
            f' and {counted(found.integers, "result", ",")} of {counted(found.binary_layers, "binary layer")}'
            if found.binary_layers
            else ''
        )
        binary = f'{counted(found.bits, "sign", ",")}{results} equal those of {found.framework}; other ' if found.bits else ''
        engine = (
            f'verified with the engine ({found.engine}) on the same sample: {counted(found.engine_values, "value", ",")}, within '
            f'{found.engine_deviation:.1e} of the largest one'
            if found.engine
            else 'not verified with the engine, which has not been compiled'
        )
        where = f' (most at {found.deviating_node})' if found.deviating_node else ''
        values = f'{binary}values, {found.floats:,}, within {found.largest_deviation:.1e} of the largest one{where}'
        return f'verified on a sample: {values}' + (f'\n{engine}' if found.engine != '' else '')


def _by_bits(layers):
    """Return pairs of bits and the names of layers with these, ascending."""
    found = collections.defaultdict(list)
    for name, bits in layers.items():
        found[bits].append(name)
    return sorted(found.items())


def _compared(after, before):
    """Return how a number of bytes compares with another one."""
    larger, smaller = max(after, before), max(1, min(after, before))
    ratio = f'{larger / smaller:.1f}'
    if ratio == '1.0':
        return f'about as many as before ({before:,})'
    return f'{ratio} times {"smaller" if after < before else "larger"} than {before:,}'
