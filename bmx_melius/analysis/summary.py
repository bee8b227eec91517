"""Operations, parameters and size of networks: totals, per layer, and per kind of layer."""

import dataclasses
import math
from typing import Any, Dict, List, Tuple, Union

from ..arithmetic import ceil_div
from ..errors import name_some
from ..graph.nodes import Graph, InputShape
from ..graph.tracing import NetworkLike, read_graph
from ..reporting import table
from .counting import BOPS_PER_OP, FLOAT_BITS, KINDS, PRODUCT, LayerCounts, count_layers, reads_unknown_values


@dataclasses.dataclass(frozen=True)
class KindTotals:
    """Totals of the layers of one kind; `share` is their share of the OPs of the network, 0 to 1."""

    kind: str
    layers: int
    macs: int
    ops: float
    share: float
    parameters: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """Counts of a network for one forward pass with a given input shape. ``print(summary)`` shows a table of the layers.

    Attributes
    ----------
    layers : tuple of LayerCounts
        In topological order.
    running_statistics : int
        Number of running means and variances, which the other counts do not include.
    unknown_signs : tuple of str
        Layers with binary weights that count as float because what they read is not known to be signs. Those that read a
        `QActivation` with 32 bits, as in BWN, are not among them.
    """

    layers: Tuple[LayerCounts, ...]
    running_statistics: int
    unknown_signs: Tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: Graph) -> 'Summary':
        """Count a `Graph`. Raises as `summary` does."""
        layers = count_layers(graph)
        float_inputs = (node for node, layer in layers.items() if layer.bits == 1 and layer.activation_bits == FLOAT_BITS)
        return cls(
            layers=tuple(layers.values()),
            running_statistics=sum(math.prod(node.shape) for node in graph.statistics),
            unknown_signs=tuple(node.name for node in float_inputs if reads_unknown_values(node)),
        )

    def _total(self, field):
        return sum(getattr(layer, field) for layer in self.layers)

    @property
    def bops(self) -> int:
        """Binary operations of convolutions and matrix products."""
        return self._total('bops')

    @property
    def flops(self) -> int:
        """Float MACs of convolutions and matrix products."""
        return self._total('flops')

    @property
    def ops(self) -> float:
        """BOPs / 64 + FLOPs."""
        return self.bops / BOPS_PER_OP + self.flops

    @property
    def binary_params(self) -> int:
        """Number of 1-bit parameters."""
        return self._total('binary_params')

    @property
    def quantized_params(self) -> int:
        """Number of parameters with 2 to 31 bits."""
        return self._total('quantized_params')

    @property
    def float_params(self) -> int:
        """Number of 32-bit parameters."""
        return self._total('float_params')

    @property
    def size_bytes(self) -> int:
        """Size of the parameters in bytes, with the bits of their quantizers; running statistics excluded, as in the paper."""
        return ceil_div(self._total('size_bits'), 8)

    @property
    def size_bytes_with_running(self) -> int:
        """`size_bytes` plus 4 bytes for each running mean and variance."""
        return self.size_bytes + self.running_statistics * FLOAT_BITS // 8

    @property
    def counts(self) -> Dict[str, Union[int, float]]:
        """Totals by name."""
        return {
            name: getattr(self, name)
            for name in (
                'bops',
                'flops',
                'ops',
                'binary_params',
                'quantized_params',
                'float_params',
                'size_bytes',
                'size_bytes_with_running',
            )
        }

    def by_kind(self) -> List[KindTotals]:
        """Return the totals of each kind of layer (MeliusNet, section 3.2): a list of `KindTotals`, in the order of `KINDS`."""
        rows = []
        for kind in KINDS:
            layers = [layer for layer in self.layers if layer.kind == kind]
            ops = sum(layer.ops for layer in layers)
            if layers:
                rows.append(
                    KindTotals(
                        kind=kind,
                        layers=len(layers),
                        macs=sum(layer.macs for layer in layers),
                        ops=ops,
                        share=ops / self.ops if self.ops else 0.0,
                        parameters=sum(layer.parameters for layer in layers),
                    )
                )
        return rows

    def to_json(self) -> Dict[str, Any]:
        """Return totals and layers as a dict that `json` can serialize."""
        return {**self.counts, 'layers': [layer.to_json() for layer in self.layers]}

    def table_by_kind(self) -> str:
        """Return a text table of `by_kind`, followed by the totals."""
        rows = [(row.kind, row.layers, row.macs, round(row.ops), f'{row.share:.1%}', row.parameters) for row in self.by_kind()]
        return table(('kind', 'layers', 'MACs', 'OPs', 'share of OPs', 'parameters'), rows, align='<>>>>>') + '\n\n' + self._totals()

    def __repr__(self) -> str:
        return f'Summary({self.ops / 1e6:.4g} M OPs, {self.size_bytes / 2**20:.2f} MB)'

    def __str__(self) -> str:
        rows = [
            (
                layer.name,
                layer.kind,
                layer.operator,
                ' x '.join(map(str, layer.output_shape)),
                layer.bits,
                layer.parameters,
                layer.macs,
                round(layer.ops),
            )
            for layer in self.layers
        ]
        return (
            table(('name', 'kind', 'operator', 'output shape', 'bits', 'parameters', 'MACs', 'OPs'), rows, align='<<<<>>>>')
            + '\n\n'
            + self._totals()
        )

    def _not_binary(self):
        """Return a line about `unknown_signs`, or none."""
        if not self.unknown_signs:
            return []
        return [
            'warning: binary weights, but inputs that are not known to be signs, counted as FLOPs: '
            f'{name_some(self.unknown_signs)}. If they are signs, use QActivation, or register the function with '
            'bmx.register_quantizer (docs/networks.md, "Your own quantizers")'
        ]

    def _totals(self):
        parameters = [
            f'{number:,} {word}'
            for number, word in ((self.binary_params, 'binary'), (self.quantized_params, 'k-bit'), (self.float_params, 'float'))
            if number
        ]
        counted = 'convolutions and matrix products' if any(layer.kind == PRODUCT for layer in self.layers) else 'convolutions only'
        return '\n'.join(
            (
                f'BOPs        {self.bops:,}',
                f'FLOPs       {self.flops:,}',
                f'OPs         {self.ops:,.0f} = BOPs / {BOPS_PER_OP} + FLOPs, {counted}',
                f'parameters  {" + ".join(parameters) or 0}',
                f'size        {self.size_bytes:,} bytes = {self.size_bytes / 2**20:.2f} MB of {2**20:,} bytes',
                *self._not_binary(),
            )
        )


