"""Quantize the ResNet-8 that ships with the project in LiteRT (TensorFlow Lite), and compare it with the project's packed networks.

    # in the project's environment: write the networks and images of Fashion-MNIST that the comparison reads
    python benchmarks/trained_in_litert.py --export out/litert [--data-dir FOLDER]

    # in a separate one, for Python 3.11, as TensorFlow needs newer packages than MXNet; of bmx_melius it needs only the engine
    python -m venv out/litert-env
    out/litert-env/bin/pip install tensorflow-cpu==2.20.0 ai-edge-litert==2.3.0 onnx==1.19.1
    out/litert-env/bin/python benchmarks/trained_in_litert.py out/litert

The float network is built in TensorFlow from the ONNX model that the project writes; its logits must equal the engine's but for rounding.
LiteRT quantizes it with a scale for each output channel and ranges from the training images from which the project takes its own.

- ``lost, won`` are images that only the float network, or only the other one, classifies correctly; ``p`` is from the exact McNemar test.
- Times are processor time of single images from float inputs in one thread, all networks in turns: the least of each.

The folder gets resnet8_fashion-int8.tflite, whose input and output are 8-bit integers: ``trained_in_cmsis_nn.py`` runs it.
"""

import argparse
import os
import pathlib
import sys
from importlib import metadata

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tools')]

from commands import run_main  # noqa: E402  the path comes first

import bmx_melius as bmx  # noqa: E402
from benchmarks.paired import PER_TURN, changed_hits, timed  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.process import processor  # noqa: E402

NAME = 'resnet8_fashion'
IMAGES, INT8_FILE = 'images.npz', f'{NAME}-int8.tflite'
TOLERANCE = 1e-4  # of a logit
PARAMETERS = '-0000.params'  # end of the names of the packed files
VERSIONS = ('tensorflow-cpu', 'ai-edge-litert')


