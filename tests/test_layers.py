"""Layers and their gradients against the reference data, NumPy's own loops and their float twins."""
import json
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from mxnet.gluon import nn

from bmx_melius import BinaryConv2D, ChannelShuffle, QActivation, QConv1D, QConv2D, QConv3D, QDense, ScaledBinaryConv2D, UserError

DATA = Path(__file__).parent / 'data'
ARRAYS = np.load(DATA / 'layers.npz')
CASES = json.loads((DATA / 'layers.json').read_text())

# The names by which the reference data calls layers, and what each is here.
LAYERS = {
    'QActivation': QActivation, 'QConv1D': QConv1D, 'QConv2D': QConv2D, 'QDense': QDense, 'ChannelShuffle': ChannelShuffle,
    'BinaryConvolution': BinaryConv2D, 'ScaledBinaryConv (approximation=xnor)': ScaledBinaryConv2D,
    'ScaledWeightsBinaryConv (approximation=binet)': lambda **kw: BinaryConv2D(apply_scaling=True, **kw),
}  # fmt: skip
RENAMED = {'clip_threshold': 'threshold', 'stride': 'strides'}
METHODS = {'det_sign': 'sign', 'sign_approx_sign': 'approx_sign'}


def reference_layer(case):
    facts = dict(CASES[case])
    facts.pop('note', None)
    make = LAYERS[facts.pop('layer')]
    arguments = {RENAMED.get(k, k): tuple(v) if isinstance(v, list) else METHODS.get(v, v) if isinstance(v, str) else v for k, v in facts.items()}
    if case.endswith('xnorcfg'):
        arguments['scaling_gradient'] = False
    if case.startswith('qconv_dorefa') or case.startswith('qdense_dorefa'):
        arguments['quantization'] = 'dorefa'
    return make(**arguments)


def run(layer, arrays, hybridize):
    """Outputs and gradients of a layer whose weight is that of the reference."""
    layer.initialize()
    if hybridize:
        layer.hybridize()
    x = nd.array(arrays['x'])
    x.attach_grad()
    layer(x)
    weights = list(layer.collect_params('.*weight').values())
    for weight in weights:
        weight.set_data(nd.array(arrays['weight']))
    with autograd.record():
        y = layer(x)
    y.backward(nd.array(arrays['dy']))
    return dict(y=y, dx=x.grad, **{'dweight': weight.grad() for weight in weights})


@pytest.mark.parametrize('hybridize', [False, True], ids=['imperative', 'hybridized'])
@pytest.mark.parametrize('case', CASES)
def test_layer_and_gradients_equal_the_reference(case, hybridize):
    arrays = {name.split('/', 1)[1]: ARRAYS[name] for name in ARRAYS.files if name.startswith(case + '/')}
    for name, value in run(reference_layer(case), arrays, hybridize).items():
        np.testing.assert_allclose(value.asnumpy(), arrays[name], rtol=1e-5, atol=2e-5, err_msg=name)
