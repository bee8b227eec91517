"""The members of tar archives as `tarfile` lists them, and that no damage or cut gives a list that looks complete and is not."""

import io
import os
import shutil
import subprocess
import tarfile

import pytest

from bmx_melius.data.tar_format import BLOCK, FILE, HARD_LINK, OTHER, SYMBOLIC_LINK, read_members
from bmx_melius.errors import UserError

FORMATS = {'ustar': tarfile.USTAR_FORMAT, 'gnu': tarfile.GNU_FORMAT, 'pax': tarfile.PAX_FORMAT}
LONG = f'{"folder/" * 15}image.png'
IMAGES = {'a.png': b'a' * 700, LONG: b'b' * 512, 'c.png': b''}
KINDS = {tarfile.REGTYPE: FILE, tarfile.LNKTYPE: HARD_LINK, tarfile.SYMTYPE: SYMBOLIC_LINK}


def add(archive, name, content=b'', **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(content))


def write(path, form, images=None):
    with tarfile.open(path, 'w', format=FORMATS[form]) as archive:
        for name, content in (IMAGES if images is None else images).items():
            add(archive, name, content)


def expected(path):
    with tarfile.open(path) as archive:
        return [(member.name, KINDS.get(member.type, OTHER), member.offset_data, member.size, member.linkname) for member in archive]


def found(path):
    members, doubt = read_members(str(path))
    assert doubt is None
    return [(member.name.rstrip('/'), *member[1:5]) for member in members]


@pytest.mark.parametrize('form', FORMATS)
def test_members_are_those_of_tarfile(tmp_path, form):
    with tarfile.open(tmp_path / 'x.tar', 'w', format=FORMATS[form]) as archive:
        for name, content in IMAGES.items():
            add(archive, name, content, mtime=1e9)
        add(archive, 'é.png', b'content', uname='é')
        add(archive, 'folder', type=tarfile.DIRTYPE)
        add(archive, 'pipe', type=tarfile.FIFOTYPE)
        add(archive, 'd.png', type=tarfile.LNKTYPE, linkname=LONG if form != 'ustar' else 'a.png')
        add(archive, 'e.png', type=tarfile.SYMTYPE, linkname=LONG if form != 'ustar' else 'a.png')
        if form == 'pax':
            add(archive, 'f.png', b'content', pax_headers={'SCHILY.xattr.user.a=b': 'é\n', 'comment': 'text', 'mtime': '1.5'})
        add(archive, 'g.png', b'content', mtime=(1 << 40) if form != 'ustar' else 0)  # more than octal digits can have
    assert found(tmp_path / 'x.tar') == expected(tmp_path / 'x.tar')


def test_global_attributes_of_pax_and_headers_without_magic_are_read(tmp_path):
    with tarfile.open(tmp_path / 'x.tar', 'w', format=tarfile.PAX_FORMAT, pax_headers={'comment': 'text', 'uname': 'me'}) as archive:
        add(archive, 'a.png', b'content')
    assert found(tmp_path / 'x.tar') == expected(tmp_path / 'x.tar')
    write(tmp_path / 'x.tar', 'ustar', {'a.png': b'a' * 700, 'b.png': b'b'})
    content = bytearray((tmp_path / 'x.tar').read_bytes())
    for header in (0, 3 * BLOCK):
        content[header + 257 : header + BLOCK] = bytes(BLOCK - 257)  # as in V7
        content[header + 148 : header + 156] = b' ' * 8
        content[header + 148 : header + 156] = b'%06o\0 ' % sum(content[header : header + BLOCK])
    (tmp_path / 'x.tar').write_bytes(content)
    assert found(tmp_path / 'x.tar') == expected(tmp_path / 'x.tar')
    assert [member[:2] for member in found(tmp_path / 'x.tar')] == [('a.png', FILE), ('b.png', FILE)]


def damages(path, positions):
    """Yield (position, members or None, doubt) for each bit at the positions that is flipped in a file."""
    with open(path, 'r+b', buffering=0) as file:
        for position in positions:
            (octet,) = os.pread(file.fileno(), 1, position)
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([octet ^ 1 << bit]), position)
                try:
                    yield (position, *read_members(path))
                except UserError:
                    yield position, None, None
            os.pwrite(file.fileno(), bytes([octet]), position)


