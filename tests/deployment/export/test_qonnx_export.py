"""Models of QONNX of packed programs, with BipolarQuant replaced by comparisons here, against the NumPy interpreter.

`tests/data/onnx/check_qonnx_export.py` executes such models by the package qonnx.
"""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.onnx_models import unpacked
from support.packed import binary_conv, chain, make_image, make_program, operation, sign, window, write_packed
from support.random_programs import Maker, describe
from support.tiny_onnx import networks

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.deployment.onnx.export import verify
from bmx_melius.deployment.onnx.qonnx_export import to_qonnx
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import PADDING

onnx, onnxruntime = pytest.importorskip('onnx'), pytest.importorskip('onnxruntime')
DOMAIN = 'qonnx.custom_op.general'


def executable(model):
    """Return a model with the definitions of BipolarQuant, the scale where x >= 0 and elsewhere its negative, and of Quant, of integers."""
    changed, nodes = onnx.ModelProto(), []
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    changed.CopyFrom(model)
    zero = onnx.numpy_helper.from_array(np.float32(0), 'test_zero')
    for node in model.graph.node:
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        if node.op_type == 'Quant':
            x, scale, zero_point, bits = node.input
            facts = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
            assert facts == {'signed': 1, 'narrow': 0, 'rounding_mode': b'ROUND'} and (constants[scale], constants[zero_point]) == (1, 0)
            limit = 2 ** (int(constants[bits]) - 1)
            limited = np.rint(constants[x]).clip(-limit, limit - 1).astype(np.float32)
            nodes.append(onnx.helper.make_node('Constant', [], node.output, value=onnx.numpy_helper.from_array(limited)))
            continue
        if node.op_type == 'MultiThreshold':
            x, thresholds = node.input
            facts = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
            shape = {b'NCHW': (1, -1, 1, 1), b'NC': (1, -1)}[facts['data_layout']]
            counted = []
            for number, column in enumerate(constants[thresholds].T):
                limit = f'{node.output[0]}_{number}'
                changed.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(column.reshape(shape)), limit))
                nodes.append(onnx.helper.make_node('GreaterOrEqual', [x, limit], [f'{limit}_reached']))
                nodes.append(onnx.helper.make_node('Cast', [f'{limit}_reached'], [f'{limit}_counted'], to=onnx.TensorProto.FLOAT))
                counted.append(f'{limit}_counted')
            nodes.append(onnx.helper.make_node('Sum', counted, node.output))
            continue
        assert node.op_type == 'BipolarQuant' and not node.attribute
        x, scale = node.input
        (y,) = node.output
        nodes.append(onnx.helper.make_node('Less', [x, zero.name], [f'{y}_low']))
        nodes.append(onnx.helper.make_node('Neg', [scale], [f'{y}_negative']))
        nodes.append(onnx.helper.make_node('Where', [f'{y}_low', f'{y}_negative', scale], [y]))
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    changed.graph.initializer.append(zero)
    return changed


def run_model(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 3, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(executable(model).SerializeToString(), options, providers=['CPUExecutionProvider'])
    return session.run(None, {node.name: array for node, array in zip(session.get_inputs(), inputs)})


def has_no_form(operation):
    a = operation.attributes
    hangs_over_padding = operation.name == 'avg_pool' and a['ceil'] and a['count_pad'] and any(a[side] for side in PADDING)
    return hangs_over_padding or operation.row.is_integer_layer


@given(random=st.randoms(use_true_random=True), exact=st.booleans())
@settings(suppress_health_check=list(HealthCheck))
def test_a_model_gives_the_results_of_its_program(random, exact):
    maker = Maker(random, exact)
    program = maker.program(random.randint(1, 12))
    names = [f'x{number}' for number in range(len(program.inputs))]
    if any(map(has_no_form, program.operations)):
        with pytest.raises(UserError, match='no equivalent in ONNX|has no exact form'):
            to_qonnx(program, names)
        return
    model = to_qonnx(program, names)
    inputs = maker.data([(value.height, value.width) for value in program.inputs], batch=1)
    assert verify(model, program, inputs) < 2e-5
    for found, expected in zip(run_model(model, inputs), reference.run(program, inputs)):
        if exact:
            np.testing.assert_array_equal(found, expected, err_msg=describe(program))
        else:
            tolerance = max(1e-4 * np.abs(expected).max(), 1e-5)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=tolerance, err_msg=describe(program))


