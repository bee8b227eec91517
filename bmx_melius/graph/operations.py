"""Operations: what the nodes of a graph compute, as classes with typed attributes in one vocabulary, whatever the framework is.

What follows from the inputs of a node, such as the number of filters and whether there is a bias, is not an attribute.
"""

import dataclasses
from typing import Optional, Tuple

Axes = Tuple[int, ...]  # a number for each axis of a map: (width,), (height, width) or (depth, height, width)


class Operation:
    """What a node computes."""


@dataclasses.dataclass(frozen=True)
class Unknown(Operation):
    """An operator that no class describes, or whose attributes are malformed.

    Attributes
    ----------
    name : str
        Name of the operator in its framework.
    reason : str
    """

    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Dense(Operation):
    """A product with a matrix of weights. `flattens`: of all elements of an image, otherwise along the last axis."""

    flattens: bool = True


# --- windows ----------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Window:
    """The window that a convolution or pooling moves over a map. Strides and dilations are 1, and there is no padding, unless given.

    Attributes
    ----------
    kernel, strides, dilations : tuple of int
    pads : tuple of tuple (int, int)
        Padding before and after the map, for each axis.
    """

    kernel: Axes
    strides: Axes = ()
    pads: Tuple[Tuple[int, int], ...] = ()
    dilations: Axes = ()

    def __post_init__(self):
        axes = len(self.kernel)
        if not axes:
            raise ValueError('its kernel has no axes')
        for name, default in (('strides', 1), ('pads', (0, 0)), ('dilations', 1)):
            values = getattr(self, name) or (default,) * axes
            if len(values) != axes:
                raise ValueError(f'a kernel of {axes} axes has {name} for {len(values)}')
            object.__setattr__(self, name, values)

    @property
    def is_padded(self) -> bool:
        """Whether there is padding on any side."""
        return any(map(any, self.pads))


@dataclasses.dataclass(frozen=True)
class Convolution(Operation):
    """A convolution. `layout` is the order of the axes of a map, such as ``NCHW``; None: channels second."""

    window: Window
    groups: int = 1
    layout: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class DeformableConvolution(Operation):
    """A convolution whose window is moved at each position by offsets, input 1; and `modulated`, multiplied by masks, input 2."""

    window: Window
    groups: int = 1
    layout: Optional[str] = None
    modulated: bool = False


@dataclasses.dataclass(frozen=True)
class TransposedConvolution(Operation):
    """A transposed convolution.

    Attributes
    ----------
    output_padding : tuple of int
        Rows and columns that are added at the end of the result; () for none.
    output_shape : tuple of int
        Size of the result, which determines the padding instead; () if it is not given.
    """

    window: Window
    groups: int = 1
    layout: Optional[str] = None
    output_padding: Axes = ()
    output_shape: Axes = ()


@dataclasses.dataclass(frozen=True)
class Pooling(Operation):
    """Pooling of windows.

    Attributes
    ----------
    kind : str
        ``max``, ``avg``, ``sum`` or ``lp``.
    convention : str
        The number of windows is rounded down (``valid``) or up (``full``), or is that of the strides in the map (``same``).
    counts_padding : bool
        Whether an average is divided by the number of all elements of a window, also of those on padding.
    """

    kind: str
    window: Window
    convention: str = 'valid'
    counts_padding: bool = True
    layout: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class GlobalPooling(Operation):
    """Pooling of all positions of a map, with the kinds of `Pooling`."""

    kind: str
    layout: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Upsampling(Operation):
    """Enlargement of maps by a whole number.

    Attributes
    ----------
    kind : str
        ``nearest``: each element is repeated; ``bilinear``: a transposed convolution of each channel with weights, input 1.
    """

    kind: str
    scale: int
