"""Generate ``tests/data/larq-*.h5.gz`` and ``tests/data/larq.npz``: small networks built, run and saved by the code of Larq Zoo.

``tests/data/larq-layers.json.gz`` lists the arrays of the files of the whole networks, in their order: {network of this project: [[layer,
{array: shape}], ...]}.

Run ``python tests/data/make_larq_data.py`` in a separate environment of Python 3.10 with these packages, which the tests do not need::

    pip install tensorflow-cpu==2.13.1
    pip install --no-deps larq==0.13.3 larq-zoo==2.4.0 zookeeper==1.4.0 tensorflow-datasets==4.8.3 tensorflow-metadata==1.13.1
    pip install typeguard==3.0.2 'protobuf==3.20.3' 'absl-py<2' numpy==1.24.3 click dill dm-tree etils googleapis-common-protos==1.60.0 \
        importlib_resources promise psutil terminaltables toml tqdm zipp

Weights are random with few levels, so that the files compress well. The statistics of normalizations are close to the actual
values, otherwise the outputs would not depend on the image. The image is chosen from many so that no input of a sign is close to zero,
where another order of summation could change the sign.
"""

import contextlib
import functools
import gzip
import json
import pathlib
import shutil
import tempfile
from unittest import mock

import h5py
import larq as lq
import larq_zoo.literature as literature
import larq_zoo.literature.birealnet as birealnet
import larq_zoo.literature.densenet as densenet
import larq_zoo.literature.meliusnet as meliusnet
import larq_zoo.literature.real_to_bin_nets as real_to_binary
import larq_zoo.literature.resnet_e as resnet_e
import larq_zoo.literature.xnornet as xnornet
import larq_zoo.sota as sota
import larq_zoo.sota.quicknet as quicknet
import numpy as np
import tensorflow as tf
from zookeeper import Field, factory

DATA = pathlib.Path(__file__).parent
SIZE, CLASSES, IMAGES = 64, 5, 400
LARGE = 96  # size of images of XNOR-Net, whose maps shrink more
COARSE = 32  # of the levels of int8, the step of the images of the networks that were added last: they compress well


@factory
class MeliusNet(meliusnet.MeliusNetFactory):
    num_blocks, transition_features, name = (1, 1), (32, None), 'meliusnet'


@factory
class BinaryDenseNet(densenet.BinaryDenseNetFactory):
    initial_filters, growth_rate = Field(16), Field(16)
    layers, reduction, dilation_rate, name = (1, 2, 1), (1.0, 1.5), (1, 1, 2), 'binary_densenet'


@factory
class BinaryResNetE(resnet_e.BinaryResNetE18Factory):
    @property
    def spec(self):
        return [1, 1], [64, 128]


@factory
class BiRealNet(birealnet.BiRealNetFactory):
    def residual_block(self, x, double_filters=False, filters=None):  # keep two of 16 blocks: the first, and the first that halves the map
        self.blocks = getattr(self, 'blocks', 0) + 1
        return super().residual_block(x, double_filters, filters) if self.blocks in (1, 5) else x


@factory
class QuickNet(quicknet.QuickNetFactory):
    section_blocks, section_filters, name = Field((1, 2)), Field((32, 64)), 'quicknet'


@factory
class RealToBinaryNet(real_to_binary.RealToBinNetBNNFactory):
    def first_block(self, *arguments, **named):
        with narrow(2):
            return super().first_block(*arguments, **named)

    def block(self, x, downsample=False, name=''):  # keep two of 8 blocks, as in Bi-Real Net
        return super().block(x, downsample, name) if name.endswith(('_2', '_4')) else x


@factory
class XNORNet(xnornet.XNORNetFactory):
    def build(self) -> tf.keras.Model:
        with narrow(16):
            return super().build()


@contextlib.contextmanager
def narrow(divisor):
    """Let Larq Zoo make convolutions of fewer filters, and of 2x2 in place of 6x6, the size of XNOR-Net's last map."""

    def convolution(layer, filters, kernel_size, *arguments, **named):
        return layer(filters // divisor, 2 if kernel_size == (6, 6) else kernel_size, *arguments, **named)

    with contextlib.ExitStack() as stack:
        for module, name in ((tf.keras.layers, 'Conv2D'), (lq.layers, 'QuantConv2D')):
            stack.enter_context(mock.patch.object(module, name, functools.partial(convolution, getattr(module, name))))
        yield


# Levels of the weights of networks that scale them by the mean magnitude of filters, XNOR-Net after clipping them to [-1, 1].
LEVELS = {'bireal': [0.25, 0.75], 'xnornet': [0.25, 1.5]}


def randomize(model, random):
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.DepthwiseConv2D) and layer.trainable:
            kernel = layer.depthwise_kernel.numpy()
            layer.depthwise_kernel.assign(np.round(kernel / kernel.std() * 4) / 16)
        elif isinstance(layer, tf.keras.layers.PReLU):
            layer.alpha.assign(random.normal(0.25, 0.25, layer.alpha.shape))
        elif isinstance(layer, (tf.keras.layers.Conv2D, tf.keras.layers.Dense)):
            kernel = layer.kernel.numpy()
            levels = next((levels for name, levels in LEVELS.items() if model.name.startswith(name)), [0.5])
            binary = random.choice([-1, 1], kernel.shape) * random.choice(levels, kernel.shape)
            is_binary = isinstance(layer, lq.layers.QuantConv2D) and layer.kernel_quantizer is not None
            layer.kernel.assign(binary if is_binary else np.round(kernel / kernel.std() * 4) / 32)
            if layer.use_bias:
                layer.bias.assign(random.normal(0, 0.3, layer.bias.shape))
    norms = [layer for layer in model.layers if isinstance(layer, tf.keras.layers.BatchNormalization)]
    for norm in norms:
        if norm.scale:
            norm.gamma.assign(random.uniform(0.5, 1.5, norm.gamma.shape) * random.choice([-1, 1, 1], norm.gamma.shape))
        if norm.center:
            norm.beta.assign(random.normal(0, 0.3, norm.beta.shape))
        norm.momentum = 0.0
    model(random.normal(size=(8, *model.input.shape[1:])).astype(np.float32), training=True)  # sets the statistics from the values
    for norm in norms:
        deviation = np.sqrt(norm.moving_variance.numpy())
        norm.moving_mean.assign_add(random.normal(0, 0.1, deviation.shape) * deviation)
        norm.moving_variance.assign((deviation * random.uniform(0.8, 1.2, deviation.shape)) ** 2)


