"""Operations: what the nodes of a graph compute, as classes with typed attributes in one vocabulary, whatever the framework is.

What follows from the inputs of a node, such as the number of filters and whether there is a bias, is not an attribute.
"""

import dataclasses
from typing import Optional, Tuple

Axes = Tuple[int, ...]  # a number for each axis of a map: (width,), (height, width) or (depth, height, width)


class Operation:
    """What a node computes."""


def key_of(operation: Optional[Operation]) -> Tuple[type, Optional[str]]:
    """Return what tables have an operation under: its class and its kind, which is None for classes without kinds."""
    return type(operation), getattr(operation, 'kind', None)


@dataclasses.dataclass(frozen=True)
class Unknown(Operation):
    """An operator that no class describes, or whose attributes are malformed.

    Attributes
    ----------
    name : str
        Name of the operator in its framework.
    reason : str
        What is malformed; '' if no class describes the operator.
    """

    name: str
    reason: str = ''


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


class ConvolutionV1(Convolution):
    """The convolution of early versions of MXNet, which is counted and drawn like others but not packed."""


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
        The number of windows is rounded down (``valid``) or up (``full``), or is the number of strides in the map (``same``).
    counts_padding : bool
        Whether an average is divided by the number of all elements of a window, padding included.
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


# --- elementwise ------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Elementwise(Operation):
    """A function of the elements of one, two or more values at the same place.

    Attributes
    ----------
    kind : str
        ``abs``, ``negative``, ``square``; ``add``, ``subtract``, ``multiply``, ``divide``, ``true_divide`` (a quotient that is rounded
        once), ``maximum``, ``minimum``; ``sum`` of any number of values.
    repeats : bool
        Whether values are repeated to one shape.
    """

    kind: str
    repeats: bool = False


@dataclasses.dataclass(frozen=True)
class ScalarArithmetic(Operation):
    """Arithmetic of a value and a number.

    Attributes
    ----------
    kind : str
        ``add``, ``subtract``, ``subtract_from`` (the number minus the value), ``multiply``, ``divide``, ``maximum`` or ``minimum``.
    """

    kind: str
    number: float


@dataclasses.dataclass(frozen=True)
class Activation(Operation):
    """An activation function.

    Attributes
    ----------
    kind : str
        ``relu``, ``sigmoid``, ``tanh``, ``softrelu`` (also called softplus), ``softsign``, ``leaky``, ``prelu``, ``elu``, ``selu``,
        ``gelu`` or ``rrelu``.
    slope : float or None
        Of negative numbers, for ``leaky`` and ``elu``; for ``prelu`` it is input 1.
    """

    kind: str
    slope: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class StepFunction(Operation):
    """One of a few levels, which rise or fall with the number."""


