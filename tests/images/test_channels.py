"""Images of any number of channels, in .npy and TIFF files: what every command reads, and what is refused."""

import csv
import json
import pathlib
import struct

import numpy as np
import pytest
from support.channel_images import CHANNELS, TIFF_FILES, make_folders, make_image, npy, stored
from support.training_runs import TINY, refused, train

import bmx_melius as bmx
from bmx_melius.data.folders import open_folders
from bmx_melius.errors import UserError
from bmx_melius.files.parameters import read_arrays
from bmx_melius.vision.channel_files import MAX_CHANNELS, npy_pixels, tiff_pixels
from bmx_melius.vision.pixels import decode

FLAGS = [*TINY, '--input-size', '16', '--batch-size', '8', '--num-epochs', '1', '--channels', CHANNELS, '-j', '0', '--log-interval', '0']


@pytest.mark.parametrize('path', TIFF_FILES, ids=lambda path: path.stem)
def test_tiff_files_have_the_numbers_that_another_library_wrote(path):
    np.testing.assert_array_equal(decode(path.read_bytes(), path.name, CHANNELS), stored())


@pytest.mark.parametrize('dtype', ['uint8', '<u2', '>u2'])
@pytest.mark.parametrize('order', 'CF')
@pytest.mark.parametrize('shape', [(9, 7), (9, 7, 1), (9, 7, 2), (3, 4, 200)])
def test_npy_files_have_the_numbers_of_the_array(dtype, order, shape):
    values = np.random.RandomState(0).randint(0, 256, shape)
    array = np.asarray(values if dtype == 'uint8' else values * 256 + 99, dtype=dtype, order=order)
    pixels = decode(npy(array), 'a.npy', shape[2] if shape[2:] else 1)
    np.testing.assert_array_equal(pixels, values.reshape(*shape[:2], -1))


def with_field(content, tag, value):
    """Return a little-endian TIFF file with another number in a field of its directory."""
    (begin,) = struct.unpack_from('<I', content, 4)
    (entries,) = struct.unpack_from('<H', content, begin)
    for place in range(begin + 2, begin + 2 + 12 * entries, 12):
        if struct.unpack_from('<H', content, place) == (tag,):
            (kind,) = struct.unpack_from('<H', content, place + 2)
            return content[: place + 8] + struct.pack('<I' if kind == 4 else '<Hxx', value) + content[place + 12 :]
    raise AssertionError(f'no field {tag}')


PLAIN = next(path for path in TIFF_FILES if path.stem == 'plain').read_bytes()


@pytest.mark.parametrize(
    'content,words',
    [
        (npy(np.zeros((4, 5, 3), np.uint8)), 'it has 3 channels, but 5 are needed (--channels)'),
        (npy(np.zeros((4, 5, 5), np.float32)), 'must be unsigned integers of 8 or 16 bits'),
        (npy(np.zeros((4, 5, 5), np.int16)), 'must be unsigned integers of 8 or 16 bits'),
        (npy(np.zeros((4,), np.uint8)), 'the axes height, width and channels'),
        (npy(np.zeros((0, 5, 5), np.uint8)), 'it has 5 x 0 pixels with 5 channels'),
        (npy(np.zeros((1, 1, MAX_CHANNELS + 1), np.uint8)), f'and {MAX_CHANNELS} channels are possible'),
        (npy(np.zeros((4, 5, 5), np.uint8))[:-1], 'truncated'),
        (npy(np.zeros((4, 5, 5), np.uint8))[:40], 'its header is damaged'),
        (npy(np.zeros((4, 5, 5), np.uint8))[:7], 'does not begin as an .npy file'),
        (npy(np.zeros((4, 5, 5), object)), 'must be unsigned integers of 8 or 16 bits'),
        (npy(np.zeros((4, 5, 5), np.uint8)).replace(b'(4, 5, 5)', b'(99999, 99999, 5)'), 'at most 134217728 numbers'),
        (PLAIN[:-100], 'truncated'),
        (PLAIN[:9], 'it is damaged'),
        (with_field(PLAIN, 256, 60000), 'damaged|truncated|broken'),
        (with_field(with_field(PLAIN, 256, 60000), 257, 60000), 'it has 60000 x 60000 pixels; at most 134217728 are possible'),
        (with_field(PLAIN, 259, 7), 'without compression, or compressed by'),
        (with_field(PLAIN, 277, 4), 'channels, but 5 are needed|damaged|broken'),
        (with_field(PLAIN, 278, 0), 'it is damaged'),
    ],
)
def test_other_files_are_refused_in_one_line(content, words):
    with pytest.raises(UserError, match=words.replace('(', r'\(').replace(')', r'\)')) as refusal:
        decode(content, 'the file', CHANNELS)
    assert str(refusal.value).startswith('the file cannot be decoded as an image') and '\n' not in str(refusal.value)


