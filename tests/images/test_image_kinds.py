"""Every reader of images on every kind of file: the pixels and the refusals follow one rule, the table of docs/data.md."""

import json
import pathlib
import struct

import numpy as np
import pytest
from support.c_library import call, install, only_test_c
from support.image_kinds import COLOURS, KINDS, READ, REFUSED, write
from support.images import write_records
from support.packed import make_program, write_packed
from support.paths import ROOT

import bmx_melius as bmx
from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.encoded_images import looks_complete
from bmx_melius.data.folders import FolderSource, open_folders
from bmx_melius.data.im2rec import list_images, pack
from bmx_melius.data.mxnet_decoder import as_decoded_alike, decodes_alike
from bmx_melius.data.opening import AugmentationOptions, DataOptions, InputOptions, open_images, open_source
from bmx_melius.data.record_source import RecordSource
from bmx_melius.data.records import RecordFile
from bmx_melius.data.source import Batching
from bmx_melius.errors import UserError

DOCS = ROOT / 'docs' / 'data.md'
SPEC = bmx.InputSpec(size=30, resize=30, mean=(0, 0, 0), std=(1, 1, 1))
FOUND_BY_IM2REC = ('PNG: damaged', 'PNG: too many pixels')  # tests/images/test_pack_images.py has such a file
each_kind = pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.name)


def crop(pixels):
    """Return the input of a network, (3, 30, 30) float32, for the pixels of an image whose short side has 30 pixels."""
    top, left = (pixels.shape[0] - 30) // 2, (pixels.shape[1] - 30) // 2
    return pixels[top : top + 30, left : left + 30].transpose(2, 0, 1).astype(np.float32)


@pytest.fixture
def photos(tmp_path):
    """A folder with a class of sound images, for training, and all kinds that are read in the other class."""
    for part in ('train', 'val'):
        for name in ('all', 'plain'):
            (tmp_path / part / name).mkdir(parents=True)
        write(tmp_path / part / 'plain', [kind for kind in READ if kind.name == 'PNG'])
    write(tmp_path / 'train' / 'all', READ)
    write(tmp_path / 'val' / 'all', READ)
    return tmp_path


def inputs_of(batches):
    return np.concatenate([images.asnumpy() for images, *_ in batches])


def expected(folder):
    """Return the inputs of the images of a folder with the class `all`, in the order of their names, and of the other class."""
    pixels = {kind.file_name: kind.pixels for kind in READ}
    return np.stack([crop(pixels[path.name]) for path in sorted((folder / 'val' / 'all').iterdir())] + [crop(COLOURS)])


def test_training_and_evaluation_read_folders_by_the_rule(photos):
    train, validation = open_folders(str(photos), SPEC)
    source = FolderSource(train, validation, str(photos), SPEC, Augmentation(), Batching(4), threads=0)
    source.decode_training_images()
    np.testing.assert_array_equal(inputs_of(source.validation()), expected(photos))
    np.testing.assert_array_equal(inputs_of(source.train_in_order()), expected(photos))
    np.testing.assert_array_equal(inputs_of(open_images(str(photos), SPEC, 1).batches(SPEC, 7, 0)), expected(photos))


@pytest.mark.parametrize('kind', REFUSED, ids=lambda kind: kind.name)
def test_training_refuses_files_before_the_first_epoch(tmp_path, kind):
    for part in ('train', 'val'):
        for name in 'ab':
            (tmp_path / part / name).mkdir(parents=True)
            write(tmp_path / part / name, READ[:2])
    write(tmp_path / 'train' / 'b', [kind])
    train, validation = open_folders(str(tmp_path), SPEC)
    with pytest.raises(UserError, match=f'no image can be decoded from b/{kind.file_name}; ') as refusal:
        FolderSource(train, validation, str(tmp_path), SPEC, Augmentation(), Batching(2), threads=0).decode_training_images()
    assert '\n' not in str(refusal.value)


