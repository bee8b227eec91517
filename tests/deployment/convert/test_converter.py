"""Conversion of networks beyond the zoo: all that can be packed, foreign operators between, several inputs, and verification."""

import dataclasses
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import HybridBlock, nn
from support.conversions import imported, operators, programs
from support.engines import needs_engine
from support.paths import ROOT
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.convert.batch_norms import FoldedBatchNorms
from bmx_melius.deployment.convert.lowering import lower
from bmx_melius.deployment.convert.partition import divide
from bmx_melius.deployment.convert.traced_network import TracedNetwork
from bmx_melius.deployment.convert.verification import verify
from bmx_melius.deployment.program.packed_operator import NAME
from bmx_melius.deployment.runtime import engine
from bmx_melius.files.parameters import read_arrays
from bmx_melius.graph.tracing import load_symbol
from bmx_melius.nn import quantizers
from bmx_melius.nn.methods.bwn import BWNConv2D

pytest_plugins = ['support.conversions']  # its fixtures


def check_whole(net, shape, convert, left=(), packed=1, atol=1e-4, x=None):
    """Convert with verification; compare outputs; the operators that stay are listed in `left`."""
    report, prefix = convert(net, shape)
    assert report.packed_operators == packed and sum(node['op'] in (NAME, 'Custom') for node in operators(prefix)) == packed
    assert [node['op'] for node in operators(prefix) if node['op'] != NAME] == list(left)
    assert report.verification.binary_layers == report.binary_layers
    x = nd.random.normal(shape=shape) if x is None else x
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), net(x).asnumpy(), atol=atol, rtol=1e-4)
    return report


