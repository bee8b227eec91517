"""Nodes of MXNet before and after a packed operator that change the shapes of values whose maps do not have two axes.

A program has a value (N, C, W) as a map (N, C, 1, W), and one of the shape (N, C, D, H, W), at its inputs and outputs, as (N, C D, H, W).
The operator accepts one depth only, which the nodes name.
"""

import dataclasses
from typing import Optional, Tuple

_DEPTH = '__depth__'  # MXNet ignores attributes with such names


@dataclasses.dataclass(frozen=True)
class Border:
    """Difference between the shape of a value in a network and in a program: an axis of size 1, or channels and depth as one axis.

    Attributes
    ----------
    depth : int or None
        None for a value (N, C, W).
    """

    depth: Optional[int] = None

    def in_program(self, shape: Tuple[int, ...], channels: int) -> Optional[Tuple[int, ...]]:
        """Return the shape in a program with `channels` channels for one in the network; None if the latter does not fit."""
        if self.depth is None:
            return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 and shape[1] == channels else None
        fits = len(shape) == 5 and shape[2] == self.depth and shape[1] * self.depth == channels
        return (shape[0], channels, *shape[3:]) if fits else None

    def in_network(self, shape: tuple) -> tuple:
        """Return the shape in the network for one in the program."""
        if self.depth is None:
            return (*shape[:2], *shape[3:])
        return (shape[0], shape[1] // self.depth, self.depth, *shape[2:])

    def expected(self, channels: int) -> str:
        """Return the shape of an input as text, for a program with `channels` channels."""
        if self.depth is None:
            return f'(batch, {channels}, width)'
        return f'(batch, {channels // self.depth}, {self.depth}, height, width)'

    def before(self, name, slot, reference):
        """Return the arguments of `SymbolJson.add` for the node before an operator; `reference` is its input."""
        name = f'{name}_map{slot}'
        if self.depth is None:
            return 'expand_dims', name, [reference], {'axis': '2'}
        return 'Reshape', name, [reference], {'shape': '(0, -3, 0, 0)', _DEPTH: str(self.depth)}

    def after(self, name, slot, reference):
        """Return the arguments of `SymbolJson.add` for the node after an operator."""
        if self.depth is None:
            return 'squeeze', f'{name}_line{slot}', [reference], {'axis': '2'}
        return 'Reshape', f'{name}_volume{slot}', [reference], {'shape': f'(0, -4, -1, {self.depth}, 0, 0)', _DEPTH: str(self.depth)}


def border_of(shape):
    """Return the `Border` of a value of a network with this shape, None if a program has it with the same shape."""
    return {3: Border(), 5: Border(shape[2])}.get(len(shape)) if len(shape) > 2 else None


def read_border(node, is_after):
    """Return the `Border` that wrote a node of a symbol (`symbol_json.SymbolJson`) before or after an operator, None for other nodes."""
    attributes = node['attrs']
    depth = attributes.get(_DEPTH, '')
    border = Border(int(depth) if depth.isdigit() else None)
    operator, _, _, expected = (border.after if is_after else border.before)('', 0, None)
    return border if (node['op'], attributes) == (operator, expected) else None
