"""The engine of this project as an MXNet operator: a packed network in a `SymbolBlock`."""

PACKAGES = {'mxnet': 'mxnet'}


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: prefix (of the packed files)."""
    import mxnet as mx

    import bmx_melius  # also registers the operator

    prefix = arguments['prefix']
    names = bmx_melius.Session(prefix).input_names
    network = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', names, f'{prefix}-0000.params')
    network.hybridize(static_alloc=True, static_shape=True)
    data = mx.nd.array(array)
    return lambda: network(data).asnumpy(), {}
