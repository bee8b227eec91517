"""``bmx-melius import-bmxnet``: checkpoints and pairs of BMXNet-v2's model_converter as networks for any MXNet."""

import json
import shlex
import shutil
from pathlib import Path

import bmxnet_v2_converter as bmxnet
import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent, Identity
from reference_network import read_reference_network

import bmx_melius
from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.container import read_parameters, write_parameters
from bmx_melius.exported import Exported
from bmx_melius.importers.bmxnet_v2 import reference_options
from bmx_melius.importers.bmxnet_v2_converted import read_converted
from model_zoo import get_model

DATA = Path(__file__).parent / 'data'
GROUND_TRUTH = json.loads((DATA / 'ground_truth.json').read_text())
PAIR = DATA / 'bmxnet_v2_converted'
LENET = str(PAIR / 'binarized_lenet5-symbol.json')
LENET_SHAPE = '1,1,28,28'
WEIGHT, GAMMA = 'arg:net_qconv0_weight', 'arg:net_batchnorm0_gamma'  # of the networks made here


def load(prefix):
    return mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')


def run(*arguments):
    return main(['import-bmxnet', *map(str, arguments)])


# --- converted pairs ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def lenet_input_and_output():
    stored = np.load(PAIR / 'lenet5.io.npz')
    return stored['data'], stored['out']


@pytest.mark.parametrize('form', ['float', 'packed'])
def test_authors_converted_lenet_gives_their_output(form, lenet_input_and_output, tmp_path, capsys):
    assert run(LENET, tmp_path / 'lenet', '--input-shape', LENET_SHAPE, '--to', form) == 0
    x, expected = lenet_input_and_output
    np.testing.assert_allclose(load(tmp_path / 'lenet')(nd.array(x)).asnumpy(), expected, atol=1e-4)
    printed = capsys.readouterr().out
    assert '18 arrays, 2 of them the bits of binary layers (1 BinaryInferenceConvolution, 1 BinaryInferenceFullyConnected)' in printed
    assert ('verified on a sample' in printed) == (form == 'packed')
    assert (tmp_path / 'lenet-0000.params').stat().st_size < (250e3 if form == 'packed' else 5e6)


def test_float_form_can_be_counted_and_converted_like_an_exported_network(lenet_input_and_output, tmp_path):
    prefix = str(tmp_path / 'lenet')
    run(LENET, prefix, '--input-shape', LENET_SHAPE)
    counted = bmx_melius.summary(f'{prefix}-symbol.json', (1, 1, 28, 28))
    assert counted.bops == 64 * 64 * 25 * 8 * 8
    assert counted.binary_params == 64 * 64 * 25 + 1000 * 1024
    report = bmx_melius.convert(f'{prefix}-symbol.json', f'{prefix}-0000.params', f'{prefix}-packed', (1, 1, 28, 28))
    assert report.binary_layers == 2


def convolution(**arguments):
    return [bmxnet.Activation(), bmxnet.Convolution(5, 3, in_channels=32, **arguments), nn.BatchNorm(in_channels=5)]


def convolution_after_pooling():
    return [nn.MaxPool2D(2), *convolution(padding=1)]


def dense():
    return [nn.Flatten(), bmxnet.Activation(), bmxnet.Dense(7, in_units=32 * 36), nn.BatchNorm(in_channels=7)]


def dense_along_the_last_axis():
    return [nn.HybridLambda(lambda F, x: F.transpose(x, (0, 2, 3, 1))), bmxnet.Activation(), bmxnet.Dense(7, in_units=32, flatten=False)]


class Improvement(nn.HybridSequential):
    """The sum of the last channels and what the layers make of all."""

    def hybrid_forward(self, F, x):
        old, last = F.slice_axis(x, axis=1, begin=0, end=32), F.slice_axis(x, axis=1, begin=32, end=96)
        return F.concat(old, last + super().hybrid_forward(F, x), dim=1)


def of_the_zoo_family():
    """A stem, a Dense and an Improvement Block, a transition and the tail, as in BMXNet-v2's MeliusNet."""
    new, dense_block, improvement = nn.HybridSequential(), HybridConcurrent(axis=1), Improvement()
    new.add(nn.BatchNorm(), bmxnet.Activation(), bmxnet.Convolution(64, 3, in_channels=32, padding=1))
    dense_block.add(Identity(), new)
    improvement.add(nn.BatchNorm(), bmxnet.Activation(), bmxnet.Convolution(64, 3, in_channels=96, padding=1))
    return [
        nn.Conv2D(32, 3, padding=1, use_bias=False),
        nn.BatchNorm(),
        nn.Activation('relu'),
        dense_block,
        improvement,
        nn.BatchNorm(),
        nn.MaxPool2D(2),
        nn.Activation('relu'),
        nn.Conv2D(64, 1, use_bias=False),
        nn.BatchNorm(),
        bmxnet.Activation(),
        bmxnet.Convolution(32, 3, in_channels=64, padding=1, strides=2),
        nn.BatchNorm(),
        nn.Activation('relu'),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
        nn.Dense(10),
    ]


