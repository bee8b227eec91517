"""`fit` on batches of the user: the same weights as a loop written by hand, callbacks, checkpoints and errors; and its guide."""

import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.paths import ROOT
from support.small_networks import sequence
from support.training_runs import assert_equal_files

from bmx_melius.errors import UserError
from bmx_melius.nn.layers import QDense
from bmx_melius.training import Mixup, Objective, fit

GUIDE = ROOT / 'docs' / 'fit.md'
IMAGES, LABELS = np.random.RandomState(0).randn(22, 6).astype(np.float32), np.arange(22) % 3
BATCHES = gluon.data.DataLoader(gluon.data.ArrayDataset(IMAGES, LABELS), batch_size=8)  # of 8, 8 and 6 images
VALIDATION = gluon.data.DataLoader(gluon.data.ArrayDataset(IMAGES[:9], LABELS[:9]), batch_size=4)


def make_net(first=0):
    """A network whose parameters have their shapes only after the first batch."""
    mx.random.seed(0)
    first, last = (gluon.nn.Dense(units, prefix=f'dense{first + number}_') for number, units in enumerate((8, 3)))
    return initialized(sequence(first, gluon.nn.BatchNorm(), QDense(8), gluon.nn.BatchNorm(), last), init=mx.init.Normal(0.5))


def weights(net):
    return [parameter.data().asnumpy() for parameter in net._collect_params_with_prefix().values()]


def train_by_hand(epochs, lr, loss):
    """Train as any user of Gluon does, with the rates of a cosine; return the network and the rows of its history."""
    net, rows = make_net(), []
    net(mx.nd.array(IMAGES))
    trainer = gluon.Trainer(list(net._collect_params_with_prefix().values()), 'sgd', {'learning_rate': lr, 'momentum': 0.9}, kvstore=None)
    updates = epochs * len(BATCHES)
    for epoch in range(epochs):
        losses, hits = [], []
        for number, (x, y) in enumerate(BATCHES):
            trainer.set_learning_rate(lr * (1 + np.cos(np.pi * (epoch * len(BATCHES) + number) / updates)) / 2)
            with autograd.record():
                logits = net(x)
                result = loss(logits, y)
            result.backward()
            trainer.step(len(x))
            losses += result.asnumpy().tolist()
            hits += (logits.asnumpy().argmax(axis=1) == y.asnumpy()).tolist()
        rows.append((np.mean(losses), np.mean(hits), *validated(net)))
    return net, rows


def validated(net):
    """Top-1 accuracy and loss on the images for validation."""
    logits = np.concatenate([net(x).asnumpy() for x, _ in VALIDATION])
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[range(9), LABELS[:9]]
    return np.mean(logits.argmax(axis=1) == LABELS[:9]), np.mean(losses)


@pytest.mark.parametrize('loss', [None, gluon.loss.HingeLoss()])
def test_a_network_ends_with_the_weights_and_the_history_of_a_loop_written_by_hand(loss):
    if loss:
        loss = lambda logits, labels, hinge=loss: hinge(logits, labels.one_hot(3) * 2 - 1)  # noqa: E731
    net = make_net()
    history = fit(net, BATCHES, VALIDATION, 3, optimizer='sgd', momentum=0.9, lr=0.1, loss=loss)
    expected, rows = train_by_hand(3, 0.1, loss or gluon.loss.SoftmaxCrossEntropyLoss())
    for one, two in zip(weights(net), weights(expected)):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    for row, values in zip(history, rows):
        assert [row[name] for name in ('loss', 'train_top1', 'top1', 'validation_loss')] == pytest.approx(values, rel=1e-5)
    assert [row['epoch'] for row in history] == [1, 2, 3]


def test_callbacks_see_every_update_and_every_epoch_and_the_second_one_can_end_the_training(tmp_path):
    seen, net = [], make_net()

    def on_epoch(training):
        assert training.net is net and (tmp_path / 'run' / f'epoch-{training.progress.epoch:04d}.params').exists()
        seen.append(len(training.progress.history))
        return len(seen) > 7

    history = fit(
        net, BATCHES, VALIDATION, 5, save_dir=str(tmp_path / 'run'),
        on_batch=lambda training: seen.append((training.progress.epoch, training.progress.batch, training.progress.seen)),
        on_epoch=on_epoch,
    )  # fmt: skip
    assert seen == [*((0, number, seen) for number, seen in ((1, 8), (2, 16), (3, 22))), 1, *((1, 1, 8), (1, 2, 16), (1, 3, 22)), 2]
    assert len(history) == 2


