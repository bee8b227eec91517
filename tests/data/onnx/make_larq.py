"""Generate the models of Larq, converted by tf2onnx: ``python make_larq.py [NAME ...]``, in the environment of ``requirements-larq.txt``.

The networks consist of Larq's layers as in Larq Zoo, with fewer blocks and channels. The environment needs Python 3.10.
"""

import sys
import zlib

import larq as lq
import numpy as np
import recording
import tensorflow as tf
import tf2onnx

CLASSES = 5
K = tf.keras.layers


def quicknet(image):
    """QuickNet: signs padded with one, blur pooling, softmax."""
    sign = lq.quantizers.SteSign(clip_value=1.25)

    def residual(x):
        out = lq.layers.QuantConv2D(
            x.shape[-1], 3, activation='relu', input_quantizer=sign, kernel_quantizer=sign, padding='same', pad_values=1.0, use_bias=False
        )(x)
        return K.BatchNormalization(epsilon=1e-5)(out) + x

    x = lq.layers.QuantConv2D(4, 3, strides=2, padding='same', use_bias=False)(image)
    x = K.Activation('relu')(K.BatchNormalization()(x))
    x = lq.layers.QuantDepthwiseConv2D(3, strides=2, padding='same', use_bias=False)(x)
    x = K.BatchNormalization(scale=False, center=False)(x)
    x = residual(K.BatchNormalization()(lq.layers.QuantConv2D(16, 1, use_bias=False)(x)))
    x = K.MaxPool2D(2, strides=1)(K.Activation('relu')(x))
    x = K.DepthwiseConv2D(3, strides=2, padding='same', use_bias=False)(x)
    x = K.BatchNormalization(epsilon=1e-5)(lq.layers.QuantConv2D(24, 1, use_bias=False)(x))
    x = K.GlobalAveragePooling2D()(K.Activation('relu')(residual(x)))
    return K.Activation('softmax')(lq.layers.QuantDense(CLASSES)(x))


def resnet_e(image):
    """BinaryResNetE: zeros beyond the border, strides with one-sided padding, average pooling in the shortcut."""
    sign = lq.quantizers.SteSign(clip_value=1.25)

    def residual(x, filters, strides):
        shortcut = x
        if strides > 1:
            shortcut = K.Conv2D(filters, 1, use_bias=False)(K.AvgPool2D(2, strides=2)(x))
            shortcut = K.BatchNormalization(epsilon=1e-5)(shortcut)
        x = lq.layers.QuantConv2D(filters, 3, strides, 'same', input_quantizer=sign, kernel_quantizer=sign, use_bias=False)(x)
        return K.add([K.BatchNormalization(epsilon=1e-5)(x), shortcut])

    x = K.BatchNormalization()(K.Conv2D(8, 3, padding='same', use_bias=False)(image))
    x = residual(residual(residual(x, 8, 1), 16, 2), 16, 1)
    x = K.GlobalAveragePooling2D()(K.Activation('relu')(x))
    return K.Activation('softmax')(K.Dense(CLASSES)(x))


def sequential(image):
    """Plain sequence as in Larq's guide: pooling, scaled weights, a binary dense layer."""
    options = {'input_quantizer': 'ste_sign', 'kernel_quantizer': 'ste_sign', 'use_bias': False}
    scaled = options | {'kernel_quantizer': 'magnitude_aware_sign', 'input_quantizer': 'approx_sign'}
    x = lq.layers.QuantConv2D(8, 3, kernel_quantizer='ste_sign', use_bias=False)(image)
    x = K.BatchNormalization(scale=False)(K.MaxPool2D(2)(x))
    x = K.BatchNormalization(scale=False)(lq.layers.QuantConv2D(16, 3, **scaled)(x))
    x = K.BatchNormalization(scale=False)(lq.layers.QuantDepthwiseConv2D(
        3, input_quantizer='ste_sign', depthwise_quantizer='ste_sign', use_bias=False
    )(x))  # fmt: skip
    x = K.BatchNormalization(scale=False)(lq.layers.QuantDense(32, **options)(K.Flatten()(x)))
    x = K.BatchNormalization(scale=False)(lq.layers.QuantDense(CLASSES, **options)(x))
    return K.Activation('softmax')(x)


def binary_alexnet(image):
    """BinaryAlexNet: a first layer with real inputs, and a classifier of binary convolutions of one position, each with a normalization."""
    sign = {'kernel_quantizer': 'ste_sign', 'kernel_constraint': 'weight_clip', 'use_bias': False}

    def block(x, filters, size, pool=False, **options):
        x = lq.layers.QuantConv2D(filters, size, padding='same', **options, **sign)(x)
        return K.BatchNormalization(scale=False)(K.MaxPool2D(3, strides=2)(x) if pool else x)

    x = block(image, 4, 11, pool=True, strides=4)
    x = block(x, 12, 5, input_quantizer='ste_sign')
    x = block(x, 16, 3, input_quantizer='ste_sign')
    x = block(x, 16, 3, pool=True, input_quantizer='ste_sign')
    x = K.Reshape((1, 1, int(np.prod(x.shape[1:]))))(x)
    for filters in (48, CLASSES):
        x = block(x, filters, 1, input_quantizer='ste_sign')
    return K.Activation('softmax')(K.Flatten()(x))


