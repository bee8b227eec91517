"""Counts of networks against the authors' figures, and of single layers against plain arithmetic."""

import dataclasses
import json
import os

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn
from support.packed import product_of_signs, write_packed
from support.paths import DATA
from support.small_networks import initialized, sequence

import model_zoo
from bmx_melius import BinaryConv2D, QActivation, QConv1D, QConv2D, QConv3D, QDense, UserError
from bmx_melius.analysis.summary import Summary, summary
from bmx_melius.deployment.program_graph import with_operations
from bmx_melius.graph.mxnet_operators import read_operation
from bmx_melius.graph.nodes import Graph, Node
from bmx_melius.graph.tracing import read_graph
from model_zoo import meliusnet

pytest_plugins = ['support.conversions']  # its fixtures

TRUTH = json.loads((DATA / 'ground_truth.json').read_text())
FLOAT_NETWORKS = [row for row in TRUTH['thirty_two_bit'] if row['stem'] == 'zoo']
# The 32-bit networks whose transitions end with a mean have names; the reference has others that end with the convolution.
NAMED_FLOAT_NETWORKS = {'meliusnet_32bit': 'meliusnet_flex_4-4-4-3_32bit', 'densenet_32bit': 'densenet_flex_6-6-6-5_32bit'}
TRANSITIONS = {True: 'bn,max_pool,relu,fp_conv', False: 'bn,relu,fp_conv,pool'}  # by `pool_first`
IMAGE = (1, 3, 32, 32)


def named(row):
    return f'{row["model"]}-{row["stem"]}'


def marked(role, **facts):
    return mx.AttrScope(__bmx_role__=role, **{f'__bmx_{name}__': str(value) for name, value in facts.items()})


# --- whole networks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('row', TRUTH['models'], ids=named)
def test_counts_of_a_binary_network_equal_the_reference(row):
    counted = summary(model_zoo.get_model(row['model'], initial_layers=row['stem']))
    convolutions = [layer for layer in counted.layers if layer.operator == 'Convolution']
    assert dict(
        bops=counted.bops,
        flops=counted.flops,
        ops=counted.ops,
        n_binary_params=counted.binary_params,
        n_fp_params=counted.float_params,
        n_params=sum(layer.parameters for layer in counted.layers),
        n_binary_conv=sum(layer.bits == 1 for layer in convolutions),
        n_conv_layers=len(convolutions),
        size_bytes=counted.size_bytes,
        size_MiB=counted.size_bytes / 2**20,
        size_bytes_with_running=counted.size_bytes_with_running,
    ) == {key: row[key] for key in row if key not in ('model', 'stem')}


@pytest.mark.parametrize('pool_first', TRANSITIONS)
@pytest.mark.parametrize('name', NAMED_FLOAT_NETWORKS)
def test_counts_of_a_network_that_was_never_binary_equal_the_reference(name, pool_first):
    (row,) = (
        row
        for row in TRUTH['thirty_two_bit']
        if (row['model'], row.get('downsample')) == (NAMED_FLOAT_NETWORKS[name], TRANSITIONS[pool_first])
    )
    named_one = model_zoo.get_model(name, initial_layers='imagenet')
    other = dataclasses.replace(meliusnet.NETWORKS[name].architecture, pool_first=True)
    counted = summary(
        named_one if not pool_first else meliusnet.MeliusNet(other, meliusnet.MeliusNetOptions(bits=32, initial_layers='imagenet'))
    )
    assert (counted.bops, counted.binary_params) == (0, 0)
    assert (counted.flops, counted.float_params, counted.size_bytes) == (row['conv_macs'], row['n_params'], row['size_fp32_bytes'])


@pytest.mark.parametrize('row', FLOAT_NETWORKS, ids=named)
def test_counts_of_a_float_network_equal_the_reference(row):
    name = row['model'].replace('mobilenet0_', 'mobilenet0.').replace('mobilenet1_', 'mobilenet1.')
    counted = summary(model_zoo.get_model(name))
    assert (counted.bops, counted.binary_params) == (0, 0)
    assert (counted.flops, counted.ops) == (row['conv_macs'], row['conv_macs'])
    assert (counted.float_params, counted.size_bytes) == (row['n_params'], row['size_fp32_bytes'])


