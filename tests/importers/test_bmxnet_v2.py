"""BMXNet-v2's checkpoints: the logits of every network from both kinds of files, and refusals.

MeliusNet22 is compared with what the authors' code gave, every network with its definition restated in `bmxnet_v2_networks`.
"""

import gzip
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.bmxnet_v2_networks import Calibration, Reference
from support.networks import DEEPER
from support.paths import DATA
from support.reference_network import read_reference_network

from bmx_melius import UserError, load_reference_parameters
from model_zoo import get_model

NAMES = json.loads(gzip.decompress((DATA / 'reference_parameter_names.json.gz').read_bytes()))
# Further networks of the authors' zoo: arguments there and here, and structural name, full name and shape of each parameter.
ZOO = json.loads(gzip.decompress((DATA / 'bmxnet_v2_zoo.json.gz').read_bytes()))
LARGE = [f'{name}/grouped_stem' for name in ('meliusnet29', 'meliusnet42', 'meliusnet59', 'meliusnet_b', 'meliusnet_c', 'resnet34_e1')]


@pytest.fixture(scope='module')
def reference():
    return read_reference_network()


@pytest.mark.parametrize('kind', ['exported', 'structural'])
def test_logits_equal_the_reference_in_imperative_hybridized_and_exported_form(reference, kind, tmp_path):
    mx.nd.save(str(tmp_path / 'reference.params'), reference[kind])
    net = get_model('meliusnet22', classes=40)
    sources = load_reference_parameters(net, str(tmp_path / 'reference.params'))
    assert set(sources) == set(net.collect_params())
    np.testing.assert_allclose(net(reference['x']).asnumpy(), reference['logits'], atol=1e-4)
    net.hybridize()
    np.testing.assert_allclose(net(reference['x']).asnumpy(), reference['logits'], atol=1e-4)
    net.export(str(tmp_path / 'net'))
    imported = mx.gluon.SymbolBlock.imports(str(tmp_path / 'net-symbol.json'), ['data'], str(tmp_path / 'net-0000.params'))
    np.testing.assert_allclose(imported(reference['x']).asnumpy(), reference['logits'], atol=1e-4)


def random_checkpoint(rows):
    """Arrays of the reference's shapes by structural name, by exported name, and by full name."""
    rng = np.random.default_rng(0)
    full = {}
    for _, name, shape in rows:
        if name not in full:
            full[name] = nd.array(rng.standard_normal(shape, dtype=np.float32) / np.sqrt(np.prod(shape[1:])).astype(np.float32))
    structural = {name: full[full_name] for name, full_name, _ in rows}
    exported = {('aux:' if 'running' in name else 'arg:') + name: full[name] for _, name, _ in rows}
    return structural, exported, full


@pytest.mark.parametrize('key', [pytest.param(key, marks=pytest.mark.long if key in LARGE else ()) for key in NAMES])
def test_every_parameter_finds_its_place_and_the_logits_are_those_of_the_restated_network(key, tmp_path):
    name, initial_layers = key.split('/')
    structural, exported, by_full_name = random_checkpoint(NAMES[key])
    x = nd.array(np.random.RandomState(1).standard_normal((2, 3, 64, 64)))
    Calibration(structural)(x)
    expected = Reference(structural)(x).asnumpy()
    assert 0.1 < expected.std() < 10
    for arrays in (structural, exported):
        mx.nd.save(str(tmp_path / 'reference.params'), arrays)
        net = get_model(name, initial_layers=initial_layers)
        load_reference_parameters(net, str(tmp_path / 'reference.params'))
        parameters = {own[len(net.prefix) :]: parameter for own, parameter in net.collect_params().items()}
        assert len(parameters) == len(by_full_name)
        for full, array in by_full_name.items():
            own = full if full in parameters else full.split('_', 1)[1]  # ResNetE's output layer has no network's name before its own
            np.testing.assert_array_equal(parameters[own].data().asnumpy(), array.asnumpy(), err_msg=full)
    np.testing.assert_allclose(net(x).asnumpy(), expected, atol=1e-4)


@pytest.mark.parametrize(
    'row',
    [pytest.param(row, marks=pytest.mark.long if row['name'] in DEEPER else ()) for row in ZOO],
    ids=lambda row: ' '.join((row['name'], *map(str, row['options'].values()))),
)
def test_networks_with_options_of_the_authors_zoo_give_the_logits_of_the_restated_ones(row, tmp_path):
    structural, exported, _ = random_checkpoint(row['parameters'])
    pooled = row['name'].startswith('binet') or row['arguments'].get('use_pooling', False)
    x = nd.array(np.random.RandomState(1).standard_normal((2, 3, *(row['options'].get('input_size', 32),) * 2)))
    Calibration(structural, pooled)(x)
    expected = Reference(structural, pooled)(x).asnumpy()
    assert expected.std() > 0.1
    for arrays in (structural, exported):
        mx.nd.save(str(tmp_path / 'reference.params'), arrays)
        net = get_model(row['name'], classes=10, **row['options'])
        load_reference_parameters(net, str(tmp_path / 'reference.params'))
        np.testing.assert_allclose(net(x).asnumpy(), expected, atol=3e-4 * max(1, abs(expected).max()))


