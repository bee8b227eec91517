"""The networks of MLPerf Tiny: parameters and operations are those of their authors' code and paper."""

import numpy as np
import pytest
from mxnet import nd
from support.authors_arrays import read_cases

import bmx_melius as bmx
from bmx_melius import UserError
from model_zoo import get_model
from model_zoo.registry import find

MILLIONS_OF_MACS = {'resnet8': 12.5, 'mobilenet_vww': 7.5, 'ds_cnn': 2.7}  # Banbury et al. 2021, arXiv:2106.07597


@pytest.mark.parametrize('name', MILLIONS_OF_MACS)
def test_a_network_has_the_parameters_of_the_authors_code_and_the_operations_of_their_paper(name):
    net, shape = get_model(name), (1, *find(name).input_shape)
    counts = bmx.summary(net, shape).counts
    net.infer_shape(nd.zeros(shape))
    assert round(counts['flops'] / 1e6, 1) == MILLIONS_OF_MACS[name]
    everything = sum(np.prod(parameter.shape) for parameter in net.collect_params().values())
    assert everything == read_cases('tiny')[1]['cases'][name]['parameters']


@pytest.mark.parametrize('arguments', [{'bits': 1}, {'weight_bits': 1}])
def test_a_float_network_cannot_be_made_binary(arguments):
    with pytest.raises(UserError, match='this network has no binary layers: bits and weight_bits must be 32'):
        get_model('resnet8', **arguments)


@pytest.mark.parametrize('spectrogram', [49, (49,), (49, 10, 1), (49, 1), (49.0, 10), 'x'])
def test_a_spectrogram_without_frames_and_coefficients_is_refused(spectrogram):
    with pytest.raises(UserError, match='spectrogram must be two whole numbers above 1, frames and coefficients, not'):
        get_model('ds_cnn', spectrogram=spectrogram)


@pytest.mark.parametrize('name', ['ds_cnn', 'binary_ds_cnn'])
def test_a_keyword_spotter_accepts_spectrograms_of_its_size_only(name):
    net = get_model(name, spectrogram=[98, 40], init_features=8)
    net.initialize()
    assert net(nd.zeros((2, 1, 98, 40))).shape == (2, 12)
    with pytest.raises(UserError, match='built for spectrograms of 98 x 40, not 49 x 10'):
        net(nd.zeros((2, 1, 49, 10)))
