"""Models of sequences: what reshapes, transposes and multiplies their tokens is packed, and computes what ONNX Runtime does."""

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.datasets import load_digits
from support.exported_c import compile_networks, exported, needs_gcc
from support.onnx_models import recorded_input, unpacked
from support.tiny_onnx import make, node, signs

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.onnx import export
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.packed_files import read_packed

pytestmark = pytest.mark.usefixtures('without_trial')

RANDOM = np.random.RandomState(0)
TOKENS, FEATURES, HEADS = 6, 8, 2


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


CONSTANTS = {
    'sixth': np.float32(0.1234567),
    'nought': np.float32(0),
    'one': np.float32(1),
    'minus': np.float32(-1),
    'first': normal(4, FEATURES),
    'weight': np.ascontiguousarray(signs(FEATURES, FEATURES)),
    'tokens': np.ascontiguousarray(signs(TOKENS, TOKENS)),
    'wide': normal(FEATURES, 3 * FEATURES),
    'bias': normal(FEATURES),
    'place': normal(1, TOKENS, FEATURES),
    'token': normal(1, 1, FEATURES),
    'heads': np.array([0, TOKENS, HEADS, -1]),
    'swapped': np.array([0, TOKENS, -1, HEADS]),
    'three': np.array([0, TOKENS, 3, HEADS, -1]),
    'rows': np.array([-1, FEATURES]),
    'back': np.array([-1, TOKENS, FEATURES]),
    'zero': np.array(0),
    'index1': np.array(1),
    'last': np.array(-1),
    'starts': np.array([2]),
    'ends': np.array([5]),
    'axis1': np.array([1]),
    'axis2': np.array([2]),
    'size': np.array([0, 3 * FEATURES]),
}
# the tokens of x, a binary layer of their features, and its result b
BEGIN = [
    node('MatMul', 'x first', 'a'),
    node('Less', 'a sixth', 'less'),
    node('Where', 'less minus one', 's'),
    node('MatMul', 's weight', 'c'),
    node('Add', 'c bias', 'b'),
]
QUERIES = [
    node('MatMul', 'b wide', 'qkv'),
    node('Reshape', 'qkv three', 'five'),
    node('Transpose', 'five', 'moved', perm=[2, 0, 3, 1, 4]),
    *(node('Gather', f'moved {index}', name, axis=0) for index, name in (('zero', 'q'), ('index1', 'k'), ('last', 'v'))),
]
SHARES = [
    *QUERIES,
    node('Transpose', 'k', 't', perm=[0, 1, 3, 2]),
    node('MatMul', 'q t', 'scores'),
    node('Softmax', 'scores', 'shares', axis=-1),
]
JOINED = [node('Transpose', 'mixed', 'joined', perm=[0, 2, 1, 3]), node('Reshape', 'joined back', 'y')]
AFTER = {
    'attention of heads': [*SHARES, node('MatMul', 'shares v', 'mixed'), *JOINED],
    'attention of bits with limits': [
        *SHARES,
        *(node('Div', 'shares sixth', 'd'), node('Round', 'd', 'r'), node('Clip', 'r nought one', 'bits'), node('Mul', 'bits sixth', 'p')),
        node('MatMul', 'p v', 'mixed'),
        *JOINED,
    ],
    'softmax of tokens': [node('Softmax', 'b', 'p', axis=1), node('Mul', 'p b', 'm'), node('ReduceSum', 'm axis1', 'y', keepdims=0)],
    'a product of features': [node('Transpose', 'b', 't', perm=[0, 2, 1]), node('MatMul', 't b', 'y')],
    'a binary layer of tokens': [
        node('Transpose', 's', 't', perm=[0, 2, 1]),
        node('MatMul', 't tokens', 'u'),
        node('Transpose', 'u', 'v', perm=[0, 2, 1]),
        node('Add', 'v b', 'y'),
    ],
    'a matrix on the left': [node('MatMul', 'tokens b', 'y')],
    'rows of tokens': [node('Reshape', 'b rows', 'r'), node('Gemm', 'r weight bias', 'g'), node('Reshape', 'g back', 'y')],
    'constants of tokens and positions': [node('Add', 'b place', 'p'), node('Concat', 'token p', 'y', axis=1)],
    'two sequences': [node('Concat', 'b s token', 'y', axis=1)],
    'features beside features': [node('Concat', 'b s', 'y', axis=2)],
    'some tokens': [node('Slice', 'b starts ends axis1', 'y')],
    'the last token': [node('Gather', 'b last', 'y', axis=1)],
    'the mean of the features': [node('ReduceMean', 'b', 'm', axes=[2], keepdims=1), node('Sub', 'b m', 'y')],
    'the maximum of the tokens': [node('ReduceMax', 'b', 'm', axes=[1], keepdims=1), node('Sub', 'b m', 'y')],
    'flattened tokens': [node('Flatten', 'b', 'y')],
}


def saved(nodes, tmp_path, tokens=TOKENS):
    model = make([*BEGIN, *nodes], CONSTANTS, {'x': (1, tokens, 4)})
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    return tmp_path / 'net.onnx'