@dataclasses.dataclass(frozen=True)
class Clip(Operation):
    """The nearest number between two limits."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class HardSigmoid(Operation):
    """min(max(alpha x + beta, 0), 1)."""

    alpha: float = 0.2
    beta: float = 0.5


@dataclasses.dataclass(frozen=True)
class Rounding(Operation):
    """Rounding to a number of decimals, ties to even."""

    decimals: int = 0


# --- normalizations ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class BatchNormalization(Operation):
    """Batch normalization of an axis. `fixes_gamma`: gamma is 1; `returns_statistics`: mean and variance are outputs, too."""

    axis: int = 1
    eps: float = 1e-3
    fixes_gamma: bool = True
    returns_statistics: bool = False


@dataclasses.dataclass(frozen=True)
class LayerNormalization(Operation):
    """Normalization by mean and variance along an axis, or of each of some groups of its elements."""

    axis: int = -1
    eps: float = 1e-5
    groups: int = 1


@dataclasses.dataclass(frozen=True)
class GroupNormalization(Operation):
    """Normalization by mean and variance of groups of channels."""

    groups: int = 1
    eps: float = 1e-5


@dataclasses.dataclass(frozen=True)
class InstanceNormalization(Operation):
    """Normalization by mean and variance of each channel."""

    eps: float = 1e-3


@dataclasses.dataclass(frozen=True)
class Reduction(Operation):
    """Mean or maximum over axes.

    Attributes
    ----------
    kind : str
        ``mean`` or ``max``.
    axes : tuple of int
        () for all.
    keeps_axes : bool
        Whether they remain as axes of one element.
    excludes : bool
        Whether `axes` are kept and all others reduced.
    """

    kind: str
    axes: Axes = ()
    keeps_axes: bool = False
    excludes: bool = False


@dataclasses.dataclass(frozen=True)
class MatrixProduct(Operation):
    """A product of matrices, whose rows are the positions of two maps, and whose columns the channels of a group of them.

    Attributes
    ----------
    heads : int
        Number of groups.
    transposed : bool
        Whether the second matrix is transposed: the result has a channel for each of its positions.
    by_row : bool
        Whether there are matrices for each row of the maps, whose rows are the positions of that row.
    """

    heads: int
    transposed: bool
    by_row: bool = False


@dataclasses.dataclass(frozen=True)
class Embedding(Operation):
    """Rows of a table, the second input, as channels of the positions of a map of one row: those with the numbers (N, positions)."""


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """Softmax of the channels of each group at each position."""

    groups: int = 1


# --- moves ------------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Identity(Operation):
    """The value itself, whatever happens to its gradient."""


@dataclasses.dataclass(frozen=True)
class Dropout(Operation):
    """Dropout during training, or `always`."""

    always: bool = False


@dataclasses.dataclass(frozen=True)
class Concatenation(Operation):
    """Values one after the other along an axis."""

    axis: int = 1


@dataclasses.dataclass(frozen=True)
class AxisSlice(Operation):
    """The elements from `begin` to before `end` along an axis; None: to the last one."""

    axis: int
    begin: int
    end: Optional[int]


@dataclasses.dataclass(frozen=True)
class Slice(Operation):
    """The elements from `begin` to before `end`, `strides` apart, along the first axes; None: what is usual in slices of Python."""

    begin: Tuple[Optional[int], ...]
    end: Tuple[Optional[int], ...]
    strides: Tuple[Optional[int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Split(Operation):
    """Parts of one size along an axis, each an output. `squeezes`: without that axis."""

    axis: int = 1
    squeezes: bool = False


@dataclasses.dataclass(frozen=True)
class Reshape(Operation):
    """The same elements in the shape of the node."""


@dataclasses.dataclass(frozen=True)
class Flatten(Operation):
    """The elements of each image as a vector."""


@dataclasses.dataclass(frozen=True)
class ExpandDims(Operation):
    """A new axis of one element."""

    axis: int


@dataclasses.dataclass(frozen=True)
class Squeeze(Operation):
    """Removal of axes of one element."""


@dataclasses.dataclass(frozen=True)
class Transpose(Operation):
    """The axes in another order; () for the reverse one."""

    axes: Axes = ()


@dataclasses.dataclass(frozen=True)
class SwapAxes(Operation):
    """The exchange of two axes."""

    first: int
    second: int


# --- maps -------------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Padding(Operation):
    """Padding of a value.

    Attributes
    ----------
    mode : str
        ``constant``, ``edge`` or ``reflect``.
    pads : tuple of tuple (int, int)
        Before and after, for each axis of the value.
    value : float
        For ``constant``.
    """

    mode: str
    pads: Tuple[Tuple[int, int], ...]
    value: float = 0.0


@dataclasses.dataclass(frozen=True)
class BilinearResizing(Operation):
    """Bilinear interpolation. `mode`: how the size of the result (the node's) is given; ``size`` for numbers or factors."""

    mode: str = 'size'
    aligns_corners: bool = True


@dataclasses.dataclass(frozen=True)
class PositionSelection(Operation):
    """Positions of maps, in the shape of the node: those with the numbers `places`, counted row by row, of one map after the other."""

    places: Tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class AxisMaps(Operation):
    """Products of axes with constant matrices, inputs 1 and up."""

    axes: Axes
