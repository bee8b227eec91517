"""The sources of training data: what they yield, and what they say about broken files."""

import collections
import os
import pathlib
import struct
import zlib

import mxnet as mx
import numpy as np
import pytest
from support.images import damage_file, damage_record, encode, make_folders, overwrite, pack_folders, record_span, write_records

from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.datasets import DATASETS
from bmx_melius.data.folders import FolderSource, open_folders
from bmx_melius.data.image_source import ImageSource, TrainingImages
from bmx_melius.data.opening import DataOptions, InputOptions, open_source
from bmx_melius.data.record_source import RecordImageSource, RecordSource
from bmx_melius.data.records import RecordFile, read_class_names
from bmx_melius.data.small_images import open_digits
from bmx_melius.data.source import Batching
from bmx_melius.errors import DataError, UserError
from bmx_melius.vision.preprocessing import InputSpec

PLAIN = InputSpec(size=8, resize=8, mean=(0, 0, 0), std=(1, 1, 1))
MIRROR_ONLY, MEDIUM = Augmentation(mirror=True), DATASETS['imagenet'].augmentations['medium']
KINDS = ('records', 'images')


def numbered_images(number):
    """Encoded images of 8x8 pixels; all pixels of image n have the value n."""
    return [encode(np.full((8, 8, 3), n, np.uint8)) for n in range(number)]


def open_numbered(folder, number=20, validation=7, parts=1, part=0, batch_size=6, seed=0, kind='records', threads=0):
    """A source of `numbered_images`, whose labels are their numbers modulo 10."""
    batching = Batching(batch_size, seed, part, parts)
    if kind == 'images':
        datasets = [[(mx.nd.full((8, 8, 3), n, dtype='uint8'), n % 10) for n in range(size)] for size in (number, validation)]
        return ImageSource(TrainingImages(*datasets, [str(n) for n in range(10)], 'test'), PLAIN, MIRROR_ONLY, batching, threads=0)
    files = []
    for name, size in (('train', number), ('val', validation)):
        write_records(folder / name, numbered_images(size), [n % 10 for n in range(size)])
        files.append(RecordFile(f'{folder / name}.rec', f'{folder / name}.idx'))
    return RecordSource(*files, PLAIN, MIRROR_ONLY, batching, threads=1)


def numbers(batches):
    """The numbers of the images in each batch, checked against their labels."""
    result = []
    for images, labels in batches:
        assert images.dtype == labels.dtype == np.float32 and images.shape[1:] == (3, 8, 8)
        result.append(images.asnumpy()[:, 0, 0, 0].astype(int).tolist())
        assert labels.asnumpy().tolist() == [number % 10 for number in result[-1]]
    return result


