"""The part of mxboard that scripts of BMXNet-v2 use: `SummaryWriter`, on tensorboardX.

mxboard itself (0.1.0, of 2018) cannot be imported beside a current protobuf: its generated code predates version 4. Scripts run after
one changed import, ``from bmx_melius.compat.mxboard import SummaryWriter`` instead of ``from mxboard import SummaryWriter``.
"""

from typing import Any, Optional

import mxnet as mx
import numpy as np

from ..errors import UserError
from ..reporting import LOG


class SummaryWriter:
    """Writer of TensorBoard's files with the methods of mxboard that BMXNet-v2's scripts call.

    Parameters
    ----------
    logdir : str
        Folder of the files.
    flush_secs : int
        Seconds after which what was added is written.

    Raises
    ------
    UserError
        When tensorboardX is not installed.
    """

    def __init__(self, logdir: str, flush_secs: int = 120) -> None:
        try:
            import tensorboardX
        except ImportError as error:
            raise UserError("SummaryWriter needs the package tensorboardX: pip install 'bmx-melius[tensorboard]'") from error
        self._writer = tensorboardX.SummaryWriter(logdir, flush_secs=flush_secs)

    def add_scalar(self, tag: str, value: Any, global_step: Optional[int] = None) -> None:
        """Add a point (a number or an array with one element) to the curve `tag`."""
        self._writer.add_scalar(tag, float(_array(value).reshape(())), global_step)

    def add_histogram(self, tag: str, values: Any, global_step: Optional[int] = None, bins: int = 10) -> None:
        """Add a histogram of an array of any shape."""
        self._writer.add_histogram(tag, _array(values), global_step, bins=bins)

    def add_image(self, tag: str, image: Any, global_step: Optional[int] = None) -> None:
        """Add an image (C, H, W), or a batch (N, C, H, W) as one image, float of 0 to 1 or uint8."""
        image = _array(image)
        self._writer.add_images(tag, image if image.ndim == 4 else image[None], global_step)

    def add_graph(self, net: mx.gluon.Block) -> None:
        """Log that the graph of a network is not written: ``bmx-melius summary`` prints the layers of the exported network."""
        LOG.warning('the graph of %s is not written for TensorBoard; bmx-melius summary prints its layers', net.name)

    def flush(self) -> None:
        """Write what was added."""
        self._writer.flush()

    def close(self) -> None:
        """Write what was added, and close the files."""
        self._writer.close()


def _array(value):
    return value.asnumpy() if isinstance(value, mx.nd.NDArray) else np.asarray(value)