def digits_as_ids():
    """Return ids, as in tests/data/onnx/make_tokens.py, and labels of scikit-learn's digits that the network was not trained on."""
    images, labels = load_digits(return_X_y=True)
    test = np.concatenate([np.flatnonzero(labels == label)[::5] for label in range(10)])
    levels = np.minimum(images[test].astype(int) // 4, 3).reshape(-1, 4, 2, 4, 2)
    return levels.transpose(0, 1, 3, 2, 4).reshape(len(test), 16, 4) @ 4 ** np.arange(4), labels[test]


def of_tokens(nodes, tmp_path, name='ids', kind=onnx.TensorProto.INT64):
    """Return the path of a model of which rows of a table of 9, selected by an input of 6 integers, are the tokens."""
    table = {**CONSTANTS, 'table': normal(9, 4)}
    model = make([node('Gather', f'table {name}', 'x'), *BEGIN, *nodes], table, {name: (1, TOKENS)})
    model.graph.input[0].type.tensor_type.elem_type = kind
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    return tmp_path / 'net.onnx'


def test_a_transformer_of_ids_that_was_trained_on_digits_recognizes_others(tmp_path):
    report = bmx.import_onnx(unpacked('tokens', tmp_path), tmp_path / 'packed', zero_is_positive=True)
    assert report.binary_layers == 4 and report.conversion.verification.largest_deviation < 1e-5
    ids, labels = digits_as_ids()
    assert (bmx.Session(tmp_path / 'packed')(ids).argmax(axis=1) == labels).mean() > 0.95


@pytest.mark.parametrize('kind', [onnx.TensorProto.INT64, onnx.TensorProto.INT32])
def test_ids_are_packed_with_their_table_and_others_are_refused_by_their_place(kind, tmp_path):
    path = of_tokens([node('ReduceMean', 'b', 'y', axes=[1], keepdims=0)], tmp_path, kind=kind)
    report = bmx.import_onnx(path, tmp_path / 'packed')
    assert report.binary_layers == 1 and 'the input ids takes ids, integers from 0 to 8' in report.notes
    session, ids = bmx.Session(tmp_path / 'packed'), np.array([[8, 0, 3, 3, 1, 7]])
    dtype = np.int64 if kind == onnx.TensorProto.INT64 else np.int32
    expected = onnxruntime.InferenceSession(path.read_bytes()).run(None, {'ids': ids.astype(dtype)})[0]
    for given in (ids, ids.astype(np.uint8), ids.astype(np.float32)):
        np.testing.assert_allclose(session(given), expected, rtol=1e-4, atol=1e-5)
    for wrong in (-1, 9):
        with pytest.raises(UserError, match=rf'input 0 \(ids\) has the id {wrong} at \(0, 4\); the embedding has the ids 0 to 8'):
            session(np.array([[8, 0, 3, 3, wrong, 7]]))


def test_integers_that_are_more_than_ids_are_refused(tmp_path):
    nodes = [node('Cast', 'ids', 'f', to=onnx.TensorProto.FLOAT), node('Unsqueeze', 'f axis2', 'g'), node('Mul', 'b g', 'y')]
    with pytest.raises(UserError, match=r'the input ids has ids for an embedding, but node f \(Cast\) reads it as well'):
        bmx.import_onnx(of_tokens(nodes, tmp_path), tmp_path / 'packed')


@pytest.mark.parametrize(('begin', 'end'), [(20, 21), (0, 3), (5, 40), (39, 40)])
def test_any_tokens_of_a_long_sequence_are_selected_without_a_convolution(begin, end, tmp_path):
    constants = {**CONSTANTS, 'begin': np.array([begin]), 'end': np.array([end])}
    nodes = [*BEGIN, node('Slice', 'b begin end axis1', 'some'), node('MatMul', 'some weight', 'y')]
    model = make(nodes, constants, {'x': (1, 40, 4)})
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed')
    program, x = read_packed(tmp_path / 'packed')[0], normal(1, 40, 4)
    assert all(operation.attributes['kernel_w'] == 1 for operation in program.operations if operation.name == 'conv')
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {'x': x})[0]
    y = bmx.Session(tmp_path / 'packed')(x)
    assert y.shape == expected.shape == (1, end - begin, FEATURES)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize('case', AFTER)
def test_what_is_done_with_tokens_is_packed(case, tmp_path):
    path = saved(AFTER[case], tmp_path)
    report = bmx.import_onnx(path, tmp_path / 'packed')
    assert report.binary_layers == 1 + (case == 'a binary layer of tokens') and report.conversion.verification.largest_deviation < 1e-5
    x = normal(1, TOKENS, 4)
    (expected,) = onnxruntime.InferenceSession(path.read_bytes(), providers=['CPUExecutionProvider']).run(None, {'x': x})
    y = bmx.Session(tmp_path / 'packed')(x)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_heads_that_are_not_successive_features_are_refused_by_the_name_of_the_product(tmp_path):
    nodes = [
        node('Reshape', 'b swapped', 'h'),
        node('Transpose', 'h', 'q', perm=[0, 3, 1, 2]),
        node('Transpose', 'h', 'k', perm=[0, 3, 2, 1]),
        onnx.helper.make_node('MatMul', ['q', 'k'], ['y'], name='scores'),
    ]
    with pytest.raises(UserError, match='node scores_input.* it reshapes'):
        bmx.import_onnx(saved(nodes, tmp_path), tmp_path / 'packed')


@needs_gcc
@pytest.mark.parametrize('name', ['transformer-dynamo', 'mixer-rms-dynamo', 'keyword-spotter-dynamo', 'tokens-dynamo'])
def test_a_network_of_sequences_has_the_bits_of_the_engine_in_c_and_its_results_in_onnx(name, tmp_path):
    engine.require_engine()
    bmx.import_onnx(unpacked(name, tmp_path), tmp_path / 'packed', zero_is_positive=True, verify=False)
    program = read_packed(tmp_path / 'packed')[0]
    x = recorded_input(name)
    y = bmx.Session(tmp_path / 'packed')(x)
    compiled = compile_networks(tmp_path, {'net': exported(program, 'net')}, ['-O2'])
    np.testing.assert_array_equal(compiled.run('net', [x])[0].reshape(y.shape), y)
    shaped = [x.reshape(len(x), *program.inputs[0].shape).astype(np.float32)]
    assert export.verify(export.to_onnx(program, ['x']), program, shaped) < export.TOLERANCE
