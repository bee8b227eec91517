"""Numbers that follow the progress of a training: their values in each epoch, by the formulas of the authors, also after resuming."""

import math
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from support.small_networks import sequence

from bmx_melius.nn.layers import binary_weights
from bmx_melius.nn.methods.adabin import AdaBinConv2D
from bmx_melius.nn.methods.bnext import BNextConv2D
from bmx_melius.nn.methods.ir_net import IRNetConv2D
from bmx_melius.nn.methods.recu import ReCUConv2D
from bmx_melius.nn.methods.schedules import ScheduledNumber, begin_epoch
from bmx_melius.training import Objective, Training, fit
from bmx_melius.training.progress import Progress


def numbers(net):
    found = []
    net.apply(lambda block: found.append(block.value.data().asnumpy().item()) if isinstance(block, ScheduledNumber) else None)
    return found


# Function Log_UP of IR-Net's trainer.py and cpt_tau of ReCU's main.py, for an epoch of 400
def log_up(lowest, epoch):
    low, high = math.log10(lowest), math.log10(10)
    return math.pow(10, low + (high - low) / 400 * epoch)


def tau(epoch):
    a = (0.99 - 0.85) / (math.e - 1)
    return a * math.e ** (epoch / 400) + 0.85 - a


@pytest.mark.parametrize('epoch', [0, 1, 150, 399])
@pytest.mark.parametrize(
    'layer, arguments, expected, count',
    [
        (IRNetConv2D, {}, lambda epoch: log_up(1e-3, epoch), 2),  # of activations and weights
        (IRNetConv2D, {'slope_at_start': 0.1}, lambda epoch: log_up(1e-1, epoch), 2),
        (AdaBinConv2D, {}, lambda epoch: log_up(1e-3, epoch), 1),
        (ReCUConv2D, {}, tau, 1),
    ],
)
def test_numbers_of_each_epoch_are_those_of_the_authors_code(layer, arguments, expected, count, epoch):
    net = layer(2, 3, in_channels=2, **arguments)
    net.initialize()
    begin_epoch(net, epoch / 400)
    np.testing.assert_allclose(numbers(net), [expected(epoch)] * count, rtol=1e-6)


@pytest.mark.parametrize('arguments, count', [({'weight_bits': 32}, 1), ({'bits': 32}, 0)])
def test_layers_with_real_numbers_have_no_schedule_for_them(arguments, count):
    net = IRNetConv2D(2, 3, in_channels=2, **arguments)
    net.initialize()
    assert len(numbers(net)) == count and net(nd.ones((1, 2, 5, 5))).shape == (1, 2, 3, 3)


def test_training_begins_each_epoch_with_its_number_also_when_it_is_resumed():
    net = IRNetConv2D(2, 3, in_channels=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd')
    data = SimpleNamespace(images_per_update=1, updates_per_epoch=1)
    training = Training(net, data, Objective(), trainer, num_epochs=4)
    found = [(epoch, *numbers(net)) for epoch in training.epochs()]
    np.testing.assert_allclose(found, [(epoch, *[1e-3 * 10**epoch] * 2) for epoch in range(4)], rtol=1e-6)
    begin_epoch(net, 0)
    progress = Progress(1)
    progress.epoch = 3
    training.start(progress, {})
    assert [(epoch, *numbers(net)) for epoch in training.epochs()] == [(3, *[pytest.approx(1.0, rel=1e-6)] * 2)]


@pytest.mark.parametrize('ema', [None, 0.9])
def test_weights_of_bnext_are_binary_where_they_are_evaluated_and_after_the_training(ema):
    net = BNextConv2D(2, 1, in_channels=2)
    net.initialize(mx.init.Constant(0.5))
    seen, x = [], nd.ones((1, 2, 1, 1))

    class Batches(list):  # of validation images: looks at the network
        def __iter__(self):
            seen.append(net(x).asnumpy().ravel().tolist())
            return super().__iter__()

    flat = sequence(net, gluon.nn.Flatten())
    batch = [(x, nd.zeros((1,)))]
    fit(flat, batch, Batches(batch), num_epochs=1, lr=1e-6, ema=ema, verbose=False, on_batch=lambda _: seen.append(numbers(net)))
    assert seen == [[1.0], [2.0, 2.0]], 'the temperature of the first epoch, and the sums of two signs'
    assert numbers(net) == [np.float32(0.9**512)]


def test_signs_of_centred_weights_are_not_taken_for_those_of_the_weights():
    for layer in (IRNetConv2D, ReCUConv2D, AdaBinConv2D):
        assert binary_weights(layer(2, 3, in_channels=2)) == {}
