"""Files of weights as Keras writes them."""

import numpy as np

LARQ_FILE = 'meliusnet22_weights.h5'  # the name of Larq Zoo's file


def write_keras(path, layers, root=''):
    """Write (name, {weight: array}) as Keras does."""
    import h5py  # not installed in every environment

    with h5py.File(path, 'w') as file:
        group = file.create_group(root) if root else file
        group.attrs['layer_names'] = [name.encode() for name, _ in layers]
        for name, weights in layers:
            group.create_group(name).attrs['weight_names'] = [f'{name}/{weight}:0'.encode() for weight in weights]
            for weight, array in weights.items():
                group[name][f'{name}/{weight}:0'] = array


def meliusnet22_layers(classes=1000):
    """The layers of Larq Zoo's MeliusNet22 by its published names, with random weights."""
    random = np.random.default_rng(1)

    def norm(name, n):
        arrays = random.uniform(0.5, 1.5, (4, n)).astype(np.float32)
        return name, dict(zip(('gamma', 'beta', 'moving_mean', 'moving_variance'), arrays))

    def kernel(name, *shape):
        return name, {'kernel': random.uniform(-1, 1, shape).astype(np.float32)}

    yield kernel('stem_s0_conv', 3, 3, 3, 32)
    yield norm('stem_s0_bn', 32)
    yield from (kernel(f'stem_s1_groupconv_conv{i}', 3, 3, 8, 8) for i in range(4))
    yield norm('stem_s1_bn', 32)
    yield from (kernel(f'stem_s2_groupconv_conv{i}', 3, 3, 4, 8) for i in range(8))
    yield norm('stem_s2_bn', 64)
    channels = 64
    for section, (blocks, width) in enumerate(zip((4, 5, 4, 4), (160, 224, 256, None))):
        for block in range(blocks):
            for part, inputs in (('dense', channels), ('improve', channels + 64)):
                yield norm(f'section_{section}_block_{block}_{part}_bn', inputs)
                yield kernel(f'section_{section}_block_{block}_{part}_binconv', 3, 3, inputs, 64)
            channels += 64
        if width:
            yield norm(f'section_{section}_transition_bn', channels)
            yield kernel(f'section_{section}_transition_pw', 1, 1, channels, width)
            channels = width
    yield norm('head_bn', channels)
    name, weights = kernel('head_dense', channels, classes)
    yield name, {**weights, 'bias': random.uniform(-1, 1, classes).astype(np.float32)}
