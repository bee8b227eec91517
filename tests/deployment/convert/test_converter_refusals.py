"""What conversion refuses: files, parameters, symbols and shapes that are damaged or do not fit, and wrong arguments of the command."""

import contextlib
import json
import pathlib
import re
import resource

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.files.parameters import read_parameters, write_parameters

pytest_plugins = ['support.conversions']  # its fixtures


def changed(params, name, change):
    arrays = {key: array.copy() for key, array in read_parameters(params).items()}
    key = next(key for key in arrays if key.endswith(name))
    array = change(arrays.pop(key))
    if array is not None:
        arrays[key] = array
    write_parameters(params, arrays)


def beginning_with(value):
    def change(array):
        array.flat[0] = value
        return array

    return change


@pytest.mark.parametrize(
    'name, change, words',
    [
        ('conv0_weight', lambda array: None, 'lacks [^,]*conv0_weight:'),
        ('running_var', lambda array: None, 'running_var is missing'),
        ('gamma', lambda array: array[1:], r'gamma has the shape \(7,\)'),
        ('qconv0_weight', beginning_with(np.nan), 'qconv0_weight holds values that are not finite'),
        ('running_var', beginning_with(-1), r'batchnorm\d+_fwd \(BatchNorm\): .*running_var is -1 in channel 0, .*must be positive'),
        ('running_var', beginning_with(-1e-5), r'running_var is -1e-05 in channel 0, and with eps=1e-05'),
        ('beta', lambda array: array.astype(np.float16), 'beta is float16: cast'),
        ('conv0_weight', lambda array: array.astype(np.int8), r'conv0_weight \(int8\) do not fit their operators'),
        ('running_var', lambda array: array.astype(np.uint8), 'running_var is uint8, not float32'),
    ],
)
def test_parameters_that_do_not_fit_are_named(name, change, words, small, tmp_path):
    symbol, params = small
    changed(params, name, change)
    with pytest.raises(UserError, match=words):
        bmx.convert(symbol, params, tmp_path / 'packed', (1, 3, 8, 8))
    assert not list(tmp_path.glob('*packed*'))


def reads_itself(graph):
    convolution = next(index for index, node in enumerate(graph['nodes']) if node['op'] == 'Convolution')
    graph['nodes'][convolution]['inputs'][0] = graph['heads'][0]


def calls_two_variables_alike(graph):
    variables = [node for node in graph['nodes'] if node['op'] == 'null']
    variables[1]['name'] = variables[2]['name'] = 'twice'


@pytest.mark.parametrize(
    'change, words', [(reads_itself, r'node \S+ reads its own result'), (calls_two_variables_alike, '2 variables .* called twice')]
)
def test_symbols_that_mxnet_cannot_use_are_refused(change, words, small, run, tmp_path):
    symbol, params = small
    graph = json.loads(symbol.read_text())
    change(graph)
    symbol.write_text(json.dumps(graph))
    with pytest.raises(UserError, match=f'net-symbol.json: {words}'):
        bmx.convert(symbol, params, tmp_path / 'packed', (1, 3, 8, 8))
    for arguments in (['summary', symbol], ['predict', tmp_path / 'net', tmp_path / 'image.png']):
        status, output, errors = run(*arguments)
        assert status == 2 and not output and errors.splitlines()[-1].startswith('error: ')


def test_a_live_network_with_two_variables_of_one_name_is_refused():
    net = nn.HybridLambda(lambda F, x: F.broadcast_add(F.broadcast_add(x, mx.sym.var('twice')), mx.sym.var('twice')))
    with pytest.raises(UserError, match='2 variables .* called twice'):
        bmx.summary(net, (1, 8))


@pytest.mark.parametrize('eps', ['nan', 'inf'])
def test_an_eps_that_is_not_finite_is_named(eps, small, tmp_path):
    symbol, params = small
    assert '"eps": "1e-05"' in symbol.read_text()
    symbol.write_text(symbol.read_text().replace('"eps": "1e-05"', f'"eps": "{eps}"'))
    with pytest.raises(UserError, match=rf'batchnorm\d+_fwd \(BatchNorm\) has eps={eps}'):
        bmx.convert(symbol, params, tmp_path / 'packed', (1, 3, 8, 8))