NETWORKS = {
    'convolution': convolution,
    'padded': lambda: convolution(padding=1),
    'padded by two, strided': lambda: convolution(padding=2, strides=2),
    'dilated': lambda: convolution(padding=2, dilation=2),
    'pooled': convolution_after_pooling,
    'dense': dense,
    'dense along the last axis': dense_along_the_last_axis,
    'network': of_the_zoo_family,
}


def write_pair(layers, folder, bits=32, channels=32):
    """Write a converted pair of random parameters to FOLDER/binarized_net; return an input and the output of the float network."""
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(*layers())
    x = nd.array(np.random.RandomState(1).randn(2, channels, 6, 6))
    y = bmxnet.randomize(net, x)
    net.export(str(folder / 'net'))
    bmxnet.convert(folder / 'net', folder / 'binarized_net', bits)
    return x, y


FORMS = [(name, form) for name in NETWORKS for form in ('float', 'packed') if (name, form) != ('dense along the last axis', 'packed')]


@pytest.mark.parametrize('name, form', FORMS)
def test_converted_pair_gives_what_the_network_gave_before(name, form, tmp_path):
    x, expected = write_pair(NETWORKS[name], tmp_path)
    assert run(tmp_path / 'binarized_net-symbol.json', tmp_path / 'out', '--input-shape', '2,32,6,6', '--to', form) == 0
    tolerance = 1e-4 if name == 'network' else 0 if form == 'float' else 1e-5
    np.testing.assert_allclose(load(tmp_path / 'out')(x).asnumpy(), expected, atol=tolerance, rtol=1e-5 if tolerance else 0)


def test_network_of_the_zoo_family_becomes_one_packed_operator(tmp_path, capsys):
    write_pair(of_the_zoo_family, tmp_path)
    run(tmp_path / 'binarized_net-symbol.json', tmp_path / 'out', '--input-shape', '2,32,6,6', '--to', 'packed', '--json')
    packed = json.loads(capsys.readouterr().out)['packed']
    assert (packed['packed_operators'], packed['binary_layers'], packed['left']) == (1, 3, [])


def test_layers_of_a_pair_are_listed_only_with_verbose(tmp_path, capsys):
    layers = {'qconv0_weight: BinaryInferenceConvolution, 64 x 64 x 5 x 5', 'qdense0_weight: BinaryInferenceFullyConnected, 1000 x 1024'}
    for flags, listed in (((), set()), (('--verbose',), {f'{layer} weights' for layer in layers})):
        assert run(LENET, tmp_path / 'lenet', '--input-shape', LENET_SHAPE, *flags) == 0
        lines = capsys.readouterr().out.splitlines()
        assert {line for line in lines if line.endswith(' weights')} == listed and len(lines) == 2 + len(listed)


def test_examples_of_the_help_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for file in PAIR.glob('binarized_lenet5-*'):
        shutil.copy(file, tmp_path)
    with pytest.raises(SystemExit):
        run('--help')
    examples = [shlex.split(line, comments=True) for line in capsys.readouterr().out.splitlines() if 'bmx-melius import-bmxnet' in line]
    of_pairs = [words[2:] for words in examples if words[0] == 'bmx-melius' and '--input-shape' in words]
    assert len(of_pairs) == 2
    for arguments in of_pairs:
        assert run(*arguments) == 0


def test_parameters_with_another_file_name_and_a_description_are_used(tmp_path):
    x, expected = write_pair(convolution, tmp_path)
    (tmp_path / 'binarized_net-0000.params').rename(tmp_path / 'other.params')
    spec = {**bmx_melius.InputSpec().to_json(), 'size': 6}
    (tmp_path / 'binarized_net-summary.json').write_text(json.dumps({'input': spec, 'class_names': ['a']}))
    assert (
        run(
            tmp_path / 'binarized_net-symbol.json',
            tmp_path / 'out',
            '--params',
            tmp_path / 'other.params',
            '--input-shape',
            '2,32,6,6',
            '--to',
            'packed',
        )
        == 0
    )
    np.testing.assert_allclose(load(tmp_path / 'out')(x).asnumpy(), expected, atol=1e-5, rtol=1e-5)
    assert bmx_melius.Session(tmp_path / 'out').input_spec == bmx_melius.InputSpec(size=6)


