"""Arguments of layers: signatures, those that do not exist or do not fit, and the order of Gluon."""

import inspect
import re

import numpy as np
import pytest
from mxnet import nd

from bmx_melius import BinaryConv2D, ChannelShuffle, QActivation, QConv1D, QConv2D, QConv3D, QDense, ScaledBinaryConv2D, UserError
from bmx_melius.compat import bmxnet
from bmx_melius.nn.methods.abc_net import ABCConv2D
from bmx_melius.nn.methods.cbcn import CirculantConv2D
from bmx_melius.nn.methods.lq_net import LQConv2D
from bmx_melius.nn.methods.pokebnn import PokeConv2D
from bmx_melius.nn.methods.real_to_binary import GatedBinaryConv2D
from bmx_melius.nn.quantizers import quantize
from model_zoo import get_model


@pytest.mark.parametrize(
    'make, words',
    [
        (lambda: QActivation(method='det_sign'), 'unknown quantizer'),
        (lambda: QActivation(bits=2), "'sign' cannot round to 2 bits"),
        (lambda: QActivation(threshold=0), 'threshold must be positive'),
        (lambda: QActivation(method='unit_magnitude'), 'cannot quantize activations'),
        (lambda: QConv2D(4, 3, bits=32, quantization='unit_magnitude'), 'cannot round to 32 bits; choose from 1$'),
        (lambda: QActivation(encoding='bytes'), 'unknown encoding'),
        (lambda: QActivation(method='dorefa', bits=2, encoding='bit'), "for signs, not for bits=2 of the quantizer 'dorefa'"),
        (lambda: QActivation(method='round', bits=1, encoding='bit'), "for signs, not for bits=1 of the quantizer 'round'"),
        (lambda: QConv2D(4, 3, layout='NHWC'), 'NCHW only'),
        (lambda: QConv2D(4, 3, pad_value=0, encoding='bit'), 'pads with -1'),
        (lambda: QConv2D(4, 3, bits=32, encoding='bit'), "for signs, not for bits=32 of the quantizer 'sign'"),
        (lambda: ScaledBinaryConv2D(4, 3, dilation=2), 'no dilation'),
        (lambda: ChannelShuffle(0), 'at least 1'),
        (lambda: BinaryConv2D(4, 3, bits=32, weight_bits=1), 'weight_bits'),
        (lambda: BinaryConv2D(4, 3, weight_bits=2), 'weight_bits'),
        (lambda: GatedBinaryConv2D(4, 3), 'needs in_channels, at least 8'),
        (lambda: LQConv2D(4, 3, activation_bits=3, activation_method='round'), '2 bits, or 32 for full precision, not 3'),
        (lambda: LQConv2D(4, 3, activation_bits=1, activation_method='sign'), '2 bits, or 32 for full precision, not 1'),
        (lambda: ABCConv2D(4, 3, weight_bits=32), 'weight_bits=32 is not supported'),
        (lambda: ABCConv2D(4, 3, groups=2), 'no grouped convolutions'),
        (lambda: ABCConv2D(4, 3, activation_method='round', activation_bits=2), "'round' with 2 bits is not supported"),
        (lambda: ABCConv2D(4, 3, bits=2, quantization='dorefa', activation_method='round'), "'round' with 2 bits is not supported"),
        (lambda: ABCConv2D(4, 3, quantization='scaled_sign'), "'scaled_sign' with 1 bits is not supported"),
        (lambda: CirculantConv2D(6, 3), 'not a multiple of the 4 orientations'),
        (lambda: CirculantConv2D(8, (1, 3)), 'square kernel'),
        (lambda: CirculantConv2D(8, 3, groups=2), 'no grouped convolutions'),
        (lambda: CirculantConv2D(8, 3, in_channels=6), 'in_channels=6 is not a multiple of the 4'),
    ],
)
def test_wrong_arguments_are_named(make, words):
    with pytest.raises(UserError, match=words):
        make()


