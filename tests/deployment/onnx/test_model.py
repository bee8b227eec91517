"""Files that are not valid models, or would do harm: each is refused with one line."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest
from support.tiny_onnx import binary_network, make, node

from bmx_melius.deployment.onnx import evaluation as evaluation_module
from bmx_melius.deployment.onnx import model as model_module
from bmx_melius.deployment.onnx.conversion import import_onnx
from bmx_melius.deployment.onnx.evaluation import Evaluator, input_shapes
from bmx_melius.deployment.onnx.model import read_model
from bmx_melius.deployment.onnx.trial import tried
from bmx_melius.errors import UserError

helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
EXTERNAL = onnx.TensorProto.EXTERNAL


def refusal(function, *arguments):
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert '\n' not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a model, or bytes, and returns the path."""

    def write(model):
        path = tmp_path / 'net.onnx'
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return path

    return write


def test_a_binary_network_is_imported(written, tmp_path):
    assert import_onnx(written(binary_network()), tmp_path / 'packed').binary_layers == 1


# --- files ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'content, what',
    [
        (b'', 'or damaged'),
        (b'\xff\xd8\xff\xe0\0\x10JFIF\0', 'or damaged'),
        (b'\x12\x01\0\0' + bytes(100), 'but the parameters of a network of MXNet'),
        (b'{"nodes": []}', 'but JSON'),
        (bytes(range(256)) * 10, 'or damaged'),
    ],
)
def test_other_files_are_not_models(content, what, written):
    assert f'is not an ONNX model, {what}' in refusal(read_model, written(content))


def test_a_truncated_model_is_refused_wherever_it_ends(written):
    content = binary_network().SerializeToString()
    for length in range(0, len(content) - 1, 97):
        refusal(read_model, written(content[:length]))


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path, tmp_path / 'pipe', pathlib.Path('/dev/zero')):
        assert f'{path} is not a file' in refusal(read_model, path)
    assert 'No such file' in refusal(read_model, tmp_path / 'missing.onnx')
    assert 'cannot be read' in refusal(read_model, 'a\0b')


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / 'net.onnx', 'wb') as file:
        file.truncate(model_module.MAX_BYTES + 1)
    assert 'at most' in refusal(read_model, tmp_path / 'net.onnx')


# --- external data ----------------------------------------------------------------------------------------------------------------------