def test_block_symbol_file_and_imported_block_count_the_same_and_stay_as_they_were(tmp_path):
    net = sequence(nn.Conv2D(8, 3), nn.BatchNorm(), BinaryConv2D(16, 3, padding=1), nn.Flatten(), QDense(12), nn.Dense(10))
    fresh = summary(net, IMAGE)
    assert net[0].weight.shape == (8, 0, 3, 3)
    with pytest.raises(RuntimeError, match='has not been initialized'):
        net[0].weight.data()
    net.initialize()
    net.hybridize()
    before = net(mx.nd.ones(IMAGE)).asnumpy()
    assert summary(net, IMAGE) == fresh
    assert (net(mx.nd.ones(IMAGE)).asnumpy() == before).all()

    path = str(tmp_path / 'net')
    net.export(path)
    imported = mx.gluon.SymbolBlock.imports(path + '-symbol.json', ['data'], path + '-0000.params')
    for other in (net(mx.sym.var('data')), path + '-symbol.json', tmp_path / 'net-symbol.json', imported):
        assert summary(other, IMAGE) == fresh


def test_operations_by_kind_of_the_meliusnet_with_the_large_first_convolution_are_those_of_the_paper():
    # 7x7 with stride 2 from 3 to 64 channels; the 1x1 convolutions of the transitions; the rest of the OPs is binary (section 3.2)
    kinds = {row.kind: row for row in summary(model_zoo.get_model('meliusnet22', initial_layers='imagenet')).by_kind()}
    assert kinds['first convolution'].macs == 112 * 112 * 64 * 7 * 7 * 3
    assert kinds['1x1 convolution'].macs == 28 * 28 * 320 * 160 + 14 * 14 * 480 * 224 + 7 * 7 * 480 * 256
    assert (kinds['binary layer'].macs, kinds['binary layer'].ops) == (4624220160, 4624220160 / 64)
    assert 'other k x k convolution' not in kinds
    assert (kinds['output layer'].macs, kinds['output layer'].ops) == (512 * 1000, 0)
    assert sum(row.share for row in kinds.values()) == pytest.approx(1)


# --- single layers --------------------------------------------------------------------------------------------------------------------