def dorefanet(image):
    """DoReFaNet: activations of two bits, one scale for the weights of a layer, real first and last layers."""

    def scaled_sign(x):
        return tf.where(x < 0, -1.0, 1.0) * tf.reduce_mean(tf.abs(x))

    levels = {'input_quantizer': lq.quantizers.DoReFaQuantizer(k_bit=2), 'kernel_quantizer': scaled_sign, 'use_bias': False}

    def norm(x):
        return K.BatchNormalization(scale=False, epsilon=1e-4)(x)

    x = K.Conv2D(4, 12, strides=4)(image)
    x = K.MaxPool2D(3, strides=2, padding='same')(norm(lq.layers.QuantConv2D(12, 5, padding='same', **levels)(x)))
    x = K.MaxPool2D(3, strides=2)(norm(lq.layers.QuantConv2D(16, 3, padding='same', **levels)(x)))
    x = norm(lq.layers.QuantDense(32, **levels)(K.Flatten()(x)))
    x = K.Dense(CLASSES)(tf.clip_by_value(norm(lq.layers.QuantDense(32, **levels)(x)), 0, 1))
    return K.Activation('softmax')(x)


FORM = 'Sign(Sign + 0.1) in NHWC; weights folded to two levels'
MODELS = {  # name: network, shape of its input, options of the conversion, facts
    'larq-binary-alexnet': (
        binary_alexnet, (41, 25, 3), {'opset': 13},
        {'form': FORM + '; first layer with real inputs; Reshape to and of maps of one position, before binary layers', 'binary': 5,
         'levels': 1},
    ),
    'larq-dorefanet': (
        dorefanet, (52, 28, 3), {'opset': 13},
        {'form': 'Min, Max, Mul, Round to 4 levels in NHWC; weights folded to two levels; convolutions and dense layers',
         'binary': 0, 'low_bit': 4},
    ),
    'larq-quicknet': (quicknet, (32, 32, 3), {'opset': 13}, {'form': FORM + '; Pad with 1; depth-wise, Softmax', 'binary': 2}),
    'larq-quicknet-nchw': (
        quicknet, (32, 32, 3), {'opset': 17, 'inputs_as_nchw': ['input']},
        {'form': FORM + ' after a Transpose from NCHW; Pad with 1; depth-wise, Softmax', 'binary': 2},
    ),
    'larq-resnet-e': (resnet_e, (16, 16, 3), {'opset': 13}, {'form': FORM + '; zeros beyond one-sided borders', 'binary': 3}),
    'larq-sequential': (
        sequential, (12, 12, 3), {'opset': 11, 'batch': 1},
        {'form': FORM + '; first layer with real inputs; magnitude_aware_sign, depth-wise and dense layers', 'binary': 4, 'levels': 1},
    ),
}  # fmt: skip


def prepare(model, rng):
    """Give weights random values and normalizations the approximate statistics of random inputs, with factors of both signs."""
    norms = [layer for layer in model.layers if isinstance(layer, K.BatchNormalization)]
    for variable in model.trainable_variables:
        if 'kernel' in variable.name:
            variable.assign(rng.normal(0, np.prod(variable.shape[:-1]) ** -0.5, variable.shape))
    for norm in norms:
        norm.momentum = 0.0
        if norm.scale:
            norm.gamma.assign(rng.uniform(0.5, 1.5, norm.gamma.shape) * np.where(rng.random(norm.gamma.shape) < 0.2, -1, 1))
        if norm.center:
            norm.beta.assign(rng.normal(0, 0.3, norm.beta.shape))
    model(rng.uniform(-2, 2, (32, *model.input_shape[1:])).astype(np.float32), training=True)
    for norm in norms:
        deviation = np.sqrt(norm.moving_variance.numpy())
        norm.moving_mean.assign_add(0.2 * deviation * rng.normal(size=deviation.shape))
        norm.moving_variance.assign(norm.moving_variance * rng.uniform(0.6, 1.7, deviation.shape) + 0.01)


def make(name, build, shape, options, facts):
    tf.keras.backend.clear_session()
    options = dict(options)
    image = tf.keras.Input(shape, name='input')
    model = tf.keras.Model(image, build(image))
    prepare(model, np.random.default_rng(zlib.crc32(build.__name__.encode())))
    signature = [tf.TensorSpec((options.pop('batch', None), *shape), tf.float32, name='input')]
    tf2onnx.convert.from_keras(model, signature, output_path=str(recording.WORK / f'{name}.onnx'), **options)
    first = options.get('inputs_as_nchw')
    inputs = recording.choose_inputs(name, [(2, shape[2], *shape[:2]) if first else (2, *shape)])
    outputs = model(inputs[0].transpose(0, 2, 3, 1) if first else inputs[0], training=False).numpy()
    exporter = (
        f'tf2onnx {tf2onnx.__version__} of TensorFlow {tf.__version__}, {"any batch" if signature[0].shape[0] is None else "batch 1"}'
    )
    recording.record(name, inputs, [outputs], exporter=exporter, source='larq/larq (larq 0.13.3)', **facts)


if __name__ == '__main__':
    for name in sys.argv[1:] or MODELS:
        make(name, *MODELS[name])
