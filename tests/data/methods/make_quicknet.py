"""Make ``quicknet.npz``: a small QuickNet of Larq Zoo, its logits and gradients in training, in float64.

Repository github.com/larq/zoo, from the package larq-zoo 2.4.0 (larq 0.13.3, tensorflow-cpu 2.13.1): ``python make_quicknet.py``.
"""

from importlib import metadata

import larq_zoo.sota.quicknet as quicknet
import numpy as np
import tensorflow as tf
from recording import keras_case, save
from zookeeper import Field, factory


@factory
class SmallQuickNet(quicknet.QuickNetFactory):
    section_blocks, section_filters = Field((1, 1)), Field((8, 16))


def main():
    tf.keras.backend.set_floatx('float64')
    model = SmallQuickNet(input_shape=(32, 32, 3), num_classes=5).build()
    logits = next(layer for layer in model.layers if layer.__class__.__name__ == 'QuantDense').output
    x = np.random.default_rng(1).normal(size=(2, 32, 32, 3))
    packages = {name: metadata.version(name) for name in ('larq-zoo', 'larq', 'tensorflow-cpu')}
    save('quicknet', {'network': keras_case(model.input, logits, x, model.layers)}, repository='github.com/larq/zoo', **packages)


if __name__ == '__main__':
    main()