def with_external(location, **entries):
    model = binary_network()
    tensor = model.graph.initializer[0]
    tensor.ClearField('raw_data')
    tensor.data_location = EXTERNAL
    for key, value in {'location': location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


BYTES = 8 * 4 * 9 * 4  # of the first weight


def test_modules_in_the_working_directory_are_not_imported(written, tmp_path, monkeypatch):
    (tmp_path / 'json.py').write_text('raise SystemExit("imported")')
    monkeypatch.chdir(tmp_path)
    tried(written(binary_network()), None)


def test_external_data_are_read_from_the_folder(written, tmp_path):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'w').write_bytes(bytes(16) + np.ones(BYTES // 4, np.float32).tobytes())
    model = read_model(written(with_external('data/w', offset=16, length=BYTES)))
    assert (numpy_helper.to_array(model.proto.graph.initializer[0]) == 1).all()
    assert model.size > BYTES


def test_external_data_outside_of_the_folder_are_refused(written, tmp_path):
    folder = tmp_path / 'inner'
    folder.mkdir()
    (tmp_path / 'secret').write_bytes(bytes(BYTES))
    (folder / 'link').symlink_to(tmp_path / 'secret')
    (folder / 'up').symlink_to(tmp_path)
    (tmp_path / 'inner-other').write_bytes(bytes(BYTES))
    for location in ('../secret', str(tmp_path / 'secret'), 'link', 'up/secret', '', '.', 'a\0b', '../inner-other', 'x/../../secret'):
        path = folder / 'net.onnx'
        path.write_bytes(with_external(location).SerializeToString())
        assert 'outside of its folder' in refusal(read_model, path) or location == '.'


@pytest.mark.parametrize(
    'entries',
    [
        *({'offset': 1}, {'length': BYTES + 1}, {'offset': -1}, {'offset': 1 << 70}, {'offset': 'x'}, {'length': '9' * 5000}),
        *({'length': BYTES - 4}, {'length': 0}, {'offset': BYTES, 'length': 0}),
    ],
)
def test_external_data_of_another_length_are_refused(entries, written, tmp_path):
    (tmp_path / 'w').write_bytes(bytes(BYTES))
    refusal(read_model, written(with_external('w', **entries)))


def test_external_data_that_are_not_a_file_are_refused(written, tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'folder').mkdir()
    for location in ('pipe', 'folder', 'missing', '.'):
        assert 'does not exist or is not a file' in refusal(read_model, written(with_external(location)))


def test_external_data_count_among_the_bytes_of_a_model(written, tmp_path, monkeypatch):
    (tmp_path / 'w').write_bytes(bytes(BYTES))
    path = written(with_external('w'))
    monkeypatch.setattr(model_module, 'MAX_BYTES', path.stat().st_size + BYTES - 1)
    assert 'with its external data' in refusal(read_model, path)


def test_external_data_in_attributes_are_read_from_the_folder_only(written, tmp_path):
    value = helper.make_tensor('value', FLOAT, (1,), bytes(4), raw=True)
    value.ClearField('raw_data')
    value.data_location = EXTERNAL
    value.external_data.add(key='location', value='../secret')
    model = make([helper.make_node('Constant', [], ['c'], value=value), node('Add', 'x c')])
    assert 'outside of its folder' in refusal(read_model, written(model))


# --- operators --------------------------------------------------------------------------------------------------------------------------

IDENTITY = helper.make_graph([node('Identity', 'x', 'z')], 'body', [], [helper.make_tensor_value_info('z', FLOAT, ())])
STRING = helper.make_tensor('text', onnx.TensorProto.STRING, (1,), [b'a'])
SPARSE = helper.make_sparse_tensor(helper.make_tensor('values', FLOAT, (1,), [1.0]), helper.make_tensor('indices', INT64, (1,), [0]), (4,))

QONNX = 'qonnx.custom_op.general'


def recursive_function(name, called):
    return helper.make_function('own', name, ['a'], ['b'], [node(called, 'a', 'b', domain='own')], [helper.make_opsetid('own', 1)])


def with_sparse_initializer():
    model = make([node('Add', 'x values')])
    model.graph.sparse_initializer.append(SPARSE)
    return model


def sequence_input():
    model = make([node('ConcatFromSequence', 'x', axis=0)])
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info('x', FLOAT, (1,)))
    return model


def with_input(elements, shape=(1, 4, 6, 6)):
    model = make([node('Identity', 'x')])
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info('x', elements, shape))
    return model


def with_strange_dimension(tensor_field):
    model = binary_network()
    tensor_field(model.graph.initializer[0])
    return model