def summary(network: NetworkLike, input_shape: InputShape = (1, 3, 224, 224)) -> Summary:
    """Count operations, parameters and bytes of a network, per layer and in total.

    Only the graph is read: nothing is computed, and the network does not change and need not be initialized.

    Parameters
    ----------
    network : mxnet.gluon.Block, mxnet.sym.Symbol or path of an exported ``-symbol.json``
        Quantized layers are found by the marks of this package's layers in the graph.
    input_shape : tuple of int, or dict of str to tuple of int
        Shape with the batch axis; operations are counted for the whole batch. A dict of input names to shapes for several inputs.

    Returns
    -------
    Summary

    Raises
    ------
    UserError
        If a file cannot be read, the network cannot be traced, shapes are unknown or inconsistent, or an operator cannot be counted; the
        message names the file or the node.

    Examples
    --------
    >>> import bmx_melius as bmx
    >>> counted = bmx.summary(bmx.BinaryConv2D(16, kernel_size=3, padding=1, prefix='layer_'), input_shape=(1, 8, 10, 10))
    >>> counted.bops, counted.binary_params, counted.size_bytes
    (115200, 1152, 144)
    >>> print(counted)
    name              kind          operator     output shape      bits  parameters     MACs    OPs
    ----------------  ------------  -----------  ----------------  ----  ----------  -------  -----
    layer_qconv0_fwd  binary layer  Convolution  1 x 16 x 10 x 10     1       1,152  115,200  1,800
    <BLANKLINE>
    BOPs        115,200
    FLOPs       0
    OPs         1,800 = BOPs / 64 + FLOPs, convolutions only
    parameters  1,152 binary
    size        144 bytes = 0.00 MB of 1,048,576 bytes
    """
    return Summary.of(read_graph(network, input_shape))