WRONG_NETWORKS = [  # the network of the file, another, and the first difference by structural and by full names
    ('meliusnet22', 'meliusnet29', r'its layer1.0.3.weight .* needs \(128, 320', r'its arg:meliusnet0_conv0_weight .* needs \(128, 320'),
    ('meliusnet22', 'meliusneta', r'its layer1.0.3.weight .* needs \(160, 80', r'its arg:meliusnet0_conv0_weight .* needs \(160, 80'),
    ('meliusnet22', 'binary_densenet28', r'its layer0.0.2.1.0.gamma has shape \(128,\)', 'its arg:meliusnet0_stage1_batchnorm2_gamma has'),
    ('densenet37', 'binary_densenet28', r'its layer1.0.3.weight has shape \(128,', r'its arg:densenet0_conv0_weight has shape \(128,'),
    ('naivenet17', 'meliusnet22', 'its layer0.0.1.body.1.qconv.weight has', 'its arg:naivenet0_stage1_qconv1_weight has'),
    ('densenet28', 'resnet_e18', 'its features.0.0 holds weight where', r'its arg:densenet0_batchnorm0_gamma .* needs \(3,\)'),
    ('resnet18_e1', 'binary_densenet28', 'its features.0 holds beta, gamma', r'its arg:resnete10_batchnorm0_gamma .* needs \(64,\)'),
    ('resnet18_e1', 'resnet_e34', 'its features.7.0.body.0.qconv.weight has', 'it has no parameter ..._stage1_qconv4_weight'),
    ('resnet34_e1', 'resnet_e18', 'its features.6.4.body.0.qconv.weight has', 'the network has no parameter like its arg:resnete10'),
]


@pytest.mark.parametrize('naming', [0, 1], ids=['structural', 'exported'])
@pytest.mark.parametrize('row', WRONG_NETWORKS, ids=lambda row: f'{row[0]} as {row[1]}')
def test_checkpoint_of_another_network_is_refused_naming_the_first_difference(row, naming, tmp_path):
    theirs, name, *differences = row
    mx.nd.save(str(tmp_path / 'reference.params'), random_checkpoint(NAMES[f'{theirs}/grouped_stem'])[naming])
    net = get_model(name)
    with pytest.raises(UserError, match=f'not a checkpoint of this network: {differences[naming]}'):
        load_reference_parameters(net, str(tmp_path / 'reference.params'))
    with pytest.raises(RuntimeError):  # nothing was set
        net.output.weight.data()


def test_statistics_of_a_wrong_size_are_refused(tmp_path):
    """Gluon knows their size from the first input on; here it follows from the network before."""
    _, arrays, _ = random_checkpoint(NAMES['meliusnet_c/grouped_stem'])
    arrays['aux:meliusnet0_batchnorm3_running_var'] = nd.ones(5)
    mx.nd.save(str(tmp_path / 'reference.params'), arrays)
    with pytest.raises(UserError, match=r'its aux:meliusnet0_batchnorm3_running_var has shape \(5,\)'):
        load_reference_parameters(get_model('meliusnetc'), str(tmp_path / 'reference.params'))


def test_second_copy_that_is_no_copy_is_refused(tmp_path):
    arrays, *_ = random_checkpoint(NAMES['meliusnet_c/grouped_stem'])
    arrays['current_stage.0.1.0.beta'] = arrays['current_stage.0.1.0.beta'] + 1
    mx.nd.save(str(tmp_path / 'reference.params'), arrays)
    with pytest.raises(UserError, match='is damaged: its current_stage.0.1.0.beta is not equal to layer3.1.0.1.0.beta'):
        load_reference_parameters(get_model('meliusnetc'), str(tmp_path / 'reference.params'))


@pytest.mark.parametrize('naming', [0, 1], ids=['structural', 'exported'])
def test_incomplete_checkpoint_is_refused(naming, tmp_path):
    arrays = random_checkpoint(NAMES['meliusnet22/grouped_stem'])[naming]
    for dropped in [key for key in arrays if 'bias' in key]:
        del arrays[dropped]
    mx.nd.save(str(tmp_path / 'reference.params'), arrays)
    with pytest.raises(UserError, match='bias'):
        load_reference_parameters(get_model('meliusnet22'), str(tmp_path / 'reference.params'))


def test_deferred_networks_keep_their_initialization_context(tmp_path):
    mx.nd.save(str(tmp_path / 'reference.params'), random_checkpoint(NAMES['meliusnet_c/grouped_stem'])[1])
    net = get_model('meliusnetc')
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    load_reference_parameters(net, str(tmp_path / 'reference.params'))
    assert net.features[4][0].dense_norm.gamma.list_ctx() == [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize('content', [b'', b'not parameters'])
def test_files_that_are_no_checkpoints_are_named(content, tmp_path):
    path = tmp_path / 'broken.params'
    path.write_bytes(content)
    with pytest.raises(UserError, match=r'cannot read .*broken\.params'):
        load_reference_parameters(get_model('meliusnetc'), str(path))
    with pytest.raises(UserError, match=r'cannot read the checkpoint: [^\[]*missing\.params: No such file'):
        load_reference_parameters(get_model('meliusnetc'), str(tmp_path / 'missing.params'))
