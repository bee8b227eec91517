"""MeliusNet22 in the Larq Compute Engine, whose binary kernels are optimized for ARM; on x86 they count the bits of one word at a time."""

import os

PACKAGES = {'larq_compute_engine': 'larq-compute-engine', 'larq': 'larq', 'tensorflow': 'tensorflow-cpu'}
_BLOCKS, _TRANSITIONS = (4, 5, 4, 4), (160, 224, 256)


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: best (whether to use the fastest settings instead of the defaults)."""
    import numpy as np
    from larq_compute_engine.tflite.python.interpreter import Interpreter

    nhwc = np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    best = arguments['best']
    interpreter = Interpreter(convert(nhwc.shape), num_threads=threads, use_indirect_bgemm=best, use_xnnpack=best)
    return lambda: interpreter.predict(nhwc), {}


def convert(input_shape, classes=1000):
    """Return the flatbuffer. Binary layers are padded with +1, the only binary padding that this library supports."""
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_CPP_MIN_LOG_LEVEL='3')
    import larq
    import larq_compute_engine
    import tensorflow as tf

    layers = tf.keras.layers

    def normalized(x):
        return layers.BatchNormalization()(x)

    def convolution(x, channels, kernel, stride=1, groups=1):
        return layers.Conv2D(channels, kernel, stride, padding='same', groups=groups, use_bias=False)(x)

    def binary(x):
        return larq.layers.QuantConv2D(
            64, 3, padding='same', pad_values=1.0, use_bias=False, input_quantizer='ste_sign', kernel_quantizer='ste_sign'
        )(normalized(x))

    tf.keras.utils.set_random_seed(0)
    x = image = layers.Input(input_shape[1:], batch_size=input_shape[0])
    for channels, stride, stem_groups in ((32, 2, 1), (32, 1, 4), (64, 1, 8)):
        x = layers.ReLU()(normalized(convolution(x, channels, 3, stride, stem_groups)))
    x = layers.MaxPool2D(3, 2, padding='same')(x)
    for count, width in zip(_BLOCKS, (*_TRANSITIONS, None)):
        for _ in range(count):
            new = binary(x)
            improvement = binary(layers.Concatenate()([x, new]))
            x = layers.Concatenate()([x, layers.Add()([new, improvement])])
        if width is not None:
            x = convolution(layers.ReLU()(layers.MaxPool2D(2)(normalized(x))), width, 1)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(normalized(x)))
    network = tf.keras.Model(image, layers.Dense(classes)(x))
    return larq_compute_engine.convert_keras_model(network)
