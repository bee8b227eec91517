"""Memory of int8 networks in TensorFlow Lite Micro, for the digits that docs/microcontrollers.md classifies by binary layers.

One network has the layers of the binary network, with int8 in place of binary convolutions, the other is a small plain network.
Run it in a separate environment: ``pip install tensorflow-cpu==2.16.2 tflite-micro scikit-learn``.
"""

import os

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tflite_micro.python.tflite_micro import runtime

SHARE = 5  # of each digit, images 0, 5, 10, ... are test images and images 1, 6, 11, ... are left out: bmx_melius/data/small_images.py
SHAPE, CLASSES = (8, 8, 1), 10
EPOCHS, BATCH, CALIBRATION = 20, 32, 200
layers = tf.keras.layers


def main():
    """Train, quantize and run both networks, and print their memory."""
    training, test = digits()
    for name, build in (('layers of the binary network', layers_of_melius), ('three convolutions', plain)):
        tf.keras.utils.set_random_seed(1)
        network = build()
        network.compile('adam', tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        network.fit(*training, BATCH, EPOCHS, verbose=0)
        model = quantized(network, training[0])
        interpreter = runtime.Interpreter.from_bytes(model)
        print(f'{name}: model of {len(model):,} bytes, top-1 {accuracy(interpreter, *test):.1%}', flush=True)
        interpreter.print_allocations()  # of this machine, whose pointers have 8 bytes


def digits():
    """Return images and labels for training, and those for testing."""
    data = load_digits()
    places = np.empty(len(data.target), int)
    for label in range(CLASSES):
        same = np.flatnonzero(data.target == label)
        places[same] = np.arange(len(same)) % SHARE
    images = data.images[..., None].astype(np.float32)
    known = images[places > 1]
    images = (images - known.mean()) / known.std()
    return tuple((images[part], data.target[part]) for part in (places > 1, places == 0))


def conv(x, channels, kernel=3, strides=1):
    return layers.Conv2D(channels, kernel, strides, padding='same', use_bias=False)(x)


def normalized(x):
    return layers.ReLU()(layers.BatchNormalization()(x))


def layers_of_melius():
    """Return the network of the guide, with ReLU in place of the signs."""

    def block(x):
        x = layers.Concatenate()([x, conv(normalized(x), 32)])
        first = x.shape[-1] - 32
        return layers.Concatenate()([x[..., :first], layers.Add()([x[..., first:], conv(normalized(x), 32)])])

    image = layers.Input(SHAPE)
    x = block(block(conv(image, 16)))
    x = block(block(conv(layers.MaxPool2D()(normalized(x)), 48, 1)))
    return tf.keras.Model(image, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(normalized(x))))


def plain():
    """Return a network of three convolutions and a dense layer."""
    image = x = layers.Input(SHAPE)
    for channels, strides in ((8, 1), (16, 2), (32, 2)):
        x = normalized(conv(x, channels, strides=strides))
    return tf.keras.Model(image, layers.Dense(CLASSES)(layers.Flatten()(x)))


def quantized(network, images):
    """Return a network with int8 weights, values, input and output, as a file of TensorFlow Lite."""
    run = tf.function(lambda image: network(image, training=False))
    frozen = convert_variables_to_constants_v2(run.get_concrete_function(tf.TensorSpec((1, *SHAPE))))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[None]] for image in images[:CALIBRATION])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def accuracy(interpreter, images, labels):
    """Return the top-1 accuracy in TensorFlow Lite Micro."""
    quantization = interpreter.get_input_details(0)['quantization_parameters']
    scale, zero = (np.ravel(quantization[key])[0] for key in ('scales', 'zero_points'))
    correct = 0
    for image, label in zip(images, labels):
        interpreter.set_input(np.clip(np.rint(image[None] / scale + zero), -128, 127).astype(np.int8), 0)
        interpreter.invoke()
        correct += interpreter.get_output(0).argmax() == label
    return correct / len(labels)


if __name__ == '__main__':
    main()