def test_sizes_are_checked_before_memory_is_allocated():
    for content, read in ((npy(stored()), npy_pixels), (PLAIN, tiff_pixels)):
        read(content, stored().size)
        with pytest.raises(ValueError, match=f'at most {stored().size - 1} numbers'):
            read(content, stored().size - 1)


def test_files_with_colours_are_read_for_three_channels_and_for_one_and_no_others():
    colours = np.random.RandomState(0).randint(0, 256, (6, 7, 3)).astype(np.uint8)
    np.testing.assert_array_equal(decode(npy(colours), 'a', 3), colours)
    np.testing.assert_array_equal(decode(npy(colours[..., 0]), 'a', 3), np.repeat(colours[..., :1], 3, axis=2))
    assert abs(decode(npy(colours), 'a', 1)[..., 0] - colours @ [0.299, 0.587, 0.114]).max() <= 0.5 + 1e-3
    for channels in (1, 3):
        with pytest.raises(UserError, match=f'it has 5 channels, but {channels} are needed'):
            decode(PLAIN, 'a', channels)


@pytest.fixture(scope='module')
def photos(make_once):
    return make_once('five-channels', lambda folder: make_folders(folder / 'images')) / 'images'


@pytest.fixture(scope='module')
def run_folder(photos, make_once):
    return make_once('trained-on-five-channels', lambda folder: train(*FLAGS, '--data-dir', photos, '--save-dir', folder / 'run')) / 'run'


@pytest.fixture(scope='module')
def network(run_folder):
    return run_folder / 'meliusnet_flex'


