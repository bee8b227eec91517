"""QuickNet against Larq Zoo's."""

from support.tensorflow_arrays import assert_same, read_cases

from model_zoo.quicknet import Architecture, Options, QuickNet


def test_a_small_quicknet_gives_the_logits_and_gradients_of_larq_zoo():
    net = QuickNet(Architecture((1, 1), (8, 16)), Options(init_features=8, same_padding=True), classes=5)
    assert_same(net, read_cases('quicknet')['network'])