@given(st.data())
def test_convolutions_of_any_dimension_count_one_mac_for_each_tap_of_each_output(data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    dimensions, groups, bits = draw(1, 3), draw(1, 3), data.draw(st.sampled_from([1, 2, 4, 32]))
    ins, outs = groups * draw(1, 4), groups * draw(1, 4)
    kernel, stride, pad, dilation, size = (
        [draw(low, high) for _ in range(dimensions)] for low, high in ((1, 3), (1, 3), (0, 2), (1, 2), (5, 8))
    )
    batch, bias = draw(1, 2), data.draw(st.booleans())
    layer = {1: QConv1D, 2: QConv2D, 3: QConv3D}[dimensions](
        outs,
        tuple(kernel),
        tuple(stride),
        tuple(pad),
        tuple(dilation),
        groups,
        in_channels=ins,
        use_bias=bias,
        bits=bits,
        quantization='sign' if bits == 1 else 'round',
    )

    counted = summary(layer, (batch, ins, *size))

    macs = batch * outs
    for s, k, step, p, d in zip(size, kernel, stride, pad, dilation):
        macs *= len(range(0, s + 2 * p - d * (k - 1), step)) * k
    macs *= ins // groups
    weights = outs * ins // groups
    for k in kernel:
        weights *= k
    assert sum(row.macs for row in counted.layers) == macs
    assert (counted.bops, counted.flops) == ((bits * bits * macs, 0) if bits < 32 else (0, macs))
    assert {1: counted.binary_params, 32: counted.float_params - bias * outs}.get(bits, counted.quantized_params) == weights
    assert counted.size_bytes == -(-(bits * weights + 32 * bias * outs) // 8)


def test_transposed_convolution_counts_as_much_as_the_convolution_it_transposes():
    transposed = summary(nn.Conv2DTranspose(6, 3, strides=2, groups=2, in_channels=4, use_bias=False), (1, 4, 5, 5))
    convolution = summary(nn.Conv2D(4, 3, strides=2, groups=2, in_channels=6, use_bias=False), (1, 6, 11, 11))
    assert transposed.layers[0].output_shape == (1, 6, 11, 11) and convolution.layers[0].output_shape == (1, 4, 5, 5)
    assert (transposed.flops, transposed.float_params) == (convolution.flops, convolution.float_params)


@pytest.mark.parametrize('modulated', [False, True])
def test_weights_of_a_deformable_convolution_come_after_offsets_and_masks(modulated):
    x, window = mx.sym.var('data'), dict(kernel=(3, 3), pad=(1, 1), no_bias=True)
    offsets, masks = (mx.sym.Convolution(x, num_filter=count, name=f'moved{count}', **window) for count in (18, 9))
    if modulated:
        layer = mx.sym.contrib.ModulatedDeformableConvolution(x, offsets, masks, num_filter=4, name='layer', **window)
    else:
        layer = mx.sym.contrib.DeformableConvolution(x, offsets, num_filter=4, name='layer', **window)
    counted = summary(layer, (1, 3, 8, 8)).layers[-1]
    assert (counted.name, counted.macs, counted.float_params) == ('layer', 4 * 64 * 3 * 9, 4 * 3 * 9)


@pytest.mark.parametrize('operator, attributes', [('spectral_conv', {}), ('Convolution', {'kernel': 'large'})])
def test_a_convolution_that_cannot_be_counted_is_named(operator, attributes):
    data = Node(0, 'data', None, {}, None, {}, [], [], [(1, 3, 8, 8)], depends_on_data=True)
    operation = read_operation(operator, attributes)
    node = Node(1, 'odd', operator, attributes, operation, {}, [data], [0], [(1, 4, 8, 8)], depends_on_data=True)
    with pytest.raises(UserError, match=rf'cannot count node odd \({operator}\): .*(unknown kind|large)'):
        Summary.of(Graph([data, node], [], [], [node], [0]))


def test_dense_layers_show_their_macs_but_count_no_operations():
    counted = summary(sequence(QActivation(), QDense(7), nn.Dense(5)), (2, 11))
    assert [(row.kind, row.macs, row.bops, row.flops) for row in counted.layers] == [
        ('binary layer', 2 * 11 * 7, 0, 0),
        ('output layer', 2 * 7 * 5, 0, 0),
    ]
    assert (counted.binary_params, counted.float_params) == (77, 40)


@pytest.mark.parametrize(
    'before, activation_bits',
    [
        ([], 1),
        ([QActivation()], 1),
        ([QActivation(), nn.MaxPool2D(2)], 1),
        ([QActivation(bits=3, method='round')], 3),
        ([nn.BatchNorm(), QActivation(bits=32)], 32),
        ([nn.BatchNorm()], 32),
        ([QActivation(), nn.Conv2D(4, 1)], 32),
    ],
)
def test_binary_weights_give_binary_operations_only_with_quantized_activations(before, activation_bits):
    layer = next(row for row in summary(sequence(*before, QConv2D(4, 1, in_channels=4)), (1, 4, 8, 8)).layers if row.bits == 1)
    assert layer.activation_bits == activation_bits
    assert (layer.bops, layer.flops) == ((0, layer.macs) if activation_bits == 32 else (layer.macs * activation_bits, 0))


def test_real_weights_of_binary_activations_count_as_float_operations_and_parameters():
    binary, real = (summary(BinaryConv2D(4, 3, padding=1, in_channels=2, weight_bits=bits), (1, 2, 5, 5)) for bits in (1, 32))
    macs = 25 * 4 * 2 * 9
    assert (binary.bops, binary.flops, binary.binary_params, binary.float_params) == (macs, 0, 72, 0)
    assert (real.bops, real.flops, real.binary_params, real.float_params) == (0, macs, 0, 72)


def test_only_marks_make_a_layer_binary_and_its_weight_is_the_variable_that_it_reads():
    data, weight, bias = mx.sym.var('data'), mx.sym.var('anything'), mx.sym.var('b')
    with marked('convolution', bits=1):
        y = mx.sym.Convolution(data, mx.sym.sign(weight) * 2 + 1, bias, num_filter=4, kernel=(3, 3), name='conv')
    counted = summary(y, (1, 2, 5, 5))
    assert (counted.bops, counted.binary_params, counted.float_params, counted.size_bytes) == (3 * 3 * 4 * 2 * 9, 72, 4, 9 + 16)


def test_a_weight_shared_by_two_layers_is_stored_once_and_multiplied_twice():
    data, weight = mx.sym.var('data'), mx.sym.var('w')
    for name in ('a', 'b'):
        data = mx.sym.Convolution(data, weight, num_filter=3, kernel=(1, 1), no_bias=True, name=name)
    counted = summary(data, (1, 3, 4, 4))
    assert (counted.flops, counted.float_params) == (2 * 16 * 9, 9)


class Bases(mx.gluon.HybridBlock):
    """A convolution with several binary bases of its weights, which all binary bases of its input share (ABC-Net)."""

    def __init__(self, thresholds, weights):
        super().__init__()
        self.thresholds = thresholds
        with self.name_scope():
            self.sign = QActivation()
            self.convolutions = nn.HybridSequential(prefix='')
            self.convolutions.add(*(QConv2D(8, 3, padding=1, in_channels=4) for _ in range(weights)))

    def hybrid_forward(self, F, x):
        bases = [self.sign(x - threshold) for threshold in self.thresholds]
        return sum(convolution(base) for base in bases for convolution in self.convolutions)


def test_five_bases_of_weights_and_of_activations_count_25_binary_convolutions_and_five_weights():
    one, many = (
        summary(sequence(nn.Conv2D(4, 1, use_bias=False), Bases(thresholds, weights)), IMAGE)
        for thresholds, weights in (([0.0], 1), ([-1.0, -0.5, 0.0, 0.5, 1.0], 5))
    )
    assert one.bops == 8 * IMAGE[2] * IMAGE[3] * 4 * 3 * 3 and one.binary_params == 8 * 4 * 3 * 3
    assert (many.bops, many.binary_params) == (25 * one.bops, 5 * one.binary_params)
    assert (many.flops, many.float_params) == (one.flops, one.float_params)
    assert sum(layer.kind == 'binary layer' for layer in many.layers) == 25


def test_networks_with_several_inputs_take_their_shapes_by_name_and_labels_are_no_parameters():
    a, b = mx.sym.var('a'), mx.sym.var('b')
    joined = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.concat(a, b, dim=1), num_hidden=2, name='fc'), name='out')
    counted = summary(joined, {'a': (1, 3), 'b': (1, 5)})
    assert counted.float_params == 8 * 2 + 2


