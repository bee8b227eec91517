"""Base class of the networks, which also checks the image size of networks that have parameters for each position of a map."""

from typing import Any, Optional

import mxnet as mx
from mxnet.gluon import HybridBlock

from bmx_melius.errors import UserError


class ZooNetwork(HybridBlock):
    """A network with ``features`` and ``output``, as in GluonCV. Input (N, 3, H, W), float32; output (N, classes) logits.

    Subclasses are called with an architecture, options (both dataclasses of their module), the number of classes, and the arguments prefix
    and params of every Gluon block. They raise `UserError` if the options do not fit each other or the architecture.

    Parameters
    ----------
    input_size : int or None
        Height and width of the images; None: all sizes.

    Raises
    ------
    UserError
        When called with an array of another size than `input_size`. In an exported network MXNet raises a shape error.
    """

    def __init__(self, input_size: Optional[int] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.input_size = input_size

    def forward(self, x, *args):
        self._check_size(x)
        return super().forward(x, *args)

    def infer_shape(self, *args):
        self._check_size(args[0])
        super().infer_shape(*args)

    def _check_size(self, x):
        size = self.input_size
        if size and isinstance(x, mx.nd.NDArray) and x.shape[2:] != (size, size):
            raise UserError(
                f'this network has parameters for each position of a map and was built for images of {size} x {size}, not '
                f'{" x ".join(map(str, x.shape[2:]))}: for other square images build it with input_size=N, an argument of get_model '
                '(in training --model-options \'{"input_size": N}\')'
            )

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))
