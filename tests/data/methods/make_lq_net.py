"""Make ``lq_net.npz``: stem and two stages of the authors' pre-activation ResNet, an eighth as wide, in float32, in training.

Repository github.com/microsoft/LQ-Nets at commit 4f3ea9b52b40, run with github.com/tensorpack/tensorpack at commit 1547a54e8546 and
tensorflow-cpu 2.13.1: ``python make_lq_net.py LQ_NETS_CHECKOUT TENSORPACK_CHECKOUT``.
"""

import functools
import sys

import numpy as np
from recording import commit_of, save
from tensorpack_graphs import graph_case, tf, use_tensorpack

NARROWER, STAGES = 8, 2


def main():
    checkout, tensorpack = sys.argv[1:]
    versions = use_tensorpack(tensorpack)
    sys.path.insert(0, checkout)
    import resnet_model
    from tensorpack.models import registry
    from tensorpack.tfutils import argscope

    layer = registry._LAYER_REGISTRY['Conv2DQuant']

    @functools.wraps(layer)
    def narrower(name, x, channels, *arguments, **keywords):
        return layer(name, x, channels // NARROWER if name == 'conv0' else channels, *arguments, **keywords)

    registry._LAYER_REGISTRY['Conv2DQuant'] = narrower
    maps = []

    def group(x, name, block, features, count, stride, is_last=False):
        if len(maps) < STAGES:
            last = len(maps) == STAGES - 1
            maps.append(resnet_model.preresnet_group(x, name, block, features // NARROWER, count, stride, is_last=last))
        return maps[-1]

    def network(image):
        formats = [getattr(resnet_model, name) for name in ('Conv2D', 'MaxPooling', 'AvgPooling', 'GlobalAvgPooling', 'BatchNorm')]
        with argscope(formats, data_format='NHWC'), argscope([resnet_model.QuantizedActiv], nbit=2):
            resnet_model.resnet_backbone(image, [2] * 4, group, resnet_model.preresnet_basicblock, 1)
        return maps[-1]

    def bases():
        """The bases after their update, in the order of the graph: of activations (2, 1), of weights (1, filters)."""
        updates = [update for update in tf.get_collection(tf.GraphKeys.UPDATE_OPS) if len(getattr(update, 'shape', ())) == 2]
        return {f'updated{n:02}': tf.convert_to_tensor(update) for n, update in enumerate(updates)}

    def before_the_classifier(variables):
        return [variable for variable in variables if not variable.name.startswith('linear')]

    x = np.random.default_rng(1).normal(size=(3, 16, 16, 3)).astype(np.float32)
    case = graph_case(network, x, trained=before_the_classifier, also=bases)
    save('lq_net', {'stages': case}, repository='github.com/microsoft/LQ-Nets', commit=commit_of(checkout), **versions)


if __name__ == '__main__':
    main()
