"""Models that export-onnx writes are imported again: the same results, and the same program where the model contains it."""

import json
import os
import random

import numpy as np
import pytest
from support.onnx_models import unpacked
from support.random_programs import Maker
from support.tiny_onnx import networks

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.deployment.onnx import trial
from bmx_melius.deployment.onnx.export import to_onnx
from bmx_melius.deployment.onnx.translation import Translator
from bmx_melius.deployment.program.operation_table import OPERATIONS
from bmx_melius.deployment.runtime.packed_files import read_packed

onnx = pytest.importorskip('onnx')
SHAPE = ['--input-shape', '1,3,32,32']
X = np.random.RandomState(0).normal(size=(16, 3, 32, 32)).astype(np.float32)
RECOGNIZED = [name for name, row in OPERATIONS.items() if row.recognized and not row.is_integer_layer]


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """Return a function from a form of layers to the prefix of a packed network, whose model is PREFIX.onnx."""
    folder = tmp_path_factory.mktemp('exported')
    model = unpacked('reactnet18', folder)
    np.save(folder / 'x.npy', X)
    flags = {'float': [], 'half': ['--half'], 'int8': ['--int8', os.fspath(folder / 'x.npy')]}

    def export(form):
        prefix = os.fspath(folder / form)
        if not os.path.exists(f'{prefix}.onnx'):
            assert main(['import-onnx', os.fspath(model), prefix, '--zero-is-positive', *flags[form]]) == 0
            assert main(['export-onnx', prefix, f'{prefix}.onnx', *SHAPE]) == 0
        return prefix

    return export


@pytest.mark.parametrize('form', ['float', 'half', 'int8'])
def test_an_exported_network_is_imported_with_the_same_results(form, exported, tmp_path):
    prefix = exported(form)
    report = bmx.import_onnx(f'{prefix}.onnx', tmp_path / 'again', (1, 3, 32, 32))
    assert report.binary_layers == 3 and len(report.layers) == 6 and str(report)
    np.testing.assert_array_equal(bmx.Session(tmp_path / 'again')(X), bmx.Session(prefix)(X))
    if form == 'int8':
        np.testing.assert_array_equal(read_packed(tmp_path / 'again')[1], read_packed(prefix)[1])
    assert main(['export-onnx', os.fspath(tmp_path / 'again'), os.fspath(tmp_path / 'again.onnx'), *SHAPE]) == 0


@pytest.mark.parametrize('number', range(len(networks())))
def test_an_exported_network_of_each_form_of_layer_is_imported_with_the_same_results(number, tmp_path):
    onnx.save(networks()[number], tmp_path / 'net.onnx')
    bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed', zero_is_positive=True)
    assert main(['export-onnx', os.fspath(tmp_path / 'packed'), os.fspath(tmp_path / 'out.onnx'), '--input-shape', '1,4,6,6']) == 0
    bmx.import_onnx(tmp_path / 'out.onnx', tmp_path / 'again', (1, 4, 6, 6))
    x = np.random.RandomState(1).normal(size=(3, 4, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(bmx.Session(tmp_path / 'again')(x), bmx.Session(tmp_path / 'packed')(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('form', [[], ['--qonnx']])
@pytest.mark.parametrize('name', ['transformer', 'tokens', 'mixer'])
def test_an_exported_network_of_sequences_is_imported_as_the_same_program(name, form, tmp_path):
    bmx.import_onnx(unpacked(name, tmp_path), tmp_path / 'packed', zero_is_positive=True)
    assert main(['export-onnx', os.fspath(tmp_path / 'packed'), os.fspath(tmp_path / 'out.onnx'), *form]) == 0
    report = bmx.import_onnx(tmp_path / 'out.onnx', tmp_path / 'again')
    assert report.binary_layers
    np.testing.assert_array_equal(read_packed(tmp_path / 'again')[1], read_packed(tmp_path / 'packed')[1])


def is_recognized(program, path):
    """Return whether an import translates all operators of the model of a program, for one image."""
    model = to_onnx(program, [f'x{number}' for number in range(len(program.inputs))])
    for value, entry in zip(program.inputs, model.graph.input):
        entry.CopyFrom(onnx.helper.make_tensor_value_info(entry.name, onnx.TensorProto.FLOAT, [1, *value.shape]))
    del model.metadata_props[:]
    onnx.save(model, path)
    read, evaluator = trial.computed(path, None)
    try:
        Translator(evaluator).translate(read.outputs)
    except UserError:
        return False
    return True


def recognized_programs():
    """Yield random programs of operations that an import recognizes."""
    for seed in range(3000):
        program = Maker(random.Random(seed), exact=bool(seed % 2)).program(4)
        if all(operation.name in RECOGNIZED for operation in program.operations):
            yield program


@pytest.mark.parametrize('name', [name for name in RECOGNIZED if not OPERATIONS[name].is_exact])  # binary layers: the networks above
def test_an_operation_that_is_exported_without_its_program_is_recognized(name, tmp_path):
    programs = (program for program in recognized_programs() if any(operation.name == name for operation in program.operations))
    assert any(is_recognized(program, tmp_path / 'net.onnx') for program in programs)  # not each: some constants are degenerate


def changed(prefix, tmp_path, change):
    model = onnx.load(f'{prefix}.onnx')
    change(model)
    onnx.save(model, tmp_path / 'changed.onnx')
    return tmp_path / 'changed.onnx'


def set_metadata(model, content):
    (entry,) = (entry for entry in model.metadata_props if entry.key == 'bmx_melius_program')
    entry.value = content if isinstance(content, str) else json.dumps({**json.loads(entry.value), **content})


def change_weight(model):
    weight = next(tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.UINT8 and len(tensor.dims) == 4)
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0] ^= 255
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda model: set_metadata(model, 'x'), 'a damaged program in its metadata'),
        (lambda model: set_metadata(model, '[1]'), 'a damaged program in its metadata'),
        (lambda model: set_metadata(model, {'words': 'AAAA'}), 'a damaged program in its metadata'),
        (lambda model: set_metadata(model, {'outputs': [7]}), 'have other inputs or outputs'),
        (change_weight, 'was changed after its export'),
    ],
)
def test_a_program_that_is_not_that_of_the_model_is_refused(change, message, exported, tmp_path):
    with pytest.raises(UserError, match=message):
        bmx.import_onnx(changed(exported('int8'), tmp_path, change), tmp_path / 'again')
    assert not list(tmp_path.glob('again*'))


def test_what_a_model_with_a_program_computes_is_limited_too(exported, tmp_path, monkeypatch):
    def insert(model):
        sizes = onnx.numpy_helper.from_array(np.array([1, 4, 1 << 18, 1 << 18]), 'bomb_sizes')
        model.graph.initializer.append(sizes)
        model.graph.node.insert(0, onnx.helper.make_node('ConstantOfShape', ['bomb_sizes'], ['bomb']))

    monkeypatch.setattr('bmx_melius.deployment.onnx.conversion._read_back', None)  # the trial refuses it
    with pytest.raises(UserError):
        bmx.import_onnx(changed(exported('int8'), tmp_path, insert), tmp_path / 'again')


def test_layers_of_a_stored_program_are_not_converted_again(exported, tmp_path):
    for options in ({'half': True}, {'calibration': X}):
        with pytest.raises(UserError, match='contains its program, whose layers are not converted'):
            bmx.import_onnx(f'{exported("int8")}.onnx', tmp_path / 'again', **options)
