"""Make ``real_to_binary.npz``, ``strong_baseline.npz`` and ``quicknet.npz``: parts of these networks of Larq Zoo, and a small QuickNet.

With gradients in training, in float64.

Repository github.com/larq/zoo, from the package larq-zoo 2.4.0 (larq 0.13.3, tensorflow-cpu 2.13.1): ``python make_larq_zoo.py``.
"""

from importlib import metadata

import larq_zoo.literature.real_to_bin_nets as networks
import larq_zoo.sota.quicknet as quicknet
import numpy as np
import tensorflow as tf
from recording import keras_case, save
from zookeeper import Field, factory

CHANNELS, SIZE = 16, 4
FILES = {
    'real_to_binary': {'float': networks.RealToBinNetFPFactory, 'binary': networks.RealToBinNetBNNFactory},
    'strong_baseline': {'binary': networks.StrongBaselineNetBNNFactory},
}


@factory
class SmallQuickNet(quicknet.QuickNetFactory):
    section_blocks, section_filters = Field((1, 1)), Field((8, 16))


def quicknet_case():
    model = SmallQuickNet(input_shape=(32, 32, 3), num_classes=5).build()
    logits = next(layer for layer in model.layers if layer.__class__.__name__ == 'QuantDense').output
    return keras_case(model.input, logits, np.random.default_rng(1).normal(size=(2, 32, 32, 3)), model.layers)


def unit(make, x, downsample):
    """One convolution with what belongs to it, and its shortcut."""
    network = make(num_classes=5)
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


def stem(make, x):
    inputs = tf.keras.Input(x.shape[1:])
    output = make(num_classes=5).first_block(inputs, use_prelu=make is networks.StrongBaselineNetBNNFactory, name='stem')
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
    save('quicknet', {'network': quicknet_case()}, repository='github.com/larq/zoo', **packages)


if __name__ == '__main__':
    main()
