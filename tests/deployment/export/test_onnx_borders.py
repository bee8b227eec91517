"""Exported models have inputs and outputs in the shapes of the network, also where its program has other ones."""

import os

import mxnet as mx
import numpy as np
import onnxruntime
import pytest
from mxnet import gluon
from support.onnx_models import recorded_input, unpacked
from support.small_networks import initialized

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.deployment.onnx import qonnx
from bmx_melius.deployment.runtime.packed_files import read_packed

onnx = pytest.importorskip('onnx')
LAYERS = {3: (bmx.QConv1D, gluon.nn.Conv1D, (1, 4, 9)), 5: (bmx.QConv3D, gluon.nn.Conv3D, (1, 4, 3, 6, 5))}
FORMS = pytest.mark.parametrize('form', [[], ['--qonnx']], ids=['plain', 'qonnx'])


def computed(path, form, x):
    model = onnx.load(path)
    model = qonnx.without_quantizers(onnx, model, 'the model') if form else model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    batches = np.split(x, len(x)) if form else [x]  # QONNX has fixed shapes
    return np.concatenate([session.run(None, {session.get_inputs()[0].name: batch})[0] for batch in batches])


def check(folder, form, x):
    """Compare the model of a packed network with its session, and the network that it becomes when it is imported again."""
    packed, path, again = folder / 'packed', folder / 'out.onnx', folder / 'again'
    assert main(['export-onnx', os.fspath(packed), os.fspath(path), *form]) == 0
    session = bmx.Session(packed)
    expected = session(x)
    np.testing.assert_allclose(computed(path, form, x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    shape = None if form else x[:1].shape
    bmx.import_onnx(path, again, shape)
    found = bmx.Session(again)
    np.testing.assert_allclose(found(x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert found.input_names == session.input_names


@FORMS
def test_a_network_of_sequences_has_inputs_of_sequences(form, tmp_path):
    bmx.import_onnx(unpacked('mixer', tmp_path), tmp_path / 'packed', zero_is_positive=True)
    x = recorded_input('mixer')[:3].astype(np.float32)
    assert bmx.Session(tmp_path / 'packed').input_names and x.ndim == 3
    check(tmp_path, form, x)
    np.testing.assert_array_equal(read_packed(tmp_path / 'again')[1], read_packed(tmp_path / 'packed')[1])


@FORMS
@pytest.mark.parametrize('rank', LAYERS)
def test_networks_of_lines_and_volumes_have_inputs_and_outputs_of_their_shape(rank, form, export, tmp_path):
    binary, real, shape = LAYERS[rank]
    net = gluon.nn.HybridSequential()
    net.add(real(8, 3, padding=1, in_channels=4), bmx.QActivation(), binary(8, 3, padding=1, in_channels=8))
    symbol, params = export(initialized(net, shape))
    bmx.convert(symbol, params, tmp_path / 'packed', shape)
    x = np.random.RandomState(0).normal(size=(3, *shape[1:])).astype(np.float32)
    assert bmx.Session(tmp_path / 'packed')(x).ndim == rank
    check(tmp_path, form, x)


@FORMS
def test_a_model_that_was_changed_before_a_border_is_refused(form, tmp_path):
    bmx.import_onnx(unpacked('mixer', tmp_path), tmp_path / 'packed', zero_is_positive=True)
    assert main(['export-onnx', os.fspath(tmp_path / 'packed'), os.fspath(tmp_path / 'out.onnx'), *form]) == 0
    model = onnx.load(tmp_path / 'out.onnx')
    (name,), three = [entry.name for entry in model.graph.input], onnx.numpy_helper.from_array(np.float32(3), 'three')
    (border,) = (node for node in model.graph.node if name in node.input)
    border.input[0] = 'more'
    model.graph.node.insert(0, onnx.helper.make_node('Add', [name, 'three'], ['more']))
    model.graph.initializer.append(three)
    onnx.save(model, tmp_path / 'out.onnx')
    with pytest.raises(UserError, match='was changed after its export'):
        bmx.import_onnx(tmp_path / 'out.onnx', tmp_path / 'again')


def test_names_of_inputs_may_be_those_of_borders(export, tmp_path):
    data, other = mx.sym.var('output0_border'), mx.sym.var('output0_border_shape_value')
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv3D(8, 3, padding=1, in_channels=4), bmx.QActivation(), bmx.QConv3D(8, 3, padding=1, in_channels=8))
    shape = LAYERS[5][2]
    net = initialized(net, shape)
    files = tmp_path / 'net-symbol.json', tmp_path / 'net-0000.params'
    net(data + other).save(os.fspath(files[0]))
    mx.nd.save(os.fspath(files[1]), {f'arg:{name}': value.data() for name, value in net.collect_params().items()})
    bmx.convert(*files, tmp_path / 'packed', {data.name: shape, other.name: shape})
    assert main(['export-onnx', os.fspath(tmp_path / 'packed'), os.fspath(tmp_path / 'out.onnx')]) == 0
    x = np.random.RandomState(0).normal(size=(2, *shape)).astype(np.float32)
    session = onnxruntime.InferenceSession((tmp_path / 'out.onnx').read_bytes(), providers=['CPUExecutionProvider'])
    (found,) = session.run(None, {data.name: x[0], other.name: x[1]})
    np.testing.assert_allclose(found, bmx.Session(tmp_path / 'packed')(*x), rtol=1e-4, atol=1e-4)