def test_an_interrupted_training_that_is_resumed_ends_like_an_uninterrupted_one(tmp_path):
    options = dict(optimizer='radam', lr=0.05, warmup_epochs=1, ema=0.7, wd=1e-3)
    whole = make_net()
    expected = fit(whole, BATCHES, VALIDATION, 4, save_dir=str(tmp_path / 'whole'), **options)

    def interrupt(training):
        if training.progress.epoch == 2 and training.progress.batch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(make_net(), BATCHES, VALIDATION, 4, save_dir=str(tmp_path / 'run'), on_batch=interrupt, **options)
    assert not (tmp_path / 'run' / 'run.lock').exists()
    net = make_net(first=9)  # dense10 sorts before dense9
    history = fit(net, BATCHES, VALIDATION, 4, save_dir=str(tmp_path / 'run'), resume=True, **options)
    np.testing.assert_equal(weights(net), weights(whole))
    assert_equal_files(tmp_path / 'run', tmp_path / 'whole', 'epoch-0004.params', 'epoch-0004.states')
    assert [[row['loss'], row['top1']] for row in history] == [[row['loss'], row['top1']] for row in expected]


def test_with_a_folder_the_network_has_the_weights_of_the_best_epoch(tmp_path):
    net, kept = make_net(), []
    history = fit(net, BATCHES, VALIDATION, 6, lr=0.1, save_dir=str(tmp_path), on_epoch=lambda training: kept.append(weights(training.net)))
    best = max(range(6), key=lambda epoch: history[epoch]['top1'])
    assert best < 5, 'the last epoch is the best one: this test needs another rate'
    np.testing.assert_equal(weights(net), kept[best])


def test_without_a_folder_the_network_has_the_averages_that_were_evaluated():
    net = make_net()
    history = fit(net, BATCHES, VALIDATION, 2, lr=0.1, ema=0.9)
    assert history[-1]['validation_loss'] == pytest.approx(validated(net)[1], rel=1e-5)


def test_it_stops_early_and_takes_a_trainer_and_an_objective():
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.0})
    objective = Objective(classes=3, smoothing=0.1, mixup=Mixup(0.2, seed=0, end=9))
    history = fit(net, BATCHES, VALIDATION, 9, trainer=trainer, loss=objective, early_stop=2)
    assert len({row['top1'] for row in history}) == 1 or history[0]['top1'] >= history[-1]['top1']
    assert len(history) - 1 - max(range(len(history)), key=lambda epoch: history[epoch]['top1']) == 2
    assert all(row['learning_rate'] == 0 for row in history)


def test_mistakes_are_one_clear_error(tmp_path):
    run = str(tmp_path / 'run')
    with pytest.raises(UserError, match='there is no run to resume in .*run: point save_dir to one'):
        fit(make_net(), BATCHES, VALIDATION, 1, save_dir=run, resume=True)
    with pytest.raises(UserError, match=r'not initialized: call net\.initialize\(\) before training'):
        fit(gluon.nn.Dense(3), BATCHES, VALIDATION, 1)
    fit(make_net(), BATCHES, VALIDATION, 1, save_dir=run)
    with pytest.raises(UserError, match='holds a run already'):
        fit(make_net(), BATCHES, VALIDATION, 1, save_dir=run)
    with pytest.raises(UserError, match='training diverged in update 1 of epoch 1'):
        fit(make_net(), [(mx.nd.array(IMAGES) * np.nan, mx.nd.array(LABELS))], VALIDATION, 1)


def initialized(net, **arguments):
    net.initialize(**arguments)
    return net


def test_images_are_converted_to_the_type_of_the_network_before_shapes_are_known():
    batches = gluon.data.DataLoader(gluon.data.ArrayDataset(IMAGES.astype(np.float64), LABELS), batch_size=8)
    (row,) = fit(initialized(gluon.nn.Dense(3)), batches, batches, num_epochs=1)
    assert np.isfinite(row['loss'])


