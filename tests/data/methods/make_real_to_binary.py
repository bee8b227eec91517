"""Make ``real_to_binary.npz`` and ``strong_baseline.npz``: parts of these networks of Larq Zoo, with gradients in training, in float64.

Repository github.com/larq/zoo, from the package larq-zoo 2.4.0 (larq 0.13.3, tensorflow-cpu 2.13.1): ``python make_real_to_binary.py``.
"""

from importlib import metadata

import larq_zoo.literature.real_to_bin_nets as networks
import numpy as np
import tensorflow as tf
from recording import keras_case, save

CHANNELS, SIZE = 16, 4
FILES = {
    'real_to_binary': {'float': networks.RealToBinNetFPFactory, 'binary': networks.RealToBinNetBNNFactory},
    'strong_baseline': {'binary': networks.StrongBaselineNetBNNFactory},
}


def unit(factory, x, downsample):
    """One convolution with what belongs to it, and its shortcut."""
    network = factory(num_classes=5)
    inputs = tf.keras.Input(x.shape[1:])
    output = network.half_binary_block(inputs, downsample=downsample, name='unit')
    layers = {layer.name: layer for layer in tf.keras.Model(inputs, output).layers}
    parts = (
        'batch_norm',
        'conv2d',
        'scaling_dense_reduce',
        'scaling_dense_expand',
        'rescale',
        'prelu',
        'shortcut_conv2d',
        'shortcut_batch_norm',
    )
    for name in ('scale_h', 'scale_w'):  # 1, the initial value
        if 'unit_rescale' in layers:
            getattr(layers['unit_rescale'], name)._trainable = False
    ordered = [layers[f'unit_{part}'] for part in parts if f'unit_{part}' in layers]
    return keras_case(inputs, output, x, ordered, without_slope=layers['unit_shortcut_batch_norm'].output if downsample else inputs)


def stem(factory, x):
    inputs = tf.keras.Input(x.shape[1:])
    output = factory(num_classes=5).first_block(inputs, use_prelu=factory is networks.StrongBaselineNetBNNFactory, name='stem')
    return keras_case(inputs, output, x, tf.keras.Model(inputs, output).layers)


def main():
    tf.keras.backend.set_floatx('float64')
    random = np.random.default_rng(1)
    packages = {name: metadata.version(name) for name in ('larq-zoo', 'larq', 'tensorflow-cpu')}
    for name, factories in FILES.items():
        x = random.normal(size=(2, SIZE, SIZE, CHANNELS))
        cases = {stage: unit(make, x, False) for stage, make in factories.items()}
        cases['binary, stride 2'] = unit(factories['binary'], x, True)
        cases['stem'] = stem(factories['binary'], random.normal(size=(1, 16, 16, 3)))
        save(name, cases, repository='github.com/larq/zoo', **packages)


if __name__ == '__main__':
    main()
