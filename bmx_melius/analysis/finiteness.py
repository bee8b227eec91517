"""Detection of parameters with NaN or infinite values: the loss may stay finite, because a sign and a ReLU replace NaN by numbers."""

from typing import Optional

import mxnet as mx
import numpy as np


def find_not_finite(net: mx.gluon.Block) -> Optional[str]:
    """Return the name of the first parameter with a value that is NaN or infinite, as in ``.params`` files; None if there is none.

    Running statistics are parameters too. Parameters on several devices are read from each of them.

    Parameters
    ----------
    net : gluon.Block
        Initialized.
    """
    for name, parameter in net._collect_params_with_prefix().items():
        # NumPy, because MXNet's `multi_all_finite` takes eight times as long on the CPU, and crashes with many arrays
        if not all(np.isfinite(array.asnumpy()).all() for array in parameter.list_data()):
            return name
    return None
