"""Real-to-Binary against Larq Zoo's: units with binary weights and of the full-precision counterpart, and the stem."""

import dataclasses

import pytest
from mxnet.gluon import nn
from support.tensorflow_arrays import assert_same, read_cases

from model_zoo.method_resnets import METHODS, Residual
from model_zoo.method_units import Place
from model_zoo.stems import add_stem

CASES = read_cases('real_to_binary')
METHOD = METHODS['real_to_binary{}']
LARQ = {'conv_kwargs': {'pad_value': 0, 'factor': 1}, 'norm_kwargs': {'epsilon': 1e-3}, 'same_padding': True}


def options(**changes):
    return dataclasses.replace(METHOD.options, **{**LARQ, **changes})


@pytest.mark.parametrize('stage, stride, changes', [('binary', 1, {}), ('binary, stride 2', 2, {}), ('float', 1, {'bits': 32})])
def test_a_unit_with_its_shortcut_gives_the_result_and_gradients_of_larq_zoo(stage, stride, changes):
    block = Residual((Place(16 * stride, 16, stride, stride),), METHOD, options(**changes))
    assert_same(block, CASES[stage])


def test_the_stem_gives_the_result_and_gradients_of_larq_zoo():
    stem = nn.HybridSequential()
    add_stem(stem, options(), METHOD.stem_end)
    assert_same(stem, CASES['stem'])