REFUSED = {
    'custom domain': lambda: make([node('Evil', 'x', domain='com.evil')], domains=['com.evil']),
    'domain of ONNX Runtime': lambda: make([node('FusedConv', 'x x', domain='com.microsoft')], domains=['com.microsoft']),
    'unknown operator': lambda: make([node('Evil', 'x')]),
    'old version': lambda: make([node('Identity', 'x')], opset=7),
    'new version': lambda: make([node('Identity', 'x')], opset=99),
    'branch': lambda: make([node('If', 'c', then_branch=IDENTITY, else_branch=IDENTITY)], {'c': np.array(True)}),
    'loop': lambda: make([node('Loop', 'n c x', body=IDENTITY)], {'n': np.int64(3), 'c': np.array(True)}),
    'recursive function': lambda: make([node('f', 'x', domain='own')], domains=['own'], functions=[recursive_function('f', 'f')]),
    'functions that call each other': lambda: make(
        [node('f', 'x', domain='own')], domains=['own'], functions=[recursive_function('f', 'g'), recursive_function('g', 'f')]
    ),
    'sparse constant': lambda: make([helper.make_node('Constant', [], ['c'], sparse_value=SPARSE), node('Add', 'x c')]),
    'sparse tensor': with_sparse_initializer,
    'string tensor': lambda: make([helper.make_node('Constant', [], ['c'], value=STRING), node('Identity', 'x')]),
    'strings': lambda: make([helper.make_node('Constant', [], ['c'], value_strings=['a']), node('Identity', 'x')]),
    'sequence input': sequence_input,
    'integer input': lambda: with_input(onnx.TensorProto.INT64),
    'input without axes': lambda: with_input(FLOAT, ()),
    'input of many axes': lambda: with_input(FLOAT, (1,) * 20),
    'name that is computed twice': lambda: make([node('Relu', 'x'), node('Neg', 'x')]),
    'cycle': lambda: make([node('Add', 'x b', 'a'), node('Relu', 'a', 'b'), node('Relu', 'b')]),
    'missing input': lambda: make([node('Add', 'x nowhere')]),
    'missing output': lambda: make([node('Relu', 'x', 'z')]),
    'no operator': lambda: make([]),
    'no output': lambda: make([node('Relu', 'x')], outputs=()),
    'names of two lines': lambda: make([node('Relu', 'x\x1b[2J'), node('Relu', 'x')]),
    'long name': lambda: make([node('Relu', 'x', 'a' * 10**6), node('Relu', 'x')]),
    'too few elements': lambda: with_strange_dimension(lambda tensor: tensor.dims.__setitem__(0, 9)),
    'negative size': lambda: with_strange_dimension(lambda tensor: tensor.dims.__setitem__(0, -8)),
    'sizes whose product overflows': lambda: with_strange_dimension(lambda tensor: tensor.dims.extend([1 << 32, 1 << 32])),
    'many axes': lambda: with_strange_dimension(lambda tensor: tensor.dims.extend([1] * 40)),
    'unknown type of elements': lambda: with_strange_dimension(lambda tensor: setattr(tensor, 'data_type', 99)),
    'attribute of another type': lambda: make([node('Flatten', 'x', axis='one')]),
    'quantizer without scale': lambda: make([node('BipolarQuant', 'x', domain=QONNX)], domains=[QONNX]),
    'quantizer with many inputs': lambda: make([node('Quant', 'x x x x x', domain=QONNX)], domains=[QONNX]),
    'quantizer with a number of bits that is none': lambda: make(
        [node('Quant', 'x one one bits', domain=QONNX)], {'one': np.float32(1), 'bits': np.ones(0, np.float32)}, domains=[QONNX]
    ),
    'quantizer with a rounding mode that is a number': lambda: make(
        [node('Quant', 'x one one two', domain=QONNX, rounding_mode=3)], {'one': np.float32(1), 'two': np.float32(2)}, domains=[QONNX]
    ),
    'operator without output': lambda: make([helper.make_node('Relu', ['x'], []), node('Relu', 'x')]),
    'attribute of no operator': lambda: make([node('Relu', 'x', alpha=3)]),
}


@pytest.mark.parametrize('kind', REFUSED)
def test_what_cannot_be_read_is_refused(kind, written):
    path = written(REFUSED[kind]())
    assert str(path) in refusal(read_model, path)


def test_too_many_operators_are_refused(written, monkeypatch):
    monkeypatch.setattr(model_module, 'MAX_NODES', 6)
    assert '7 operators' in refusal(read_model, written(binary_network()))


def test_functions_that_make_too_many_operators_are_refused(written):
    """Each calls the one before twice."""
    opsets = [helper.make_opsetid('', 17), helper.make_opsetid('own', 1)]
    functions = [helper.make_function('own', 'f0', ['a'], ['b'], [node('Relu', 'a', 'b')], opsets)]
    for number in range(1, 40):
        calls = [node(f'f{number - 1}', 'a', 'c', domain='own'), node(f'f{number - 1}', 'c', 'b', domain='own')]
        functions.append(helper.make_function('own', f'f{number}', ['a'], ['b'], calls, opsets))
    path = written(make([node('f39', 'x', domain='own')], domains=['own'], functions=functions))
    assert 'operators, including its functions' in refusal(read_model, path)


