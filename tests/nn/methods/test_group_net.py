"""GroupNet: networks of both stages of training against arrays of the authors' code, and the start of the second stage."""

import dataclasses
import re

import mxnet as mx
import pytest
from mxnet import autograd, gluon, nd
from support.authors_arrays import AuthorsArrays

import bmx_melius as bmx
from bmx_melius.data.small_images import open_digits
from model_zoo.method_resnets import BASES, METHODS, Architecture, MethodResNet

AUTHORS = AuthorsArrays('group_net')
METHOD = METHODS['groupnet{}']
SMALL = {'initial_layers': 'thumbnail', 'init_features': 8}


def in_our_order(names):
    """The names of a network's parameters: those of a block by base, and its scales as one array."""
    blocks = list(dict.fromkeys(re.match(r'layer\d+\.\d+\.|', name).group() for name in names))
    ordered = []
    for block in blocks[1:]:
        own = [name for name in names if name.startswith(block)]
        bases = [
            [name for name in own if re.match(rf'{re.escape(block)}(conv|bn){unit}\.{base}\.', name)]
            for base in range(BASES)
            for unit in (1, 2)
        ]
        ordered += [name for name in own if 'gate' in name] + [name for name in own if 'downsample' in name] + sum(bases, [])
        ordered.append(tuple(name for name in own if 'scales' in name))
    outside = [name for name in names if not name.startswith('layer')]
    return [name for name in outside if not name.startswith('fc')] + ordered + [name for name in outside if name.startswith('fc')]


@pytest.mark.parametrize('case, bits', [('network', 1), ('first stage', 32)])
def test_networks_of_both_stages_of_training_have_the_values_and_gradients_of_the_authors_code(case, bits):
    options = dataclasses.replace(METHOD.options, init_features=4, bits=bits)
    net = MethodResNet(Architecture((2, 1, 1, 1), METHOD), options, classes=5)
    AUTHORS.assert_equal(case, net, in_our_order(AUTHORS.parameters(case)))


def test_signs_of_the_second_stage_have_gradients_after_the_first_stage(tmp_path):
    """As in the authors' code, in which no sign is out of reach: on these images a sign has at most 81 % of its inputs beyond 1."""
    pixels, labels = zip(*open_digits().train)
    images = (nd.stack(*pixels).astype('float32')[:, 1:-1, 1:-1].transpose((0, 3, 1, 2)) - 77.9) / 95.9
    labels, cross_entropy, losses = nd.array(labels), gluon.loss.SoftmaxCrossEntropyLoss(), []
    mx.random.seed(0)
    first, second = (
        MethodResNet(Architecture((2, 2, 2, 2), METHOD), dataclasses.replace(METHOD.options, bits=bits, **SMALL), classes=10)
        for bits in (32, 1)
    )
    first.initialize(mx.init.Xavier())
    first.hybridize()
    trainer = gluon.Trainer(first.collect_params(), 'sgd', {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 1e-4})
    for update in range(48):  # three epochs
        batch = slice(update % 16 * 64, update % 16 * 64 + 64)
        with autograd.record():
            loss = cross_entropy(first(images[batch]), labels[batch])
        loss.backward()
        trainer.step(64)
        losses.append(loss.mean().asscalar())
    first.save_parameters(str(tmp_path / 'first.params'))
    second.load_parameters(str(tmp_path / 'first.params'))
    checked = bmx.check(second, images[:64])
    cancelled = [layer.cancelled for layer in checked.layers if layer.cancelled is not None]
    assert losses[-1] < 1 and len(cancelled) == 5 * 16 + 5 * 3 and not checked.problems  # from 99 % on it is one