def test_padding_attribute_of_the_converted_convolution_adds_zeros_whose_sign_is_plus(tmp_path):
    x, _ = write_pair(convolution, tmp_path)
    edit(tmp_path / 'binarized_net-symbol.json', 'BinaryInferenceConvolution', lambda node: node['attrs'].update(pad='(1, 1)'))
    symbol, arrays, _ = read(tmp_path)
    weight = read_parameters(str(tmp_path / 'net-0000.params'))[WEIGHT]
    signs = nd.Pad((x >= 0) * 2 - 1, mode='constant', pad_width=(0, 0, 0, 0, 1, 1, 1, 1), constant_value=1)
    h = nd.Convolution(signs, nd.array(np.where(weight >= 0, 1, -1)), kernel=(3, 3), num_filter=5, no_bias=True)
    anchor = next(output for output in symbol.get_internals() if output.name.endswith('batchnorm0_fwd')).get_children()[0]
    given = {name.partition(':')[2]: nd.array(array) for name, array in arrays.items()}
    y = anchor.bind(mx.cpu(), {name: x if name == 'data' else given[name] for name in anchor.list_arguments()}).forward()[0]
    np.testing.assert_array_equal(y.asnumpy(), ((h + 32 * 9) / 2).asnumpy())


def test_packed_words_that_are_nan_keep_their_bits(tmp_path):
    """All weights +1 make the word 0xFFFFFFFF, and weights of which only the first is -1 another NaN."""
    write_pair(convolution, tmp_path)
    arrays = read_parameters(str(tmp_path / 'binarized_net-0000.params'))
    words = np.full(arrays[WEIGHT].shape, 0xFFFFFFFF, dtype=np.uint32)
    words[0, 0, 0, 0] = 0xFFFFFFFE
    write_parameters(tmp_path / 'binarized_net-0000.params', {**arrays, WEIGHT: words.view(np.float32)})
    weight = read(tmp_path)[1][WEIGHT]
    assert weight[0, 0, 0, 0] == -1 and (weight == 1).sum() == weight.size - 1


# --- checkpoints ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def reference(make_once):
    network = read_reference_network()
    folder = make_once('reference-network', lambda folder: mx.nd.save(str(folder / 'reference.params'), network['structural']))
    return folder / 'reference.params', network


@pytest.mark.parametrize('form', ['float', 'packed'])
def test_checkpoint_becomes_a_network_with_a_description_and_json_lists_every_matched_pair(form, reference, tmp_path, capsys):
    path, network = reference
    assert run(path, tmp_path / 'net', '--model', 'meliusnet22', '--to', form, *(['--json'] if form == 'float' else [])) == 0
    np.testing.assert_allclose(load(tmp_path / 'net')(network['x']).asnumpy(), network['logits'], atol=1e-4)
    description = Exported(tmp_path / 'net').description().fields
    assert description['model'] == {'name': 'meliusnet22', 'classes': 40, 'initial_layers': 'grouped_stem'}
    assert bmx_melius.InputSpec.from_json(description['input']) == bmx_melius.InputSpec()
    expected = next(row for row in GROUND_TRUTH['models'] if (row['model'], row['stem']) == ('meliusnet22', 'grouped_stem'))
    assert description['counts']['bops'] == expected['bops']
    printed = capsys.readouterr().out
    assert all(str(file) in printed for file in tmp_path.iterdir())
    copies = sum(name.startswith('current_stage.') for name in network['structural'])
    if form == 'packed':
        assert f'{len(network["exported"])} parameters matched' in printed and f'; {copies} arrays are second copies' in printed
        assert 'features.0.0.weight' not in printed
        return
    report = json.loads(printed)
    assert report['copies'] == copies
    assert set(report['matched'].values()) == {name for name in network['structural'] if not name.startswith('current_stage.')}
    assert [theirs for own, theirs in report['matched'].items() if own.endswith('_stem_conv0_weight')] == ['features.0.0.weight']


def test_parameters_of_a_checkpoint_are_listed_with_verbose(reference, tmp_path, capsys):
    path, network = reference
    assert run(path, tmp_path / 'net', '--model', 'meliusnet22', '--verbose') == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.partition(' = ')[2] for line in lines if ' = ' in line}
    assert listed == {name for name in network['structural'] if not name.startswith('current_stage.')}