@pytest.mark.parametrize(
    'net,arguments,words',
    [
        (gluon.nn.Dense(3, in_units=5), {}, r'does not run on images of shape \(8, 6\)'),
        (gluon.nn.Dense(3), {'lr_scaling': 'linear'}, 'no argument lr_scaling'),
        (gluon.nn.Dense(3), {'warmup_epoch': 1}, 'no argument warmup_epoch; did you mean warmup_epochs'),
        (gluon.nn.Dense(3), {'resume': True}, 'resume=True needs save_dir'),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(net, arguments, words):
    net = sequence(net, gluon.nn.Dense(3))  # the last layer learns its shape from the first batch
    with pytest.raises(UserError, match=words) as raised:
        fit(initialized(net), BATCHES, VALIDATION, num_epochs=1, **arguments)
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize(
    'arguments,words',
    [
        ({'train_data': iter([])}, 'train_data must be batches that have a number'),
        ({'train_data': []}, 'train_data has no batches'),
        ({'train_data': mx.nd.zeros((4, 6))}, 'train_data must be batches .* not an object of type NDArray'),
        ({'train_data': [(IMAGES, LABELS)]}, 'a pair of arrays of MXNet'),
        ({'validation_data': (batch for batch in [])}, 'validation_data must be batches .* not an object of type generator'),
        ({'validation_data': None, 'early_stop': 1}, 'early_stop needs validation_data'),
        ({'net': 'meliusnet22'}, "net must be a network of Gluon, a gluon.Block, not 'meliusnet22'"),
        ({'lr': '0.1'}, "lr must be a number of at least 0, not '0.1'"),
        ({'lr': float('nan')}, 'lr must be a number of at least 0, not nan'),
        ({'lr': -1}, 'lr must be a number of at least 0, not -1'),
        ({'num_epochs': 1.5}, 'num_epochs must be a whole number of at least 1, not 1.5'),
        ({'warmup_epochs': True}, 'warmup_epochs must be a whole number of at least 0, not True'),
        ({'warmup_epochs': 2}, '^warmup_epochs 2 leaves nothing of num_epochs 1: lower it$'),
        ({'seed': 'x'}, "seed must be a whole number, not 'x'"),
        ({'optimizer': 'radamm'}, "optimizer: unknown optimizer 'radamm'; did you mean radam"),
        ({'optimizer': mx.optimizer.Adam()}, 'optimizer must be the name of an optimizer of MXNet, not an object of type Adam'),
        ({'dtype': 'float'}, "dtype must be 'float32' or 'float16', not 'float'"),
        ({'lr_mode': 'cosin'}, "lr_mode must be 'cosine' or 'step' or 'poly', not 'cosin'"),
        ({'loss': 'l2'}, "loss must be an Objective or a function of logits and labels, not 'l2'"),
        ({'lr': 3e38}, 'lr must be a number of at least 0 and at most 1e.09, not 3e.38'),
        ({'lr': float('inf')}, 'lr must be a number of at least 0 and at most 1e.09, not inf'),
        ({'validation_data': []}, 'validation_data has no batches: give None'),
        ({'optimizer_params': {'beta1': 'x'}}, 'optimizer_params .*radam refuses this: '),
        ({'optimizer_params': 'beta1=0'}, "optimizer_params must be a dict, not 'beta1=0'"),
        ({'optimizer': 'SGD', 'binary_optimizer': 'adam', 'binary_optimizer_params': {'beta': 0}}, 'binary_optimizer_params: adam has no'),
        ({'optimizer': None}, 'optimizer must be the name of an optimizer of MXNet, not None'),
        ({'binary_optimizer': 'bop'}, 'binary_optimizer: '),
        ({'momentum': 0.9}, 'momentum: radam has no such argument, but sgd and nag have'),
        ({'lr_decay_epoch': 3}, 'lr_decay_epoch must be a list of epochs, not 3'),
        ({'train_data': [(mx.nd.zeros((8, 6)), mx.nd.zeros((8, 3)))]}, r'of shape \(8,\), not \(8, 3\)'),
        ({'train_data': [(mx.nd.zeros((8, 6)), mx.nd.zeros(5))]}, r'of shape \(8,\), not \(5,\)'),
        ({'train_data': [(mx.nd.zeros((8, 6)), mx.nd.full(8, 0.5))]}, 'has the label 0.5, but the network has the classes 0 to 2'),
        (
            {'train_data': [(mx.nd.full((8, 6), np.nan), mx.nd.zeros(8))]},
            'start again with a lower lr, or give .* to net.load_parameters for a new run with a lower lr$',
        ),
    ],
)
def test_wrong_arguments_are_one_error_that_names_them(arguments, words):
    with pytest.raises(UserError, match=words) as raised:
        fit(**{'net': make_net(), 'train_data': BATCHES, 'validation_data': VALIDATION, 'num_epochs': 1, **arguments})
    assert '\n' not in str(raised.value) and '--' not in str(raised.value)


@pytest.mark.parametrize('known', [True, False])  # whether the network has run on images of another size before
@pytest.mark.parametrize('hybridized', [True, False])
def test_images_that_are_too_small_for_the_network_are_one_error(known, hybridized):
    net = sequence(gluon.nn.Conv2D(4, 3), gluon.nn.MaxPool2D(8), gluon.nn.Dense(2))
    initialized(net)
    if hybridized:
        net.hybridize()
    if known:
        net(mx.nd.zeros((1, 1, 12, 12)))
    batches = [(mx.nd.zeros((4, 1, 8, 8)), mx.nd.zeros(4))]
    with pytest.raises(UserError, match=r'does not run on images of shape \(4, 1, 8, 8\): .*kernel') as raised:
        fit(net, batches, batches, num_epochs=1)
    assert '\n' not in str(raised.value)


def test_an_epoch_without_validation_data_is_the_default():
    (row,) = fit(make_net(), BATCHES, verbose=False)
    assert row['epoch'] == 1 and np.isnan(row['top1'])


def test_without_validation_data_the_last_epoch_counts_as_the_best(tmp_path):
    net, run = make_net(), str(tmp_path / 'run')
    history = fit(net, BATCHES, None, 2, save_dir=run)
    assert [row['epoch'] for row in history] == [1, 2] and all(np.isnan(row['top1']) for row in history)
    again = make_net()
    assert [row['epoch'] for row in fit(again, BATCHES, None, 2, save_dir=run, resume=True)] == [1, 2]
    for ours, theirs in zip(net.collect_params().values(), again.collect_params().values()):
        np.testing.assert_array_equal(ours.data().asnumpy(), theirs.data().asnumpy())
    alone = make_net()
    fit(alone, BATCHES, None, 2)
    for ours, theirs in zip(net.collect_params().values(), alone.collect_params().values()):
        np.testing.assert_array_equal(ours.data().asnumpy(), theirs.data().asnumpy())


def test_a_batch_with_fewer_images_than_devices_is_refused():
    batches = gluon.data.DataLoader(gluon.data.ArrayDataset(IMAGES[:9], LABELS[:9]), batch_size=8)
    net = initialized(gluon.nn.Dense(3, in_units=6), ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(UserError, match='a batch of 1 images cannot be divided among 2 devices'):
        fit(net, batches, batches, num_epochs=1)


def test_the_guide_trains_and_deploys_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mx.random.seed(0)
    np.random.seed(0)
    names = {}
    for block in re.findall(r'^```python\n((?:.*\n)*?)```$', GUIDE.read_text(), re.MULTILINE):
        exec(block, names)
    assert len(names['losses']) == 3 * 24 and names['losses'][-1] < names['losses'][0]
    best = max(row['top1'] for row in names['history'][:3])
    assert np.mean(names['predicted'] == names['labels'][1500:]) == pytest.approx(best, abs=0.01)
    assert names['report'].packed_operators == 1


def test_two_trainings_do_not_write_to_one_folder(tmp_path):
    refused = []

    def start_another(training):
        with pytest.raises(UserError, match=f'{tmp_path} is in use: process '):
            fit(make_net(), BATCHES, VALIDATION, 2, save_dir=str(tmp_path), resume=True)
        refused.append(training.progress.epoch)

    fit(make_net(), BATCHES, VALIDATION, 2, save_dir=str(tmp_path), on_epoch=start_another)
    assert refused == [1, 2]