@pytest.mark.parametrize('form', FORMATS)
def test_a_flipped_bit_in_a_header_is_refused_or_changes_nothing(tmp_path, form):
    path = str(tmp_path / 'x.tar')
    write(path, form)
    sound, _ = read_members(path)
    content = (tmp_path / 'x.tar').read_bytes()
    headers = [begin for begin in range(0, len(content), BLOCK) if content[begin + 257 :].startswith(b'ustar')]
    assert len(headers) == (3 if form == 'ustar' else 4)
    headers = headers if form == 'ustar' else headers[1:3]  # the header of the long name and the next one
    positions = [header + place for header in headers for place in range(BLOCK)]
    results = [(members, doubt) for _, members, doubt in damages(path, positions)]
    refused = sum(members is None for members, _ in results)
    assert refused > 0.99 * len(results)
    assert all(members in (None, sound) and doubt is None for members, doubt in results)


@pytest.mark.parametrize('form', ['gnu', 'pax'])
def test_a_flipped_bit_in_a_long_name_which_has_no_checksum_loses_no_member(tmp_path, form):
    path = str(tmp_path / 'x.tar')
    write(path, form)
    sound, _ = read_members(path)
    (begin,) = [member.offset - 2 * BLOCK for member in sound if member.name == LONG]
    for _, members, doubt in damages(path, range(begin, begin + BLOCK)):
        assert members is None or doubt or [member[1:] for member in members] == [member[1:] for member in sound]


@pytest.mark.parametrize('form', FORMATS)
def test_an_archive_that_is_cut_anywhere_is_refused_or_doubted(tmp_path, form):
    path = tmp_path / 'x.tar'
    write(path, form)
    content = path.read_bytes()
    sound = read_members(str(path))[0]
    end = len(content.rstrip(b'\0')) // BLOCK * BLOCK + BLOCK
    for size in range(len(content) - len(content) % 64, 0, -64):
        os.truncate(path, size)
        try:
            members, doubt = read_members(str(path))
        except UserError as error:
            assert str(path) in str(error) and '\n' not in str(error)
            continue
        assert doubt or (size >= end + 2 * BLOCK and members == sound), size
        assert members == sound[: len(members)]


def test_a_doubt_about_the_end_is_removed_by_the_command_that_it_names(tmp_path):
    write(tmp_path / 'x.tar', 'ustar')
    sound = found(tmp_path / 'x.tar')
    end = sound[-1][2]
    for size in (end, end + BLOCK, end + 2 * BLOCK - 1, 1 << 22):
        os.truncate(tmp_path / 'x.tar', size)
        doubt = read_members(str(tmp_path / 'x.tar'))[1]
        command = doubt.partition('end it by: ')[2]
        assert command == f'truncate -s {end + 2 * BLOCK} {tmp_path}/x.tar'
        subprocess.run(command.split(), check=True)
        assert found(tmp_path / 'x.tar') == sound


@pytest.mark.parametrize('form', FORMATS)
def test_an_archive_that_is_cut_between_members_is_doubted_for_its_missing_end(tmp_path, form):
    write(tmp_path / 'x.tar', form)
    last = read_members(str(tmp_path / 'x.tar'))[0][-1]
    os.truncate(tmp_path / 'x.tar', last.offset - BLOCK)
    members, doubt = read_members(str(tmp_path / 'x.tar'))
    assert [member.name for member in members] == ['a.png', LONG]
    assert f'x.tar ends at byte {last.offset - BLOCK:,} without two blocks of zeros' in doubt


def test_data_after_the_end_are_refused_as_in_archives_joined_by_cat(tmp_path):
    write(tmp_path / 'x.tar', 'ustar')
    size = os.path.getsize(tmp_path / 'x.tar')
    (tmp_path / 'x.tar').write_bytes((tmp_path / 'x.tar').read_bytes() * 2)
    with pytest.raises(UserError, match=f'x.tar is damaged .*followed by other data from byte {size:,} on; .*--concatenate, not by cat'):
        read_members(str(tmp_path / 'x.tar'))


