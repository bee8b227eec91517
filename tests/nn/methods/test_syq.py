"""SYQ against the authors' quantizers."""

import numpy as np
from support.equations import conv
from support.tensorflow_arrays import assert_same, read_cases

from bmx_melius.nn.methods.syq import SYQConv2D

CASES = read_cases('syq')


def test_the_layer_has_the_result_and_gradients_of_the_authors_code():
    """With the threshold 0, so that all weights have two values, as in the paper."""
    case = dict(CASES['eta 0'])
    for array in ('weight01', 'gradient01'):  # of the scales
        case[array] = case[array].reshape(1, 1, 3, 3)
    assert_same(SYQConv2D(6, 3, padding=1), case)


def test_the_authors_code_does_not_scale_weights_below_its_default_threshold():
    """As docs/zoo.md says of the difference; here they are scaled like the others."""
    case = CASES['eta 0.05']
    weight = case['weight00']
    large = np.abs(weight) > 0.05 * np.abs(weight).max()
    quantized = np.sign(weight) * np.where(large, case['weight01'].reshape(1, 1, 3, 3), 1)
    activations = np.floor(np.clip(case['x'], 0, 1) * 3 + 0.5) / 3
    np.testing.assert_allclose(conv(activations, quantized, value=0), case['y'], atol=1e-5)
    assert 0 < (~large).sum() < large.sum()
