"""GluonCV's float networks in MXNet, unchanged or with oneDNN's operator fusion."""

PACKAGES = {'mxnet': 'mxnet', 'gluoncv': 'gluoncv'}


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: network (its name in GluonCV), fused."""
    import mxnet as mx

    from bmx_melius.bench.float_forms import fused, to_block
    from bmx_melius.gluon_cv import gluoncv

    mx.random.seed(0)
    data = mx.nd.array(array)
    network = gluoncv.model_zoo.get_model(arguments['network'], pretrained=False)
    network.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
    network(data)  # completes deferred initialization
    network.hybridize(static_alloc=True, static_shape=True)
    if arguments['fused']:
        parameters = {name: parameter.data() for name, parameter in network.collect_params().items()}
        network = to_block(*fused(network(mx.sym.var('data')), parameters))
    return lambda: network(data).asnumpy(), {}
