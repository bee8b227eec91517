"""DoReFa-Net against the authors' quantizers in tensorpack's example."""

import pytest
from support.tensorflow_arrays import assert_same, read_cases

from bmx_melius.nn.methods.dorefa import DoReFaConv2D

CASES = read_cases('dorefa')


@pytest.mark.parametrize('bits', [2, 4])
def test_the_layer_has_the_result_and_gradients_of_the_authors_code(bits):
    assert_same(DoReFaConv2D(6, 3, padding=1, bits=bits), CASES[f'{bits} bits'])