@pytest.mark.parametrize('stem', ['grouped_stem', 'imagenet', 'thumbnail'])  # those of BMXNet-v2
def test_stem_and_classes_follow_from_the_checkpoint(stem, tmp_path):
    net = get_model('meliusnet_flex', block_numbers=(1,), transitions=(), classes=7, initial_layers=stem)
    net.initialize()
    net.hybridize()
    net(nd.zeros((1, 3, 32, 32)))
    net.export(str(tmp_path / 'net'))
    assert reference_options(str(tmp_path / 'net-0000.params')) == {'classes': 7, 'initial_layers': stem}


@pytest.mark.parametrize(
    'options, message',
    [
        (['--model', 'resnet_e18'], 'not a checkpoint of this network: its features.0.0 holds weight where'),
        (['--model', 'meliusnet22', '--classes', '10'], 'its output.weight has shape (40, 512), but'),
        (['--model', 'meliusnet22', '--initial-layers', 'imagenet'], 'its features.0.0.weight has shape (32, 3, 3, 3), but'),
        (['--model', 'mobilenet1.0'], 'mobilenet1.0 is a network of GluonCV, which does not take'),
        (['--model', 'nonet'], "unknown network 'nonet'"),
    ],
)
def test_checkpoint_of_another_network_is_refused(options, message, reference, tmp_path, capsys):
    assert run(reference[0], tmp_path / 'net', *options) == 2
    error = capsys.readouterr().err
    assert message in error and error.count('\n') == 1 and not list(tmp_path.iterdir())


# --- what is refused ------------------------------------------------------------------------------------------------------------------


def read(folder, shape=(2, 32, 6, 6)):
    return read_converted(folder / 'binarized_net-symbol.json', folder / 'binarized_net-0000.params', shape)


def edit(path, operator, change):
    symbol = json.loads(path.read_text())
    change(next(node for node in symbol['nodes'] if node['op'] == operator))
    path.write_text(json.dumps(symbol))


def test_words_of_64_bits_are_refused(tmp_path):
    write_pair(lambda: [bmxnet.Activation(), bmxnet.Convolution(4, 3, in_channels=64)], tmp_path, bits=64, channels=64)
    with pytest.raises(UserError, match='words of 64 bits; such files of BMXNet-v2 are known to be broken'):
        read(tmp_path, (2, 64, 6, 6))
    arrays = read_parameters(str(tmp_path / 'binarized_net-0000.params'))
    halves = {name: array.view(np.float32)[..., :3] if 'qconv' in name else array for name, array in arrays.items()}
    write_parameters(tmp_path / 'binarized_net-0000.params', {name: np.ascontiguousarray(array) for name, array in halves.items()})
    with pytest.raises(UserError, match='words of 64 bits'):  # told by their number
        read(tmp_path, (2, 64, 6, 6))


def change_arrays(change):
    """Damage to the parameters: `change` takes them and gives others."""

    def damage(folder):
        arrays = read_parameters(str(folder / 'binarized_net-0000.params'))
        write_parameters(folder / 'binarized_net-0000.params', change(arrays))

    return damage


def change_weight(change):
    return change_arrays(lambda arrays: {**arrays, WEIGHT: np.ascontiguousarray(change(arrays[WEIGHT]))})


def change_node(operator, change):
    return lambda folder: edit(folder / 'binarized_net-symbol.json', operator, change)


def cut(name):
    def damage(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-100])

    return damage


