"""The exported float network in MXNet's stock operators, unchanged or in an optimized form (see `float_forms`)."""

import os

PACKAGES = {'mxnet': 'mxnet'}


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: prefix (of the exported files), form."""
    os.environ['BMX_MELIUS_FUSION'] = '0'  # executes what was exported
    import mxnet as mx

    from bmx_melius.bench.float_forms import FORMS, load_exported, to_block

    network = to_block(*FORMS[arguments['form']](*load_exported(arguments['prefix'])))
    data = mx.nd.array(array)
    return lambda: network(data).asnumpy(), {}