class Everything(nn.HybridBlock):
    """All that can be packed, in ways in which the zoo does not use it."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.stem = sequence(nn.Conv2D(12, 3, padding=1), nn.BatchNorm(scale=False), nn.Activation('relu'))
            self.act = bmx.QActivation()
            self.conv = bmx.QConv2D(12, 3, padding=1, apply_scaling=True, use_bias=True)
            self.dense = bmx.QDense(12, no_offset=True)
            self.pools = nn.HybridSequential()
            self.pools.add(nn.MaxPool2D(3, 2, 1), nn.AvgPool2D(3, 2, 1, ceil_mode=True), nn.AvgPool2D(2, 2, count_include_pad=False))
            self.output = nn.Dense(5)

    def hybrid_forward(self, F, x):
        x = self.stem(x)
        a = self.act(x - 0.25)
        pooled = self.act.forward(F.Pooling(a, kernel=(2, 2), stride=(1, 1), pool_type='max'))  # a sign of signs
        y = self.conv(F.Dropout(F.concat(F.slice_axis(a, axis=1, begin=4, end=12), F.slice_axis(a, axis=-3, begin=0, end=-8), dim=1)))
        parts = F.SliceChannel(y, num_outputs=3, axis=1)
        y = F.concat(parts[2], parts[0], parts[1], dim=-3)
        y = F.reshape(F.transpose(F.reshape(y, shape=(0, -4, 3, -1, -2)), axes=(0, 2, 1, 3, 4)), shape=(0, -3, -2))
        y = F.add_n(y, x, a) * 0.5 + 1 - 0.25
        y = 2 - y / 4
        vectors = [F.flatten(pool(y)) for pool in self.pools] + [F.reshape(pooled, shape=(0, -1))]
        vectors = [self.dense(self.act(F.slice_axis(vector, axis=1, begin=0, end=48))) for vector in vectors]
        return self.output(F.identity(F.concat(*vectors, dim=1)))


def test_everything_that_can_be_packed_becomes_one_operator(convert):
    check_whole(initialized(Everything(), (2, 3, 6, 6)), (2, 3, 6, 6), convert, x=nd.random.normal(shape=(2, 3, 6, 6)))


def test_float_layer_with_binary_weights_keeps_its_input(convert):
    net = initialized(sequence(nn.Conv2D(8, 3), bmx.QConv2D(8, 3, padding=1), bmx.BinaryConv2D(8, 3)), (1, 3, 9, 9))
    report, prefix = convert(net, (1, 3, 9, 9))
    assert [operation.name for operation in programs(prefix)[0].operations] == ['conv', 'level_conv', 'threshold', 'binary_conv']


class Cut(nn.HybridBlock):
    """A part of a map, as ``begin`` and ``end`` of the operator slice, between two binary convolutions."""

    def __init__(self, begin, end):
        super().__init__()
        self.first, self.second = bmx.BinaryConv2D(8, 3, strides=2, padding=2), bmx.BinaryConv2D(8, 3, padding=1)
        self.limits = dict(begin=begin, end=end)

    def hybrid_forward(self, F, x):
        return self.second(F.slice(self.first(x), **self.limits))


@pytest.mark.parametrize('begin', [(None, None, 1, 1), (0, 0, 2, 0)])
def test_a_map_without_its_first_rows_and_columns_is_packed_for_every_size(begin, convert):
    net = initialized(Cut(begin, (None,) * 4), (1, 3, 10, 10))
    check_whole(net, (1, 3, 10, 10), convert, x=nd.random.normal(shape=(2, 3, 9, 14)), atol=0)


@pytest.mark.parametrize('begin, end', [((None, None, 1, 1), (None, None, 3, None)), ((None, None, -4, 1), (None,) * 4)])
def test_other_parts_of_a_map_stay_between_packed_operators(begin, end, convert):
    check_whole(initialized(Cut(begin, end), (1, 3, 10, 10)), (1, 3, 10, 10), convert, left=['slice'], packed=2)


def test_foreign_operators_stay_between_packed_ones(convert):
    binary = lambda: bmx.BinaryConv2D(8, 3, padding=1)  # noqa: E731
    layers = nn.Conv2D(8, 3), binary(), nn.Activation('softsign'), nn.BatchNorm(), binary(), nn.Flatten(), nn.Dense(3)
    net = initialized(sequence(*layers), (1, 3, 8, 8))
    report = check_whole(net, (1, 3, 8, 8), convert, left=['Activation'], packed=2)
    reason = 'the activation softsign has no packed form; relu, sigmoid, softrelu, tanh have one'
    assert [(left.operator, left.reason) for left in report.left] == [('Activation', reason)]
    assert 'softsign' in str(report) and json.dumps(report.to_json())


def test_a_value_that_leaves_a_region_and_returns_to_it_makes_two_regions(convert):
    class Net(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.first, self.second = bmx.BinaryConv2D(8, 3, padding=1), bmx.BinaryConv2D(8, 3, padding=1)

        def hybrid_forward(self, F, x):
            y = self.first(x)
            return self.second(y + F.softsign(y) - 30) + y

    check_whole(initialized(Net(), (1, 8, 6, 6)), (1, 8, 6, 6), convert, left=['softsign'], packed=2)


def test_k_bit_layers_stay_beside_packed_ones(convert):
    net = sequence(
        nn.Conv2D(8, 3),
        bmx.ScaledBinaryConv2D(8, 3, padding=1),
        nn.BatchNorm(),
        bmx.BinaryConv2D(8, 3),
        bmx.QActivation(2, 'dorefa'),
        bmx.QConv2D(8, 3, bits=2, quantization='dorefa'),
        nn.Dense(3),
    )
    report, prefix = convert(initialized(net, (2, 3, 12, 12)), (2, 3, 12, 12))
    assert report.packed_operators == 2 and report.binary_layers == report.verification.binary_layers == 2
    assert list(report.level_bits.values()) == [2]
    assert {'2 bits' in left.reason for left in report.left} == {True, False}
    x = nd.random.normal(shape=(2, 3, 12, 12))
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)


class TwoInputs(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.left, self.right = bmx.BinaryConv2D(8, 3), bmx.BinaryConv2D(8, 3)

    def hybrid_forward(self, F, x, y):
        return F.concat(self.left(x), self.right(y), dim=1), self.left(x)


def test_networks_with_several_inputs_and_outputs(export, tmp_path):
    x, y = nd.random.normal(shape=(1, 4, 6, 6)), nd.random.normal(shape=(1, 5, 6, 6))
    net = TwoInputs()
    net.initialize()
    net.hybridize()
    expected = net(x, y)
    files, prefix = export(net), tmp_path / 'packed'
    shapes = {'data0': x.shape, 'data1': y.shape}
    report = bmx.convert(*files, prefix, shapes)
    assert report.packed_operators == 1
    for results in (imported(prefix, shapes)(x, y), bmx.deploy(net, shapes)(x, y), bmx.Session(prefix)(x.asnumpy(), y.asnumpy())):
        for result, wanted in zip(results, expected):
            np.testing.assert_array_equal(np.asarray(result.asnumpy() if isinstance(result, nd.NDArray) else result), wanted.asnumpy())
    with pytest.raises(UserError, match='lacks data0, data1.*shape of each input'):
        bmx.convert(*files, prefix, x.shape)
    with pytest.raises(UserError, match='unknown there: data1'):
        bmx.convert(*files, prefix, {'data0': x.shape})


def test_packed_networks_take_other_batches_and_sizes(pack_whole):
    layers = nn.Conv2D(16, 3, 2), nn.BatchNorm(), bmx.BinaryConv2D(16, 3, padding=1), nn.GlobalAvgPool2D(), nn.Dense(4)
    pack_whole(sequence(*layers), (1, 3, 9, 9), sizes=[(21, 14)])


def test_module_trains_exports_and_loads(tmp_path):
    data = mx.sym.var('data')
    symbol = mx.sym.SoftmaxOutput(sequence(bmx.BinaryConv2D(8, 3), nn.Flatten(), nn.Dense(3))(data), name='softmax')
    module = mx.mod.Module(symbol)
    module.bind([('data', (2, 3, 6, 6))], [('softmax_label', (2,))])
    module.init_params(mx.init.Normal(1))
    module.save_checkpoint(str(tmp_path / 'net'), 0)
    files = tmp_path / 'net-symbol.json', tmp_path / 'net-0000.params'
    report = bmx.convert(*files, tmp_path / 'packed', (2, 3, 6, 6))
    assert [left.operator for left in report.left] == ['SoftmaxOutput']
    packed = mx.mod.Module(*[mx.sym.load(str(tmp_path / 'packed-symbol.json'))], label_names=['softmax_label'])
    packed.bind([('data', (2, 3, 6, 6))], [('softmax_label', (2,))], for_training=False)
    packed.set_params(*mx.model.load_checkpoint(str(tmp_path / 'packed'), 0)[1:])
    batch = mx.io.DataBatch([nd.random.normal(shape=(2, 3, 6, 6))], [nd.zeros(2)])
    outputs = []
    for each in (module, packed):
        each.forward(batch, is_train=False)
        outputs.append(each.get_outputs()[0].asnumpy())
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-6)


def test_one_bit_that_is_not_the_sign_is_not_packed(convert):
    layers = bmx.BinaryConv2D(8, 3), bmx.QActivation(1, 'dorefa'), bmx.QConv2D(8, 3, no_offset=True)
    report, _ = convert(initialized(sequence(*layers), (1, 3, 8, 8)), (1, 3, 8, 8))
    assert 'quantizes to 1 bits by dorefa; the sign can be packed, and one to four bits by round' in str(report)


def test_activation_without_a_marked_start_is_not_packed(small, tmp_path):
    symbol, params = small
    symbol.write_text(symbol.read_text().replace('"activation_input"', '"other"'))
    report = bmx.convert(symbol, params, tmp_path / 'packed', (1, 3, 8, 8))
    assert 'the start of the activation is not marked' in str(report) and report.binary_layers == 0


@pytest.fixture
def traced_and_lowered(export):
    """A network of a binary convolution and a dense layer, its one program, and inputs."""
    shape = (1, 3, 8, 8)
    symbol, params = export(initialized(sequence(bmx.BinaryConv2D(8, 3), nn.Dense(3)), shape))
    network = TracedNetwork(load_symbol(symbol), read_arrays(params), {'data': shape})
    inputs = {'data': np.random.randn(*shape).astype('f')}
    folded = FoldedBatchNorms(network, inputs)
    (lowered,) = (lower(network, region.nodes, region.outputs, folded) for region in divide(network, folded).regions)
    assert verify(network, [lowered], inputs).binary_layers == 1
    return network, lowered, inputs


def with_weight(lowered, name, change):
    """The same with other weights of the operations of a name."""
    operations = [
        dataclasses.replace(operation, arrays={**operation.arrays, 'weight': change(operation.arrays['weight'])})
        if operation.name == name
        else operation
        for operation in lowered.program.operations
    ]
    return dataclasses.replace(lowered, program=dataclasses.replace(lowered.program, operations=operations))


def test_verification_names_the_layer_that_differs(traced_and_lowered):
    network, lowered, inputs = traced_and_lowered

    def flip_one_of_each_filter(weight):
        weight = weight.copy()
        weight[:, 1, 1, 0] = ~weight[:, 1, 1, 0]
        return weight

    wrong = with_weight(lowered, 'binary_conv', flip_one_of_each_filter)
    with pytest.raises(UserError, match=r'node .*qconv\d+_fwd: 288 of 288 values differ'):
        verify(network, [wrong], inputs)


@pytest.mark.parametrize('wrong', [np.nan, np.inf])
def test_verification_refuses_a_program_that_gives_no_finite_numbers(wrong, traced_and_lowered):
    network, lowered, inputs = traced_and_lowered
    wrong = with_weight(lowered, 'conv', lambda weight: np.full_like(weight, wrong))
    with pytest.raises(UserError, match=r'node .*dense\d+_fwd: values differ from MXNet'):
        verify(network, [wrong], inputs)


@pytest.mark.parametrize('factor, accepted', [(1 + 3e-5, True), (1 + 3e-4, False)])
def test_verification_accepts_float_layers_within_a_ten_thousandth_of_the_largest_value(factor, accepted, traced_and_lowered):
    network, lowered, inputs = traced_and_lowered
    changed = with_weight(lowered, 'conv', lambda weight: weight * np.float32(factor))
    if accepted:
        assert 2e-5 < verify(network, [changed], inputs).largest_deviation < 4e-5
        return
    with pytest.raises(UserError, match=r'node .*dense\d+_fwd: values differ from MXNet by [23]\.\de-04'):
        verify(network, [changed], inputs)


@pytest.fixture
def engine_that(monkeypatch):
    """Change what the engine computes in verification: a function of its outputs."""

    def call(change):
        run = engine.Runner.run
        monkeypatch.setattr(engine.Runner, 'run', lambda runner, inputs: change(run(runner, inputs)))

    return call


@needs_engine
def test_verification_runs_the_engine_and_reports_its_instruction_set(convert):
    report, _ = convert(initialized(sequence(bmx.BinaryConv2D(8, 3), nn.Dense(3)), (1, 3, 8, 8)), (1, 3, 8, 8))
    isa, _ = engine.instruction_sets()
    assert report.to_json()['verification']['engine'] == isa and report.verification.engine_values == 3
    assert f'verified with the engine ({isa}) on the same sample: 3 values, within ' in str(report)


@needs_engine
@pytest.mark.parametrize('factor, accepted', [(1 + 3e-5, True), (1 + 3e-4, False)])
def test_verification_finds_float_layers_that_the_engine_computes_wrongly(factor, accepted, traced_and_lowered, engine_that):
    network, lowered, inputs = traced_and_lowered
    engine_that(lambda outputs: [array * np.float32(factor) for array in outputs])
    if accepted:
        assert 2e-5 < verify(network, [lowered], inputs).engine_deviation < 4e-5
        return
    with pytest.raises(UserError, match=r'node .*dense\d+_fwd: in the engine .* by [23]\.\de-04 of the largest one, .*--self-test'):
        verify(network, [lowered], inputs)


@needs_engine
def test_verification_finds_a_single_sum_that_the_engine_computes_wrongly_and_writes_nothing(convert, engine_that, tmp_path):
    net = initialized(sequence(bmx.BinaryConv2D(64, 3, padding=1), nn.BatchNorm(), bmx.BinaryConv2D(64, 3), nn.AvgPool2D()), (1, 3, 8, 8))

    def off_by_one(outputs):
        outputs[0].flat[7] += 1
        return outputs

    engine_that(off_by_one)
    with pytest.raises(UserError, match='in the engine .* values differ .* nothing was written'):
        convert(net, (1, 3, 8, 8))
    assert not list(tmp_path.glob('packed*'))


def test_without_the_engine_the_report_says_that_only_the_interpreter_was_compared(convert, monkeypatch):
    monkeypatch.setattr(engine, 'instruction_sets', lambda: (None, []))
    report, _ = convert(initialized(sequence(bmx.BinaryConv2D(8, 3), nn.Dense(3)), (1, 3, 8, 8)), (1, 3, 8, 8))
    assert report.verification.engine is None and report.verification.binary_layers == 1
    assert str(report).endswith('not verified with the engine, which has not been compiled')


class OwnSign(HybridBlock):
    """A sign with the gradient of tanh, written without QActivation."""

    def hybrid_forward(self, F, x):
        smooth = F.tanh(x)
        return smooth + F.BlockGrad((x >= 0) * 2 - 1 - smooth)


def test_layers_that_read_a_sign_of_an_unknown_kind_are_named_in_a_warning(convert, caplog):
    shape = (1, 8, 6, 6)
    net = initialized(sequence(nn.Conv2D(8, 1), OwnSign(), bmx.QConv2D(4, 3, padding=1)), shape)
    report, _ = convert(net, shape)
    (name,) = report.float_signs
    assert report.binary_layers == 0 and report.to_json()['float_signs'] == [name]
    assert f'warning: 0 binary layers; with binary weights, but not computed by bit operations: {name}: ' in str(report)
    assert 'register_quantizer' in str(report)
    counted = bmx.summary(net, shape)
    assert counted.bops == 0 and f'counted as FLOPs: {name}. ' in str(counted) and 'warning' in counted.table_by_kind()
    bmx.deploy(net, shape)
    assert name in caplog.text and 'register_quantizer' in caplog.text


@pytest.mark.parametrize('before', [(), (nn.Flatten(),), (nn.BatchNorm(),)], ids=['input', 'flat_input', 'normalization'])
def test_an_unknown_sign_counts_as_float_wherever_it_is(convert, before):
    shape = (1, 8, 6, 6)
    layer = bmx.QDense(4) if len(before) and isinstance(before[0], nn.Flatten) else bmx.QConv2D(4, 3, padding=1)
    net = initialized(sequence(*before, OwnSign(), layer, nn.Dense(3)), shape)
    report, _ = convert(net, shape)
    counted = bmx.summary(net, shape)
    assert report.binary_layers == 0 and counted.bops == 0 and len(report.float_signs) == 1
    assert list(counted.unknown_signs) == report.float_signs


def test_signs_as_the_input_of_a_network_count_as_binary(convert):
    shape = (1, 8, 6, 6)
    net = initialized(sequence(bmx.QConv2D(4, 3, padding=1), nn.Dense(3)), shape)
    assert bmx.summary(net, shape).bops == 4 * 6 * 6 * 8 * 9 and convert(net, shape)[0].binary_layers == 1


def test_binary_weights_with_a_float_activation_by_design_are_not_called_a_missing_sign(convert):
    shape = (1, 8, 6, 6)
    net = initialized(sequence(nn.BatchNorm(), BWNConv2D(4, 3, padding=1), nn.Dense(3)), shape)
    report, _ = convert(net, shape)
    assert report.binary_layers == 0 and report.float_signs == [] and 'warning' not in str(report)
    counted = bmx.summary(net, shape)
    assert counted.bops == 0 and counted.unknown_signs == () and 'warning' not in str(counted)


def test_the_quantizer_of_the_guide_replaces_such_a_sign_and_is_packed(convert, monkeypatch):
    monkeypatch.setattr(quantizers, 'QUANTIZERS', dict(quantizers.QUANTIZERS))
    guide = (ROOT / 'docs' / 'networks.md').read_text()
    names = {}
    exec(guide.partition('## Your own quantizers')[2].partition('```python')[2].partition('```')[0], names)
    shape = (1, 8, 6, 6)
    x = mx.nd.array([-2, -1e-3, 0, 1e-3, 2])
    x.attach_grad()
    with mx.autograd.record():
        y = names['activation'](x)
    y.backward()
    assert y.asnumpy().tolist() == [-1, -1, 1, 1, 1]
    np.testing.assert_allclose(x.grad.asnumpy(), 1 - np.tanh(x.asnumpy()) ** 2, rtol=1e-5)
    report, _ = convert(initialized(sequence(names['activation'], bmx.QConv2D(4, 3, padding=1)), shape), shape)
    assert report.binary_layers == 1 and report.float_signs == [] and 'warning' not in str(report)


def test_the_report_of_a_network_with_parts_in_mxnet_names_what_refuses_it(convert):
    shape = (1, 8, 6, 6)
    softmax = initialized(
        sequence(bmx.BinaryConv2D(4, 3), nn.HybridLambda(lambda F, x: F.softmax(x, axis=3)), bmx.BinaryConv2D(4, 3)), shape
    )
    report, prefix = convert(softmax, shape)
    assert (
        report.left
        and 'runs only in MXNet' in str(report)
        and 'Session, the C library, serve, score, export-c and export-onnx' in str(report)
    )
    with pytest.raises(bmx.UserError, match='operators of MXNet'):
        bmx.Session(prefix)
    whole, _ = convert(initialized(sequence(bmx.BinaryConv2D(4, 3)), shape), shape)
    assert 'runs only in MXNet' not in str(whole)