def test_record_files_are_read_by_the_rule_image_by_image_where_mxnet_has_another(tmp_path, caplog):
    write_records(tmp_path / 'a', [kind.content for kind in READ], [number % 2 for number in range(len(READ))])
    files = {f'rec_{part}': str(tmp_path / 'a.rec') for part in ('train', 'val')}
    source = open_source(Batching(4), DataOptions('imagenet', use_rec=True, **files), InputOptions(30, 1), AugmentationOptions('low'))
    values = [
        images.asnumpy() * np.reshape(source.spec.std, (3, 1, 1)) + np.reshape(source.spec.mean, (3, 1, 1))
        for images, _ in source.validation()
    ]
    np.testing.assert_allclose(np.concatenate(values), [crop(kind.pixels) for kind in READ], atol=1e-3)
    unlike = [message for message in caplog.messages if "MXNet's reader does not decode" in message]
    assert len(unlike) == 2 and len(list(source.train(0))) == source.updates_per_epoch


def test_what_mxnet_reads_alike_has_the_same_pixels_in_its_reader(tmp_path):
    alike = [kind for kind in READ if decodes_alike(kind.content)]
    assert {kind.name for kind in alike} >= {'JPEG', 'JPEG: CMYK', 'JPEG: EXIF orientation first', 'PNG', 'PNG: palette', 'PNG: animated'}
    converted = [as_decoded_alike(kind.content, kind.name) for kind in READ]
    assert all(map(decodes_alike, converted))
    write_records(tmp_path / 'a', converted, [number % 2 for number in range(len(READ))])
    records = RecordFile(str(tmp_path / 'a.rec'), str(tmp_path / 'a.idx'))
    assert not records.unlike_mxnet
    source = RecordSource(records, records, SPEC, Augmentation(), Batching(4), threads=1)
    np.testing.assert_array_equal(inputs_of(source.validation()), [crop(kind.pixels) for kind in READ])


def test_packing_keeps_the_pixels_and_refuses_what_is_refused_elsewhere(photos, tmp_path_factory):
    target = tmp_path_factory.mktemp('packed') / 'rec'
    pack(list_images(str(photos)), str(target), 0, 95, 1)
    records = RecordFile(str(target / 'val.rec'), str(target / 'val.idx'))
    assert not records.unlike_mxnet and '/val/' not in (target / 'val.lst').read_text()
    source = RecordSource(records, records, SPEC, Augmentation(), Batching(2), threads=1)
    np.testing.assert_array_equal(inputs_of(source.validation()), expected(photos))
    refused = [kind for kind in REFUSED if kind.name not in FOUND_BY_IM2REC]
    write(photos / 'val' / 'all', refused)
    with pytest.raises(UserError, match=f'{len(refused)} of {len(READ) + len(refused) + 1} images cannot be decoded'):
        pack(list_images(str(photos)), str(target) + '2', 480, 95, 1)


@pytest.fixture(scope='module')
def network(tmp_path_factory):
    """Prefix of a packed classifier with `SPEC`."""
    prefix = tmp_path_factory.mktemp('net') / 'net'
    write_packed(prefix, make_program(channels=3), [0])
    pathlib.Path(f'{prefix}-summary.json').write_text(json.dumps({'input': {**SPEC.to_json(), 'std': [9000] * 3}, 'class_names': None}))
    return prefix


@pytest.fixture(scope='module')
def session(network):
    return bmx.Session(network, threads=1)


@each_kind
def test_session_takes_paths_and_bytes_by_the_rule(session, tmp_path, kind):
    (path,) = write(tmp_path, [kind])
    for image in (path, str(path), kind.content, bytearray(kind.content)):
        if kind.pixels is None:
            with pytest.raises(UserError, match='cannot be decoded as an image'):
                session.classify(image)
        else:
            assert session.classify(image) == session.classify(kind.pixels)


