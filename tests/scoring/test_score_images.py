"""The images that `bmx-melius score` finds in folders, record files and archives, and their content."""

import io
import os
import struct
import tarfile

import mxnet as mx
import pytest

from bmx_melius.data.record_format import MAGIC, scan_offsets
from bmx_melius.errors import UserError
from bmx_melius.scoring.images import list_images

CONTENTS = [b'first', b'', b'with ' + struct.pack('<I', MAGIC) * 2 + b'magic', b'last one']  # MXNet splits a record at the magic number


def write_records(path):
    records = mx.recordio.MXIndexedRecordIO(str(path.with_suffix('.idx')), str(path), 'w')
    for number, content in enumerate(CONTENTS):
        records.write_idx(number + 10, mx.recordio.pack(mx.recordio.IRHeader(0, number, number, 0), content))
    records.close()


def write_archive(path, mode='w'):
    with tarfile.open(path, mode) as archive:
        for name, content in (('b/2.png', b'two'), ('b/1.JPG', b'one'), ('b/notes.txt', b'text')):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def content_of(source):
    return {image.name: image.read() for image in list_images([str(source)])}


def test_a_folder_has_the_images_of_all_subfolders_record_files_and_archives_in_the_order_of_names(tmp_path):
    (tmp_path / 'b' / '.hidden').mkdir(parents=True)
    for name in ('a.png', 'b/c.jpeg', 'b/B.TIF', 'b/.hidden/x.png', '.y.png', 'b/list.txt'):
        (tmp_path / name).write_bytes(name.encode())
    write_archive(tmp_path / 'b' / 'd.tar')
    assert content_of(tmp_path) == {
        **{str(tmp_path / name): name.encode() for name in ('a.png', 'b/B.TIF', 'b/c.jpeg')},
        f'{tmp_path}/b/d.tar/b/2.png': b'two',
        f'{tmp_path}/b/d.tar/b/1.JPG': b'one',
    }
    assert [os.path.basename(image.name) for image in list_images([str(tmp_path)])] == ['a.png', 'B.TIF', 'c.jpeg', '2.png', '1.JPG']


def test_records_have_the_content_that_was_packed_with_and_without_an_index(tmp_path):
    write_records(tmp_path / 'x.rec')
    assert content_of(tmp_path / 'x.rec') == {f'{tmp_path}/x.rec/{number + 10}': content for number, content in enumerate(CONTENTS)}
    os.remove(tmp_path / 'x.idx')
    assert list(content_of(tmp_path / 'x.rec').values()) == CONTENTS


@pytest.mark.parametrize('cut', [1, 3, 9, 30])
def test_a_truncated_record_file_without_an_index_is_refused(tmp_path, cut):
    write_records(tmp_path / 'x.rec')
    whole = (tmp_path / 'x.rec').read_bytes()
    (tmp_path / 'x.rec').write_bytes(whole[:-cut])
    with pytest.raises(UserError, match='x.rec: (no complete record begins at byte|the last record is truncated)'):
        scan_offsets(tmp_path / 'x.rec')


def test_an_index_of_another_record_file_is_refused_or_its_images_are_unreadable(tmp_path):
    write_records(tmp_path / 'x.rec')
    (tmp_path / 'x.idx').write_text('0\t0\n1\t100000\n')
    with pytest.raises(UserError, match='x.idx belongs to another record file'):
        list_images([str(tmp_path / 'x.rec')])
    (tmp_path / 'x.idx').write_text('0\t0\n1\t12\n')
    reasons = 'the record is longer than its index says', 'a frame of the record is incomplete'
    for image, reason in zip(list_images([str(tmp_path / 'x.rec')]), reasons):
        with pytest.raises(UserError, match=f'{image.name}: {reason}'):
            image.read()


def test_an_index_of_some_records_gives_the_content_of_each_and_nothing_of_those_between(tmp_path):
    write_records(tmp_path / 'x.rec')
    lines = (tmp_path / 'x.idx').read_text().splitlines()
    (tmp_path / 'x.idx').write_text(f'{lines[0]}\n{lines[2]}\n')
    assert list(content_of(tmp_path / 'x.rec').values()) == [CONTENTS[0], CONTENTS[2]]


def test_records_with_several_labels_have_the_image_after_them(tmp_path):
    records = mx.recordio.MXRecordIO(str(tmp_path / 'x.rec'), 'w')
    records.write(mx.recordio.pack(mx.recordio.IRHeader(0, [1.0, 2.0, 3.0], 0, 0), b'image'))
    records.write(b'too short')
    records.close()
    sound, short = list_images([str(tmp_path / 'x.rec')])
    assert sound.read() == b'image'
    with pytest.raises(UserError, match='x.rec/1: the record has no label and no image'):
        short.read()


def test_links_to_folders_are_followed_except_into_the_folders_that_contain_them(tmp_path):
    (tmp_path / 'elsewhere').mkdir()
    (tmp_path / 'photos').mkdir()
    (tmp_path / 'elsewhere' / 'a.png').touch()
    (tmp_path / 'photos' / 'b.png').touch()
    (tmp_path / 'photos' / 'linked').symlink_to('../elsewhere')
    (tmp_path / 'elsewhere' / 'back').symlink_to('../photos')
    assert [image.name for image in list_images([str(tmp_path / 'photos')])] == [
        f'{tmp_path}/photos/b.png',
        f'{tmp_path}/photos/linked/a.png',
    ]


