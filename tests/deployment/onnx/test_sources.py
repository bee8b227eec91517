"""Models of other libraries, made by these: their layers are found, and the packed network computes what ONNX Runtime does."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from support.long_runs import some_long
from support.onnx_models import FOLDER, recorded_input, unpacked

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.deployment.program.operation_table import MAX_LEVEL_BITS

MODELS = json.loads((FOLDER / 'models.json').read_text())
REFUSED = {
    'float-only': 'this network has no binary layer',
    'recurrent': r'node /memory/GRU \(GRU\) has a state from one step to the next, for which there is no packed form',
    'birealnet-any-size': r'leaves the shape of its input input open \(1,3,\?,\?\)',
}
EXPORTED_AGAIN = [name for name in MODELS if name.endswith('-dynamo') and not name.startswith(('transformer', 'reactnet-a'))]
OF_FEW_BITS = ('binary', 'low_bit', 'ternary')  # kinds of layers that are counted in the data


def before_the_state(inputs, folder):
    """The value before the GRU of the model, computed by ONNX Runtime."""
    proto = onnx.load(unpacked('recurrent', folder))
    (memory,) = (node for node in proto.graph.node if node.op_type == 'GRU')
    (moved,) = (node for node in proto.graph.node if memory.input[0] in node.output)
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(moved.input[0]))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return moved.input[0], session.run([moved.input[0]], {session.get_inputs()[0].name: inputs})[0]


def test_what_is_before_a_layer_with_a_state_is_packed_and_the_rest_is_named(tmp_path):
    inputs = recorded_input('recurrent')[:1]  # the model has a batch of 1
    name, expected = before_the_state(inputs, tmp_path)
    model = unpacked('recurrent', tmp_path)
    with pytest.raises(UserError, match=rf'pack what is before it with --outputs {re.escape(name)} '):
        bmx.import_onnx(model, tmp_path / 'packed', zero_is_positive=True)
    report = bmx.import_onnx(model, tmp_path / 'packed', zero_is_positive=True, outputs=[name])
    assert report.binary_layers == 1 and report.outputs == [name]
    (note,) = (note for note in report.notes if note.startswith(f'left out after {name}: '))
    assert '/memory/GRU (GRU)' in note and '(Gemm)' in note and '/layer/' not in note.partition(': ')[2]
    np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(inputs), expected, atol=1e-5)


def test_a_network_may_end_at_operators_by_name_in_any_order_and_unknown_names_are_refused(tmp_path, capsys):
    model = unpacked('birealnet-opset17', tmp_path)
    by_kind = {node.op_type: node for node in onnx.load(model).graph.node}
    pool, last = by_kind['GlobalAveragePool'], by_kind['Gemm']
    report = bmx.import_onnx(model, tmp_path / 'both', zero_is_positive=True, outputs=[last.name, pool.output[0]])
    assert report.outputs == [last.output[0], pool.output[0]] and not any('left out after' in note for note in report.notes)
    inputs = recorded_input('birealnet-opset17')
    logits, pooled = bmx.Session(tmp_path / 'both')(inputs)
    arguments = ['import-onnx', str(model), str(tmp_path / 'part'), '--zero-is-positive', '--outputs', pool.name]
    assert main(arguments) == 0 and f'left out after {pool.output[0]}: ' in capsys.readouterr().out
    np.testing.assert_array_equal(bmx.Session(tmp_path / 'part')(inputs), pooled)
    bmx.import_onnx(model, tmp_path / 'whole', zero_is_positive=True)
    np.testing.assert_array_equal(bmx.Session(tmp_path / 'whole')(inputs), logits)
    with pytest.raises(UserError, match=rf"has no operator and no value 'fc'; its operators are, from the end, {re.escape(last.name)}"):
        bmx.import_onnx(model, tmp_path / 'none', zero_is_positive=True, outputs=['fc'])


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize('name', some_long([name for name in MODELS if name not in REFUSED], *EXPORTED_AGAIN))
def test_layers_of_a_model_are_packed_and_results_are_those_of_onnx_runtime(name, tmp_path):
    report = bmx.import_onnx(unpacked(name, tmp_path), tmp_path / 'packed', zero_is_positive=True)
    assert report.binary_layers == sum(MODELS[name].get(kind, 0) for kind in OF_FEW_BITS)
    of_levels = [layer for layer in report.layers if layer.reason and layer.bits <= MAX_LEVEL_BITS]
    assert len(of_levels) == MODELS[name].get('levels', 0)
    assert report.conversion.verification.largest_deviation < 1e-5 and report.conversion.size_after < report.conversion.size_before
    session, recorded = bmx.Session(tmp_path / 'packed'), np.load(FOLDER / f'{name}.npz')
    inputs = [recorded[key] for key in recorded.files if key.startswith('input.')]
    inputs = [x.astype(np.float32) for x in inputs]  # some are 8-bit integers
    moved = [np.moveaxis(x, -1, 1) if 'channels second' in ' '.join(report.notes) else x for x in inputs]
    results = session(*moved)
    results = dict(zip(report.outputs, results if isinstance(results, list) else [results]))
    expected = {key.partition('.')[2]: recorded[key] for key in recorded.files if key.startswith('graph.')}
    left_out = ' '.join(report.notes)
    compared = 0
    for output, wanted in expected.items():
        if output in results:
            result = results[output]
        elif 'left out at the end: Softmax' in left_out:
            (result,) = (softmax(y) for y in results.values())
        else:
            assert 'left out at the end' in left_out
            continue
        np.testing.assert_allclose(result.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
        compared += 1
    assert compared


@pytest.mark.parametrize('name', REFUSED)
def test_models_without_binary_layers_or_a_shape_are_refused(name, tmp_path):
    with pytest.raises(UserError, match=REFUSED[name]):
        bmx.import_onnx(unpacked(name, tmp_path), tmp_path / 'packed', zero_is_positive=True)
    assert not list(tmp_path.glob('packed*'))


def test_a_model_of_any_size_takes_the_given_one(tmp_path):
    model = unpacked('birealnet-any-size', tmp_path)
    assert bmx.import_onnx(model, tmp_path / 'packed', (1, 3, 16, 16), zero_is_positive=True).binary_layers == 2


def test_signs_that_are_zero_are_refused_by_name_unless_zero_is_positive(tmp_path):
    with pytest.raises(UserError, match=r'the value .*Add_5_output_0 and 1 more is a sign that is 0 .* Give --zero-is-positive'):
        bmx.import_onnx(unpacked('birealnet-opset13', tmp_path), tmp_path / 'packed')


def test_signs_after_relu_are_strict_comparisons_and_need_no_permission(tmp_path):
    assert not bmx.import_onnx(unpacked('sign-after-relu', tmp_path), tmp_path / 'packed').notes


def test_an_imported_network_is_counted_and_exported_by_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, packed = os.fspath(unpacked('reactnet18', tmp_path)), os.fspath(tmp_path / 'packed')
    assert main(['import-onnx', model, packed, '--zero-is-positive', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['binary_layers'] == 3
    assert main(['summary', packed, '--input-size', '32']) == 0
    assert main(['export-onnx', packed, 'again.onnx', '--input-shape', '1,3,32,32']) == 0
    assert main(['import-onnx', 'again.onnx', 'again', '--input-shape', '1,3,32,32']) == 0
    x = np.random.RandomState(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    np.testing.assert_allclose(bmx.Session('again')(x), bmx.Session(packed)(x), rtol=1e-4, atol=1e-5)


def test_real_valued_layers_of_a_model_become_8_bit_ones(tmp_path):
    model = unpacked('larq-resnet-e', tmp_path)
    recorded = np.load(FOLDER / 'larq-resnet-e.npz')
    (x,) = (np.moveaxis(recorded[key], -1, 1) for key in recorded.files if key.startswith('input.'))
    images = np.random.RandomState(0).normal(size=(16, *x.shape[1:])).astype(np.float32)
    report = bmx.import_onnx(model, tmp_path / 'packed', calibration=images)
    assert report.conversion.quantization is not None and bmx.Session(tmp_path / 'packed')(x).shape == (2, 5)


def test_images_after_which_the_outputs_of_a_model_are_others_are_refused_unless_allowed(tmp_path, capsys):
    images = np.random.RandomState(0).normal(size=(16, 3, 32, 32)).astype(np.float32)
    images[3, 1, 5, 7] = 1e15
    np.save(tmp_path / 'x.npy', images)
    arguments = ['import-onnx', unpacked('reactnet18', tmp_path), tmp_path / 'packed', '--zero-is-positive', '--int8', tmp_path / 'x.npy']
    assert main([*map(os.fspath, arguments)]) == 2
    assert 'less than 0.5; nothing was written' in capsys.readouterr().err and not list(tmp_path.glob('packed*'))
    assert main([*map(os.fspath, arguments), '--min-correlation', '-1']) == 0


def test_files_are_the_same_without_mxnet(tmp_path):
    model = unpacked('reactnet18', tmp_path)
    bmx.import_onnx(model, tmp_path / 'with', zero_is_positive=True)
    program = (
        "import sys; sys.modules['mxnet'] = None; import bmx_melius; "
        'bmx_melius.import_onnx(sys.argv[1], sys.argv[2], zero_is_positive=True); '
        "assert 'mxnet' not in {name for name, module in sys.modules.items() if module}"
    )
    subprocess.run([sys.executable, '-c', program, os.fspath(model), os.fspath(tmp_path / 'without')], check=True)
    for suffix in ('-0000.params', '-symbol.json'):
        assert (tmp_path / f'with{suffix}').read_bytes() == (tmp_path / f'without{suffix}').read_bytes()


def test_a_network_of_sequences_is_counted_at_its_own_size_and_its_layers_have_the_names_of_the_model(tmp_path, capsys):
    report = bmx.import_onnx(unpacked('frames', tmp_path), tmp_path / 'packed', zero_is_positive=True)
    assert [layer.name for layer in report.layers] == [
        '/embedding/MatMul',
        '/layers/layers.0/MatMul',
        '/layers/layers.2/MatMul',
        '/output/MatMul',
    ]
    assert main(['summary', os.fspath(tmp_path / 'packed')]) == 0
    assert 'input 1 x 40 x 20' in capsys.readouterr().out
    session = bmx.Session(tmp_path / 'packed')
    assert session.input_shapes == [(None, 40, 20)]
    with pytest.raises(UserError, match=r'converted with inputs of \(40, 20\) and does not accept \(40, 21\)'):
        session(np.zeros((1, 40, 21), np.float32))
