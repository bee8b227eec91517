"""``bmx-melius import-bmxnet``: checkpoints and pairs of BMXNet-v2's model_converter as networks for any MXNet."""

import json
import shlex
import shutil

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent, Identity
from support import bmxnet_v2_converter as bmxnet
from support.converted_pairs import LENET, LENET_SHAPE, PAIR, WEIGHT, convolution, dense, edit, read, run, write_pair
from support.paths import DATA
from support.reference_network import read_reference_network

import bmx_melius
from bmx_melius.files.exported import Exported
from bmx_melius.files.parameters import read_parameters, write_parameters
from bmx_melius.importers.bmxnet_v2 import reference_options
from model_zoo import get_model

GROUND_TRUTH = json.loads((DATA / 'ground_truth.json').read_text())


def load(prefix):
    return mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')


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


def convolution_after_pooling():
    return [nn.MaxPool2D(2), *convolution(padding=1)]


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


@pytest.mark.parametrize('value, sign', [('0', 1), ('-0.5', -1), ('0.25', 1), (None, 1)])  # 0 where it is not given
def test_a_convolution_is_padded_with_the_sign_of_the_number_that_was_added(value, sign, tmp_path):
    x, _ = write_pair(lambda: convolution(padding=1), tmp_path)

    def change(node):
        del node['attrs']['constant_value']
        node['attrs'].update({} if value is None else {'constant_value': value})

    edit(tmp_path / 'binarized_net-symbol.json', 'Pad', change)
    symbol, arrays, _ = read(tmp_path)
    weight = read_parameters(str(tmp_path / 'net-0000.params'))[WEIGHT]
    signs = nd.Pad((x >= 0) * 2 - 1, mode='constant', pad_width=(0, 0, 0, 0, 1, 1, 1, 1), constant_value=sign)
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


@pytest.mark.parametrize('stem', ['grouped_stem', 'imagenet', 'thumbnail'])  # the stems of BMXNet-v2
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
        (['--model', 'mobilenet1.0'], 'is not a checkpoint of this network: its features.0.3.weight has shape'),
        (['--model', 'nonet'], "unknown network 'nonet'"),
    ],
)
def test_checkpoint_of_another_network_is_refused(options, message, reference, tmp_path, capsys):
    assert run(reference[0], tmp_path / 'net', *options) == 2
    error = capsys.readouterr().err
    assert message in error and error.count('\n') == 1 and not list(tmp_path.iterdir())