CONV = 'BinaryInferenceConvolution'
DAMAGES = {
    'cut symbol': (cut('binarized_net-symbol.json'), 'holds no symbol of MXNet, or a damaged one'),
    'cut parameters': (cut('binarized_net-0000.params'), 'is damaged'),
    'no nodes': (lambda folder: (folder / 'binarized_net-symbol.json').write_text('[1]'), 'holds no symbol of MXNet'),
    'an array too much': (change_arrays(lambda arrays: {**arrays, 'arg:more': np.ones(3, 'f4')}), 'arg:more, which is not a variable'),
    'an array missing': (
        change_arrays(lambda arrays: {name: arrays[name] for name in set(arrays) - {WEIGHT}}),
        'net_qconv0_weight are not in it',
    ),
    'no arg:': (change_arrays(lambda arrays: {name[4:]: array for name, array in arrays.items()}), 'its names do not begin with arg: or'),
    'too few words': (change_weight(lambda words: words[1:]), 'needs 45 words of 32 bits .* 36 of type float32'),
    'floats for words': (change_weight(lambda words: np.ones((5, 32, 3, 3), 'f4')), 'needs 45 words'),
    'integers for words': (change_weight(lambda words: words.view('i4')), 'needs 45 words .* of type int32'),
    'words rounded': (change_weight(lambda words: words.view('u4').reshape(-1).astype('f4')), 'rounded to the nearest float32'),
    'too few gammas': (change_arrays(lambda arrays: {**arrays, GAMMA: np.ones(4, 'f4')}), r'gamma has shape \(4,\), but \(5,\)'),
    'an attribute that is a number': (
        change_node(CONV, lambda node: node['attrs'].update(num_filter=5)),
        'an attribute that is not a string',
    ),
    'no filters': (change_node(CONV, lambda node: node['attrs'].update(num_filter='0')), 'net_qconv0_fwd'),
    'no kernel': (change_node(CONV, lambda node: node['attrs'].pop('kernel')), 'has no kernel'),
    'strides of zero': (change_node(CONV, lambda node: node['attrs'].update(stride='(0, 0)')), 'net_qconv0_fwd'),
    'a bias': (change_node(CONV, lambda node: node['attrs'].update(no_bias='False')), 'has a bias'),
    'groups': (change_node(CONV, lambda node: node['attrs'].update(num_group='2')), 'has groups'),
    'one axis': (change_node(CONV, lambda node: node['attrs'].update(kernel='(3,)')), 'not of two axes'),
    'a loop': (change_node(CONV, lambda node: node['inputs'][0].__setitem__(0, 10**6)), 'reads a node that does not exist'),
    'an index that is no integer': (
        change_node(CONV, lambda node: node['inputs'][0].__setitem__(0, 0.0)),
        'reads a node that does not exist',
    ),
    'an operator of the fork': (change_node('BatchNorm', lambda node: node.update(op='det_sign')), 'MXNet knows no operator det_sign'),
}


@pytest.mark.parametrize('name', DAMAGES)
def test_damaged_pair_is_refused_and_nothing_is_written(name, tmp_path, capsys):
    damage, message = DAMAGES[name]
    write_pair(convolution, tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        read(tmp_path)
    assert run(tmp_path / 'binarized_net-symbol.json', tmp_path / 'out', '--input-shape', '2,32,6,6') == 2
    assert capsys.readouterr().err.count('\n') <= 3 and not list(tmp_path.glob('out*'))


def test_padding_that_is_no_number_is_refused(tmp_path):
    write_pair(lambda: convolution(padding=1), tmp_path)
    edit(tmp_path / 'binarized_net-symbol.json', 'Pad', lambda node: node['attrs'].update(constant_value='x'))
    with pytest.raises(UserError, match='holds a symbol that MXNet cannot load'):
        read(tmp_path)


def test_network_that_was_not_converted_is_refused(tmp_path):
    write_pair(convolution, tmp_path)
    with pytest.raises(UserError, match='holds no BinaryInferenceConvolution or BinaryInferenceFullyConnected'):
        read_converted(tmp_path / 'net-symbol.json', tmp_path / 'net-0000.params', (2, 32, 6, 6))


def test_input_that_does_not_fit_is_refused(tmp_path):
    write_pair(dense, tmp_path)
    with pytest.raises(UserError, match='the weight .*qdense0_weight .* needs 56 words'):
        read(tmp_path, (1, 32, 4, 2))


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([LENET], 'PREFIX'),
        ([LENET, 'out'], '--input-shape'),
        ([LENET, 'no/folder/out', '--input-shape', LENET_SHAPE], 'there is no folder no/folder'),
        ([LENET, '/proc/out', '--input-shape', LENET_SHAPE], 'no files can be written to /proc'),
        ([LENET, '/tmp/', '--input-shape', LENET_SHAPE], "'/tmp/' names no files: give a PREFIX such as /tmp/net"),
        ([LENET, '', '--input-shape', LENET_SHAPE], "'' names no files"),
        ([LENET, 'out', '--model', 'meliusnet22'], '--model does not go with'),
        (['a.params', 'out'], 'Give --model NAME'),
        (['a.params', 'out', '--model', 'meliusnet22', '--input-shape', '1,3,8,8'], '--input-shape does not go with'),
        (['a.params', 'out', '--model', 'meliusnet22'], 'cannot read the checkpoint'),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(arguments, message, capsys):
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count('\n') == 1


def test_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(tmp_path, capsys):
    (tmp_path / 'out-symbol.json').mkdir()
    for command in ([], ['--to', 'packed']):
        assert run(LENET, tmp_path / 'out', '--input-shape', LENET_SHAPE, *command) == 2
        error = capsys.readouterr().err
        assert 'out-symbol.json is a folder' in error and error.count('\n') == 1
    assert [file.name for file in tmp_path.iterdir()] == ['out-symbol.json']