@pytest.mark.parametrize('kind', KINDS)
def test_an_epoch_is_a_shuffle_in_full_batches_that_depends_only_on_seed_and_epoch(tmp_path, kind):
    source = open_numbered(tmp_path, kind=kind)
    epochs = [numbers(source.train(epoch)) for epoch in range(3)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [6] * source.updates_per_epoch == [6] * 3
        assert len(set(sum(batches, []))) == 18, 'no image twice'
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert [numbers(open_numbered(tmp_path, kind=kind).train(epoch)) for epoch in (2, 0)] == [epochs[2], epochs[0]]
    assert numbers(open_numbered(tmp_path, kind=kind, seed=1).train(0)) != epochs[0]


@pytest.mark.parametrize('kind', KINDS)
def test_an_epoch_begun_at_any_batch_gives_the_same_batches(tmp_path, kind):
    source = open_numbered(tmp_path, kind=kind)
    whole = [(images.asnumpy(), labels.asnumpy()) for images, labels in source.train(1)]
    for first in range(4):
        rest = [(images.asnumpy(), labels.asnumpy()) for images, labels in source.train(1, first)]
        np.testing.assert_equal(rest, whole[first:])


@pytest.mark.parametrize('kind', KINDS)
def test_validation_yields_every_image_once_in_order(tmp_path, kind):
    source = open_numbered(tmp_path, kind=kind)
    for _ in range(2):
        assert numbers(source.validation()) == [[0, 1, 2, 3, 4, 5], [6]]
    assert sum(numbers(open_numbered(tmp_path, kind=kind, validation=4).validation()), []) == [0, 1, 2, 3]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('number,parts', [(24, 3), (21, 3), (22, 4)])
def test_machines_share_the_images_of_an_epoch_and_make_equally_many_updates(tmp_path, kind, number, parts):
    sources = [open_numbered(tmp_path, kind=kind, number=number, parts=parts, part=part, batch_size=2) for part in range(parts)]
    updates = number // (2 * parts)
    shares_of_epochs = []
    for epoch in range(3):
        epochs = [numbers(source.train(epoch)) for source in sources]
        assert [len(batches) for batches in epochs] == [source.updates_per_epoch for source in sources] == [updates] * parts
        assert {source.images_per_update for source in sources} == {2 * parts}
        images = sum(sum(epochs, []), [])
        assert len(images) == len(set(images)) == updates * 2 * parts, 'no image twice; all of them if they fill the batches'
        shares_of_epochs.append([sum(batches, []) for batches in epochs])
    for part in range(parts):
        orders = [shares[part] for shares in shares_of_epochs]
        assert orders[0] != orders[1] != orders[2], 'another order each epoch'
        if kind == 'records' and number % parts == 0:
            shares = [set(range(number // parts * part, number // parts * (part + 1)))] * 3
            assert all(set(order) <= share for order, share in zip(orders, shares)), 'a fixed share of the file'


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('validation,parts', [(8, 2), (7, 3), (13, 4), (5, 4), (1, 3)])
def test_machines_share_the_validation_images_each_once_and_in_order(tmp_path, kind, validation, parts):
    sources = [open_numbered(tmp_path, kind=kind, validation=validation, parts=parts, part=part, batch_size=3) for part in range(parts)]
    for _ in range(2):
        shares = [sum(numbers(source.validation()), []) for source in sources]
        assert sum(shares, []) == list(range(validation))
        assert [len(share) for share in shares] == [len(source.validation_share) for source in sources]
        assert max(map(len, shares)) == -(-validation // parts)


def test_too_few_images_or_classes_are_refused(tmp_path):
    for kind in ('records', 'images'):
        with pytest.raises(UserError, match='--batch-size'):
            open_numbered(tmp_path, kind=kind, number=5)
    with pytest.raises(UserError, match='one class'):
        ImageSource(TrainingImages([], [], ['a'], 'test'), PLAIN, MIRROR_ONLY, Batching(1), threads=0)


def test_batches_do_not_depend_on_the_number_of_threads(tmp_path):
    make_folders(tmp_path)
    spec = InputSpec(size=16, resize=20)
    epochs = []
    for threads in (0, 2):
        train, validation = open_folders(tmp_path, spec)
        augmentation = DATASETS['imagenet'].augmentations['high']
        source = ImageSource(TrainingImages(train, validation, train.class_names, 'test'), spec, augmentation, Batching(8, seed=5), threads)
        epochs.append(
            [images.asnumpy() for epoch in range(2) for images, _ in source.train(epoch)]
            + [images.asnumpy() for images, _ in source.validation()]
        )
    np.testing.assert_equal(*epochs)


def test_digits_are_split_by_class_in_the_same_way_every_time():
    from sklearn.datasets import load_digits

    parts = open_digits()
    train, validation, test = parts.train, parts.validation, parts.test
    assert (len(train), len(validation), len(test)) == (1071, 362, 364)
    for part in (validation, test):
        labels = collections.Counter(label for _, label in part)
        assert min(labels.values()) >= 34 and max(labels.values()) <= 37
    images = [image.asnumpy()[..., 0] for dataset in (train, validation, test) for image, _ in dataset]
    assert images[0].shape == (10, 10) and images[0].dtype == np.uint8
    original = sorted(image.astype(int).tolist() for image in load_digits().images)
    inner = sorted(np.rint(image[1:-1, 1:-1] / 255 * 16).astype(int).tolist() for image in images)
    assert inner == original, 'every digit is in one of the parts, once'
    spec = DATASETS['digits'].input
    np.testing.assert_array_equal(spec.crop(validation[0][0]).asnumpy()[..., 0], images[len(train)][1:-1, 1:-1])


# ---- files that are not as they should be ----


@pytest.fixture
def record_file(tmp_path):
    """Prefix of a record file of 20 JPEGs, with smooth content of about 1 kB each."""
    random = np.random.RandomState(0)
    images = [mx.image.imresize(mx.nd.array(random.randint(0, 256, (4, 4, 3)), dtype='uint8'), 40, 40).asnumpy() for _ in range(20)]
    write_records(tmp_path / 'a', [encode(image, '.jpg') for image in images], [n % 4 for n in range(20)])
    return str(tmp_path / 'a')


def open_records(prefix):
    return RecordFile(prefix + '.rec', prefix + '.idx')


def test_an_intact_record_file_gives_keys_and_labels(record_file):
    records = open_records(record_file)
    assert len(records) == 20 and records.keys.tolist() == list(range(20)) and records.labels.tolist() == [n % 4 for n in range(20)]
    assert records.suspects(2) == [] and records.undecodable(2, range(20)) == []
    reader = mx.recordio.MXIndexedRecordIO(records.index_path, records.path, 'r')
    assert all(records.read(n) == mx.recordio.unpack(reader.read_idx(n))[1] for n in range(20))


def test_a_record_that_contains_the_mark_of_a_record_is_sound(tmp_path):
    image = encode(np.zeros((8, 8, 3), np.uint8)) + b'\0' * 200
    image = image[: (len(image) - 100) // 4 * 4] + b'\x0a\x23\xd7\xce' * 3 + image[-64:]  # recordio splits records there
    write_records(tmp_path / 'a', [image] * 3, [0, 1, 0])
    records = open_records(str(tmp_path / 'a'))
    assert records.labels.tolist() == [0, 1, 0] and [records.read(number) for number in range(3)] == [image] * 3


def test_a_png_file_that_only_pillow_decodes_is_not_left_to_mxnet_and_a_split_one_is(tmp_path):
    """MXNet's reader crashes at the length of a chunk that is beyond the file, and its `imdecode` does not notice it."""
    image = encode(np.random.RandomState(0).randint(0, 256, (8, 8, 3)).astype(np.uint8))
    length, end = image.index(b'IDAT') - 4, image.index(b'IEND') - 4
    damaged = image[:length] + struct.pack('>I', 1 << 30) + image[length + 4 :]
    padding = bytes(-(end + 8) % 4)
    text = struct.pack('>I4s', 12 + len(padding), b'teXt') + padding + b'\x0a\x23\xd7\xce' * 3  # a chunk that decoders skip
    split = image[:end] + text + struct.pack('>I', zlib.crc32(text[4:])) + image[end:]
    write_records(tmp_path / 'a', [image, damaged, split], [0, 1, 0])
    records = open_records(str(tmp_path / 'a'))
    assert records.unlike_mxnet == [1] and records.read(2) == split
    assert b'\x0a\x23\xd7\xce' * 3 not in (tmp_path / 'a.rec').read_bytes(), 'it is stored in parts'
    assert records.undecodable(1, range(3)) == []


def truncate(number, inside):
    """Cut off a record file in a record, at a byte of it."""
    return lambda prefix: os.truncate(f'{prefix}.rec', record_span(prefix, number)[0] - 32 + inside)


def flip(number, bit):
    """Flip a bit of the length of a record, one that marks it as a part."""

    def call(prefix):
        offset, length = record_span(prefix, number)
        overwrite(f'{prefix}.rec', offset - 28, struct.pack('<I', length + 24 | 1 << bit))

    return call


def write_index(content):
    return lambda prefix: pathlib.Path(f'{prefix}.idx').write_text(content)


def swap_index(prefix):
    """Give a record file the index of another one with as many images."""
    write_records(f'{prefix}-other', numbered_images(20))
    os.replace(f'{prefix}-other.idx', f'{prefix}.idx')


def shorten_index(prefix):
    lines = pathlib.Path(f'{prefix}.idx').read_text().splitlines(keepends=True)
    write_index(''.join(lines[:3]))(prefix)


@pytest.mark.parametrize(
    'damage, words',
    [
        *((truncate(number, inside), rf'a\.rec: record {number} of the file.*truncated') for number in (0, 13, 19) for inside in (5, 100)),
        *(
            (flip(number, bit), rf'a\.rec: record {number} .*its parts are incomplete or damaged')
            for number in (0, 13, 19)
            for bit in (29, 30, 31)
        ),
        (swap_index, r'a\.idx belongs to another record file than .*a\.rec, or is damaged: its record 1 would begin'),
        (shorten_index, r'a\.idx has 3 of the 20 records in .*a\.rec: it lacks that at byte'),
        *((write_index(content), r'a\.idx') for content in ('', 'no numbers', '1\n2\n', '0\t-1\n', '0\t1e30\n', f'0\t1{"0" * 30}')),
    ],
)
def test_a_damaged_record_file_or_index_is_named_with_its_first_bad_record(record_file, damage, words):
    damage(record_file)
    with pytest.raises(UserError, match=words):
        open_records(record_file)


@pytest.mark.parametrize('line', ['1.', '+1', '1e0', '0x1', '-1', '1_0', '\xa01', '#\n1', '\0', f'1{"0" * 30}'])
@pytest.mark.parametrize('number', [0, 13])
def test_an_index_of_anything_but_unsigned_integers_is_refused(record_file, line, number):
    """MXNet reads it up to there: it crashes if this is the first line, and otherwise loses the records after it."""
    lines = pathlib.Path(f'{record_file}.idx').read_text().splitlines()
    lines[number] = '\t'.join([line, lines[number].split('\t')[1]])
    pathlib.Path(f'{record_file}.idx').write_text('\n'.join(lines), 'latin-1')
    with pytest.raises(UserError, match=r'a\.idx is not an index of a record file') as caught:
        open_records(record_file)
    assert '\n' not in str(caught.value)


def test_an_index_with_spaces_and_line_endings_of_windows_is_read(record_file):
    expected, path = open_records(record_file), pathlib.Path(f'{record_file}.idx')
    path.write_bytes(path.read_bytes().replace(b'\n', b' \r\n').replace(b'\t', b' \t '))
    records = open_records(record_file)
    assert records.keys.tolist() == expected.keys.tolist() and records.labels.tolist() == expected.labels.tolist()
    source = RecordSource(records, records, PLAIN, MIRROR_ONLY, Batching(2), threads=1)
    assert sum(len(labels) for _, labels in source.validation()) == 20


@pytest.mark.parametrize('label', [[1.0, 2.0], -1.0, 0.5, 1e9, float('inf'), float('nan')])
def test_labels_that_are_no_class_are_refused(tmp_path, label):
    write_records(tmp_path / 'a', numbered_images(3), [0.0, 1.0, label])
    with pytest.raises(UserError, match=r'record 2 .*label'):
        open_records(str(tmp_path / 'a'))


def test_a_label_without_the_images_that_it_needs_is_refused(tmp_path):
    write_records(tmp_path / 'a', numbered_images(4), [0.0, 1.0, 786432.0, 1.0])  # a flipped bit of 3
    records = open_records(str(tmp_path / 'a'))
    for kind in (RecordSource, RecordImageSource):
        with pytest.raises(UserError, match='the label of record 2 is 786432, but there are only 4 training images'):
            kind(records, records, PLAIN, MIRROR_ONLY, Batching(2), threads=1)


def test_an_image_that_is_overwritten_is_named(record_file):
    for number in (3, 7):
        offset, length = record_span(record_file, number)
        overwrite(record_file + '.rec', offset, b'\0' * length)
    with pytest.raises(UserError, match=r'a\.rec: no image can be decoded from record 3, 7;'):
        open_records(record_file).check_ends(1)


def test_other_formats_than_jpeg_and_png_are_no_error(tmp_path, caplog):
    write_records(tmp_path / 'a', [encode(np.full((8, 8, 3), n, np.uint8), '.bmp') for n in range(3)])
    open_records(str(tmp_path / 'a')).check_ends(2)
    assert not caplog.records


def test_a_truncated_image_in_a_record_file_is_refused_before_the_first_epoch(tmp_path):
    images = [encode(np.random.RandomState(n).randint(0, 256, (30, 30, 3)).astype(np.uint8), '.jpg') for n in range(4)]
    write_records(tmp_path / 'a', [images[0], images[1][: len(images[1]) // 2], *images[2:]], [0, 1, 0, 1])
    records = open_records(str(tmp_path / 'a'))
    with pytest.raises(UserError, match='a.rec: no image can be decoded from record 1; .*truncated'):
        RecordSource(records, records, PLAIN, MIRROR_ONLY, Batching(4), threads=1)


def test_an_undecodable_record_is_named_when_it_is_read(record_file):
    source = RecordSource(open_records(record_file), open_records(record_file), PLAIN, MEDIUM, Batching(5), threads=1)
    damage_record(record_file, 13)
    with pytest.raises(DataError, match=r'a\.rec.* record 13;'):
        list(source.train(0))


@pytest.fixture
def folders(tmp_path):
    make_folders(tmp_path)
    return tmp_path


def open_photos(folder, threads=2):
    train, validation = open_folders(folder, PLAIN)
    return FolderSource(train, validation, str(folder), PLAIN, MIRROR_ONLY, Batching(6), threads)


@pytest.mark.parametrize('threads', [0, 2])
def test_an_undecodable_file_is_named_when_it_is_read(folders, threads):
    damage_file(folders / 'train' / 'class1' / '4.jpg')
    source = open_photos(folders, threads)
    with pytest.raises(DataError, match='class1/4.jpg'):
        list(source.train(0))


@pytest.mark.parametrize('threads', [0, 2])
def test_files_that_start_or_end_unlike_images_or_validation_needs_are_decoded_before_the_first_epoch(folders, threads):
    files = [folders / 'train' / 'class1' / f'{number}.jpg' for number in (4, 9)]
    kept = files[0].read_bytes()
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(UserError, match='train: no image can be decoded from class1/4.jpg, class1/9.jpg; repair'):
        open_photos(folders, threads)
    for file in files:
        file.write_bytes(kept)
    damage_file(folders / 'val' / 'class2' / '3.jpg')
    with pytest.raises(UserError, match='val: no image can be decoded from class2/3.jpg; repair'):
        open_photos(folders, threads)


def test_truncated_files_are_refused_and_files_that_are_no_images_are_named_once(folders, caplog):
    for name in ('notes.txt', 'class0/a.psd', 'class1/b.psd'):
        (folders / 'val' / name).write_text('')
    open_photos(folders)
    (message,) = (record.getMessage() for record in caplog.records)
    assert 'val: ignored' in message and message.endswith('class0/a.psd, class1/b.psd, notes.txt')
    for name in ('train/class0/3.jpg', 'train/class2/5.jpg'):
        content = (folders / name).read_bytes()
        (folders / name).write_bytes(content[: len(content) * 9 // 10])
    with pytest.raises(UserError, match='train: no image can be decoded from class0/3.jpg, class2/5.jpg; .*truncated'):
        open_photos(folders)


@pytest.mark.parametrize('kind', ['records', 'folders'])
def test_decode_training_images_names_an_image_that_cannot_be_decoded(folders, kind):
    if kind == 'folders':
        damage_file(folders / 'train' / 'class1' / '4.jpg')
        source, name = open_photos(folders), 'class1/4.jpg'
    else:
        pack_folders(folders)
        damage_record(folders / 'rec' / 'train', 17)
        records = [open_records(f'{folders}/rec/{part}') for part in ('train', 'val')]
        source, name = RecordSource(*records, PLAIN, MEDIUM, Batching(4), threads=2), 'record 17'
    with pytest.raises(UserError, match=f'no image can be decoded from {name};'):
        source.decode_training_images()


def test_training_images_that_can_be_decoded_or_are_arrays_pass_the_check(folders):
    open_photos(folders).decode_training_images()
    open_numbered(folders, kind='images').decode_training_images()


@pytest.mark.parametrize('damaged', ['train', 'val'])
def test_images_that_would_crash_the_reader_are_found_before_the_first_epoch(record_file, damaged):
    sound = open_records(record_file)
    damage_record(record_file, 13)
    files = (open_records(record_file), sound) if damaged == 'train' else (sound, open_records(record_file))
    with pytest.raises(UserError, match='record 13;'):
        RecordSource(*files, PLAIN, MIRROR_ONLY if damaged == 'train' else MEDIUM, Batching(4), 2)


def test_folders_with_different_classes_are_refused(tmp_path):
    make_folders(tmp_path)
    os.rename(tmp_path / 'val' / 'class1', tmp_path / 'val' / 'klass1')
    with pytest.raises(UserError, match='same classes'):
        open_folders(tmp_path, PLAIN)


def test_an_empty_folder_is_named(tmp_path):
    for part in ('train', 'val'):
        (tmp_path / part / 'a').mkdir(parents=True)
    with pytest.raises(UserError, match='train'):
        open_folders(tmp_path, PLAIN)


def test_a_file_of_class_names_beside_records_may_begin_with_a_byte_order_mark(record_file, tmp_path):
    (tmp_path / 'classes.txt').write_text('ant\nbee\ncat\ndog\n', encoding='utf-8-sig')
    assert read_class_names(open_records(record_file), 4) == ['ant', 'bee', 'cat', 'dog']


def test_record_files_that_are_not_named_are_those_in_the_folder_rec(tmp_path):
    (tmp_path / 'rec').mkdir()
    for name, size in (('train', 8), ('val', 5)):
        write_records(tmp_path / 'rec' / name, numbered_images(size), [n % 2 for n in range(size)])
    source = open_source(Batching(4), DataOptions('imagenet', str(tmp_path), use_rec=True), InputOptions(8, 1))
    assert source.updates_per_epoch == 2 and sum(len(labels) for _, labels in source.validation()) == 5