def test_names_that_are_not_text_are_refused(written):
    model = make([node('Relu', 'x', 'unusual'), node('Relu', 'unusual')]).SerializeToString()
    assert 'a name that is not text' in refusal(read_model, written(model.replace(b'unusual', b'unus\xffal')))


def test_a_bias_of_another_shape_is_refused(written, tmp_path):
    model = binary_network()
    model.graph.node[4].input.append('bias')
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), 'bias'))
    assert 'bias' in refusal(import_onnx, written(model), tmp_path / 'packed')


def test_values_without_elements_are_refused(written, tmp_path):
    model = binary_network()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((8, 0, 1, 1), np.float32), 'none'))
    model.graph.node.insert(1, node('Mul', 'a none', 'nothing'))
    model.graph.node[2].input[0] = 'nothing'
    refusal(import_onnx, written(model), tmp_path / 'packed')


def test_functions_are_inlined(written):
    body = helper.make_function('own', 'f', ['a'], ['b'], [node('Relu', 'a', 'b')], [helper.make_opsetid('', 17)])
    model = read_model(written(make([node('f', 'x', domain='own')], domains=['own'], functions=[body])))
    assert [operator.kind for operator in model.operators] == ['Relu']


def test_nodes_of_one_name_get_others_in_little_time(written):
    nodes = [helper.make_node('Relu', ['x' if i == 0 else f'v{i}'], [f'v{i + 1}'], name='same') for i in range(5000)]
    model = read_model(written(make(nodes, outputs=('v5000',))))
    assert len({operator.name for operator in model.operators}) == 5000
    assert max(len(operator.name) for operator in model.operators) < 12


# --- memory, time and crashes -------------------------------------------------------------------------------------------------------------

SIZES = np.array([1, 4, 1 << 18, 1 << 18], np.int64)
BOMBS = {
    'ConstantOfShape': lambda: make(
        [node('ConstantOfShape', 'sizes', 'c'), node('ReduceMax', 'c', 'm'), node('Add', 'x m')], {'sizes': SIZES}
    ),
    'Expand': lambda: make([node('Expand', 'x sizes')], {'sizes': SIZES}, {'x': (1, 4, 1, 1)}),
    'Tile': lambda: make([node('Tile', 'x sizes')], {'sizes': SIZES}),
    'Range': lambda: make(
        [node('Range', 'zero many one', 'r'), node('ReduceMax', 'r', 'm', keepdims=0), node('Add', 'x m')],
        {'zero': np.float32(0), 'many': np.float32(1e12), 'one': np.float32(1)},
    ),
    'Resize': lambda: make([node('Resize', 'x  s', mode='nearest')], {'s': np.array([1, 1, 1e5, 1e5], np.float32)}),
    'Pad': lambda: make([node('Pad', 'x p')], {'p': np.array([0, 0, 1 << 17, 1 << 17, 0, 0, 1 << 17, 1 << 17], np.int64)}),
    'convolution': lambda: make([node('Conv', 'x w', pads=[1 << 16] * 4)], {'w': np.ones((1, 4, 1, 1), np.float32)}),
    'OneHot': lambda: make(
        [node('ArgMax', 'x', 'i', axis=1), node('OneHot', 'i depth values')],
        {'depth': np.int64(1 << 40), 'values': np.array([0, 1], np.float32)},
    ),
}


def resized(model):
    """Make an empty input of the nodes with an empty name."""
    for each in model.graph.node:
        if each.op_type == 'Resize':
            del each.input[:]
            each.input.extend(['x', '', 's'])
    return model


@pytest.mark.parametrize('kind', BOMBS)
def test_models_that_need_more_memory_than_allowed_are_refused(kind, written, monkeypatch):
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', str(1 << 30))
    path = written(resized(BOMBS[kind]()))
    assert 'takes more than 1073741824 bytes' in refusal(tried, path, None)