def main():
    """Export the networks, or compare them with LiteRT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=pathlib.Path, help='folder of the networks and images')
    parser.add_argument('--export', action='store_true', help='write the folder, in the environment of the project')
    parser.add_argument('--data-dir', type=pathlib.Path, help='folder with the four files of Fashion-MNIST, for --export')
    arguments = parser.parse_args()
    if arguments.export:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        export_all(arguments.folder, arguments.data_dir)
    else:
        compare(arguments.folder)


# --- the project's environment ----------------------------------------------------------------------------------------------------------


def export_all(folder, data_dir):
    """Write the float ResNet-8, packed and as ONNX, all networks packed with 8-bit layers, and the images as inputs of all of them."""
    from trained_networks import CALIBRATION, Images, downloaded, export

    from bmx_melius.deployment.onnx.export import to_onnx
    from bmx_melius.deployment.runtime.packed_files import read_packed
    from bmx_melius.files.stored_networks import read_table
    from model_zoo.shipped import FOLDER

    networks, data = read_table(FOLDER), data_dir or downloaded()
    if any(network.input != networks[0].input for network in networks):
        raise UserError('the networks have different inputs')
    test, training = Images(data, networks[0]), Images(data, networks[0], True, CALIBRATION)
    calibration = training.normalized(networks[0])
    np.savez(folder / IMAGES, images=test.normalized(networks[0]), labels=test.labels, calibration=calibration)
    shape = (1, *calibration.shape[1:])
    for network in networks:
        exported = export(network, folder)
        files = exported.symbol_file, exported.parameter_file(0)
        bmx.convert(*files, folder / f'{network.name}-int8', shape, calibration=calibration)
        if network.name == NAME:
            bmx.convert(*files, folder / f'{NAME}-float', shape)
            program, _, input_names, order, _ = read_packed(folder / f'{NAME}-float')
            (folder / f'{NAME}.onnx').write_bytes(to_onnx(program, input_names, order).SerializeToString())


# --- the environment of TensorFlow ------------------------------------------------------------------------------------------------------


def compare(folder):
    """Quantize the network, and print size, accuracy and time of all networks."""
    data = np.load(folder / IMAGES)
    images, labels = data['images'], data['labels']
    packed = [path.name[: -len(PARAMETERS)] for path in sorted(folder.glob(f'*-int8{PARAMETERS}'))]
    float_session = bmx.Session(folder / f'{NAME}-float', threads=1)
    network = tensorflow_network(folder / f'{NAME}.onnx')
    difference = np.abs(network(channels_last(images)).numpy() - in_batches(float_session, images)).max()
    if difference > TOLERANCE:
        raise UserError(f'logits in TensorFlow differ from the engine by {difference:.1e}')
    print(f'float logits of {len(images):,} images in TensorFlow and in the engine differ by at most {difference:.1e}')
    models = {
        'float, LiteRT': lite_model(network, images.shape[1:]),
        '8 bits, LiteRT': lite_model(network, images.shape[1:], data['calibration']),
    }
    integers = lite_model(network, images.shape[1:], data['calibration'], integers=True)
    (folder / INT8_FILE).write_bytes(integers)
    rows = {f'{NAME}, float': (float_session, packed_bytes(folder / f'{NAME}-float'))}
    rows.update({f'{NAME}, {form}': (LiteSession(model), len(model)) for form, model in models.items()})
    for name in packed:
        rows[f'{name[: -len("-int8")]}, 8 bits'] = bmx.Session(folder / name, threads=1), packed_bytes(folder / name)
    correct = {name: in_batches(session, images).argmax(axis=1) == labels for name, (session, _) in rows.items()}
    times = timed({name: (session, images[:PER_TURN]) for name, (session, _) in rows.items()})
    versions = ', '.join(f'{name} {metadata.version(name)}' for name in VERSIONS)
    print(f'{INT8_FILE}: {len(integers):,} bytes\n\n{processor()}; {versions}\n')
    print('| network | KB | top-1 % | lost, won | p | ms | of 8 bits |\n|-|-|-|-|-|-|-|')
    expected, (reference, _) = correct[f'{NAME}, float'], times[f'{NAME}, 8 bits']
    for name, (_, size) in rows.items():
        (lost, won, p), (milliseconds, _) = changed_hits(expected, correct[name]), times[name]
        print(
            f'| {name} | {size / 1e3:.0f} | {100 * correct[name].mean():.2f} | {lost}, {won} | {p:.2g} | '
            f'{milliseconds:.3f} | {milliseconds / reference:.2f} |'
        )


def tensorflow_network(path):
    """Return a function of TensorFlow, of images with their channels last, from the ONNX model of a network of this kind."""
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_CPP_MIN_LOG_LEVEL='3')
    import onnx
    import tensorflow as tf

    graph = onnx.load(path).graph
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}

    def convolved(x, weight, bias, attributes):
        if len(x.shape) == 2:  # the dense layer, a 1x1 convolution in ONNX
            return tf.matmul(x, weight[:, :, 0, 0].T) + bias
        sizes = zip(x.shape[1:3], attributes['strides'], attributes['kernel_shape'])
        missing = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size, stride, kernel in sizes]
        # LiteRT pads in a step of its own unless the padding is TensorFlow's `SAME`.
        if attributes['pads'] != [*(each // 2 for each in missing), *(each - each // 2 for each in missing)]:
            raise UserError(f'{path}: padding {attributes["pads"]} is not the one of TensorFlow')
        return tf.nn.conv2d(x, weight.transpose(2, 3, 1, 0), attributes['strides'], 'SAME') + bias

    def run(images):
        values = {graph.input[0].name: images}
        for node in graph.node:
            x = values[node.input[0]]
            if node.op_type == 'Conv':
                attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
                x = convolved(x, constants[node.input[1]], constants[node.input[2]], attributes)
            elif node.op_type == 'Add':
                x += values[node.input[1]]
            elif node.op_type == 'Relu':
                x = tf.nn.relu(x)
            elif node.op_type == 'GlobalAveragePool':
                x = tf.nn.avg_pool2d(x, x.shape[1:3], 1, 'VALID')
            elif node.op_type == 'Flatten':
                x = tf.reshape(x, (-1, x.shape[-1]))
            elif node.op_type not in ('Unsqueeze', 'Squeeze', 'Identity'):  # those are around the dense layer
                raise UserError(f'{path}: no translation for {node.op_type}')
            values[node.output[0]] = x
        return values[graph.output[0].name]

    return tf.function(run)


def lite_model(network, shape, calibration=None, integers=False):
    """Return a file of LiteRT for one image; with images for calibration its weights and values, and with `integers` its ends, are int8."""
    import tensorflow as tf

    channels, height, width = shape
    function = network.get_concrete_function(tf.TensorSpec((1, height, width, channels)))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    if calibration is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([channels_last(image[None])] for image in calibration)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    if integers:
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


class LiteSession:
    """A network in LiteRT with XNNPACK, its default, and one thread."""

    def __init__(self, model):
        from ai_edge_litert.interpreter import Interpreter

        self.interpreter = Interpreter(model_content=model, num_threads=1)
        self.interpreter.allocate_tensors()
        self.source, self.target = (
            ends()[0]['index'] for ends in (self.interpreter.get_input_details, self.interpreter.get_output_details)
        )

    def __call__(self, images):
        return np.concatenate([self.run(image[None]) for image in channels_last(images)])

    def run(self, image):
        self.interpreter.set_tensor(self.source, image)
        self.interpreter.invoke()
        return self.interpreter.get_tensor(self.target)


def channels_last(images):
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


def in_batches(session, images):
    """Return the logits of all images."""
    return np.concatenate([session(images[at : at + 100]) for at in range(0, len(images), 100)])


def packed_bytes(prefix):
    """Return the size of a packed network, as in trained_networks.py."""
    return prefix.with_name(prefix.name + PARAMETERS).stat().st_size


if __name__ == '__main__':
    run_main(main)
