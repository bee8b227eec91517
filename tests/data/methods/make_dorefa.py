"""Make ``dorefa.npz``, ``ttq.npz`` and ``syq.npz``: convolutions with the authors' quantizers, and their gradients, in float32.

Repositories, with tensorflow-cpu 2.13.1: github.com/tensorpack/tensorpack at commit 1547a54e8546 (``examples/DoReFa-Net/dorefa.py``),
github.com/czhu95/ternarynet at commit 1a67251f7f5a (``examples/Ternary-Net/ternary.py``), github.com/julianfaraone/SYQ at commit
10c2c9534464 (``tensorpack/examples/SYQ-AlexNet/quantize.py``):
``python make_dorefa.py TENSORPACK_CHECKOUT TERNARYNET_CHECKOUT SYQ_CHECKOUT``.
"""

import importlib.util
import pathlib
import sys

import numpy as np
from recording import commit_of, save
from tensorpack_graphs import graph_case, tf, use_tensorpack

SIZE, CHANNELS, FILTERS = 5, 4, 6


def load(checkout, path):
    """Import a file, in the graph in which its functions are used: it may keep the default graph."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, pathlib.Path(checkout) / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_old_functions():
    """Give functions of TensorFlow the names and arguments that they had before version 1."""
    tf.select, tf.mul = tf.where, tf.multiply
    tf.scalar_summary = tf.histogram_summary = lambda *arguments: None
    tf.GraphKeys.VARIABLES = tf.GraphKeys.GLOBAL_VARIABLES


def convolution(activate, quantize, name='conv1/W'):
    def build(image):
        weight = tf.get_variable(name, (3, 3, CHANNELS, FILTERS))
        return tf.nn.conv2d(activate(image), quantize(weight), 1, 'SAME')

    return build


def main():
    tensorpack, ternarynet, syq = sys.argv[1:]
    versions = use_tensorpack(tensorpack)
    name_old_functions()
    x = (np.random.default_rng(1).normal(size=(2, SIZE, SIZE, CHANNELS))).astype(np.float32)

    def dorefa(bits):
        def build(image):
            weights, activations, _ = load(tensorpack, 'examples/DoReFa-Net/dorefa.py').get_dorefa(bits, bits, 32)
            return convolution(lambda image: activations(tf.clip_by_value(image, 0.0, 1.0)), weights)(image)

        return graph_case(build, x)

    def ttq(image):
        return convolution(tf.nn.relu, lambda weight: load(ternarynet, 'examples/Ternary-Net/ternary.py').tw_ternarize(weight, 0.05))(image)

    def scaled(eta):
        def build(image):
            code = load(syq, 'tensorpack/examples/SYQ-AlexNet/quantize.py')
            return convolution(
                lambda image: code.quantize(tf.clip_by_value(tf.nn.relu(image), 0, 1), 2),
                lambda weight: code.fine_grained_quant(weight, eta, 'conv1/W', False, None),
            )(image)

        return graph_case(build, x, centers=[('Ws', 1.0)])

    example = 'github.com/tensorpack/tensorpack, examples/DoReFa-Net'
    save('dorefa', {f'{bits} bits': dorefa(bits) for bits in (2, 4)}, repository=example, **versions)
    repository = {'repository': 'github.com/czhu95/ternarynet', 'commit': commit_of(ternarynet)}
    save('ttq', {'layer': graph_case(ttq, x, centers=[('Wp', 1.0), ('Wn', 1.0)])}, **repository, **versions)
    tf.disable_v2_tensorshape()  # sizes have the attribute `value`
    repository = {'repository': 'github.com/julianfaraone/SYQ', 'commit': commit_of(syq)}
    save('syq', {'eta 0': scaled(0.0), 'eta 0.05': scaled(0.05)}, **repository, **versions)


if __name__ == '__main__':
    main()
