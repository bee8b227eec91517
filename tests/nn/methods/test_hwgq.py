"""HWGQ against the authors' ResNet 18 for Caffe: its first two stages."""

import dataclasses

from mxnet.gluon import nn
from support.tensorflow_arrays import assert_same, learned, read_cases

from model_zoo.method_resnets import METHODS, Architecture, MethodResNet, Residual

METHOD = METHODS['resnet{}_hwgq']


def in_the_order_of_caffe(layers):
    """The parameters, those of a shortcut before those of the units beside it."""
    ordered = []
    for layer in layers:
        if isinstance(layer, Residual):
            ordered += [*(learned(layer.shortcut) if layer.shortcut else []), *learned(layer.units)]
        else:
            ordered += in_the_order_of_caffe(layer) if len(layer._children) else learned(layer)
    return ordered


def test_stem_and_stages_give_the_maps_and_gradients_of_the_authors_network():
    net = MethodResNet(Architecture((2, 2), METHOD), dataclasses.replace(METHOD.options, init_features=8))
    stages = nn.HybridSequential()
    stages.add(*net.features[:5])  # without the ReLU, the pooling and the classifier after the last stage
    assert_same(stages, read_cases('hwgq')['stages'], in_the_order_of_caffe)
