"""BMXNet-v2's checkpoints: a whole network's logits, both kinds of files, every network, and refusals."""
import gzip
import json
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from reference_network import read_reference_network

from bmx_melius import UserError, load_reference_parameters
from model_zoo import get_model

DATA = Path(__file__).parent / 'data'
NAMES = json.loads(gzip.decompress((DATA / 'reference_parameter_names.json.gz').read_bytes()))


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


def random_checkpoint(rows, naming):
    """Arrays of the reference's shapes by structural (0) or full (1) name, and which full name each structural one has."""
    rng = np.random.RandomState(0)
    by_full_name = {full: nd.array(rng.randn(*shape)) for _, full, shape in rows}
    prefix = {0: lambda row: row[0], 1: lambda row: ('aux:' if 'running' in row[1] else 'arg:') + row[1]}[naming]
    return {prefix(row): by_full_name[row[1]] for row in rows}, by_full_name


@pytest.mark.parametrize('naming', [0, 1], ids=['structural', 'exported'])
@pytest.mark.parametrize('key', NAMES)
def test_every_parameter_of_every_network_finds_its_place(key, naming, tmp_path):
    name, initial_layers = key.split('/')
    arrays, by_full_name = random_checkpoint(NAMES[key], naming)
    mx.nd.save(str(tmp_path / 'reference.params'), arrays)
    net = get_model(name, initial_layers=initial_layers)
    load_reference_parameters(net, str(tmp_path / 'reference.params'))
    parameters = {own[len(net.prefix):]: parameter for own, parameter in net.collect_params().items()}
    assert len(parameters) == len(by_full_name)
    for full, array in by_full_name.items():
        own = full if full in parameters else full.split('_', 1)[1]  # ResNetE's output layer has no network's name before its own
        np.testing.assert_array_equal(parameters[own].data().asnumpy(), array.asnumpy(), err_msg=full)


@pytest.mark.parametrize('naming', [0, 1], ids=['structural', 'exported'])
@pytest.mark.parametrize('name', ['meliusnet29', 'meliusneta'])
def test_checkpoint_of_another_network_is_refused_naming_the_first_difference(name, naming, tmp_path):
    arrays, _ = random_checkpoint(NAMES['meliusnet22/grouped_stem'], naming)
    mx.nd.save(str(tmp_path / 'reference.params'), arrays)
    net = get_model(name)
    with pytest.raises(UserError, match=r'not a checkpoint of this network: its (arg:meliusnet0_conv|layer\d\.0\.3)'):
        load_reference_parameters(net, str(tmp_path / 'reference.params'))
    with pytest.raises(RuntimeError):  # nothing was set
        net.output.weight.data()


@pytest.mark.parametrize('naming', [0, 1], ids=['structural', 'exported'])
def test_incomplete_checkpoint_is_refused(naming, tmp_path):
    arrays, _ = random_checkpoint(NAMES['meliusnet22/grouped_stem'], naming)
    for dropped in [key for key in arrays if 'bias' in key]:
        del arrays[dropped]
    mx.nd.save(str(tmp_path / 'reference.params'), arrays)
    with pytest.raises(UserError, match='bias'):
        load_reference_parameters(get_model('meliusnet22'), str(tmp_path / 'reference.params'))


def test_deferred_networks_keep_their_initialization_context(tmp_path):
    arrays, by_full_name = random_checkpoint(NAMES['meliusnet_c/grouped_stem'], 1)
    mx.nd.save(str(tmp_path / 'reference.params'), arrays)
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
    with pytest.raises(UserError, match=r'cannot read .*missing\.params'):
        load_reference_parameters(get_model('meliusnetc'), str(tmp_path / 'missing.params'))
