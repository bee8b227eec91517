"""Training steps of MeliusNet22 in Larq on TensorFlow, for `training_step.py --compare larq`, which starts this in another environment.

``python larq_training.py BATCH SIZE THREADS`` makes one step, forward and backward, for each line of standard input, and answers with its
wall time and processor time in seconds.
"""

import os
import sys
import time

BLOCKS, TRANSITIONS = (4, 5, 4, 4), (160, 224, 256)  # of MeliusNet22


def network(tf, larq, size, classes=1000):
    """Return the network for images of size x size as a Keras model, with the layers of the zoo's meliusnet22."""
    layers = tf.keras.layers

    def convolution(x, channels, kernel, stride=1, groups=1):
        # one convolution for each group: Keras compiles those with groups by XLA, which takes several times as long
        parts = tf.split(x, groups, axis=-1) if groups > 1 else [x]
        parts = [layers.Conv2D(channels // groups, kernel, stride, padding='same', use_bias=False)(part) for part in parts]
        return layers.Concatenate()(parts) if groups > 1 else parts[0]

    def binary(x):
        quantizers = {'input_quantizer': larq.quantizers.SteSign(1.3), 'kernel_quantizer': 'ste_sign'}
        x = layers.BatchNormalization()(x)
        return larq.layers.QuantConv2D(64, 3, padding='same', pad_values=-1.0, use_bias=False, **quantizers)(x)

    x = image = layers.Input((size, size, 3))
    for channels, stride, groups in ((32, 2, 1), (32, 1, 4), (64, 1, 8)):
        x = layers.ReLU()(layers.BatchNormalization()(convolution(x, channels, 3, stride, groups)))
    x = layers.MaxPool2D(3, 2, padding='same')(x)
    for count, width in zip(BLOCKS, (*TRANSITIONS, None)):
        for _ in range(count):
            new = binary(x)
            improvement = binary(layers.Concatenate()([x, new]))
            x = layers.Concatenate()([x, layers.Add()([new, improvement])])
        if width is not None:
            x = convolution(layers.ReLU()(layers.MaxPool2D(2)(layers.BatchNormalization()(x))), width, 1)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return tf.keras.Model(image, layers.Dense(classes)(x))


def make_step(batch_size, size, threads):
    """Return a function that makes one step and waits for its result."""
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_CPP_MIN_LOG_LEVEL='3')
    import larq
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(0)
    net = network(tf, larq, size)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.random.normal((batch_size, size, size, 3))
    labels = tf.random.uniform((batch_size,), 0, 1000, tf.int32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = loss(labels, net(images, training=True))
        return value, tape.gradient(value, net.trainable_variables)

    return lambda: step()[0].numpy()


def main():
    step = make_step(*map(int, sys.argv[1:]))
    for _ in sys.stdin:
        start, processor_start = time.perf_counter(), time.process_time()
        step()
        print(time.perf_counter() - start, time.process_time() - processor_start, flush=True)


if __name__ == '__main__':
    main()
