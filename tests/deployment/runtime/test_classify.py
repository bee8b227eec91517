"""Packed files that contain the description of their network: `Session.classify`, and the command predict."""

import json
import os
import pathlib
import shutil

import numpy as np
import PIL.Image
import pytest
from mxnet.gluon import nn
from support.conversions import imported
from support.packed import make_program, write_packed
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius.deployment.runtime import engine
from bmx_melius.files.exported import Exported

SPEC = bmx.InputSpec(size=8, resize=9, mean=(120, 110, 100), std=(60, 50, 40))
NAMES = ['ant', 'bee', 'cat']


@pytest.fixture()
def net(export):
    """A small classifier, exported to tmp_path/net."""
    layers = nn.Conv2D(16, 3), nn.BatchNorm(), bmx.BinaryConv2D(32, kernel_size=3, padding=1), nn.GlobalAvgPool2D(), nn.Dense(len(NAMES))
    net = initialized(sequence(*layers), (1, *SPEC.shape))
    export(net)
    return net


@pytest.fixture()
def image(tmp_path):
    """A JPEG file."""
    pixels = np.random.RandomState(0).randint(0, 256, (5, 7, 3)).astype(np.uint8)
    PIL.Image.fromarray(pixels).resize((30, 20)).save(tmp_path / 'image.jpg')
    return tmp_path / 'image.jpg'


def pack(folder, **options):
    bmx.convert(folder / 'net-symbol.json', folder / 'net-0000.params', folder / 'packed', (1, *SPEC.shape), **options)
    return folder / 'packed'


def describe(folder, **fields):
    (folder / 'net-summary.json').write_text(json.dumps({'input': SPEC.to_json(), 'class_names': NAMES, **fields}))


def test_copying_both_packed_files_is_enough_to_classify(net, image, tmp_path):
    describe(tmp_path)
    pack(tmp_path)
    assert sorted(path.name for path in tmp_path.glob('packed*')) == ['packed-0000.params', 'packed-symbol.json']
    (tmp_path / 'elsewhere').mkdir()
    for path in tmp_path.glob('packed-*'):
        shutil.copy(path, tmp_path / 'elsewhere')
    session = bmx.Session(tmp_path / 'elsewhere' / 'packed')
    assert session.input_spec == SPEC and session.class_names == NAMES
    probabilities = net(SPEC.load(image)).softmax().asnumpy()[0]
    found = session.classify(image)
    assert [name for name, _ in found] == [NAMES[number] for number in (-probabilities).argsort()]
    np.testing.assert_allclose([probability for _, probability in found], np.sort(probabilities)[::-1], rtol=1e-4)
    assert session.classify(image, top=1) == found[:1]
    assert session.classify(PIL.Image.open(image)) == session.classify(np.asarray(PIL.Image.open(image))) == found


def test_convert_takes_the_preprocessing_and_the_class_names(net, image, tmp_path):
    describe(tmp_path, class_names=['of', 'the', 'file'])
    other = bmx.InputSpec(size=8, resize=None)
    session = bmx.Session(pack(tmp_path, input_spec=other, class_names=tuple(NAMES)))
    assert session.input_spec == other and session.class_names == NAMES
    with pytest.raises(bmx.UserError, match='class_names must be a list of names'):
        pack(tmp_path, class_names=[1, 2, 3])
    with pytest.raises(bmx.UserError, match='class_names names 2 classes, but the network has 3'):
        pack(tmp_path, class_names=['too', 'few'])


def test_the_command_convert_takes_them_as_options(net, tmp_path, run):
    (tmp_path / 'names.txt').write_text('\n'.join(NAMES))
    options = ('--input-size', '8', '--resize', '9', '--mean', '120,110,100', '--std', '60,50,40', '--classes-file', tmp_path / 'names.txt')
    assert run('convert', tmp_path / 'net', tmp_path / 'packed', *options)[0] == 0
    session = bmx.Session(tmp_path / 'packed')
    assert session.input_spec == SPEC and session.class_names == NAMES and session.input_shapes == [(None, 3, 8, 8)]
    assert 'nothing.txt' in run('convert', tmp_path / 'net', tmp_path / 'packed', *options[:-1], tmp_path / 'nothing.txt')[2]


def test_mxnet_loads_a_symbol_with_a_description(net, image, tmp_path):
    describe(tmp_path)
    prefix = pack(tmp_path)
    x = SPEC.load(image)
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), bmx.Session(prefix)(x.asnumpy()), rtol=1e-6)


