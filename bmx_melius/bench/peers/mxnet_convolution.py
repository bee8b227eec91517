"""A single float convolution in MXNet, 3x3 with padding 1."""

PACKAGES = {'mxnet': 'mxnet'}


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: channels (of input and output)."""
    import mxnet as mx

    channels = arguments['channels']
    layer = mx.gluon.nn.Conv2D(channels, 3, padding=1, in_channels=channels, use_bias=False)
    layer.initialize()
    layer.hybridize(static_alloc=True, static_shape=True)
    data = mx.nd.array(array)
    return lambda: layer(data).asnumpy(), {}