def constants_of(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize('pad_value', [-1, 0, 1])
@pytest.mark.parametrize('offset', [0, 1])
def test_binary_layers_multiply_signs_by_signs_and_pad_before(pad_value, offset):
    weight = np.random.RandomState(0).rand(6, 3, 3, 8) < 0.5
    program = chain((8, 5, 5), sign(8), binary_conv(weight, offset=offset, pad_value=pad_value, **window(3, pad=1)))
    model = to_qonnx(program, ['x'])
    nodes, constants = {node.op_type: node for node in model.graph.node}, constants_of(model)
    quantizers = [node for node in model.graph.node if node.domain == DOMAIN]
    assert len(quantizers) == 2 and all(constants[node.input[1]] == 1 for node in quantizers)
    signs = constants[quantizers[1].input[0]]
    np.testing.assert_array_equal(signs, np.where(weight, 1, -1).transpose(0, 3, 1, 2))
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in nodes['Conv'].attribute}
    if pad_value:
        assert attributes['pads'] == [0] * 4 and constants[nodes['Pad'].input[2]] == pad_value
        assert constants[nodes['Pad'].input[1]].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    else:
        assert attributes['pads'] == [1] * 4 and 'Pad' not in nodes


def test_thresholds_of_sums_are_integers_and_flipped_ones_are_met_exactly():
    weight = np.random.RandomState(0).rand(4, 1, 1, 8) < 0.5
    thresholds, flip = np.array([-2, 0.5, 2, -np.inf], np.float32), np.array([0, 1, 1, 0], bool)
    after = operation('threshold', 2, arrays={'threshold': thresholds, 'flip': flip})
    program = chain((8, 5, 5), sign(8), binary_conv(weight, **window(1)), after, operation('expand', 3, low=-1))
    model = to_qonnx(program, ['x'])
    (constant,) = (array for name, array in constants_of(model).items() if name.startswith('threshold3/threshold'))
    np.testing.assert_array_equal(constant.ravel()[:3], [2, 0, 1])  # h + 2 >= 0, -h + 0 >= 0 where h < 0.5, -h + 1 >= 0 where h < 2
    image = np.random.RandomState(1).normal(size=(1, 8, 5, 5)).astype(np.float32)
    np.testing.assert_array_equal(run_model(model, [image])[0], reference.run(program, [image])[0])


def test_every_value_has_a_fixed_shape_with_which_it_is_computed():
    model = to_qonnx(make_program(), ['data'])
    known = {value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in model.graph.value_info}
    known.update((value.name, [axis.dim_value for axis in value.type.tensor_type.shape.dim]) for value in model.graph.output)
    names = [name for node in model.graph.node for name in node.output]
    assert set(names) == set(known) and all(min(shape, default=1) > 0 for shape in known.values())
    observed = executable(model)
    del observed.graph.output[:]
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(observed.SerializeToString(), providers=['CPUExecutionProvider'])
    for name, value in zip(names, session.run(None, {'data': make_image()[:1]})):
        assert list(value.shape) == known[name], name


@pytest.mark.parametrize('name', ['reactnet18', 'bitorch-meliusnet', 'dorefa-w1a2', 'padded-with-one', 'geometry', 'brevitas-tfc-w1a1'])
def test_a_network_is_imported_again_with_the_same_results_bit_for_bit(name, tmp_path, capsys):
    bmx.import_onnx(unpacked(name, tmp_path), tmp_path / 'packed', zero_is_positive=True)
    assert main(['export-onnx', str(tmp_path / 'packed'), str(tmp_path / 'q.onnx'), '--qonnx', '--json']) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts['qonnx'] and facts['largest_deviation'] < 2e-5
    report = bmx.import_onnx(tmp_path / 'q.onnx', tmp_path / 'again')
    session, again = bmx.Session(tmp_path / 'packed'), bmx.Session(tmp_path / 'again')
    x = np.random.RandomState(0).normal(size=(8, *session.input_shapes[0][1:])).astype(np.float32)
    np.testing.assert_array_equal(again(x), session(x))
    assert report.binary_layers