def test_packed_files_of_earlier_versions_are_described_by_the_file_beside_them(tmp_path, image):
    write_packed(tmp_path / 'old', make_program(channels=3), [0])
    session = bmx.Session(tmp_path / 'old')
    assert session.input_spec is None and session.class_names is None
    with pytest.raises(bmx.UserError, match='old has no description of the preprocessing .* input_spec=InputSpec'):
        session.classify(image)
    (tmp_path / 'old-summary.json').write_text(json.dumps({'input': SPEC.to_json(), 'class_names': None}))
    assert sorted(name for name, _ in bmx.Session(tmp_path / 'old').classify(image, top=7)) == [str(number) for number in range(7)]


@pytest.mark.parametrize('name', ['\x1b[2Jred', 'two\nlines', 'a\x9b', '\u2028', '\ud800'])
@pytest.mark.parametrize('place', ['summary', 'symbol', 'classes file', 'argument'])
def test_names_of_classes_with_control_characters_are_refused_by_all_that_read_them(net, image, tmp_path, run, name, place):
    names = [name, *NAMES[1:]]
    if place == 'argument':
        with pytest.raises(bmx.UserError, match='has control characters'):
            pack(tmp_path, class_names=names)
        return
    describe(tmp_path)
    prefix = pack(tmp_path)
    options = []
    if place == 'classes file':
        (tmp_path / 'names.txt').write_text('\n'.join(['\x1b[2Jred', *NAMES[1:]]))
        options = ['--classes-file', tmp_path / 'names.txt']
    elif place == 'summary':
        describe(tmp_path, class_names=names)
        prefix = tmp_path / 'net'
    else:
        symbol = pathlib.Path(f'{prefix}-symbol.json')
        graph = json.loads(symbol.read_text())
        fields = json.loads(graph['attrs']['bmx_melius_description'][1])
        graph['attrs']['bmx_melius_description'][1] = json.dumps({**fields, 'class_names': names})
        symbol.write_text(json.dumps(graph))
        with pytest.raises(bmx.UserError, match='has control characters'):
            bmx.Session(prefix)
    status, output, errors = run('predict', prefix, image, *options)
    assert status == 2 and output == '' and 'has control characters' in errors
    assert errors.endswith('\n') and errors[:-1].isprintable()


def test_names_of_images_with_control_characters_are_printed_as_escapes(net, image, tmp_path, run):
    describe(tmp_path)
    for name, content in (('\x1b[2Ja\nb.png', pathlib.Path(image).read_bytes()), ('\x1b]0;c.png', b'')):
        (tmp_path / name).write_bytes(content)
    status, output, _ = run('predict', pack(tmp_path), tmp_path / '\x1b[2Ja\nb.png')
    assert status == 0 and f'{tmp_path}/\\x1b[2Ja\\nb.png\n' in output and '\x1b' not in output
    status, _, errors = run('predict', pack(tmp_path), tmp_path / '\x1b]0;c.png')
    assert status == 2 and errors.count('\n') == 1 and '\\x1b]0;c.png' in errors and '\x1b' not in errors


def write_described(prefix, program, outputs, **fields):
    write_packed(prefix, program, outputs)
    pathlib.Path(f'{prefix}-summary.json').write_text(json.dumps({'input': SPEC.to_json(), **fields}))
    return bmx.Session(prefix)


def test_what_is_no_classifier_and_wrong_arguments_are_refused(tmp_path, image):
    with pytest.raises(bmx.UserError, match='many is not a classifier: its outputs have the shapes'):
        write_described(tmp_path / 'many', make_program(channels=3), [0, 1]).classify(image)
    with pytest.raises(bmx.UserError, match='names-summary.json names 3 classes, but the network has 7'):
        write_described(tmp_path / 'names', make_program(channels=3), [0], class_names=NAMES).classify(image)
    session = write_described(tmp_path / 'net', make_program(channels=3), [0])
    for top in (0, -1, 1.5, True):
        with pytest.raises(bmx.UserError, match='top must be'):
            session.classify(image, top=top)
    with pytest.raises(bmx.UserError, match='a NumPy array of uint8, not int'):
        session.classify(1)
    with pytest.raises(OSError, match='nothing.jpg'):
        session.classify('nothing.jpg')