def test_printing_and_json_give_the_totals_and_every_layer():
    counted = summary(sequence(nn.Conv2D(8, 3), QActivation(), QConv2D(16, 3)), IMAGE)
    fields = json.loads(json.dumps(counted.to_json()))
    assert set(fields) >= {'bops', 'flops', 'ops', 'binary_params', 'float_params', 'size_bytes', 'layers'}
    assert (fields['bops'], fields['flops']) == (28 * 28 * 16 * 8 * 9, 30 * 30 * 8 * 3 * 9)
    assert [row['output_shape'] for row in fields['layers']] == [[1, 8, 30, 30], [1, 16, 28, 28]]
    text = str(counted)
    assert all(layer.name in text for layer in counted.layers) and f'{counted.ops:,.0f}' in text and f'{counted.size_bytes:,} bytes' in text


# --- what cannot be counted -----------------------------------------------------------------------------------------------------------


def test_nodes_that_cannot_be_counted_are_named(tmp_path):
    data = mx.sym.var('data')
    with marked('convolution', bits='many'):
        bad_mark = mx.sym.Convolution(data, num_filter=4, kernel=(3, 3), name='spoilt')
    with marked('convolution', bits=1):
        no_weight = mx.sym.Convolution(data, mx.sym.ones((4, 3, 3, 3)), num_filter=4, kernel=(3, 3), no_bias=True, name='constant')

    class Array(mx.gluon.Block):
        def forward(self, x):
            return x.asnumpy()

    (tmp_path / 'no-symbol.json').write_text('{"a": 1}')
    for network, shape, words in (
        (bad_mark, IMAGE, ['spoilt', 'many']),
        (no_weight, IMAGE, ['constant', 'parameters']),
        (mx.sym.Convolution(data, num_filter=4, kernel=(3, 3), name='first'), (1, 3, 32), ['first', '(1, 3, 32)']),
        (mx.sym.Convolution(data, num_filter=4, kernel=(3, 3), name='first'), (1, 3, 2, 2), ['first']),
        (mx.sym.broadcast_add(data, mx.sym.var('other')), IMAGE, ['other', 'broadcast_add']),
        (mx.sym.var('data') * 2, (1, 0, 8, 8), ['data', '(1, 0, 8, 8)']),
        (mx.sym.var('picture') * 2, IMAGE, ['data', 'picture']),
        (Array(), IMAGE, ['Array', 'asnumpy']),
        (tmp_path / 'no-symbol.json', IMAGE, ['no-symbol.json']),
    ):
        with pytest.raises(UserError) as caught:
            summary(network, shape)
        assert all(word in str(caught.value) for word in words) and '\n' not in str(caught.value), caught.value
    with pytest.raises(UserError, match='missing.json: No such file'):
        summary(tmp_path / 'missing.json')