def test_training_measures_mean_and_std_and_the_network_takes_all_channels(photos, network):
    spec = json.loads(pathlib.Path(f'{network}-summary.json').read_text())['input']
    train_images, _ = open_folders(str(photos), bmx.InputSpec(channels=CHANNELS, mean=[0] * CHANNELS, std=[1] * CHANNELS))
    pixels = np.concatenate([np.load(path).reshape(-1, CHANNELS) for path, _ in train_images.items]).astype(np.float64)
    assert spec['channels'] == CHANNELS
    np.testing.assert_allclose(spec['mean'], pixels.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(spec['std'], pixels.std(axis=0), rtol=1e-4)
    weights = read_arrays(f'{network}-0000.params')
    (first,) = (array for name, array in weights.items() if name.endswith('flex_conv0_weight'))
    assert first.shape[1] == CHANNELS


def test_a_resumed_run_keeps_mean_and_std_although_its_images_are_different_ones_now(tmp_path):
    images, folder = tmp_path / 'images', tmp_path / 'run'
    make_folders(images)
    flags = [*FLAGS, '--data-dir', images, '--num-epochs', '2', '--save-dir', folder]
    train(*flags, '--interrupt-at', '1', status=3)
    before = json.loads((folder / 'checkpoint.json').read_text())['options']
    for path in images.rglob('*.npy'):
        np.save(path, 255 - np.load(path) // 2)
    train('--resume', '--save-dir', folder)
    after = json.loads((folder / 'meliusnet_flex-summary.json').read_text())['input']
    assert (after['mean'], after['std']) == (before['mean'], before['std'])


def test_every_command_reads_the_same_pixels(photos, network, tmp_path, run):
    status, _, errors = run('convert', network, tmp_path / 'packed')
    assert status == 0, errors
    session = bmx.Session(tmp_path / 'packed', threads=1)
    image = make_image(1, 77)
    (tmp_path / 'new.npy').write_bytes(npy(image))
    assert session.classify(tmp_path / 'new.npy') == session.classify(image)
    spec = session.input_spec
    np.testing.assert_array_equal(spec.load(tmp_path / 'new.npy').asnumpy(), spec.array(image))
    status, text, errors = run('evaluate', network, photos, '--all-images', '--compare', tmp_path / 'packed')
    assert status == 0 and 'different predictions: 0 of 24' in text, errors
    for name in (network, tmp_path / 'packed'):
        status, _, errors = run('predict', name, photos / 'dark', photos / 'bright', '--csv', tmp_path / 'rows.csv')
        assert status == 0, errors
        with open(tmp_path / 'rows.csv', newline='') as file:
            found = {row['image']: row['class_1'] for row in csv.DictReader(file)}
        expected = {str(path): session.classify(np.load(path))[0][0] for path in photos.rglob('*.npy')}
        assert found == expected


def test_score_and_the_service_read_the_same_pixels(photos, network, tmp_path, run):
    parquet, reading = pytest.importorskip('pyarrow.parquet'), pytest.importorskip('bmx_melius.serving.reading')
    assert run('convert', network, tmp_path / 'packed')[0] == 0
    session = bmx.Session(tmp_path / 'packed', threads=1)
    status, _, errors = run('score', tmp_path / 'packed', photos, '--output', tmp_path / 'rows', '--workers', 1)
    assert status == 0, errors
    rows = parquet.read_table(tmp_path / 'rows').to_pylist()
    assert len(rows) == 24
    for row in rows:
        assert row['error'] is None and row['probability_1'] == session.classify(np.load(row['image']))[0][1]
    spec = session.input_spec
    for content in (npy(stored()), *(path.read_bytes() for path in TIFF_FILES)):
        octets = b''.join(reading.respond({'spec': spec.to_json(), 'pixels': 1000, 'form': None}, content))
        np.testing.assert_array_equal(np.frombuffer(octets[-spec.array(stored()).nbytes :], np.float32), spec.array(stored()).ravel())
        refused = b''.join(reading.respond({'spec': spec.to_json(), 'pixels': 500, 'form': None}, content))  # 21 x 26, as 5 channels 910
        assert b'413' in refused


@pytest.mark.parametrize(
    'flags,words',
    [
        (['--randaugment', '2,9'], '--randaugment has operations for 1 or 3 channels, not 5'),
        (['--mean', '1,2,3,4,5'], '--channels with one of --mean and --std: give both, or none of them'),
        (['--mean', '1,2', '--std', '1,2'], '--mean has 2 numbers, and the images have 5 channels: give one for each channel'),
        (['--use-rec'], '--channels 5 is for folders of images'),
        (['--channels', '3'], 'it has 5 channels, but 3 are needed'),
    ],
)
def test_flags_that_do_not_fit_are_refused_in_one_line(photos, flags, words, tmp_path, capsys):
    assert words in refused(capsys, *FLAGS, '--data-dir', photos, '--save-dir', tmp_path / 'run', *flags)


def test_packing_refuses_images_that_mxnet_cannot_read(photos, run):
    status, _, errors = run('pack-images', photos, '--threads', 1)
    assert status == 2 and 'images cannot be decoded' in errors and 'it has 5 channels, but 3 are needed' in errors
