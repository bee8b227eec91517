"""`bmx_melius.check`: it names the layers that are not trained, its numbers are NumPy's, and the network stays as it was."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from mxnet.gluon import HybridBlock, nn

import bmx_melius as bmx
from bmx_melius import BinaryConv2D, QActivation, QDense, UserError
from model_zoo import get_model


def sequence(*layers):
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(*(make() for make in layers))
    net.initialize(mx.init.Normal(1))
    return net


def conv():
    return BinaryConv2D(8, 3, padding=1)


def images(channels=4, batch=4):
    return nd.array(np.random.RandomState(0).randn(batch, channels, 6, 6))


def activations(checked):
    return [row for row in checked.layers if row.cancelled is not None]


def test_check_names_a_binary_convolution_that_reads_counts_without_normalization_and_the_layers_that_get_no_gradient():
    checked = bmx.check(sequence(conv, nn.PReLU, conv), images())
    named = [problem.split(':')[0] for problem in checked.problems]
    assert named == ['net_binaryconv2d0_qconv0', 'net_prelu0', *['net_binaryconv2d1_qactivation0'] * 2]
    assert 'the gradient of its parameters is 0' in checked.problems[0]
    assert 'put a BatchNorm before it' in checked.problems[2] and 'gradient of 100.0% of its inputs' in checked.problems[2]
    text = str(checked)
    assert all(problem in text for problem in checked.problems) and all(row.layer in text for row in checked.layers)


def test_check_reports_no_problem_with_a_normalization_between_the_layers():
    checked = bmx.check(sequence(conv, nn.BatchNorm, nn.PReLU, conv), images())
    assert checked.problems == [] and 'no problems found' in str(checked)
    assert all(row.gradient > 0 for row in checked.layers if row.gradient is not None)


def test_layers_with_a_gradient_of_zero_are_those_whose_weights_a_trainer_leaves_as_they_are():
    net = sequence(conv, nn.PReLU, conv, nn.BatchNorm, nn.Flatten, lambda: nn.Dense(3))
    stuck = {row.layer for row in bmx.check(net, images()).layers if row.gradient == 0}
    before = {name: parameter.data().copy() for name, parameter in net.collect_params().items() if parameter.grad_req != 'null'}
    trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
    with autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(images()), nd.array([0, 1, 2, 0]))
    loss.backward()
    trainer.step(4)
    same = {name.rpartition('_')[0] for name, value in before.items() if (net.collect_params()[name].data() == value).asnumpy().all()}
    assert same == stuck == {'net_binaryconv2d0_qconv0', 'net_prelu0'}


@pytest.mark.parametrize('threshold', [1.3, 0.5, None])
def test_fractions_are_those_of_numpy(threshold):
    x = np.random.RandomState(1).randn(3, 5, 7).astype(np.float32)
    x[:, 1] = np.abs(x[:, 1])
    x[:, 3] = -np.abs(x[:, 3])
    (row,) = bmx.check(sequence(lambda: QActivation(threshold=threshold)), nd.array(x)).layers
    assert row.cancelled == pytest.approx(0 if threshold is None else (np.abs(x) > threshold).mean())
    assert row.positive == pytest.approx((x >= 0).mean())
    assert row.constant == pytest.approx(2 / 5)
    assert row.gradient is None and row.layer == 'net_qactivation0'


def test_the_gradient_of_a_k_bit_activation_ends_where_its_levels_do():
    x = np.random.RandomState(1).randn(3, 5, 7).astype(np.float32)
    (row,) = bmx.check(sequence(lambda: QActivation(2, 'round', threshold=0.8)), nd.array(x)).layers
    assert row.cancelled == pytest.approx(((x < 0) | (x > 0.8)).mean())


def test_inputs_of_one_sign_are_named_though_their_gradient_flows():
    checked = bmx.check(sequence(nn.BatchNorm, lambda: nn.Activation('relu'), conv), images())
    (row,) = activations(checked)
    assert row.positive == row.constant == 1 and row.cancelled < 0.5
    (problem,) = checked.problems
    assert problem.startswith('net_binaryconv2d0_qactivation0: 100.0% of its channels have one value for all inputs')


def test_few_values_of_a_channel_may_have_one_sign_by_accident():
    net = sequence(QActivation, lambda: QDense(3))
    assert [activations(bmx.check(net, nd.ones((batch, 16))))[0].constant for batch in (7, 8)] == [None, 1]


class CutOff(HybridBlock):
    """A layer that is trained and one whose result no gradient comes back through."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.trained, self.cut_off = nn.Dense(3), nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.trained(x) + F.BlockGrad(self.cut_off(x))


