"""Benchmark networks: networks of the zoo with random weights, and single binary layers."""

import numpy as np

_SEED = 0
_CALIBRATION_IMAGES = 4


def export(network, prefix, input_shape):
    """Initialize `network` with random weights and export it.

    Running statistics are computed from random images, and scale and shift of each normalization are random, so that bits are mixed as
    in a trained network. All scales are positive, so that `float_forms.thresholds` can fold every batch normalization.

    Parameters
    ----------
    network : mxnet.gluon.HybridBlock
        Not initialized; its normalization layers have momentum 0.
    prefix : str
    input_shape : tuple of int
    """
    import mxnet as mx

    mx.random.seed(_SEED)
    random = np.random.default_rng(_SEED)
    network.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
    images = mx.nd.array(random.standard_normal((_CALIBRATION_IMAGES, *input_shape[1:])))
    network(images)  # completes deferred initialization
    for name, parameter in network.collect_params().items():
        if name.endswith('_gamma'):
            parameter.set_data(mx.nd.array(random.uniform(0.5, 1.5, parameter.shape)))
        elif name.endswith('_beta'):
            parameter.set_data(mx.nd.array(random.normal(0, 0.3, parameter.shape)))
    with mx.autograd.record():
        result = network(images)
    result.backward()  # updates the running statistics, which momentum 0 replaces in one step
    mx.nd.waitall()
    network.hybridize()
    network(images[:1])
    network.export(prefix)


def pack(network, prefix, input_shape, **options):
    """`export` a network and `convert` it; return the prefix of the packed files."""
    export(network, prefix, input_shape)
    return convert(prefix, 'packed', input_shape, **options)


def convert(prefix, form, input_shape, **options):
    """Convert exported files with further options of `conversion.convert`; return the prefix of the packed files, which ends in `form`."""
    from ..deployment.convert import conversion

    packed = f'{prefix}-{form}'
    conversion.convert(f'{prefix}-symbol.json', f'{prefix}-0000.params', packed, (1, *input_shape[1:]), verify=False, **options)
    return packed


def calibration_images(input_shape):
    """Return images with which `convert` quantizes real-valued layers: standard normal numbers, as in `export`."""
    random = np.random.default_rng(_SEED + 1)
    return random.standard_normal((_CALIBRATION_IMAGES, *input_shape[1:]), dtype=np.float32)


def single_layer(channels, size):
    """Return a `Program` of one binary layer: random thresholds and a 3x3 convolution, padding -1, with equal channels in and out."""
    from ..deployment.program.operations import PADDING, REAL_KIND, Operation, Value
    from ..deployment.program.program import Program

    random = np.random.default_rng(_SEED)
    arrays = {'threshold': random.normal(0, 0.3, channels).astype(np.float32), 'flip': np.zeros(channels, bool)}
    geometry = {f'{name}_{axis}': value for name, value in (('kernel', 3), ('stride', 1), ('dilation', 1)) for axis in 'hw'}
    weight = random.integers(0, 2, (channels, 3, 3, channels)).astype(bool)
    padding = {**dict.fromkeys(PADDING, 1), 'pad_value': -1}
    attributes = {'out_channels': channels, **geometry, **padding, 'groups': 1, 'offset': 0, 'planes': 1}
    operations = [Operation('threshold', (0,), {}, arrays), Operation('binary_conv', (1,), attributes, {'weight': weight})]
    return Program([Value(REAL_KIND, channels, size, size, False)], operations, [2])