@pytest.mark.parametrize('content', [['str', '{"input": '], ['str', '[]'], ['int', 3], 'text', ['str', '{"input": {"size": 3}}']])
def test_a_damaged_description_is_named(net, tmp_path, content):
    describe(tmp_path)
    symbol = pathlib.Path(f'{pack(tmp_path)}-symbol.json')
    graph = json.loads(symbol.read_text())
    graph['attrs']['bmx_melius_description'] = content
    symbol.write_text(json.dumps(graph))
    with pytest.raises(bmx.UserError, match='packed-symbol.json: .*descri') as caught:
        bmx.Session(tmp_path / 'packed')
    assert len(str(caught.value).splitlines()) == 1


def test_predict_reads_the_description_in_packed_files(net, image, tmp_path, run):
    describe(tmp_path)
    status, printed, errors = run('predict', pack(tmp_path), image, '--json')
    assert (status, errors) == (0, '')
    top = json.loads(printed)['predictions'][0]['top']
    assert [(row['name'], row['probability']) for row in top] == bmx.Session(tmp_path / 'packed').classify(image)
    (tmp_path / 'names.txt').write_text('\n'.join('xyz'))
    status, printed, _ = run('predict', tmp_path / 'packed', image, '--json', '--classes-file', tmp_path / 'names.txt', '--resize', '0')
    shown = json.loads(printed)
    assert {row['name'] for row in shown['predictions'][0]['top']} == set('xyz') and shown['input']['resize'] is None


def test_predict_reads_each_packed_file_once(net, image, tmp_path, run, monkeypatch):
    prefix, opened, original = pack(tmp_path, input_spec=SPEC, class_names=NAMES), [], open

    def recording(path, *arguments, **options):
        opened.append(os.fspath(path) if not isinstance(path, int) else path)
        return original(path, *arguments, **options)

    monkeypatch.setattr('builtins.open', recording)
    status, _, errors = run('predict', prefix, image)
    assert status == 0, errors
    assert sorted(path for path in opened if str(path).startswith(str(prefix))) == [f'{prefix}-0000.params', f'{prefix}-symbol.json']


def test_predict_gives_the_same_probabilities_for_exported_and_packed_files(net, image, tmp_path, run):
    describe(tmp_path)
    pack(tmp_path)
    both = [json.loads(run('predict', tmp_path / prefix, image, '--json')[1])['predictions'][0]['top'] for prefix in ('net', 'packed')]
    assert [row['name'] for row in both[0]] == [row['name'] for row in both[1]]
    np.testing.assert_allclose([row['probability'] for row in both[0]], [row['probability'] for row in both[1]], rtol=1e-4)


def test_a_session_prints_its_network_its_input_and_what_computes_it(net, tmp_path, monkeypatch):
    describe(tmp_path, model={'name': 'meliusnet22'})
    prefix = pack(tmp_path)
    isa = engine.instruction_sets()[0]
    if isa:
        assert repr(bmx.Session(prefix, threads=2)) == f'Session(meliusnet22, 8x8, {isa}, 2 threads)'
        assert repr(bmx.Session(prefix, threads=1)) == f'Session(meliusnet22, 8x8, {isa}, 1 thread)'
        assert f', {engine.default_threads()} thread' in repr(bmx.Session(prefix))
    (tmp_path / 'net-summary.json').unlink()
    assert repr(bmx.Session(pack(tmp_path))).startswith('Session(packed, 8x8, ')
    assert repr(bmx.Session(make_program())).startswith('Session(program, 8x6, ')


def test_output_shapes_are_those_of_a_run(tmp_path):
    write_packed(tmp_path / 'net', make_program(), [1, 0])
    session = bmx.Session(tmp_path / 'net')
    shape = (3, 5, 9, 7)
    assert session.output_shapes(shape) == [output.shape for output in session(np.zeros(shape, np.float32))]
    with pytest.raises(bmx.UserError, match='must have the shape'):
        session.output_shapes((3, 4, 9, 7))


def test_files_of_a_network_that_is_replaced_lose_its_description(net, tmp_path):
    describe(tmp_path)
    assert Exported(pack(tmp_path)).description().class_names() == NAMES
    (tmp_path / 'net-summary.json').unlink()
    assert Exported(pack(tmp_path)).description().fields == {}


@pytest.mark.parametrize('line_end', ['\n', '\r\n'])
def test_a_file_of_class_names_may_begin_with_a_byte_order_mark(net, image, tmp_path, run, line_end):
    (tmp_path / 'names.txt').write_bytes(b'\xef\xbb\xbf' + line_end.join(NAMES).encode())
    status, text, errors = run('predict', tmp_path / 'net', image, '--classes-file', tmp_path / 'names.txt', '--input-size', 8, '--json')
    assert status == 0, errors
    assert {row['name'] for row in json.loads(text)['predictions'][0]['top']} == set(NAMES)