def test_a_layer_without_gradient_is_named_whatever_the_reason():
    net = CutOff(prefix='net_')
    net.initialize()
    assert [problem.split(':')[0] for problem in bmx.check(net, images()).problems] == ['net_dense1']


def test_gradients_are_those_of_the_network_in_training():
    net, x = sequence(conv, nn.BatchNorm, conv), images()
    largest = {row.layer: row.gradient for row in bmx.check(net, x).layers if row.gradient is not None}
    with autograd.record():
        y = net(x)
    y.backward(nd.array(np.random.RandomState(0).randn(*y.shape)))
    for name, gradient in largest.items():
        own = [parameter.grad() for parameter in net.collect_params(name + '_.*').values() if parameter.grad_req != 'null']
        assert gradient == pytest.approx(max(np.abs(each.asnumpy()).max() for each in own), rel=1e-4)


def arrays_of(net):
    """Copies of all parameters, running statistics and gradients."""
    parameters = net.collect_params().values()
    arrays = [parameter.data() for parameter in parameters]
    arrays += [parameter.grad() for parameter in parameters if parameter.grad_req != 'null']
    return [array.asnumpy() for array in arrays]


@pytest.mark.parametrize('hybridize', [False, True], ids=['imperative', 'hybridized'])
def test_check_does_not_change_the_network(hybridize):
    calls = []
    net, x = sequence(conv, nn.BatchNorm, lambda: nn.HybridLambda(lambda F, x: calls.append(F) or F.identity(x)), conv), images()
    if hybridize:
        net.hybridize(static_alloc=True)
    with autograd.record():
        y = net(x)
    y.backward()
    held, before = arrays_of(net), net(x).asnumpy()

    bmx.check(net, x)

    for array, old in zip(arrays_of(net), held):
        np.testing.assert_array_equal(array, old)
    calls.clear()
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    assert calls == ([] if hybridize else [mx.nd]), 'a hybridized network runs the graph that it has, without Python'


def test_rows_do_not_depend_on_hybridization():
    rows = []
    for hybridize in (False, True):
        mx.random.seed(0)
        net = sequence(conv, nn.BatchNorm, conv)
        if hybridize:
            net.hybridize()
        rows.append(bmx.check(net, images()).layers)
    assert rows[0] == rows[1]


def test_a_network_of_the_zoo_has_no_problems_and_one_whose_blocks_start_as_their_shortcut_names_their_convolutions():
    x = nd.array(np.random.RandomState(0).randn(2, 3, 32, 32))
    net = get_model('resnet_e18', classes=3, initial_layers='thumbnail', last_gamma=True)
    other = get_model('meliusnet_flex', block_numbers=(1, 1), transitions=(1 / 2,), classes=3, initial_layers='thumbnail')
    for each in (net, other):
        each.initialize(mx.init.Xavier())
    assert bmx.check(other, x).problems == []
    problems = bmx.check(net, x).problems
    assert len(problems) == 16 and all('_qconv' in problem and 'gradient of its parameters is 0' in problem for problem in problems)


def test_values_that_are_not_finite_are_named():
    x = images()
    x[0, 0, 0, 0] = np.nan
    problems = bmx.check(sequence(nn.BatchNorm, conv), x).problems
    assert 'net_binaryconv2d0_qactivation0: values are not finite; check the layers before it and the input' in problems


class Sum(HybridBlock):
    """A network of two inputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.left, self.right = QActivation(), QActivation()

    def hybrid_forward(self, F, x, y):
        return self.left(x) + self.right(y)


def test_networks_of_several_inputs_take_all_of_them():
    rows = bmx.check(Sum(prefix='sum_'), nd.ones((2, 3, 4)), -nd.ones((2, 3, 4))).layers
    assert [(row.layer, row.positive) for row in rows] == [('sum_qactivation0', 1), ('sum_qactivation1', 0)]


class Python(nn.Block):
    def forward(self, x):
        return x * float(x.sum().asscalar())


@pytest.mark.parametrize(
    'make, words',
    [
        (lambda: BinaryConv2D(4, 3, in_channels=4), 'the network cannot be run: .*initialize'),
        (lambda: sequence(lambda: BinaryConv2D(4, 3, in_channels=5)), 'does not fit the network'),
        (Python, 'Python cannot be traced'),
    ],
)
def test_networks_that_cannot_be_checked_are_refused_in_one_line(make, words):
    with pytest.raises(UserError, match=words) as raised:
        bmx.check(make(), images())
    assert '\n' not in str(raised.value)