def test_files_and_shapes_that_do_not_fit_are_named(small, tmp_path):
    symbol, params = small
    shape, prefix = (1, 3, 8, 8), tmp_path / 'packed'
    with pytest.raises(UserError, match='net-0000.params is not a symbol, it holds parameters$'):
        bmx.convert(params, params, prefix, shape)
    with pytest.raises(UserError, match='net-0000.params is not a symbol, it holds parameters; did you swap the first two?'):
        bmx.convert(params, symbol, prefix, shape)
    (tmp_path / 'cut-symbol.json').write_text(pathlib.Path(symbol).read_text().partition('[')[0])
    with pytest.raises(UserError, match='cut-symbol.json holds no symbol of MXNet'):
        bmx.convert(tmp_path / 'cut-symbol.json', params, prefix, shape)
    with pytest.raises(UserError, match='is not a parameter file'):
        bmx.convert(symbol, symbol, prefix, shape)
    with pytest.raises(UserError, match='missing.json: No such file'):
        bmx.convert(tmp_path / 'missing.json', params, prefix, shape)
    with pytest.raises(UserError, match='missing.params: No such file'):
        bmx.convert(symbol, tmp_path / 'missing.params', prefix, shape)
    with pytest.raises(UserError, match='has 29999999400000003 elements; MXNet computes with 2147483647'):
        bmx.convert(symbol, params, prefix, (1, 3, 99999999, 99999999))
    with pytest.raises(UserError, match='no folder'):
        bmx.convert(symbol, params, tmp_path / 'missing' / 'packed', shape)
    with pytest.raises(UserError, match='would overwrite'):
        bmx.convert(symbol, params, tmp_path / 'net', shape)
    with pytest.raises(UserError, match=r'weight has the shape \(8, 3, 3, 3\); with this input'):
        bmx.convert(symbol, params, prefix, (1, 4, 8, 8))
    with pytest.raises(UserError, match='does not fit the network'):
        bmx.convert(symbol, params, prefix, (1, 3, 2, 2))
    for wrong in ((), (0, 3, 8, 8), (1, 3, -8, 8), (1, 3, 8.5, 8), 8):
        with pytest.raises(UserError, match='the shape of the input .* must be a tuple of whole numbers from 1 on'):
            bmx.convert(symbol, params, prefix, wrong)
        with pytest.raises(UserError, match='the shape of the input .* must be a tuple of whole numbers from 1 on'):
            bmx.deploy(bmx.QDense(3), wrong)
    with pytest.raises(UserError, match="no input 'image'"):
        bmx.convert(symbol, params, prefix, {'image': shape})
    (tmp_path / 'folder-0000.params').mkdir()
    with pytest.raises(UserError, match='is a folder'):
        bmx.convert(symbol, params, tmp_path / 'folder', shape)
    bmx.convert(symbol, params, prefix, shape)
    with pytest.raises(UserError, match='packed already'):
        bmx.convert(f'{prefix}-symbol.json', f'{prefix}-0000.params', tmp_path / 'again', shape)
    with pytest.raises(UserError, match='does not run on an input of shape'):
        bmx.deploy(bmx.QDense(3), (1, 8))  # not initialized


@pytest.mark.parametrize(
    'find, replace, words',
    [
        ('"__bmx_bits__": "1"', '"__bmx_bits__": "many"', "marked with 'many' bits"),
        ('"__bmx_pad_value__": "-1"', '"__bmx_pad_value__": "edge"', "padding 'edge', which is not a number"),
        ('"__bmx_offset__": "1"', '"__bmx_offset__": "yes"', 'its attributes are malformed'),
    ],
)
def test_malformed_marks_are_named(find, replace, words, small, tmp_path):
    symbol, params = small
    assert find in symbol.read_text()
    symbol.write_text(symbol.read_text().replace(find, replace))
    with pytest.raises(UserError, match=words):
        bmx.convert(symbol, params, tmp_path / 'packed', (1, 3, 8, 8))


@pytest.mark.parametrize('layer, parameter', [(0, 'weight'), (1, 'gamma'), (3, 'weight')])
def test_verification_refuses_a_network_whose_values_mxnet_cannot_represent(layer, parameter, export, tmp_path):
    net = initialized(sequence(nn.Conv2D(8, 3), nn.BatchNorm(), bmx.BinaryConv2D(8, 3), nn.Dense(3)), (1, 3, 8, 8))
    array = getattr(net[layer], parameter).data()
    array[:] = 3e38
    files, prefix, shape = export(net), tmp_path / 'packed', (1, 3, 8, 8)
    with pytest.raises(UserError, match=r'node \S+: \d+ of \d+ values are not finite in MXNet'):
        bmx.convert(*files, prefix, shape)
    assert not list(tmp_path.glob('packed*'))
    assert bmx.convert(*files, prefix, shape, verify=False).verification is None


@pytest.mark.parametrize(
    'names, words',
    [
        (['net'], 'takes PREFIX PACKED or SYMBOL PARAMS PACKED'),
        (['net-symbol.json', 'net-0000.params'], 'PACKED names the files to write'),
        (['net', 'net-0000.params', 'a', 'b'], 'takes PREFIX PACKED or SYMBOL PARAMS PACKED'),
        (['other', 'packed'], 'other-symbol.json: No such file or directory; a PREFIX is .* there is .*net'),
        (['net-0000.params', 'net-symbol.json', 'packed'], 'net-0000.params is not a symbol.* did you swap the first two?'),
        (['net', 'net'], 'would overwrite the network that is converted'),
    ],
)
def test_command_refuses_other_numbers_and_orders_of_files(names, words, small, run, tmp_path):
    before = sorted(tmp_path.iterdir())
    status, output, errors = run('convert', *(tmp_path / name for name in names), '--input-shape', '1,3,8,8')
    assert status == 2 and not output and errors.count('\n') == 1 and re.search(words, errors)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    'arguments',
    [
        ['predict', 'n\udcff', 'a.png'],
        ['convert', 'n\udcff-symbol.json', 'n-0000.params', 'n', '--input-shape', '1,3,8,8'],
        ['evaluate', 'n\udcff', 'digits'],
    ],
)
def test_commands_refuse_a_prefix_that_mxnet_cannot_read(arguments, run):
    status, output, errors = run(*arguments)
    assert status == 2 and not output and 'UTF-8' in errors and errors.count('\n') == 1


@contextlib.contextmanager
def address_space_limited(more):
    """Limit the address space of this process to what it uses now and `more` bytes."""
    pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_size_that_needs_more_memory_than_there_is_is_refused(small, tmp_path):
    with address_space_limited(1 << 30), pytest.raises(UserError, match=r'not enough memory .* \(1, 3, 9000, 9000\)'):
        bmx.convert(*small, tmp_path / 'packed', (1, 3, 9000, 9000))  # 1.9 GB in float64
    assert not list(tmp_path.glob('packed*'))


@pytest.mark.parametrize('shape', ['=1,3', '1,x', 'a=1,2 --input-shape a=1,2', '1,2 --input-shape b=1,2'])
def test_command_refuses_malformed_shapes(shape, small, run, tmp_path):
    status, output, errors = run('convert', *small, tmp_path / 'packed', '--input-shape', *shape.split())
    assert status == 2 and not output and errors.count('\n') == 1
