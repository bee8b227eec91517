"""The network as it was exported, in MXNet's stock operators, and in faster forms of the same graph (see `float_forms`)."""

PACKAGES = {'mxnet': 'mxnet'}


def prepare(arguments, array, threads):
    """`arguments`: prefix of the exported files, form."""
    import mxnet as mx

    from bmx_melius.bench.float_forms import FORMS, load_exported, to_block

    network = to_block(*FORMS[arguments['form']](*load_exported(arguments['prefix'])))
    data = mx.nd.array(array)
    return lambda: network(data).asnumpy(), {}
