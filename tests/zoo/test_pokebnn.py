"""PokeBNN beside the figures of its authors, and how its blocks begin. tests/nn/methods compares it with arrays of their code."""

import numpy as np
import pytest
from mxnet import nd
from support.networks import layers_of

import bmx_melius as bmx
from bmx_melius.__main__ import main
from model_zoo import get_model
from model_zoo.pokebnn import PokeBlock, ReshapeAdd


@pytest.mark.parametrize(
    'name, conv_ace, dense_ace',
    [
        # of `test_size_stats` in the authors' pokebnn_test.py
        ('pokebnn_1_0', 4091469824, 131072000),
        # as their `size_stats` counts; the paper's abstract has 2.6e9
        ('pokebnn_0_75', 2489315840, 98304000),
    ],
)
def test_layers_have_the_multiplications_and_bits_that_the_authors_code_counts(name, conv_ace, dense_ace):
    """ACE are multiplications times the bits of weights and of inputs, which are equal in each layer."""
    ace = {'Convolution': 0, 'FullyConnected': 0}
    for layer in bmx.summary(get_model(name), (1, 3, 224, 224)).layers:
        if layer.operator in ace:
            ace[layer.operator] += layer.macs * layer.bits**2
    assert list(ace.values()) == [conv_ace, dense_ace]


@pytest.mark.parametrize('last_gamma', [True, False])
def test_blocks_begin_as_their_shortcuts_as_in_the_authors_code(last_gamma):
    net = get_model('pokebnn_0_5', init_features=8, **({} if last_gamma else {'last_gamma': False}))
    net.initialize()
    net(nd.zeros((1, 3, 32, 32)))
    gammas = [block.last.norm.gamma.data().asnumpy() for block in layers_of(net, PokeBlock)]
    assert len(gammas) == 16 and all((gamma == (not last_gamma)).all() for gamma in gammas)


def test_the_plan_of_a_training_says_that_gradients_of_zero_are_intended(tmp_path, capsys):
    small = ['--model-options', '{"init_features": 8}', '--dataset', 'digits', '--input-size', '32', '--batch-size', '8', '-j', '0']
    assert main(['train', '--model', 'pokebnn_0_5', *small, '--dry-run', '--save-dir', str(tmp_path / 'run')]) == 0
    plan = capsys.readouterr().out
    assert 'bmx.check finds 16 problems' in plan and 'gradients of 0 in residual blocks are intended in the first update' in plan


@pytest.mark.parametrize(
    'channels, in_channels, repeats, expected',
    [
        (2, 5, False, [0.5, 2.5]),  # averages of pairs, without the last channel
        (3, 4, True, [0, 1, 2]),
        (4, 2, True, [0, 1, 0, 1]),
        (5, 2, False, [0, 1, 0, 0, 0]),
        (2, 2, False, [0, 1]),
    ],
)
def test_shortcuts_are_averaged_repeated_or_added_to_the_first_channels(channels, in_channels, repeats, expected):
    x, shortcut = nd.zeros((1, channels, 1, 1)), nd.arange(in_channels).reshape((1, -1, 1, 1))
    np.testing.assert_array_equal(ReshapeAdd(channels, in_channels, repeats=repeats)(x, shortcut).asnumpy().ravel(), expected)