def test_a_folder_with_many_names_is_listed_once(tmp_path):
    """Ten levels with three links each would give the image 59,049 names."""
    for level in range(10):
        (tmp_path / str(level)).mkdir()
    (tmp_path / '9' / 'a.png').touch()
    for level in range(9):
        for name in 'abc':
            (tmp_path / str(level) / name).symlink_to(f'../{level + 1}')
    assert [image.name for image in list_images([str(tmp_path / '0')])] == [f'{tmp_path}/0/{"a/" * 9}a.png']
    (tmp_path / 'linked').symlink_to('9')
    with pytest.raises(UserError, match='a.png is named twice'):
        list_images([str(tmp_path / '9'), str(tmp_path / 'linked')])


@pytest.mark.parametrize('name', ['x.rec', 'x.tar', 'x.png'])
@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_pipes_and_devices_are_refused_before_they_are_read(tmp_path, name, kind):
    if kind == 'pipe':
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to('/dev/zero')
    with pytest.raises(UserError, match=f'{name} is not a regular file'):
        list_images([str(tmp_path / name)])[0].read()


def test_an_index_that_is_a_pipe_is_refused(tmp_path):
    write_records(tmp_path / 'x.rec')
    os.remove(tmp_path / 'x.idx')
    os.mkfifo(tmp_path / 'x.idx')
    with pytest.raises(UserError, match='x.idx is not a regular file'):
        list_images([str(tmp_path / 'x.rec')])


def test_a_broken_link_is_an_image_that_cannot_be_read_unless_it_is_named(tmp_path):
    (tmp_path / 'photos').mkdir()
    link = tmp_path / 'photos' / 'a.png'
    link.symlink_to('none.png')
    (image,) = list_images([str(tmp_path / 'photos')])
    with pytest.raises(UserError, match='a.png: No such file'):
        image.read()
    with pytest.raises(FileNotFoundError):
        list_images([str(link)])


def test_hidden_members_of_archives_are_left_out(tmp_path):
    with tarfile.open(tmp_path / 'x.tar', 'w') as archive:
        for name in ('./a.png', './._a.png', '.cache/b.png', '../c.png'):
            archive.addfile(tarfile.TarInfo(name))
    assert set(content_of(tmp_path / 'x.tar')) == {f'{tmp_path}/x.tar/./a.png', f'{tmp_path}/x.tar/../c.png'}


def test_images_that_were_cut_off_or_removed_after_the_listing_are_unreadable(tmp_path):
    write_archive(tmp_path / 'x.tar')
    (tmp_path / 'y.png').write_bytes(b'image')
    first, second, third = list_images([str(tmp_path)])
    os.truncate(tmp_path / 'x.tar', 600)
    os.remove(tmp_path / 'y.png')
    assert first.name.endswith('2.png')
    for image, reason in ((second, 'x.tar is truncated'), (third, 'No such file')):
        with pytest.raises(UserError, match=reason):
            image.read()


def test_a_file_that_is_larger_than_any_image_is_not_read(tmp_path):
    with tarfile.open(tmp_path / 'x.tar', 'w') as archive:
        member = tarfile.TarInfo('a.png')
        member.size = 3 << 30
        archive.addfile(member, None)
    os.truncate(tmp_path / 'x.tar', 4 << 30)  # without using space on the disk
    (tmp_path / 'y.png').touch()
    os.truncate(tmp_path / 'y.png', 3 << 30)
    images = list_images([str(tmp_path)])
    assert len(images) == 2
    for image in images:
        with pytest.raises(UserError, match=r'(a|y)\.png has 3,221,225,472 bytes, more than an image can have'):
            image.read()


@pytest.mark.parametrize(
    'name', ['none', 'none.png', 'notes.txt', 'empty', 'empty.rec', 'wrong.rec', 'wrong.tar', 'x.tar.gz', 'gz.tar', 'no.tar']
)
def test_sources_without_images_are_refused_with_their_name(tmp_path, name):
    (tmp_path / 'empty').mkdir()
    for file in ('empty.rec', 'notes.txt'):
        (tmp_path / file).touch()
    for file in ('wrong.rec', 'wrong.tar'):
        (tmp_path / file).write_bytes(bytes(1000))
    for file in ('x.tar.gz', 'gz.tar'):
        write_archive(tmp_path / file, 'w:gz')
    with tarfile.open(tmp_path / 'no.tar', 'w') as archive:
        archive.add(tmp_path / 'notes.txt')
    with pytest.raises((UserError, OSError)) as refused:
        list_images([str(tmp_path / name)])
    assert name in str(refused.value)


@pytest.mark.parametrize('sources', [['photos', 'photos/a.png'], ['photos', './photos'], ['photos/a.png', 'photos/b/../a.png']])
def test_an_image_that_is_named_twice_is_refused(tmp_path, monkeypatch, sources):
    (tmp_path / 'photos' / 'b').mkdir(parents=True)
    (tmp_path / 'photos' / 'a.png').touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match='a.png is named twice'):
        list_images(sources)
