"""Generate ``tests/data/larq-*.h5.gz`` and ``tests/data/larq.npz``: small networks built, run and saved by the code of Larq Zoo.

Run ``python tests/data/make_larq_data.py`` in a separate environment with tensorflow-cpu 2.13.1, larq 0.13.3 and larq-zoo 2.4.0. The
tests do not need these packages. Weights are random with few levels, so that the files compress well. The statistics of normalizations
are close to those of the actual values, otherwise the outputs would not depend on the image. The image is chosen from many so that no
input of a sign is close to zero, where another order of summation could change the sign.
"""

import gzip
import pathlib
import shutil
import tempfile

import larq as lq
import larq_zoo.literature.birealnet as birealnet
import larq_zoo.literature.densenet as densenet
import larq_zoo.literature.meliusnet as meliusnet
import larq_zoo.literature.resnet_e as resnet_e
import numpy as np
import tensorflow as tf
from zookeeper import Field, factory

DATA = pathlib.Path(__file__).parent
SIZE, CLASSES, IMAGES = 64, 5, 400


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


def randomize(model, random):
    for layer in model.layers:
        if isinstance(layer, (tf.keras.layers.Conv2D, tf.keras.layers.Dense)):
            kernel = layer.kernel.numpy()
            levels = [0.25, 0.75] if model.name.startswith('bireal') else [0.5]  # it scales by the mean magnitude of filters
            binary = random.choice([-1, 1], kernel.shape) * random.choice(levels, kernel.shape)
            layer.kernel.assign(binary if isinstance(layer, lq.layers.QuantConv2D) else np.round(kernel / kernel.std() * 4) / 32)
            if layer.use_bias:
                layer.bias.assign(random.normal(0, 0.3, layer.bias.shape))
    norms = [layer for layer in model.layers if isinstance(layer, tf.keras.layers.BatchNormalization)]
    for norm in norms:
        norm.gamma.assign(random.uniform(0.5, 1.5, norm.gamma.shape) * random.choice([-1, 1, 1], norm.gamma.shape))
        norm.beta.assign(random.normal(0, 0.3, norm.beta.shape))
        norm.momentum = 0.0
    model(random.normal(size=(8, SIZE, SIZE, 3)).astype(np.float32), training=True)  # sets the statistics to those of the values
    for norm in norms:
        deviation = np.sqrt(norm.moving_variance.numpy())
        norm.moving_mean.assign_add(random.normal(0, 0.1, norm.beta.shape) * deviation)
        norm.moving_variance.assign((deviation * random.uniform(0.8, 1.2, norm.beta.shape)) ** 2)


def image_far_from_zeros(model, random):
    """Return an image (int8, in units of 1/32), its logits, and the smallest magnitude of an input of a sign."""
    signs = [layer.input for layer in model.layers if isinstance(layer, lq.layers.QuantConv2D)]
    logits = [layer.output for layer in model.layers if isinstance(layer, tf.keras.layers.Dense)]
    outputs = tf.keras.Model(model.input, [*logits, *signs])
    best = None
    for image in np.clip(np.round(random.normal(size=(IMAGES, SIZE, SIZE, 3)) * 32), -127, 127).astype(np.int8):
        found, *values = outputs(image[None].astype(np.float32) / 32, training=False)
        nearest = min(float(tf.reduce_min(tf.abs(value))) for value in values)
        if best is None or nearest > best[2]:
            best = image.transpose(2, 0, 1), found.numpy()[0], nearest
    return best


def main():
    arrays = {}
    for make in (MeliusNet, BinaryDenseNet, BinaryResNetE, BiRealNet):
        tf.keras.utils.set_random_seed(1)
        random = np.random.default_rng(1)
        model = make(input_shape=(SIZE, SIZE, 3), num_classes=CLASSES).build()
        randomize(model, random)
        image, logits, nearest = image_far_from_zeros(model, random)
        name = {MeliusNet: 'meliusnet', BinaryDenseNet: 'densenet', BinaryResNetE: 'resnet_e', BiRealNet: 'birealnet'}[make]
        arrays[f'{name}_image'], arrays[f'{name}_logits'] = image, logits
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / 'weights.h5'
            # save one of the four as a whole model, the other layout of Keras
            model.save(file, include_optimizer=False) if make is BinaryDenseNet else model.save_weights(file)
            with open(file, 'rb') as source, gzip.GzipFile(DATA / f'larq-{name}.h5.gz', 'wb', mtime=0) as target:
                shutil.copyfileobj(source, target)
        print(f'{name}: logits {logits.round(2)}, nearest to zero {nearest:.1e}')
    np.savez(DATA / 'larq.npz', **arrays)


if __name__ == '__main__':
    main()
