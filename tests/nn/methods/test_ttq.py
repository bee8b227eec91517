"""TTQ against the authors' quantizer."""

from support.tensorflow_arrays import assert_same, read_cases

from bmx_melius.nn.methods.ttq import TTQConv2D


def test_the_layer_has_the_result_and_gradients_of_the_authors_code():
    case = {key: value if value.ndim else value.reshape(1, 1, 1, 1) for key, value in read_cases('ttq')['layer'].items()}
    assert_same(TTQConv2D(6, 3, padding=1), case)