def test_predict_reads_a_folder_by_the_rule(network, session, tmp_path, run):
    write(tmp_path, KINDS)
    status, text, errors = run('predict', network, tmp_path, '--json')
    found = {pathlib.Path(row['image']).name: row['top'] for row in json.loads(text)['predictions']}
    assert status == 2 and f'{len(REFUSED)} of {len(KINDS)} images cannot be read' in errors
    for kind in READ:
        assert [row['probability'] for row in found.pop(kind.file_name)] == [p for _, p in session.classify(kind.pixels)]
    assert not found


def test_score_reads_a_folder_by_the_rule(network, session, tmp_path, run):
    parquet = pytest.importorskip('pyarrow.parquet')
    (tmp_path / 'images').mkdir()
    write(tmp_path / 'images', KINDS)
    status, _, errors = run('score', network, tmp_path / 'images', '--output', tmp_path / 'rows', '--workers', 1)
    assert status == 0, errors
    rows = parquet.read_table(tmp_path / 'rows').to_pylist()
    found = {pathlib.Path(row['image']).name: row for row in rows}
    for kind in KINDS:
        row = found.pop(kind.file_name)
        if kind.pixels is None:
            assert 'cannot be decoded as an image' in row['error']
        else:
            assert row['error'] is None and row['probability_1'] == session.classify(kind.pixels)[0][1]
    assert not found


def test_the_service_reads_uploads_by_the_rule():
    reading = pytest.importorskip('bmx_melius.serving.reading')
    for kind in KINDS:
        head, body = read_message(reading.respond({'spec': SPEC.to_json(), 'pixels': 50_000_000, 'form': None}, kind.content))
        if kind.pixels is None:
            status, text, _ = head['refusal']
            assert status in (400, 413, 415, 422) and '\n' not in text, kind.name
        else:
            np.testing.assert_array_equal(np.frombuffer(body, np.float32).reshape(3, 30, 30), crop(kind.pixels), err_msg=kind.name)


def read_message(parts):
    """Return the JSON object and the bytes of a message of the service's readers."""
    octets = b''.join(parts)
    (length, _), begin = struct.unpack_from('<II', octets), 8
    return json.loads(octets[begin : begin + length]), octets[begin + length :]


@only_test_c
def test_bmx_classify_reads_jpeg_and_png_by_the_rule_and_names_the_other_formats(network, session, tmp_path, tmp_path_factory):
    import subprocess

    program = install(tmp_path_factory.mktemp('c')) / 'bin' / 'bmx-classify'
    for kind, path in zip(KINDS, write(tmp_path, KINDS)):
        if kind.pixels is not None and kind.in_c:
            call(program, '--save-input', tmp_path / 'input', network, path)
            assert (tmp_path / 'input').read_bytes() == session.input_spec.array(kind.pixels).tobytes(), kind.name
        else:
            done = subprocess.run([program, network, path], capture_output=True, text=True)
            assert done.returncode == 1 and done.stderr.count('\n') == 1, kind.name
            format_name = kind.name.partition(':')[0]
            if kind.pixels is not None and format_name != 'Netpbm':
                assert f'is a {format_name} file, which bmx-classify does not read' in done.stderr


@each_kind
def test_the_cheap_check_accepts_sound_files(kind):
    if kind.pixels is not None and kind.name.partition(':')[0] not in ('TIFF', 'Netpbm', 'NPY') and 'after the end' not in kind.name:
        assert looks_complete(kind.content[:12], kind.content[-64:], len(kind.content))


def test_the_table_of_the_documentation_has_every_kind():
    table = DOCS.read_text().partition('## Image files')[2].partition('\n## ')[0]
    rows = [line for line in table.splitlines() if line.startswith('| ')]
    for kind in KINDS:
        form, _, what = kind.name.partition(': ')
        assert any(form in row and (not what or what in row) for row in rows), kind.name
