"""Nodes of MXNet before and after a packed operator that change the shapes of values whose maps are not 2-D.

A program has a value (N, C, W) as a map (N, C, 1, W), and one of the shape (N, C, D, H, W), at its inputs and outputs, as (N, C D, H, W).
The operator accepts one depth only, which the nodes name.
"""

import dataclasses
from typing import Dict, List, Optional, Tuple

from ...files.symbol_json import SymbolJson

_DEPTH, _CHANNELS = '__depth__', '__channels__'  # MXNet ignores attributes with such names


@dataclasses.dataclass(frozen=True)
class Border:
    """Difference between the shape of a value in a network and in a program: an axis of size 1, or channels and depth as one axis.

    Attributes
    ----------
    depth, channels : int or None
        Of a value (N, C, D, H, W); None for a value (N, C, W).
    """

    depth: Optional[int] = None
    channels: Optional[int] = None

    def in_program(self, shape: Tuple[int, ...], channels: int) -> Optional[Tuple[int, ...]]:
        """Return the shape in a program with `channels` channels for one in the network; None if the latter does not fit."""
        if self.depth is None:
            return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 and shape[1] == channels else None
        fits = len(shape) == 5 and shape[2] == self.depth and shape[1] * self.depth == channels
        return (shape[0], channels, *shape[3:]) if fits else None

    def in_network(self, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        """Return the shape in the network for one in the program."""
        if self.depth is None:
            return (*shape[:2], *shape[3:])
        return (shape[0], shape[1] // self.depth, self.depth, *shape[2:])

    def expected(self, channels: int) -> str:
        """Return the shape of an input as text, for a program with `channels` channels."""
        if self.depth is None:
            return f'(batch, {channels}, width)'
        return f'(batch, {channels // self.depth}, {self.depth}, height, width)'

    def before(self, name: str, slot: int) -> List[Tuple[str, str, Dict[str, str]]]:
        """Return operator, name and attributes of each node before a packed operator, of which the first one reads the value.

        The first node for a 3-D map splits channels and depth in two factors each, of which one is 1, because MXNet refuses
        other sizes there and not where it joins axes.
        """
        name = f'{name}_map{slot}'
        if self.depth is None:
            return [('expand_dims', name, {'axis': '2'})]
        sizes = {_DEPTH: str(self.depth), _CHANNELS: str(self.channels)}
        checked = {'shape': f'(0, -4, 1, {self.channels}, -4, {self.depth}, 1, 0, 0)', **sizes}
        return [('Reshape', f'{name}_checked', checked), ('Reshape', name, {'shape': '(-3, -3, -3, 0)', **sizes})]

    def after(self, name: str, slot: int) -> List[Tuple[str, str, Dict[str, str]]]:
        """Return operator, name and attributes of each node after a packed operator."""
        if self.depth is None:
            return [('squeeze', f'{name}_line{slot}', {'axis': '2'})]
        sizes = {_DEPTH: str(self.depth), _CHANNELS: str(self.channels)}
        return [('Reshape', f'{name}_volume{slot}', {'shape': f'(0, -4, {self.channels}, {self.depth}, 0, 0)', **sizes})]


def border_of(shape: Tuple[int, ...]) -> Optional[Border]:
    """Return the `Border` of a value of a network with this shape, None if a program has it with the same shape."""
    return {3: Border(), 5: Border(*shape[2:0:-1])}.get(len(shape)) if len(shape) > 2 else None


def read_border(symbol: SymbolJson, position: int, is_after: bool) -> Tuple[Optional[Border], List[int]]:
    """Return the `Border` whose nodes end at a position of a symbol (`symbol_json.SymbolJson`), and their positions.

    (None, []) for other nodes.
    """
    attributes = symbol.nodes[position]['attrs']
    sizes = [attributes.get(name, '') for name in (_DEPTH, _CHANNELS)]
    border, positions = Border(*(int(size) if size.isdigit() else None for size in sizes)), []
    for operator, _, expected in reversed((border.after if is_after else border.before)('', 0)):
        node = symbol.nodes[position]
        if (node['op'], node['attrs']) != (operator, expected):
            return None, []
        positions.append(position)
        position = node['inputs'][0][0]
    return border, positions