@pytest.mark.parametrize('number', range(len(networks())))
def test_a_network_of_each_form_of_layer_is_imported_again_with_the_same_results(number, tmp_path):
    onnx.save(networks()[number], tmp_path / 'net.onnx')
    bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed', zero_is_positive=True)
    assert main(['export-onnx', str(tmp_path / 'packed'), str(tmp_path / 'q.onnx'), '--qonnx']) == 0
    bmx.import_onnx(tmp_path / 'q.onnx', tmp_path / 'again')
    x = np.random.RandomState(1).normal(size=(3, 4, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(bmx.Session(tmp_path / 'again')(x), bmx.Session(tmp_path / 'packed')(x), rtol=1e-5, atol=1e-5)


def test_verification_names_the_operation_that_is_not_that_of_the_program():
    program = make_program()
    model = to_qonnx(program, ['data'])
    program.operations[1].arrays['weight'][0, 0, 0, 0] ^= True
    with pytest.raises(UserError, match='binary_conv2 of the ONNX model gives another result than operation 1'):
        verify(model, program, [make_image()[:1]])


def test_layers_of_8_bit_integers_are_refused_in_one_line(tmp_path, capsys):
    constants = {'multiplier': np.full(3, 1 << 20, np.int32), 'offset': np.zeros(3, np.int32)}
    rescale = operation('rescale', 0, arrays=constants, shift=20, result_min=0, result_max=255)
    write_packed(tmp_path / 'packed', chain((3, 8, 8), rescale), [0])
    assert main(['export-onnx', str(tmp_path / 'packed'), str(tmp_path / 'q.onnx'), '--qonnx']) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('error: the network has layers of 8-bit integers (rescale)') and not (tmp_path / 'q.onnx').exists()


def level_layers(multiplier=1 << 8):
    """Return a program with two layers of integers of few levels, one of which pads with a level that is not 0."""
    random = np.random.RandomState(0)

    def counted(count):
        arrays = {'threshold': np.sort(random.normal(size=(count, 6)) * 20, axis=0).astype('f'), 'flip': random.rand(6) < 0.5}
        return operation('multi_threshold', arrays=arrays, thresholds=count)

    def sums(levels, pad, largest):
        weight = {'codes': random.rand(3, 6 * 6 * 9) < 0.5, 'levels': np.int8([levels]), 'pad': np.full(6, pad, np.int32)}
        arrays = {**weight, 'multiplier': np.full(6, multiplier, np.int32), 'offset': random.randint(-9, 9, 6).astype(np.int32) << 8}
        return operation(
            'level_int8_conv', arrays=arrays, out_channels=6, bits=3, result_min=-largest, result_max=largest, **window(3, pad=1)
        )

    last = operation('level_int8_conv', arrays=sums(range(-8, 0), 0, 1).arrays, out_channels=6, bits=3, result_min=-9000, result_max=9000)
    last.attributes.update(window(3))
    return chain((6, 7, 7), counted(7), sums(range(-4, 4), 4, 9000), counted(15), operation('max_pool', **window(2, 1)), last)


def test_sums_of_few_levels_are_convolutions_of_quant_weights_with_the_same_integers():
    program, x = level_layers(), np.random.RandomState(1).normal(size=(1, 6, 7, 7)).astype('f') * 20
    model = to_qonnx(program, ['x'])
    (found,) = run_model(model, [x])
    assert (found == reference.run(program, [x])[0]).all()
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count('Quant') == kinds.count('MultiThreshold') == 2


def test_rescaled_sums_of_few_levels_have_no_form():
    with pytest.raises(UserError, match='has no exact form'):
        to_qonnx(level_layers(multiplier=255), ['x'])
