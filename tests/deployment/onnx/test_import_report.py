"""What the report of an import says of a model, and the messages about models that it does not import."""

import gzip
import io
import json
import re
import zipfile

import numpy as np
import pytest
from support.terminals import in_terminal
from support.tiny_onnx import binary_network, make, node, signs

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.onnx.model import read_model

pytestmark = pytest.mark.usefixtures('without_trial')

RANDOM = np.random.RandomState(0)
NUMBERS = {'zero': np.float32(0), 'one': np.float32(1), 'minus': np.float32(-1)}
SIGN = [node('Less', 'a zero', 'l'), node('Where', 'l minus one', 's')]


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.fixture
def imported(tmp_path):
    def call(model, **options):
        (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
        return bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed', **options)

    return call


@pytest.mark.parametrize(
    'channels, first, words',
    [
        (1, normal(8, 1, 3, 3), 'its weights are real; it reads real numbers'),
        (4, normal(8, 4, 3, 3), 'its weights are real; it reads real numbers'),
        (3, normal(8, 3, 1, 1), 'its weights are real; it reads real numbers'),
        (4, signs(8, 4, 3, 3), 'its weights have 1 bit, but it reads real numbers'),
        (1, signs(8, 1, 3, 3) * normal(8, 1, 1, 1), 'its weights have 1 bit, but it reads real numbers'),
        (4, RANDOM.choice(np.float32([-1, 0, 1]), (8, 4, 3, 3)), 'its weights have 2 bits, but it reads real numbers'),
    ],
)
def test_weights_have_few_bits_where_several_share_a_level(channels, first, words, imported):
    model = make(
        [node('Conv', 'x first', 'a'), *SIGN, node('Conv', 's w')],
        {**NUMBERS, 'first': first, 'w': signs(8, 8, 1, 1)},
        {'x': (1, channels, 6, 6)},
    )
    report = imported(model)
    assert [layer.reason for layer in report.layers] == [words, '']
    assert '1 binary layer of 2 convolutions and dense layers' in str(report) and '1 binary layers' not in str(report)


def test_real_weights_of_filters_of_one_channel_that_read_signs_stay_real(imported):
    nodes = [
        node('Conv', 'x first', 'a'),
        *SIGN,
        node('Conv', 's depthwise', 'd', group=8),
        node('Conv', 's w', 'e'),
        node('Concat', 'd e', axis=1),
    ]
    constants = {'first': normal(8, 4, 3, 3), 'depthwise': normal(8, 1, 3, 3), 'w': signs(4, 8, 3, 3), **NUMBERS}
    report = imported(make(nodes, constants))
    assert {layer.name: layer.reason for layer in report.layers}['d'] == 'its weights are real; it reads few levels'
    assert report.binary_layers == 1


@pytest.mark.parametrize(('half', 'int8', 'bits'), [(False, False, 32), (True, False, 16), (False, True, 8)])
def test_bits_of_real_weights_are_those_in_the_file(half, int8, bits, imported):
    report = imported(binary_network(), half=half, calibration=normal(16, 4, 6, 6) if int8 else None)
    assert [layer.bits for layer in report.layers] == [bits, 1]


def test_a_packed_file_that_is_larger_is_called_larger(imported):
    model = make(
        [*(node('Less', 'x zero', 'l'), node('Where', 'l minus one', 's')), node('Conv', 's w')], {**NUMBERS, 'w': signs(1, 4, 1, 1)}
    )
    report = imported(model)
    conversion = report.conversion
    conversion.size_before, conversion.size_after = 1000, 2500
    assert '2,500 bytes, 2.5 times larger than 1,000' in str(report)
    conversion.size_after = 400
    assert '400 bytes, 2.5 times smaller than 1,000' in str(report)
    conversion.size_after = 1010
    assert '1,010 bytes, about as many as before (1,000)' in str(report)


TRAINING = {
    'Dropout': [node('Dropout', 'c half yes', 'd')],
    'Dropout without a ratio': [node('Dropout', 'c none yes', 'd')],
    'Dropout before a sign': [node('Dropout', 'a half yes', 'd0'), node('Identity', 'c', 'd')],
    'BatchNormalization': [node('BatchNormalization', 'c gamma beta mean var', 'd', training_mode=1)],
}


@pytest.mark.parametrize('kind', TRAINING)
def test_a_model_in_training_mode_is_refused_by_the_node_with_what_to_do(kind, imported):
    parameters = {name: np.ones(8, np.float32) for name in ('gamma', 'beta', 'mean', 'var')}
    constants = {
        **NUMBERS,
        **parameters,
        'first': normal(8, 4, 3, 3),
        'w': signs(8, 8, 1, 1),
        'half': np.float32(0.5),
        'yes': np.array(True),
    }
    nodes = [node('Conv', 'x first', 'a'), *SIGN, node('Conv', 's w', 'c'), *TRAINING[kind], node('Relu', 'd')]
    for each in nodes:
        each.input[:] = ['' if name == 'none' else name for name in each.input]
        if each.op_type == 'BatchNormalization':
            each.output.extend(['running_mean', 'running_var'])
    with pytest.raises(UserError, match=rf'node d0? \({kind.split()[0]}\) is in training mode: export the network in evaluation mode'):
        imported(make(nodes, constants))


@pytest.mark.parametrize(('ratio', 'training'), [(0.0, True), (0.5, False)])
def test_dropout_that_drops_nothing_is_imported(ratio, training, imported):
    constants = {**NUMBERS, 'first': normal(8, 4, 3, 3), 'w': signs(8, 8, 1, 1), 'r': np.float32(ratio), 't': np.array(training)}
    assert (
        imported(make([node('Conv', 'x first', 'a'), *SIGN, node('Conv', 's w', 'c'), node('Dropout', 'c r t')], constants)).binary_layers
        == 1
    )


def test_calibration_images_that_do_not_exist_are_named(imported, tmp_path):
    with pytest.raises(UserError, match=r'there is no .*missing\.npy, from which the calibration images'):
        imported(binary_network(), calibration=tmp_path / 'missing.npy')


def zipped(*names):
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w') as archive:
        for name in names:
            archive.writestr(name, b'x')
    return content.getvalue()


OTHER_FILES = {
    'net.pth': (zipped('net/data.pkl', 'net/data/0'), 'a checkpoint of PyTorch.*torch.onnx.export'),
    'script.pt': (zipped('net/data.pkl', 'net/code/a.py', 'net/constants.pkl'), 'a TorchScript file.*torch.onnx.export'),
    'old.pt': (b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.', 'a pickle.*torch.onnx.export'),
    'renamed.onnx': (zipped('net/data.pkl'), 'a checkpoint of PyTorch'),
    'net.onnx.gz': (gzip.compress(binary_network().SerializeToString()), 'compressed by gzip: gunzip it first'),
    'net.zip': (zipped('net.onnx'), 'an archive: unpack it first, and give the .onnx file in it'),
    'net.tflite': (b'\x1c\0\0\0TFL3' + bytes(20), 'TensorFlow Lite: python -m tf2onnx.convert --tflite'),
    'net.h5': (b'\x89HDF\r\n\x1a\n' + bytes(20), 'Keras.*import-larq.*tf2onnx'),
    'net.keras': (zipped('metadata.json', 'config.json', 'model.weights.h5'), 'a model of Keras.*tf2onnx'),
    'net.safetensors': (
        (60).to_bytes(8, 'little') + b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        'safetensors.*torch.onnx.export',
    ),
    'net.pb': (b'\x0a\x04abcd', 'TensorFlow: python -m tf2onnx.convert --saved-model'),
    'net.ort': (b'\x1c\0\0\0ORTM' + bytes(20), 'ONNX Runtime for small devices'),
    'pointer.onnx': (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\n', 'git lfs pull'),
    'page.onnx': (b'<!DOCTYPE html><html></html>', 'a web page'),
    'net-symbol.json': (b'{"nodes": []}', 'MXNet is: `bmx-melius convert'),
}


@pytest.mark.parametrize('name', OTHER_FILES)
def test_files_of_other_formats_get_a_hint_what_to_do(name, tmp_path):
    content, words = OTHER_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f'is not an ONNX model, but .*{words}') as refusal:
        read_model(tmp_path / name)
    assert '\n' not in str(refusal.value)


def test_a_folder_gets_the_hint_to_give_the_file_in_it(tmp_path):
    with pytest.raises(UserError, match='is not a file: give the .onnx file in this folder'):
        read_model(tmp_path)


def test_signs_that_the_export_has_lost_are_named(imported):
    """What networks do through .data is not in the model: activations remain real, or weights do."""
    constants = {**NUMBERS, 'first': signs(8, 4, 3, 3), 'w': signs(8, 8, 1, 1), 'real': normal(8, 4, 3, 3)}
    report = imported(make([node('Conv', 'x first', 'a'), node('Conv', 'a w')], constants))
    assert re.search('a, y: if the network takes the sign .* the sign was lost: return it from forward', str(report))
    assert '2 layers with 1 bit a weight, times real numbers: a, y' in str(report) and [layer.bits for layer in report.layers] == [1, 1]
    with pytest.raises(UserError, match=r'y: if the network binarizes these weights through .data'):
        imported(make([node('Less', 'x zero', 'l'), node('Where', 'l minus one', 's'), node('Conv', 's real')], constants))
    report = imported(make([node('Conv', 'x first', 'a'), *SIGN, node('Conv', 's w')], constants))
    assert 'a: if the network takes the sign of what is read there' in str(report)


@pytest.mark.parametrize('flags', [[], ['--json']])
def test_an_import_shows_its_steps_on_a_terminal_and_only_its_result_on_standard_output(flags, tmp_path):
    (tmp_path / 'net.onnx').write_bytes(binary_network().SerializeToString())
    program = 'from bmx_melius.__main__ import main; sys.exit(main(sys.argv[1:]))'
    shown, done = in_terminal(program, 'import-onnx', 'net.onnx', 'packed', *flags, cwd=tmp_path)
    assert done.returncode == 0 and b'binary' in done.stdout and b'\r' not in done.stdout
    assert re.search(r'computing the model: [01] of 1 times', shown)
    assert not flags or json.loads(done.stdout)['binary_layers'] == 1
