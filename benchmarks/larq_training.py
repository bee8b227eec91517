"""Training steps of networks in Larq on TensorFlow, for `training_step.py --compare larq`, which starts this in another environment."""

import os

from peer_networks import network, serve


class Layers:
    """Layers of Keras and Larq, in the layout NHWC."""

    def __init__(self, larq, keras):
        self._larq, self._keras = larq, keras

    def convolution(self, x, channels, kernel, stride=1, groups=1):
        # one convolution for each group: Keras compiles those with groups by XLA, which takes several times as long
        width = x.shape[-1] // groups
        parts = [x[..., index * width : (index + 1) * width] for index in range(groups)] if groups > 1 else [x]
        layer = self._keras.Conv2D
        parts = [layer(channels // groups, kernel, stride, padding='same', use_bias=False)(part) for part in parts]
        return self._keras.Concatenate()(parts) if groups > 1 else parts[0]

    def binary(self, x, channels, stride=1):
        quantizers = {'input_quantizer': self._larq.quantizers.SteSign(1.3), 'kernel_quantizer': 'ste_sign'}
        layer = self._larq.layers.QuantConv2D
        return layer(channels, 3, stride, padding='same', pad_values=-1.0, use_bias=False, **quantizers)(x)

    def norm(self, x):
        return self._keras.BatchNormalization()(x)

    def relu(self, x):
        return self._keras.ReLU()(x)

    def max_pool(self, x, size):
        return self._keras.MaxPool2D(size, 2, padding='same' if size > 2 else 'valid')(x)

    def average_pool(self, x):
        return self._keras.AveragePooling2D(2, padding='same')(x)

    def concatenate(self, *maps):
        return self._keras.Concatenate()(maps)

    def add(self, *maps):
        return self._keras.Add()(maps)

    def scores(self, x, classes):
        return self._keras.Dense(classes)(self._keras.GlobalAveragePooling2D()(x))


def import_library(threads):
    """Return TensorFlow and Larq, with a number of threads."""
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_CPP_MIN_LOG_LEVEL='3')
    import larq
    import tensorflow

    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    tensorflow.keras.utils.set_random_seed(0)
    return tensorflow, larq


def make_step(library, name, batch_size, size, update):
    """Return a function that makes one step and waits for its result."""
    tf, larq = library
    image = tf.keras.layers.Input((size, size, 3))
    net = tf.keras.Model(image, network(Layers(larq, tf.keras.layers), image, name))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(0.002)
    images = tf.random.normal((batch_size, size, size, 3))
    labels = tf.random.uniform((batch_size,), 0, 1000, tf.int32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = loss(labels, net(images, training=True))
        gradients = tape.gradient(value, net.trainable_variables)
        if update:
            optimizer.apply_gradients(zip(gradients, net.trainable_variables))
        return value, gradients

    return lambda: step()[0].numpy()


if __name__ == '__main__':
    serve(import_library, make_step)