def test_large_inputs_are_refused(written, monkeypatch):
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', str(1 << 30))
    path = written(make([node('Relu', 'x')], inputs={'x': (1, 4, 'h', 'w')}))
    assert 'more than 1073741824 bytes' in refusal(tried, path, (1, 4, 1 << 13, 1 << 13))
    model = read_model(path)
    assert 'elements' in refusal(input_shapes, model, (1, 4, 1 << 20, 1 << 20))
    assert 'leaves the shape of its input x open' in refusal(input_shapes, model, None)
    for shape in ((), (1, 0, 2, 2), ('a',), {'z': (1, 2)}):
        refusal(input_shapes, model, shape)
    refusal(Evaluator, model, {'x': (1, 4)})


def test_models_that_take_longer_than_allowed_are_refused(written, monkeypatch):
    monkeypatch.setattr('bmx_melius.deployment.onnx.trial.MAX_SECONDS', 1)
    weight = np.ones((512, 512, 7, 7), np.float32)
    nodes = [node('Conv', f'{"x" if i == 0 else f"v{i}"} w', f'v{i + 1}', pads=[3] * 4) for i in range(200)]
    path = written(make(nodes, {'w': weight}, {'x': (1, 512, 64, 64)}, outputs=('v200',)))
    assert 'more than 1 s' in refusal(tried, path, None)


def test_models_whose_values_take_long_to_recognize_are_refused(written, tmp_path, monkeypatch):
    """Values of two levels that are not steps, a chain of them: each could begin at any of those before it."""
    monkeypatch.setattr(evaluation_module, 'MAX_OPERATIONS', 1 << 28)
    model = binary_network()
    first, *others = model.graph.node
    nodes = [
        first,
        node('Less', 'a one', 'b'),
        node('Greater', 'a minus', 'd'),
        node('And', 'b d', 'e'),
        node('Where', 'e one minus', 'n0'),
    ]
    nodes += [node('Neg', f'n{i}', f'n{i + 1}') for i in range(200)]
    others[0].input[0] = 'n200'
    nodes += others
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    refused = refusal(import_onnx, written(model), tmp_path / 'packed')
    assert 'the search for signs and quantizers takes too long' in refused and 'onnxsim' in refused


def test_an_import_refuses_before_it_reads_the_model_itself(written, tmp_path, monkeypatch):
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', str(1 << 30))
    monkeypatch.setattr('bmx_melius.deployment.onnx.conversion.with_factors_after_layers', None)
    refusal(import_onnx, written(BOMBS['ConstantOfShape']()), tmp_path / 'packed')
    assert not (tmp_path / 'packed-symbol.json').exists()


def behind(nodes, constants, output):
    """Return a small binary network whose first layer reads a value `output` that nodes compute."""
    model = binary_network()
    model.graph.node[0].input[0] = output
    layers = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *layers])
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    return model


def megabytes(number):
    return np.array([1, 4, number, 1 << 16], np.int64)


def test_a_constant_that_only_leads_to_others_is_not_held_twice(written, tmp_path):
    nodes = [node('ConstantOfShape', 'sizes', 'big'), node('ReduceMax', 'big', 'm', keepdims=0), node('Add', 'x m', 'z')]
    path = written(behind(nodes, {'sizes': megabytes(300)}, 'z'))
    program = (
        'import resource, sys, bmx_melius; before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; '
        'assert bmx_melius.import_onnx(sys.argv[1], sys.argv[2]).binary_layers == 1; '
        'print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)'
    )
    done = subprocess.run([sys.executable, '-c', program, path, tmp_path / 'packed'], check=True, capture_output=True)
    assert int(done.stdout) * 1024 < 450e6


def test_values_of_which_an_import_cannot_hold_copies_are_refused_before_it_computes_them(written, tmp_path, monkeypatch):
    nodes = [node('Tile', 'x repeats', 't'), node('ReduceMax', 't', 'm', axes=[2, 3]), node('Add', 'x m', 'z')]
    path = written(behind(nodes, {'repeats': np.array([1, 1, 1000, 1000], np.int64)}, 'z'))
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', str(2 * 10**9))  # once takes 0.7e9
    monkeypatch.setattr('bmx_melius.deployment.onnx.conversion.with_factors_after_layers', None)
    assert 'of which an import needs 4 times as many' in refusal(import_onnx, path, tmp_path / 'packed')


