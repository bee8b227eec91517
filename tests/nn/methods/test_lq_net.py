"""LQ-Net against the authors' pre-activation ResNet: its stem and two stages, and the bases after an update."""

import dataclasses

import numpy as np
from support.authors_arrays import assert_same, learned, read_cases
from support.networks import layers_of
from support.small_networks import sequence

from bmx_melius.nn.methods.lq_net import MOMENTUM, LQActivation, LQWeights, update_bases
from model_zoo.method_resnets import METHODS, Architecture, MethodResNet

METHOD = METHODS['resnet{}_lqnet_w1a2']


def bases(quantizers):
    return [layer.basis.data().asnumpy().ravel() for layer in quantizers]


def test_maps_gradients_and_bases_after_an_update_are_those_of_the_authors_code():
    case = read_cases('lq_net')[0]['stages']
    options = dataclasses.replace(METHOD.options, init_features=8, same_padding=True)
    network = MethodResNet(Architecture((2, 2), METHOD), options)
    stages = sequence(*list(network.features._children.values())[:7])
    theirs = [parameter for parameter in learned(stages) if 'moments' not in parameter.name]
    assert_same(stages, case, parameters=lambda _: theirs, tolerance=1e-4)  # their code ran in float32

    activations, weights = layers_of(stages, LQActivation), layers_of(stages, LQWeights)
    first, _, shortcut, *_ = layers_of(stages[5], LQActivation)  # of the same map, which the authors quantize once
    before = bases([*activations, *weights])
    update_bases(stages)
    np.testing.assert_array_equal(*bases([first, shortcut]))
    # theirs is the least-squares solution after the first update, because their moving average is corrected for its start
    updated = [array for key, array in sorted(case.arrays.items()) if key.startswith('updated')]
    solutions = [
        *(solution for solution in updated if solution.shape == (2, 1)),
        *(solution for solution in updated if solution.shape[0] == 1),
    ]
    solutions.insert(activations.index(shortcut), solutions[activations.index(first)])
    for old, new, solution in zip(before, bases([*activations, *weights]), solutions):
        np.testing.assert_allclose(new, MOMENTUM * old + (1 - MOMENTUM) * solution.ravel(), rtol=1e-4)
    assert len(solutions) == len(before) == 18
