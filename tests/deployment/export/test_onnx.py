"""ONNX models of packed programs, run by ONNX Runtime, against the NumPy interpreter and MXNet."""

import json
import random as randoms
import sys

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxnet.gluon import nn
from support.conversions import programs
from support.packed import binary_conv, chain, conv, make_image, make_program, operation, sign, window, write_packed
from support.random_programs import Maker, describe, other_sizes
from support.reference_network import load_reference_network
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.onnx.export import _FORMS, to_onnx, verify
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import PADDING
from model_zoo import get_model

pytest_plugins = ['support.conversions']  # its fixtures

onnx, onnxruntime = pytest.importorskip('onnx'), pytest.importorskip('onnxruntime')


def run_model(model, inputs):
    """The outputs of a model (bytes or the name of a file), without the optimizations that may round otherwise."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 3, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])
    return session.run(None, {node.name: array for node, array in zip(session.get_inputs(), inputs)})


def has_no_equivalent(operation):
    a = operation.attributes
    hangs_over_padding = operation.name == 'avg_pool' and a['ceil'] and a['count_pad'] and any(a[side] for side in PADDING)
    return hangs_over_padding or operation.name == 'integer_avg_pool' and a['ceil']


@given(random=st.randoms(use_true_random=True), exact=st.booleans())
@settings(suppress_health_check=list(HealthCheck))
def test_a_model_gives_the_results_of_its_program_at_any_batch_and_size(random, exact):
    maker = Maker(random, exact)
    program = maker.program(random.randint(1, 12))
    names = [f'x{number}' for number in range(len(program.inputs))]
    if any(map(has_no_equivalent, program.operations)):
        with pytest.raises(UserError, match='no equivalent in ONNX'):
            to_onnx(program, names)
        return
    proto = to_onnx(program, names)
    model = proto.SerializeToString()
    assert verify(proto, program, maker.data([(value.height, value.width) for value in program.inputs], batch=2)) < 2e-5
    for sizes in (other_sizes(random, program), [(value.height, value.width) for value in program.inputs]):
        inputs = maker.data(sizes, batch=random.randint(1, 3))
        for found, expected in zip(run_model(model, inputs), reference.run(program, inputs)):
            if exact:
                np.testing.assert_array_equal(found, expected, err_msg=describe(program))
            else:
                tolerance = max(1e-4 * np.abs(expected).max(), 1e-5)  # summands are near 1, and sums of them may vanish
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=tolerance, err_msg=describe(program))


def distances_from_thresholds(program, images):
    """How near a value of each image comes to its threshold, as a share of the largest of the channel; integers are exact."""
    values, nearest = [images], np.full(len(images), np.inf)
    for one in program.operations:
        values.append(reference.apply(one, [values[source] for source in one.inputs]))
        if one.name == 'threshold':
            x, threshold = values[one.inputs[0]], one.arrays['threshold'].reshape(-1, 1, 1)
            distances = np.where(x == np.round(x), np.inf, np.abs(x - threshold)) / np.abs(x).max(axis=(0, 2, 3), keepdims=True)
            nearest = np.minimum(nearest, distances.min(axis=(1, 2, 3)))
    return nearest


@pytest.mark.parametrize(
    'name, size, options',
    [
        ('meliusneta', 32, {}),
        ('birealnet18', 8, {'initial_layers': 'thumbnail'}),
        ('densenet_32bit', 8, {'initial_layers': 'thumbnail'}),
    ],
)
def test_a_network_of_the_zoo_gives_mxnets_results_from_its_model(name, size, options, convert, run, tmp_path):
    """Rounding may turn the sign of a value next to its threshold, which changes all that follows: of some images the farthest is taken."""
    shape = (1, 3, size, size)
    net = initialized(get_model(name, classes=10, **options), shape, mx.init.Xavier())
    _, prefix = convert(net, shape, verify=False)
    status, output, _ = run('export-onnx', prefix, tmp_path / 'net.onnx', '--json')
    assert status == 0
    facts = json.loads(output)
    assert facts['bytes_before'] == (tmp_path / 'packed-0000.params').stat().st_size
    smaller = 1 if name.endswith('32bit') else 2
    assert facts['bytes'] == (tmp_path / 'net.onnx').stat().st_size < (tmp_path / 'net-0000.params').stat().st_size / smaller
    assert facts['largest_deviation'] < 2e-5
    images = np.random.RandomState(0).randn(20, 3, size, size).astype(np.float32)
    distances = distances_from_thresholds(programs(prefix)[0], images)
    assert distances.max() > 1e-5  # rounding is a tenth of it
    image = images[[np.argmax(distances)]]
    (found,) = run_model(str(tmp_path / 'net.onnx'), [image])
    expected = net(mx.nd.array(image)).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_the_model_of_the_reference_network_gives_its_logits(export, run, tmp_path):
    net, known = load_reference_network(tmp_path)
    files = export(net)
    assert run('export-onnx', files[0], tmp_path / 'net.onnx', '--input-shape', '1,3,224,224', '--no-verify')[0] == 0
    (found,) = run_model(str(tmp_path / 'net.onnx'), [known['x'].asnumpy()])
    np.testing.assert_allclose(found, known['logits'], atol=1e-3)


def test_the_model_holds_the_class_names_and_the_preprocessing_of_an_exported_or_packed_network(convert, run, tmp_path):
    spec, names = bmx.InputSpec(size=8, resize=9, mean=(1.5, 2, 3), std=(4, 5, 6)), ['Gänse', 'cats']
    net = initialized(sequence(bmx.BinaryConv2D(8, 3, padding=1), nn.GlobalAvgPool2D(), nn.Dense(2)), (1, *spec.shape))
    convert(net, (1, *spec.shape), input_spec=spec, class_names=names)
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': spec.to_json(), 'class_names': names}))
    expected = {'size': 8, 'resize': 9, 'channels': 3, 'mean': [1.5, 2, 3], 'std': [4, 5, 6], 'class_names': names}
    for prefix in ('net', 'packed'):
        assert run('export-onnx', tmp_path / prefix, tmp_path / 'a.onnx', '--no-verify')[0] == 0
        metadata = {entry.key: json.loads(entry.value) for entry in onnx.load(str(tmp_path / 'a.onnx')).metadata_props}
        assert metadata == expected
    (tmp_path / 'net-summary.json').unlink()
    assert run('export-onnx', tmp_path / 'net', tmp_path / 'a.onnx', '--no-verify', '--input-shape', '1,3,8,8')[0] == 0
    assert not onnx.load(str(tmp_path / 'a.onnx')).metadata_props


def test_a_packed_network_becomes_a_model_without_being_converted_again(run, tmp_path):
    program = make_program()
    write_packed(tmp_path / 'packed', program, outputs=[1, 0])
    status, output, _ = run('export-onnx', tmp_path / 'packed', tmp_path / 'a.onnx')
    assert status == 0 and 'verified on a sample' in output
    image = make_image()
    found, expected = run_model(str(tmp_path / 'a.onnx'), [image]), reference.run(program, [image])
    for x, y in zip(found, expected[::-1]):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_verification_names_the_operation_that_is_not_that_of_the_program():
    program = make_program()
    model = to_onnx(program, ['data'])
    program.operations[1].arrays['weight'][0, 0, 0, 0] ^= True
    with pytest.raises(UserError, match='binary_conv2 of the ONNX model gives another result than operation 1'):
        verify(model, program, [make_image()])


def test_verification_forgives_rounding_where_the_summands_cancel_but_no_weight_that_is_a_little_off():
    random = np.random.RandomState(0)
    weight = random.randn(8, 64, 3, 3).astype(np.float32)
    joined = np.concatenate([weight, -weight], axis=1)
    program = chain((64, 8, 8), operation('concat', 0, 0), conv(joined, **window(3, pad=1)))
    image = random.randn(2, 64, 8, 8).astype(np.float32)
    model = to_onnx(program, ['x'])
    found, expected = run_model(model.SerializeToString(), [image])[0], reference.run(program, [image])[0]
    assert 0 < np.abs(found - expected).max() < 1e-3 and np.abs(expected).max() < 1e-3  # sums of a thousand numbers around 1
    assert verify(model, program, [image]) < 1e-6

    joined[0, 0, 1, 1] *= 1.1
    program = chain((64, 8, 8), operation('concat', 0, 0), conv(joined, **window(3, pad=1)))
    with pytest.raises(UserError, match='conv2 of the ONNX model gives another result than operation 1'):
        verify(model, program, [image])


def test_an_input_may_have_any_name_that_the_model_uses():
    program, image = make_program(), make_image()
    model = to_onnx(program, ['data']).graph
    used = {name for node in model.node for name in (*node.input, *node.output)} | {node.name for node in model.output}
    expected = reference.run(program, [image])
    for name in sorted(used):
        model = to_onnx(program, [name])
        assert verify(model, program, [image]) < 1e-6
        for x, y in zip(run_model(model.SerializeToString(), [image]), expected):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=name)


def test_weights_of_a_binary_layer_take_a_byte_each():
    weight = np.random.RandomState(0).rand(64, 3, 3, 64) < 0.5
    program = chain((64, 8, 8), sign(64), binary_conv(weight, offset=1, **window(3, pad=1)))
    assert weight.size < len(to_onnx(program, ['data']).SerializeToString()) < weight.size + 4096


def test_mistakes_are_reported_in_one_line_and_leave_no_file(run, tmp_path):
    status, _, errors = run('export-onnx', tmp_path / 'nothing', tmp_path / 'a.onnx')
    assert status == 2 and 'nothing-symbol.json' in errors
    write_packed(tmp_path / 'packed', make_program())
    status, _, errors = run('export-onnx', tmp_path / 'packed', tmp_path / 'no folder' / 'a.onnx')
    assert status == 2 and errors.startswith(f'error: cannot write {tmp_path / "no folder" / "a.onnx"}: there is no folder')
    assert not list(tmp_path.glob('*.onnx'))


def test_an_operation_without_a_form_in_onnx_is_named(monkeypatch):
    monkeypatch.delitem(_FORMS, 'max_pool')
    with pytest.raises(UserError, match=r'max_pool \(operation 2\) has no form in ONNX'):
        to_onnx(make_program(), ['x'])


def test_missing_onnx_is_an_error_with_installation_instructions(monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnx', None)
    with pytest.raises(UserError, match='pip install onnx'):
        to_onnx(Maker(randoms.Random(1), True).program(3), ['x0', 'x1'])
