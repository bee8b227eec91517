"""Strong Baseline against Larq Zoo's, whose scales of rows and columns are 1: a unit with binary weights, and the stem."""

import dataclasses

import pytest
from mxnet.gluon import nn
from support.tensorflow_arrays import assert_same, read_cases

from model_zoo.method_resnets import METHODS, Residual
from model_zoo.method_units import Place
from model_zoo.stems import add_stem

CASES = read_cases('strong_baseline')
METHOD = METHODS['resnet{}_strong_baseline']
OPTIONS = dataclasses.replace(METHOD.options, conv_kwargs={'pad_value': 0}, norm_kwargs={'epsilon': 1e-3}, same_padding=True)


@pytest.mark.parametrize('stage, stride', [('binary', 1), ('binary, stride 2', 2)])
def test_a_unit_with_its_shortcut_gives_the_result_and_gradients_of_larq_zoo(stage, stride):
    assert_same(Residual((Place(16 * stride, 16, stride, stride),), METHOD, OPTIONS), CASES[stage])


def test_the_stem_with_its_prelu_gives_the_result_and_gradients_of_larq_zoo():
    stem = nn.HybridSequential()
    add_stem(stem, OPTIONS, METHOD.stem_end)
    assert_same(stem, CASES['stem'])