THRESHOLDS = {
    'QActivation': lambda value: QActivation(threshold=value),
    'QConv2D': lambda value: QConv2D(4, 3, weight_threshold=value),
    'BinaryConv2D': lambda value: BinaryConv2D(4, 3, threshold=value),
    'PokeConv2D': lambda value: PokeConv2D(4, 3, threshold=value),
    'quantize': lambda value: quantize(nd, nd.ones(3), 'bounded_sign', 1, value),
    'a network': lambda value: get_model('pokebnn_0_5', clip_threshold=value),
    'BMXNet-v2': lambda value: bmxnet.QActivation(gradient_cancel_threshold=value),
    "BMXNet-v2's blocks": lambda value: bmxnet.ScaledBinaryConv(1, 1, 4, 3, clip_threshold=value),
}


@pytest.mark.parametrize('value', [0, -1, float('nan'), float('inf'), 1e5, True, '1', [1.0], np.ones(2)], ids=repr)
@pytest.mark.parametrize('of', THRESHOLDS)
def test_a_threshold_that_is_not_a_positive_number_is_refused_in_one_line(of, value):
    with pytest.raises(UserError, match=f'^the threshold must be positive and below 60000 .* not {re.escape(repr(value))}$'):
        THRESHOLDS[of](value)


@pytest.mark.parametrize('value', [None, 1, 0.5, np.float32(0.5), np.int64(2)])
@pytest.mark.parametrize('of', THRESHOLDS)
def test_positive_numbers_of_any_type_and_none_are_thresholds(of, value):
    THRESHOLDS[of](value)


SIZED = {QActivation: (), QDense: (4,), ChannelShuffle: (2,)}  # the arguments without which a layer cannot be made; (4, 3) of convolutions
QUANTIZED = [QActivation, QConv1D, QConv2D, QConv3D, QDense, BinaryConv2D, ScaledBinaryConv2D]


@pytest.mark.parametrize('layer', [*QUANTIZED, ChannelShuffle])
def test_a_signature_shows_arguments_that_the_layer_takes_with_their_defaults(layer):
    shown = inspect.signature(layer).parameters.values()
    assert not [argument for argument in shown if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
    defaults = {argument.name: argument.default for argument in shown if argument.default is not argument.empty}
    given = layer(*SIZED.get(layer, (4, 3)), **{**defaults, 'prefix': 'one_'})
    assert repr(given) == repr(layer(*SIZED.get(layer, (4, 3)), prefix='one_'))


@pytest.mark.parametrize('layer', [*QUANTIZED, ChannelShuffle])
def test_an_argument_that_does_not_exist_is_a_type_error_that_names_it(layer):
    with pytest.raises(TypeError, match="unexpected keyword argument 'clip_threshold'"):
        layer(*SIZED.get(layer, (4, 3)), clip_threshold=1)


@pytest.mark.parametrize(
    'make, words',
    [
        (
            lambda: BinaryConv2D(4, 3, encoding='bit'),
            "^BinaryConv2D: .*argument 'encoding'; its arguments are channels, kernel_size, strides, ",
        ),
        (lambda: ScaledBinaryConv2D(4, 3, no_offset=True), "^ScaledBinaryConv2D: .*argument 'no_offset'"),
        (lambda: CirculantConv2D(8, 3, use_bias=True), "CirculantConv2D: got an unexpected keyword argument 'use_bias'"),
        (lambda: QConv2D(4), "^QConv2D: missing a required argument: 'kernel_size'"),
    ],
)
def test_arguments_that_a_layer_sets_or_lacks_are_type_errors(make, words):
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize('layer', [BinaryConv2D, ScaledBinaryConv2D])
def test_a_binary_convolution_takes_its_geometry_in_gluons_order(layer):
    layer = layer(4, 3, 2, 1, 1, 2, in_channels=4)
    layer.initialize()
    assert layer(nd.ones((1, 4, 8, 8))).shape == (1, 4, 4, 4) and layer.qconv.weight.shape == (4, 2, 3, 3)
