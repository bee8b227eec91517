"""Counting changes of sign: against a count in NumPy of weights that were recorded after each update."""

import signal

import mxnet as mx
import numpy as np
import pytest
from support.long_runs import mostly_long
from support.small_networks import sequence
from support.training_runs import OPTIONS, TINY, assert_equal_files, read_csv, train_apart, train_until

import bmx_melius as bmx
from bmx_melius.errors import UserError
from bmx_melius.nn.layers import binary_weights
from bmx_melius.nn.quantizers import sign
from bmx_melius.training.recording import plots
from bmx_melius.training.recording.flips import ALL, PERCENTILES, STATISTICS, FlipCounter
from model_zoo import get_model


def make_net():
    """Two binary layers, sizes that do not fill bytes, among layers that are not binary."""
    net = sequence(
        bmx.QConv2D(5, 3, in_channels=3),
        mx.gluon.nn.Conv2D(4, 1, in_channels=5),
        bmx.QConv2D(4, 1, in_channels=4, bits=32),
        bmx.QConv2D(4, 1, in_channels=4, bits=2, quantization='dorefa'),
        bmx.QDense(7, in_units=11),
        bmx.QConv2D(4, 1, in_channels=4, quantization='round'),
        bmx.QConv2D(4, 1, in_channels=4, quantization='dorefa'),
    )
    net.initialize(mx.init.Normal(1))
    return net


def test_binary_weights_are_those_of_quantized_layers_with_one_bit():
    net = make_net()
    assert binary_weights(net) == {'0': net[0].weight, '4': net[4].weight}
    net = get_model('meliusnet22')
    saved = net._collect_params_with_prefix()
    assert {f'{path}.weight' for path in binary_weights(net)} == {name for name in saved if 'qconv' in name}
    for real in ({'bits': 32}, {'weight_bits': 32}):
        assert not binary_weights(get_model('meliusnet22', **real))


@pytest.mark.parametrize(
    'name, layers',
    [('resnet18_hwgq', 19), ('resnet18_bwn', 16), ('resnet18_syq_w1a2', 16), ('resnet18_lqnet_w1a2', 19), ('pokebnn_0_5', 48)],
)
def test_scaled_signs_are_binary_weights(name, layers):
    assert len(binary_weights(get_model(name))) == layers


def expected_rows(signs, layers):
    """The rows of one epoch, from the signs of all layers after each update, by NumPy's own percentiles."""
    counts = {name: np.abs(np.diff([step[name] for step in signs], axis=0) / 2).sum(axis=0).ravel() for name in layers}
    for name, numbers in {ALL: np.concatenate(list(counts.values())), **counts}.items():
        percentiles = np.percentile(numbers, PERCENTILES, method='inverted_cdf')
        yield {
            'layer': name,
            'weights': len(numbers),
            'mean': pytest.approx(numbers.mean()),
            'flipped': pytest.approx((numbers > 0).mean()),
            **{f'p{percent}': value for percent, value in zip(PERCENTILES, percentiles)},
        }


@pytest.mark.parametrize('updates', [4, 300])  # counters of 8 and of 16 bits
def test_flips_are_those_of_the_recorded_weights_and_a_zero_is_positive(updates):
    net, random = make_net(), np.random.RandomState(0)
    weights = binary_weights(net)

    def signs():
        return {name: sign(np, weight.data().asnumpy()) for name, weight in weights.items()}

    counter = FlipCounter(net, updates)
    counter.start({})
    expected, before = [], signs()
    for epoch in (3, 4):
        recorded = [before]
        for update in range(updates):
            if update == updates // 2:  # the run is stopped, and another process continues
                arrays = counter.arrays()
                counter = FlipCounter(net, updates)
                counter.start(arrays)
            for weight in weights.values():
                values = random.choice([-1, -1e-30, -0.0, 0.0, 1], size=weight.shape)
                kept = random.rand(*weight.shape) < (0.95 if epoch == 4 else 0)
                weight.set_data(mx.nd.array(np.where(kept, weight.data().asnumpy(), values)))
            counter.add_update()
            recorded.append(signs())
        counter.end_epoch()
        before = recorded[-1]
        expected += [{'epoch': epoch, **row} for row in expected_rows(recorded, weights)]
    assert counter.rows([3, 4]) == expected
    assert max(row['p100'] for row in expected) > (100 if updates == 300 else 1)