TEXT = onnx.TensorProto.STRING
NOT_TENSORS = {
    'sequence': [node('SequenceConstruct', 'x x', 'q'), node('SequenceAt', 'q index', 'z')],
    'split sequence': [node('SplitToSequence', 'x', 'q', axis=1), node('ConcatFromSequence', 'q', 'z', axis=1)],
    'sequence in an optional value': [node('SequenceConstruct', 'x x', 'q'), node('Optional', 'q', 'o'), node('Relu', 'x', 'z')],
    'text': [node('Cast', 'x', 't', to=TEXT), node('Cast', 't', 'z', to=FLOAT)],
}


@pytest.mark.parametrize('kind', NOT_TENSORS)
def test_values_that_are_not_tensors_of_numbers_are_refused_by_name(kind, written, tmp_path):
    refused = refusal(import_onnx, written(behind(NOT_TENSORS[kind], {'index': np.int64(0)}, 'z')), tmp_path / 'packed')
    assert f'({NOT_TENSORS[kind][0].op_type})' in refused and 'only tensors of real numbers are supported' in refused


NORM = {'gamma': np.ones(8), 'beta': np.zeros(8), 'mean': np.zeros(8), 'var': np.ones(8)}


def normalized(changed, number):
    parameters = {name: array.astype(np.float32) for name, array in NORM.items()}
    attributes = {'epsilon': number} if changed == 'epsilon' else {}
    if not attributes:
        parameters[changed][2] = number
    model = binary_network()
    model.graph.node.insert(1, node('BatchNormalization', 'a gamma beta mean var', 'n', **attributes))
    model.graph.node[2].input[0] = 'n'
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in parameters.items())
    return model


@pytest.mark.parametrize('number', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('changed', [*NORM, 'epsilon'])
def test_normalizations_that_are_not_numbers_are_refused(number, changed, written, tmp_path):
    refused = refusal(import_onnx, written(normalized(changed, number)), tmp_path / 'packed', None, False, False)
    assert f'{changed}, which node n (BatchNormalization) reads, has elements that are infinite or NaN' in refused


CONSTANTS = {  # before the first layer, with a constant `number`
    'Add': [node('Add', 'x number', 'z')],
    'Mul': [node('Mul', 'number x', 'z')],
    'PRelu': [node('PRelu', 'x number', 'z')],
    'Clip': [node('Clip', 'x number', 'z')],
    'Max': [node('Max', 'x number', 'z')],
    'what operators compute': [node('Neg', 'number', 'n'), node('Sqrt', 'n', 'root'), node('Add', 'x root', 'z')],
}


@pytest.mark.parametrize('kind', CONSTANTS)
def test_constants_of_any_operator_that_are_nan_are_refused(kind, written, tmp_path):
    number = np.float32(1 if kind == 'what operators compute' else np.nan)
    model = behind(CONSTANTS[kind], {'number': number}, 'z')
    assert 'infinite or NaN' in refusal(import_onnx, written(model), tmp_path / 'packed', None, False, False)
    attribute = behind([node('LeakyRelu', 'x', 'z', alpha=np.nan)], {}, 'z')
    assert 'alpha, which node z' in refusal(import_onnx, written(attribute), tmp_path / 'packed', None, False, False)


@pytest.mark.parametrize('kind, number', [('Clip', -np.inf), ('Max', -np.inf)])
def test_limits_may_be_infinite(kind, number, written, tmp_path):
    import_onnx(written(behind(CONSTANTS[kind], {'number': np.float32(number)}, 'z')), tmp_path / 'packed')


@pytest.mark.parametrize('number', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('tensor', [0, 1])
def test_weights_that_are_not_numbers_are_refused(number, tensor, written, tmp_path):
    model = binary_network()
    weight = numpy_helper.to_array(model.graph.initializer[tensor]).copy()
    weight[1, 2, 0, 1] = number
    model.graph.initializer[tensor].raw_data = weight.tobytes()
    assert 'has elements that are infinite or NaN' in refusal(import_onnx, written(model), tmp_path / 'packed', None, False, False)
