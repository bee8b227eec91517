"""Arguments of layers: signatures, those that do not exist or do not fit, and the order of Gluon."""

import inspect

import pytest
from mxnet import nd

from bmx_melius import BinaryConv2D, ChannelShuffle, QActivation, QConv1D, QConv2D, QConv3D, QDense, ScaledBinaryConv2D, UserError


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
    ],
)
def test_wrong_arguments_are_named(make, words):
    with pytest.raises(UserError, match=words):
        make()


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


def test_arguments_that_a_composed_layer_sets_are_refused():
    with pytest.raises(TypeError, match="^BinaryConv2D: .*argument 'encoding'; its arguments are channels, kernel_size, strides, "):
        BinaryConv2D(4, 3, encoding='bit')
    with pytest.raises(TypeError, match="^ScaledBinaryConv2D: .*argument 'no_offset'"):
        ScaledBinaryConv2D(4, 3, no_offset=True)
    with pytest.raises(TypeError, match="^QConv2D: missing a required argument: 'kernel_size'"):
        QConv2D(4)


@pytest.mark.parametrize('layer', [BinaryConv2D, ScaledBinaryConv2D])
def test_a_binary_convolution_takes_its_geometry_in_gluons_order(layer):
    layer = layer(4, 3, 2, 1, 1, 2, in_channels=4)
    layer.initialize()
    assert layer(nd.ones((1, 4, 8, 8))).shape == (1, 4, 4, 4) and layer.qconv.weight.shape == (4, 2, 3, 3)


@pytest.mark.parametrize('arguments', [{'bits': 32, 'weight_bits': 1}, {'weight_bits': 2}])
def test_weights_that_cannot_differ_from_activations_are_refused(arguments):
    with pytest.raises(UserError, match='weight_bits'):
        BinaryConv2D(4, 3, **arguments)