def test_a_summary_is_short_in_an_interpreter_and_a_table_in_print():
    layer = BinaryConv2D(64, kernel_size=3, in_channels=32)
    layer.initialize()
    counted = summary(layer, (1, 32, 8, 8))  # 36 positions, 64 x 32 x 9 binary weights
    assert repr(counted) == 'Summary(0.01037 M OPs, 0.00 MB)' and 'OPs' in str(counted) and len(str(counted).splitlines()) > 1


# --- packed networks ------------------------------------------------------------------------------------------------------------------


def summary_of_packed(prefix, shape):
    return Summary.of(with_operations(read_graph(f'{prefix}-symbol.json', shape)))


def operations(counted):
    return {name: counted.counts[name] for name in ('bops', 'flops', 'ops')}


def quantized_bits(counted):
    return sum(layer.size_bits - 32 * layer.float_params for layer in counted.layers)


@pytest.mark.parametrize(('name', 'half'), [('meliusnet22', False), ('resnet18_dorefa_w2a2', False), ('resnet_e18', True)])
def test_a_packed_network_counts_the_operations_and_quantized_weights_of_the_original(convert, name, half):
    net, shape = initialized(model_zoo.get_model(name, classes=10, initial_layers='thumbnail'), IMAGE), (2, 3, 32, 64)
    report, prefix = convert(net, IMAGE, verify=False, half=half)
    counted, original = summary_of_packed(prefix, shape), summary(net, shape)
    assert report.packed_operators == 1 and operations(counted) == operations(original) and counted.bops > 0
    binary_weights = quantized_bits(counted) - 16 * counted.quantized_params  # of float16
    assert binary_weights == counted.binary_params == quantized_bits(original)
    assert (counted.quantized_params > 0) == half and counted.running_statistics == 0
    stored = os.path.getsize(f'{prefix}-0000.params')  # also has the directions of comparisons and the list of operations
    assert 0.97 * stored < counted.size_bytes < stored


def test_packed_and_other_operators_of_one_network_are_counted_together(convert):
    net = sequence(
        nn.Conv2D(8, 3),
        nn.BatchNorm(),
        QActivation(),
        QConv2D(16, 3),
        nn.HybridLambda(lambda F, x: F.sin(x)),
        nn.BatchNorm(),
        QActivation(),
        QConv2D(16, 3, groups=2),
        nn.Flatten(),
        QActivation(),
        QDense(12),
        nn.Dense(4),
    )
    report, prefix = convert(initialized(net, IMAGE), IMAGE, verify=False)
    counted, original = summary_of_packed(prefix, IMAGE), summary(net, IMAGE)
    assert report.packed_operators == 2 and [left.operator for left in report.left] == ['sin']
    assert operations(counted) == operations(original) and counted.binary_params == original.binary_params
    assert len({layer.name for layer in counted.layers}) == len(counted.layers)
    multiplying = [[(layer.kind, layer.operator, layer.macs) for layer in one.layers if layer.macs] for one in (counted, original)]
    assert multiplying[0] == multiplying[1]


@pytest.mark.parametrize(('low', 'bits'), [(-1, 1), (0, 32)])
def test_products_of_two_values_count_as_convolutions_of_size_1_and_as_binary_if_both_are_signs(low, bits, tmp_path):
    program = product_of_signs(heads=3, inner=8, rows=10, columns=7, transposed=True)
    program.operations[2].attributes['low'] = low
    write_packed(tmp_path / 'net', program)
    shapes = {f'data{number}': (1, *value.shape) for number, value in enumerate(program.inputs)}
    counted = summary_of_packed(tmp_path / 'net', shapes)
    (product,) = [layer for layer in counted.layers if layer.kind == 'matrix product']
    macs = 3 * 8 * 10 * 7
    assert (product.macs, product.bits) == (macs, bits) and 'convolutions and matrix products' in str(counted)
    assert (counted.bops, counted.flops) == ((macs, 0) if bits == 1 else (0, macs))


def test_bases_of_weights_that_several_binary_convolutions_of_a_packed_network_share_are_counted_once(convert):
    net = initialized(sequence(nn.Conv2D(4, 1), nn.BatchNorm(), Bases([-1.0, 0.0, 0.5], 2)), IMAGE)
    report, prefix = convert(net, IMAGE, verify=False)
    counted, original = summary_of_packed(prefix, IMAGE), summary(net, IMAGE)
    assert report.binary_layers == 6 and operations(counted) == operations(original)
    assert counted.binary_params == original.binary_params == 2 * 8 * 4 * 3 * 3
