"""Generate pokebnn.npz: layers, blocks and a small network of PokeBNN, computed by the code of its authors.

Usage: ``python make_pokebnn.py CHECKOUT``, a clone of the repository at the commit `COMMIT`. The stored arrays were made with Python
3.11.7, jax and jaxlib 0.4.35, flax 0.10.0, numpy 1.26.4, ml-collections 1.0.0, dacite 1.8.1 and absl-py 2.5.1 (CPU).

The hyperparameters are those of ``configs/pokebnn/pokebnn_config.py``, in the state in which training begins: weights are quantized, but
not yet, before its step 7500, the inputs of the layers with 8 and 4 bits. Two changes: the code computes in float64 in place of bfloat16
and, for the scales of quantizers, of float32 (whose epsilon it keeps), and an empty module with the flag that is read takes the place of
``compute_cost_utils``, which needs TensorFlow. The numbers that DPReLU subtracts are negated, like their gradients.
"""

import sys
import types

sys.modules['aqt.jax_legacy.jax.compute_cost_utils'] = types.ModuleType('compute_cost_utils')
CHECKOUT = sys.argv[1]
sys.path.insert(0, CHECKOUT)

import jax.numpy as jnp  # noqa: E402
from absl import flags  # noqa: E402
from aqt.jax_legacy.jax import quant_config, quantization  # noqa: E402
from aqt.jax_legacy.jax.imagenet import hparams_config, models, pokebnn  # noqa: E402
from aqt.jax_legacy.jax.imagenet.configs.pokebnn.pokebnn_config import get_config  # noqa: E402
from aqt.jax_legacy.utils import hparams_utils  # noqa: E402
from flax import linen as nn  # noqa: E402
from recording import FlaxRecording  # noqa: E402

COMMIT = '9d1667ebde057f474cf8d2c80d4e52c5670d6c8a'
flags.DEFINE_bool('metadata_enabled', False, '')
flags.FLAGS(sys.argv[:1])
pokebnn.jnp = types.SimpleNamespace(**{**vars(jnp), 'bfloat16': jnp.float64})
quantization.SCALE_DTYPE = jnp.float64
quantization.jnp = types.SimpleNamespace(**{**vars(jnp), 'finfo': lambda dtype: jnp.finfo(jnp.float32)})
recording = FlaxRecording('pokebnn', 'github.com/google/aqt', CHECKOUT, negated=('bias_x', 'bias_y'))
assert recording.metadata['commit'] == COMMIT


def made(module, quantize_weights=True, classes=5, **changes):
    """Return a module of the authors, with the changes of its hyperparameters."""
    config = get_config().configs[0]
    hparams = hparams_utils.load_hparams_from_config_dict(hparams_config.TrainingHParams, models.ResNet.HParams, config).model_hparams
    for name, value in changes.items():
        setattr(hparams, name, value)
    context = quant_config.DynamicContext(update_bounds=False, quantize_weights=quantize_weights)
    return module(num_classes=classes, hparams=hparams, dynamic_context=context, train=True, paxis_name='batch')


def part(compute):
    """Return the class of a module that computes ``compute(network, x)``, a part of a network."""

    class Part(pokebnn.PokeBNN):
        @nn.compact
        def __call__(self, x):
            return compute(self, x)

    return Part


def convolution(features, kernel_size, strides, bits=1):
    def compute(network, x):
        hparams = {1: network.hparams.residual_blocks[0].conv_1, 4: network.hparams.residual_blocks[0].conv_se}[bits]
        geometry = {'kernel_size': (kernel_size,) * 2, 'strides': (strides,) * 2}
        return network.conv(features=features, name='conv', hparams=hparams, **geometry)(x)

    return part(compute)


def block(features, strides):
    return part(lambda network, x: network.bottleneck_block(x, 'block', None, features, (strides,) * 2))


recording.run('layer', made(convolution(6, 3, 1)), (2, 4, 6, 6))
recording.run('halving layer', made(convolution(6, 3, 2)), (2, 4, 6, 6))
recording.run('layer with real weights', made(convolution(6, 3, 1), quantize_weights=False), (2, 4, 6, 6))
recording.run('layer of 4 bits', made(convolution(6, 1, 1, bits=4)), (2, 4, 6, 6))
recording.run('activation', made(part(lambda network, x: network.dprelu()(x))), (2, 4, 6, 6))
recording.run('stem', made(part(lambda network, x: network.poke_init(x)), init_group=32), (2, 3, 16, 16))
recording.run('block', made(block(8, 1)), (2, 32, 6, 6))
recording.run('widening block', made(block(12, 1)), (2, 8, 6, 6), whole_gradients=False)
recording.run('slicing block', made(block(9, 1)), (2, 12, 6, 6), whole_gradients=False)
recording.run('halving block', made(block(16, 2)), (2, 32, 6, 6))
recording.run('block with real weights', made(block(8, 1), quantize_weights=False), (2, 32, 6, 6), whole_gradients=False)
recording.run('network', made(pokebnn.PokeBNN, filter_multiplier=0.125), (2, 3, 64, 64), whole_gradients=False)
recording.save()
