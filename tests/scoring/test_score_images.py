"""The images that `bmx-melius score` finds in folders, record files and archives, and their content."""

import io
import os
import struct
import tarfile

import mxnet as mx
import pytest

from bmx_melius.data.record_format import MAGIC
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
    return {image.name: image.read() for image in list_images([str(source)]).images}


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
    assert [os.path.basename(image.name) for image in list_images([str(tmp_path)]).images] == ['a.png', 'B.TIF', 'c.jpeg', '2.png', '1.JPG']


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
    with pytest.raises(UserError, match='x.rec: record 3 of the file, at byte .* is broken: the file is truncated'):
        list_images([str(tmp_path / 'x.rec')])


@pytest.mark.parametrize(
    'change, words',
    [
        (lambda lines: lines[:-1], 'has 3 of the 4 records in .*x.rec: it lacks that at byte'),
        (lambda lines: lines[1:], 'has 3 of the 4 records in .*x.rec: it lacks that at byte 0'),
        (lambda lines: [lines[0], *lines[2:]], 'has 3 of the 4 records'),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 'its record 13 would begin at byte .*, where none begins'),
        (lambda lines: [*lines, '14\t100000'], 'its record 14 would begin at byte 100,000, where none begins'),
        (lambda lines: [*lines, '14\t0'], 'several of its records have the offset 0'),
        (lambda lines: ['11\t0', *lines[1:]], 'several of its records have the number 11'),
    ],
)
def test_an_index_that_is_not_that_of_all_records_is_refused_with_the_first_place(tmp_path, change, words):
    write_records(tmp_path / 'x.rec')
    lines = change((tmp_path / 'x.idx').read_text().splitlines())
    (tmp_path / 'x.idx').write_text(''.join(f'{line}\n' for line in lines))
    with pytest.raises(UserError, match=f'x.idx .*{words}'):
        list_images([str(tmp_path / 'x.rec')])


def test_a_record_file_cut_between_records_is_refused_with_its_index_and_warned_of_without(tmp_path, caplog):
    write_records(tmp_path / 'x.rec')
    (offset,) = [int(line.split('\t')[1]) for line in (tmp_path / 'x.idx').read_text().splitlines() if line.startswith('13')]
    os.truncate(tmp_path / 'x.rec', offset)
    with pytest.raises(UserError, match='x.idx .*its record 13 would begin at byte'):
        list_images([str(tmp_path)])
    os.remove(tmp_path / 'x.idx')
    (tmp_path / 'y.rec').write_bytes((tmp_path / 'x.rec').read_bytes())
    assert len(list_images([str(tmp_path)]).images) == 6
    (message,) = caplog.messages
    assert 'cut between two records' in message and f'{tmp_path}/x.rec, {tmp_path}/y.rec' in message


def test_records_with_several_labels_have_the_image_after_them(tmp_path):
    records = mx.recordio.MXRecordIO(str(tmp_path / 'x.rec'), 'w')
    records.write(mx.recordio.pack(mx.recordio.IRHeader(0, [1.0, 2.0, 3.0], 0, 0), b'image'))
    records.write(b'too short')
    records.close()
    sound, short = list_images([str(tmp_path / 'x.rec')]).images
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
    assert [image.name for image in list_images([str(tmp_path / 'photos')]).images] == [
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
    assert [image.name for image in list_images([str(tmp_path / '0')]).images] == [f'{tmp_path}/0/{"a/" * 9}a.png']
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
        list_images([str(tmp_path / name)]).images[0].read()


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
    (image,) = list_images([str(tmp_path / 'photos')]).images
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
    first, second, third = list_images([str(tmp_path)]).images
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
    images = list_images([str(tmp_path)]).images
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


def add(archive, name, content=b'', kind=tarfile.REGTYPE, target=''):
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(content), kind, target
    archive.addfile(member, io.BytesIO(content))


def test_links_in_archives_are_images_with_the_content_of_their_targets(tmp_path):
    with tarfile.open(tmp_path / 'x.tar', 'w') as archive:
        add(archive, './a/1.png', b'one')
        add(archive, 'a/2.png', kind=tarfile.LNKTYPE, target='a/1.png')
        add(archive, 'b/3.png', kind=tarfile.SYMTYPE, target='../a/2.png')
        add(archive, 'b/4.png', kind=tarfile.SYMTYPE, target='5.png')
        add(archive, 'b/5.png', kind=tarfile.SYMTYPE, target='4.png')
        add(archive, 'b/6.png', kind=tarfile.LNKTYPE, target='b/none.png')
        add(archive, 'c.png', kind=tarfile.DIRTYPE)
    found = list_images([str(tmp_path / 'x.tar')]).images
    assert [image.read() for image in found[:3]] == [b'one'] * 3
    assert [os.path.basename(image.name) for image in found] == [f'{number}.png' for number in range(1, 7)]
    for image in found[3:]:
        with pytest.raises(UserError, match=r'[456]\.png is a link to a file that is not in the archive'):
            image.read()
    with pytest.raises(UserError, match='1.png is named twice'):
        list_images([str(tmp_path / 'x.tar'), f'{tmp_path}/./x.tar'])


def test_what_is_left_out_of_archives_and_folders_is_named_in_one_warning_each(tmp_path, caplog):
    for name in ('x.tar', 'y.tar'):
        write_archive(tmp_path / name)
    write_archive(tmp_path / 'z.tar.gz', 'w:gz')
    assert len(list_images([str(tmp_path)]).images) == 4
    assert [message.partition(':')[2].strip() for message in caplog.messages] == [
        f'{tmp_path}/x.tar/b/notes.txt, {tmp_path}/y.tar/b/notes.txt',
        f'{tmp_path}/z.tar.gz',
    ]


def test_a_listing_names_the_files_that_change_after_it(tmp_path):
    (tmp_path / 'photos').mkdir()
    for name in ('a.png', 'b.png', 'notes.txt'):
        (tmp_path / 'photos' / name).write_bytes(b'content')
    write_records(tmp_path / 'photos' / 'x.rec')
    listing = list_images([str(tmp_path / 'photos')])
    assert listing.changes() == ([], 0)
    (tmp_path / 'photos' / 'notes.txt').write_bytes(b'another content')
    assert listing.changes() == ([], 0)
    os.utime(tmp_path / 'photos' / 'a.png', (1, 1))
    assert listing.changes() == ([f'{tmp_path}/photos/a.png'], 1)
    os.remove(tmp_path / 'photos' / 'x.idx')
    os.remove(tmp_path / 'photos' / 'b.png')
    (tmp_path / 'photos' / 'new.png').write_bytes(b'content')
    assert listing.changes() == ([f'{tmp_path}/photos/{name}' for name in ('a.png', 'new.png', 'x.rec')], 3)