def image_far_from_zeros(model, random, step):
    """Return an image (int8, in units of 1/32), its logits, and the smallest magnitude of an input of a sign."""
    signs = [layer.input for layer in model.layers if isinstance(layer, lq.layers.QuantConv2D) and layer.input_quantizer is not None]
    logits = [layer.output for layer in model.layers if isinstance(layer, tf.keras.layers.Dense)][-1:]  # after the dense layers of gates
    outputs = tf.keras.Model(model.input, [*logits, *signs])
    best = None
    images = np.round(random.normal(size=(IMAGES, *model.input.shape[1:])) * 32 / step) * step
    for image in np.clip(images, -127, 127).astype(np.int8):
        found, *values = outputs(image[None].astype(np.float32) / 32, training=False)
        nearest = min(float(tf.reduce_min(tf.abs(value))) for value in values)
        if best is None or nearest > best[2]:
            best = image.transpose(2, 0, 1), found.numpy()[0], nearest
    return best


NETWORKS = {
    'meliusnet': (MeliusNet, SIZE, 1),
    'densenet': (BinaryDenseNet, SIZE, 1),
    'resnet_e': (BinaryResNetE, SIZE, 1),
    'birealnet': (BiRealNet, SIZE, 1),
    'real_to_binary': (RealToBinaryNet, SIZE, COARSE),
    'xnornet': (XNORNet, LARGE, COARSE),
    'quicknet': (QuickNet, SIZE, COARSE),
}

WHOLE = {
    'meliusnet22': literature.MeliusNet22,
    'binary_densenet28': literature.BinaryDenseNet28,
    'binary_densenet37': literature.BinaryDenseNet37,
    'binary_densenet37_dilated': literature.BinaryDenseNet37Dilated,
    'binary_densenet45': literature.BinaryDenseNet45,
    'resnet_e18': literature.BinaryResNetE18,
    'birealnet18': literature.BiRealNet,
    'real_to_binary18': literature.RealToBinaryNet,
    'alexnet_xnor': literature.XNORNet,
    'quicknet_small': sota.QuickNetSmall,
    'quicknet': sota.QuickNet,
    'quicknet_large': sota.QuickNetLarge,
}


def saved_layers(model, folder):
    """Return [[layer, {array: shape}], ...] of the file of a model, without layers that have no arrays."""
    model.save_weights(folder / 'weights.h5')
    with h5py.File(folder / 'weights.h5') as file:
        names = {layer: list(file[layer].attrs['weight_names']) for layer in file.attrs['layer_names']}
        return [
            [layer, {name.rpartition('/')[2].partition(':')[0]: file[layer][name].shape for name in weights}]
            for layer, weights in names.items()
            if weights
        ]


def write_layers():
    layers = {}
    for name, make in WHOLE.items():
        tf.keras.backend.clear_session()  # the names of layers contain their numbers
        with tempfile.TemporaryDirectory() as folder:
            layers[name] = saved_layers(make(weights=None), pathlib.Path(folder))
    with gzip.GzipFile(DATA / 'larq-layers.json.gz', 'wb', mtime=0) as target:
        target.write(json.dumps(layers).encode())


def main():
    arrays = {}
    for name, (make, size, step) in NETWORKS.items():
        tf.keras.utils.set_random_seed(1)
        random = np.random.default_rng(1)
        model = make(input_shape=(size, size, 3), num_classes=CLASSES).build()
        randomize(model, random)
        image, logits, nearest = image_far_from_zeros(model, random, step)
        arrays[f'{name}_image'], arrays[f'{name}_logits'] = image, logits
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / 'weights.h5'
            # save one of them as a whole model, the other layout of Keras
            model.save(file, include_optimizer=False) if make is BinaryDenseNet else model.save_weights(file)
            with open(file, 'rb') as source, gzip.GzipFile(DATA / f'larq-{name}.h5.gz', 'wb', mtime=0) as target:
                shutil.copyfileobj(source, target)
        print(f'{name}: logits {logits.round(2)}, nearest to zero {nearest:.1e}')
    np.savez_compressed(DATA / 'larq.npz', **arrays)
    write_layers()


if __name__ == '__main__':
    main()
