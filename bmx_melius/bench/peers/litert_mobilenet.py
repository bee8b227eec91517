"""MobileNet v1 in LiteRT (TensorFlow Lite) with XNNPACK, float32 and int8 (calibrated on random images)."""

import os

PACKAGES = {'tensorflow': 'tensorflow-cpu', 'ai_edge_litert': 'ai-edge-litert'}
_CALIBRATION_IMAGES = 4


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: width (multiplier of the channels), int8. Fact: ``file_bytes`` of the model."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    nhwc = np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    model = convert(arguments['width'], nhwc.shape, arguments['int8'])
    interpreter = Interpreter(model_content=model, num_threads=threads)
    interpreter.allocate_tensors()
    (source,), (target,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run():
        interpreter.set_tensor(source['index'], nhwc)
        interpreter.invoke()
        return interpreter.get_tensor(target['index'])

    return run, {'file_bytes': len(model)}


def convert(width, input_shape, int8):
    """Return the flatbuffer; input and output stay float32."""
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_CPP_MIN_LOG_LEVEL='3')
    import numpy as np
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    network = tf.keras.applications.MobileNet(input_shape=input_shape[1:], alpha=width, weights=None, classifier_activation=None)
    network = tf.keras.Model(network.input, network.output)
    network.inputs[0].set_shape(input_shape)
    converter = tf.lite.TFLiteConverter.from_keras_model(network)
    if int8:
        random = np.random.default_rng(1)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.representative_dataset = lambda: (
            [random.normal(size=input_shape).astype(np.float32)] for _ in range(_CALIBRATION_IMAGES)
        )
    return converter.convert()