@pytest.mark.parametrize(
    'record, words',
    [
        (b'30 path=b.png\n', 'not lines of length, keyword and value'),
        (b'13 path=b.png\n', 'not lines of length, keyword and value'),
        (b'path=b.png\n', 'not lines of length, keyword and value'),
        (b'14 path=b.png\n\0\0x', 'followed by other data'),
        (b'14 pat(=b.png\n', "unknown attribute 'pat\\("),
        (b'12 size=0x1\n', "its size is b'0x1'"),
        (b'14 size=99999\n', 'the archive ends .* bytes before the end of a.png'),
        (b'5014 size=' + b'9' * 5003 + b'\n', 'its size is'),
        (b'31 GNU.volume.filename=a.png.1\n', 'one of several volumes'),
    ],
)
def test_attributes_that_are_damaged_or_of_several_volumes_are_refused(tmp_path, record, words):
    with tarfile.open(tmp_path / 'x.tar', 'w', format=tarfile.USTAR_FORMAT) as archive:
        add(archive, 'first.png', b'content')
        add(archive, 'attributes', record, type=tarfile.XHDTYPE)
        add(archive, 'a.png', b'content')
    with pytest.raises(UserError, match=f'x.tar is damaged or cut at byte [\\d,]+ after first.png: .*{words}'):
        read_members(str(tmp_path / 'x.tar'))


def test_a_continued_file_of_another_volume_is_refused_and_unknown_types_are_files(tmp_path):
    with tarfile.open(tmp_path / 'x.tar', 'w', format=tarfile.GNU_FORMAT) as archive:
        add(archive, 'label', type=b'V')
        add(archive, 'a.png', b'content', type=b'Q')
    assert [member[:2] for member in found(tmp_path / 'x.tar')] == [('label', OTHER), ('a.png', FILE)]
    with tarfile.open(tmp_path / 'x.tar', 'w', format=tarfile.GNU_FORMAT) as archive:
        add(archive, 'a.png', b'content', type=b'M')
    with pytest.raises(UserError, match='one of several volumes'):
        read_members(str(tmp_path / 'x.tar'))


@pytest.mark.skipif('GNU tar' not in os.popen('tar --version').read(), reason='requires GNU tar')
@pytest.mark.parametrize('form', ['gnu', 'oldgnu', 'posix --sparse-version=0.0', 'posix --sparse-version=0.1', 'posix'])
def test_sparse_members_of_gnu_tar_are_marked_and_those_after_them_are_found(tmp_path, form):
    with open(tmp_path / 'sparse.png', 'wb') as file:
        for number in range(40):  # more pieces than a header has
            file.seek(number << 17)
            file.write(b'data')
    (tmp_path / 'whole.png').write_bytes(b'content')
    command = ['tar', '--sparse', *f'--format={form}'.split(), '-cf', 'x.tar', 'sparse.png', 'whole.png']
    subprocess.run(command, cwd=tmp_path, check=True)
    members, doubt = read_members(str(tmp_path / 'x.tar'))
    assert doubt is None and [(member.name, member.is_sparse) for member in members] == [('sparse.png', True), ('whole.png', False)]
    assert found(tmp_path / 'x.tar')[1] == expected(tmp_path / 'x.tar')[1]


@pytest.mark.skipif('GNU tar' not in os.popen('tar --version').read(), reason='requires GNU tar')
def test_volumes_of_gnu_tar_are_refused_and_concatenated_archives_are_read(tmp_path):
    for name in ('a.png', 'b.png'):
        (tmp_path / name).write_bytes(os.urandom(15000))
    volumes = ['tar', '-c', '-M', '-L', '20', '-f', '1.tar', '-f', '2.tar', 'a.png', 'b.png']
    subprocess.run(volumes, cwd=tmp_path, check=True)
    for name in ('1.tar', '2.tar'):
        with pytest.raises(UserError, match=f'{name} is (damaged or cut|not a tar archive)'):
            read_members(str(tmp_path / name))
    for name in 'ab':
        subprocess.run(['tar', '-cf', f'{name}.tar', f'{name}.png'], cwd=tmp_path, check=True)
    shutil.copy(tmp_path / 'a.tar', tmp_path / 'x.tar')
    subprocess.run(['tar', '--concatenate', '-f', 'x.tar', 'b.tar'], cwd=tmp_path, check=True)
    assert [member[0] for member in found(tmp_path / 'x.tar')] == ['a.png', 'b.png']
