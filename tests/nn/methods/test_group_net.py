"""GroupNet: the start of the second stage of training."""

import dataclasses

import mxnet as mx
from mxnet import gluon, nd
from support.gradients import descend
from support.training_runs import inputs_of_digits

import bmx_melius as bmx
from bmx_melius.data.small_images import open_digits
from model_zoo.residual import NETWORKS, ResidualArchitecture, ResidualNetwork

ROW = NETWORKS['groupnet{}']
SMALL = {'initial_layers': 'thumbnail', 'init_features': 8}


def test_signs_of_the_second_stage_have_gradients_after_the_first_stage(tmp_path):
    """As in the authors' code, in which no sign is out of reach: on these images a sign has at most 81 % of its inputs beyond 1."""
    images, labels = inputs_of_digits(open_digits().train)
    labels, cross_entropy, losses = nd.array(labels), gluon.loss.SoftmaxCrossEntropyLoss(), []
    mx.random.seed(0)
    first, second = (
        ResidualNetwork(ResidualArchitecture((4, 4, 4, 4), ROW), dataclasses.replace(ROW.options, bits=bits, **SMALL), classes=10)
        for bits in (32, 1)
    )
    first.initialize(mx.init.Xavier())
    first.hybridize()
    trainer = gluon.Trainer(first.collect_params(), 'sgd', {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 1e-4})
    for number in range(48):  # three epochs
        batch = slice(number % 16 * 64, number % 16 * 64 + 64)
        losses.append(descend(trainer, 64, lambda batch=batch: cross_entropy(first(images[batch]), labels[batch])).mean().asscalar())
    first.save_parameters(str(tmp_path / 'first.params'))
    second.load_parameters(str(tmp_path / 'first.params'))
    checked = bmx.check(second, images[:64])
    cancelled = [layer.cancelled for layer in checked.layers if layer.cancelled is not None]
    assert losses[-1] < 1 and len(cancelled) == 5 * 16 + 5 * 3 and not checked.problems  # from 99 % on it is one