def test_a_weight_that_flips_in_every_update_does_not_overflow_its_counter():
    net = make_net()
    counter = FlipCounter(net, 255)
    counter.start({})
    for _ in range(255):
        net[0].weight.set_data(-net[0].weight.data())
        counter.add_update()
    counter.end_epoch()
    first = counter.rows([1])[1]
    assert (first['mean'], first['flipped'], first['p0'], first['p100']) == (255, 1, 255, 255)


def test_a_network_without_binary_weights_is_refused():
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    with pytest.raises(UserError, match='--track-flips'):
        FlipCounter(net, 10)


FLAGS = [*TINY, '--dataset', 'digits', '--num-epochs', '2', '--batch-size', '128', '--track-flips']  # 11 updates an epoch


@pytest.fixture(scope='module')
def uninterrupted(make_once):
    return make_once('run-with-flips', lambda folder: train_apart(*FLAGS, '--save-dir', folder / 'run')) / 'run'


def test_a_run_writes_a_row_for_each_epoch_and_layer_and_a_plot(uninterrupted):
    rows = read_csv(uninterrupted / 'flips.csv')
    layers = [ALL, *binary_weights(get_model('meliusnet_flex', **OPTIONS, initial_layers='thumbnail'))]
    assert [(row['epoch'], row['layer']) for row in rows] == [(epoch, layer) for epoch in '12' for layer in layers]
    assert all(0 < float(row['flipped']) < 1 and int(row['p100']) <= 11 for row in rows if row['layer'] == ALL)
    assert (uninterrupted / 'flips.png').stat().st_size > 10000


@pytest.mark.parametrize('number', mostly_long([signal.SIGINT, signal.SIGKILL], signal.SIGKILL))
def test_a_run_stopped_in_an_epoch_and_resumed_has_the_flips_of_the_uninterrupted_one(uninterrupted, tmp_path, number):
    train_until('epoch 2, update 4', number, *FLAGS, '--save-dir', tmp_path / 'run')
    assert len({row['epoch'] for row in read_csv(tmp_path / 'run' / 'flips.csv')}) == 1
    train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert_equal_files(tmp_path / 'run', uninterrupted, 'flips.csv')


def test_the_plot_shows_the_rows(uninterrupted):
    rows = [
        {name: value if name == 'layer' else float(value) for name, value in row.items()} for row in read_csv(uninterrupted / 'flips.csv')
    ]
    every, mean, flipped = plots.flips(rows, 'title').axes
    shown = {line.get_label(): list(line.get_ydata()) for line in every.lines}
    for label, column in (('99 %', 'p99'), ('median', 'p50'), ('mean', 'mean'), ('maximum', 'p100')):
        assert shown[label] == [row[column] for row in rows if row['layer'] == ALL]
    for layer, line, share in zip(dict.fromkeys(row['layer'] for row in rows if row['layer'] != ALL), mean.lines, flipped.lines):
        assert list(line.get_ydata()) == [row['mean'] for row in rows if row['layer'] == layer]
        np.testing.assert_allclose(share.get_ydata(), [100 * row['flipped'] for row in rows if row['layer'] == layer])


@pytest.mark.parametrize(
    'means, maxima', [([0.0124, 0.0146, 0.0065, 0.0011], [6, 6, 5, 5]), ([40, 20, 5, 0.5], [400, 300, 80, 7]), ([0, 0, 0, 0], [0, 0, 0, 0])]
)
def test_the_mean_can_be_read_beside_the_maximum(means, maxima):
    rows = [
        {**dict.fromkeys(STATISTICS, 0), 'epoch': epoch, 'layer': layer, 'mean': mean, 'p100': maximum}
        for epoch, (mean, maximum) in enumerate(zip(means, maxima), start=1)
        for layer in (ALL, '0')
    ]
    axes = plots.flips(rows, 'title').axes[0]

    def heights(numbers):  # in shares of the plot's height
        places = axes.transData.transform([(1, number) for number in numbers])
        return axes.transAxes.inverted().transform(places)[:, 1]

    for values in (means, maxima):
        assert np.all((heights(values) >= 0) & (heights(values) <= 1))
    for mean, height in zip(means, heights(means)):
        assert height > 0.1 if mean else height == 0
