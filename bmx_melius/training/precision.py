"""Whether MXNet can train in a type of numbers on a device: it is asked, because builds differ."""

import mxnet as mx
from mxnet import autograd

from ..errors import UserError, last_line


def check_dtype(dtype, device):
    """Raise `UserError` unless `device` (mx.Context) multiplies by weights in `dtype`, forward and backward."""
    if dtype == 'float32':
        return
    data = mx.nd.ones((1, 4, 4, 4), ctx=device, dtype=dtype)
    weight, dense = mx.nd.ones((4, 4, 3, 3), ctx=device, dtype=dtype), mx.nd.ones((2, 16), ctx=device, dtype=dtype)
    for array in (weight, dense):
        array.attach_grad()
    try:
        with autograd.record():
            y = mx.nd.FullyConnected(
                mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=4, no_bias=True), dense, num_hidden=2, no_bias=True
            )
        y.backward()
        weight.grad.wait_to_read()
        dense.grad.wait_to_read()
    except mx.MXNetError as error:
        raise UserError(
            f'--dtype {dtype}: this MXNet cannot train in it on {device} ({last_line(error)}); leave the flag out, or take '
            'a GPU (--num-gpus 1) and a build of MXNet for it'
        ) from error
