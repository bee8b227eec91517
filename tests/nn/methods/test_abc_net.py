"""ABC-Net against a third party, as its authors published no code. tests/nn/test_multi_base_methods.py has the equations of the paper."""

import numpy as np
import pytest
from mxnet import nd
from support.authors_arrays import read_cases
from support.gradients import gradients

from bmx_melius.nn.methods.abc_net import ABCConv2D, scales, shifted

CASE = read_cases('abc_net')[0]['layer'].arrays


def test_bases_and_scales_of_the_weights_are_those_of_the_third_party():
    weight = nd.array(CASE['weight'], dtype='float64')
    bases = np.where(shifted(nd, weight).asnumpy() >= 0, 1, -1).reshape(CASE['bases'].shape)
    np.testing.assert_array_equal(bases, CASE['bases'])
    assert len(np.unique(bases.reshape(5, -1), axis=0)) == 5
    np.testing.assert_allclose(scales(nd, weight).asnumpy().ravel(), CASE['alpha'], atol=1e-4)


@pytest.mark.parametrize('hybridize', [False, True])
def test_the_layer_has_the_result_and_the_gradient_of_beta_of_the_third_party(hybridize):
    layer = ABCConv2D(3, 3, padding=1, pad_value=0)
    layer.cast('float64')
    layer.initialize()
    layer.hybridize(hybridize)
    x = nd.array(CASE['x'], dtype='float64')
    layer(x)
    for parameter, name in ((layer.qact.shift, 'shift'), (layer.qconv.weight, 'weight'), (layer.qconv.beta, 'beta')):
        parameter.set_data(nd.array(CASE[name], dtype='float64'))
    y, _ = gradients(layer, [x], CASE['dy'])
    # the scales of the third party are the result of an iteration in float32
    np.testing.assert_allclose(y, CASE['y'], atol=1e-4 * np.abs(CASE['y']).max())
    np.testing.assert_allclose(layer.qconv.beta.grad().asnumpy(), CASE['dbeta'], atol=1e-4 * np.abs(CASE['dbeta']).max())
