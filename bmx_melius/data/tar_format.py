"""Tar archives: their members and where these lie, read from the headers only. Does not need MXNet.

`tarfile` ends at a damaged header as it does at the end of an archive, so that the members behind it are lost without an error. Here all
bytes are accounted for: headers have checksums, each begins where the member before it ends, and after the last member come the two blocks
of zeros that mark the end, followed by nothing but zeros.
"""

import os
import re
from typing import NamedTuple

from ..errors import UserError, printable

BLOCK = 512
FILE, HARD_LINK, SYMBOLIC_LINK, OTHER = 'file', 'hard link', 'symbolic link', 'other'
_KINDS = {b'1': HARD_LINK, b'2': SYMBOLIC_LINK}
_OTHERS = b'3456DVNAEI'  # types of members that are none of these; POSIX has all that are unknown read as files
_WITHOUT_CONTENT = b'123456'  # links, devices, folders and pipes: the size in their header is not a number of bytes in the archive
_EXTENSIONS = {b'x': 'next', b'X': 'next', b'g': 'all', b'L': 'path', b'K': 'linkpath'}
_MAX_EXTENSION = 1 << 24  # bytes of a long name, or of the attributes of a member
_MAX_PADDING = 1 << 20  # zeros at the end: archives are padded to whole records, of 10 KiB unless another size is chosen
_NUMBER = re.compile(rb'[ \0]*([0-7]*)[ \0]*')
_ATTRIBUTE = re.compile(rb'([1-9][0-9]{0,8}) ([^=]+)=')
# Attributes of POSIX; keywords of vendors have a dot, as in SCHILY.xattr.
_ATTRIBUTES = frozenset(
    ('atime', 'charset', 'comment', 'ctime', 'gid', 'gname', 'hdrcharset', 'linkpath', 'mtime', 'path', 'size', 'uid', 'uname')
)


class Member(NamedTuple):
    """A member of an archive.

    Attributes
    ----------
    name : str
    kind : str
        `FILE`, `HARD_LINK`, `SYMBOLIC_LINK` or `OTHER`: folders, devices and remarks on the archive.
    offset, size : int
        First byte of the content in the archive, and number of bytes.
    target : str
        Of a hard link the name of another member, of a symbolic link a path relative to the folder of this one.
    is_sparse : bool
        Whether runs of zeros are left out of the content.
    """

    name: str
    kind: str
    offset: int
    size: int
    target: str
    is_sparse: bool


class _DamageError(Exception):
    """What is wrong at a position of an archive."""


def read_members(path):
    """Read the headers of a tar archive without compression, in the formats V7, ustar, GNU and pax.

    It takes one read of 512 bytes for each header.

    Parameters
    ----------
    path : str
        A regular file.

    Returns
    -------
    members : list of Member
        In the order of the archive.
    doubt : str or None
        Why the archive may lack members although those that it has are sound: there is no mark of the end, or too much follows it.

    Raises
    ------
    OSError
        If the archive cannot be read.
    UserError
        If it is damaged, cut within a member, one of several volumes, or not a tar archive.
    """
    with open(path, 'rb', buffering=0) as file:
        reader = _Reader(file)
        try:
            while reader.read_member():
                pass
            reader.require_zeros()
        except _DamageError as error:
            if not reader.position:
                raise UserError(f'{path} is not a tar archive without compression, or is damaged at its beginning: {error}') from None
            last = f' after {printable(reader.members[-1].name)}' if reader.members else ''
            raise UserError(f'{path} is damaged or cut at byte {reader.position:,}{last}: {error}; copy the archive again') from None
    doubt = reader.doubt()
    if doubt:
        doubt = f'{path} {doubt}. Copy it again; if it has everything, end it by: truncate -s {reader.position + 2 * BLOCK} {path}'
    return reader.members, doubt


class _Reader:
    """Reads the members of an archive one after the other.

    Attributes
    ----------
    position : int
        Where the next header or the mark of the end begins.
    members : list of Member
        Those before it.
    """

    def __init__(self, file):
        self._descriptor, self._size = file.fileno(), os.fstat(file.fileno()).st_size
        self.position, self.members = 0, []
        self._attributes = {'all': {}, 'next': {}}  # of extended headers, which apply to all members after them, or to the next one

    def read_member(self):
        """Read the header at the position, and move behind the content of its member; return False if there are zeros or nothing."""
        header = os.pread(self._descriptor, BLOCK, self.position)
        if not any(header):
            if self._attributes['next']:
                raise _DamageError('the member is missing to which the attributes before belong')
            return False
        if len(header) < BLOCK:
            raise _DamageError('the archive ends in a header')
        _require_checksum(header)
        kind, offset, size = header[156:157], self.position + BLOCK, _number(header[124:136])
        member = None
        if kind in _EXTENSIONS:
            self._extend(_EXTENSIONS[kind], self._read(offset, size))
        else:
            attributes = {**self._attributes['all'], **self._attributes['next']}
            if kind == b'M' or any(map(_is_of_volume, attributes)):
                raise _DamageError('it is one of several volumes, which must be joined before')
            size = 0 if kind in _WITHOUT_CONTENT else attributes.get('size', size)
            offset = self._behind_map(header, offset) if kind == b'S' else offset
            member = _member(header, attributes, offset, size)
        end = offset + (size + BLOCK - 1) // BLOCK * BLOCK
        if end > self._size:
            what = f'of {printable(member.name)}' if member else 'of this header'
            raise _DamageError(f'the archive ends {end - self._size:,} bytes before the end {what}')
        if member:
            self.members.append(member)
            self._attributes['next'] = {}
        self.position = end
        return True

    def _read(self, position, count):
        content = os.pread(self._descriptor, min(count, _MAX_EXTENSION), position)
        if len(content) != count:
            raise _DamageError(f'the {count:,} bytes of its name or attributes are not in the archive, or too many')
        return content

    def _extend(self, scope, content):
        """Keep the content of an extended header: attributes, or with `scope` the name of one of them, its value."""
        if scope in self._attributes:
            self._attributes[scope].update(_parse_attributes(content))
            if 'size' in self._attributes['all']:
                raise _DamageError('all members would have the same size')
        else:
            self._attributes['next'][scope] = _text(content)

    def _behind_map(self, header, offset):
        """Return where the content of a sparse file begins: the map in its header continues in blocks after it."""
        continues = header[482]
        while continues:
            continues = self._read(offset, BLOCK)[504]
            offset += BLOCK
        return offset

    def require_zeros(self):
        """Raise `_DamageError` unless the position is followed by zeros."""
        padding = os.pread(self._descriptor, _MAX_PADDING, self.position)
        other = len(padding) - len(padding.lstrip(b'\0'))
        if other < len(padding):
            raise _DamageError(
                f'the end of the archive is followed by other data from byte {self.position + other:,} on; '
                'archives are joined by tar --concatenate, not by cat'
            )

    def doubt(self):
        """Return what is wrong with the end of the archive at the position, or None."""
        rest = self._size - self.position
        if rest < 2 * BLOCK:
            return f'ends at byte {self._size:,} without two blocks of zeros, which mark the end of an archive: it may have been cut'
        if rest > _MAX_PADDING:
            return f'has {rest:,} zeros after its last member, as a file whose writing was not finished'
        return None


def _member(header, attributes, offset, size):
    kind = OTHER if header[156:157] in _OTHERS else _KINDS.get(header[156:157], FILE)
    name, is_posix = _text(header[:100]), header[257:263] == b'ustar\0'
    if is_posix and header[345]:
        name = f'{_text(header[345:500])}/{name}'
    name = attributes.get('GNU.sparse.name') or attributes.get('path') or name
    if kind == FILE and name.endswith('/'):  # V7 marks folders in this way
        kind = OTHER
    is_sparse = header[156:157] == b'S' or any(keyword.startswith('GNU.sparse.') for keyword in attributes)
    return Member(name, kind, offset, size, attributes.get('linkpath') or _text(header[157:257]), is_sparse)


def _require_checksum(header):
    """Raise `_DamageError` unless a header has its checksum: the sum of its bytes, which some old programs took as signed."""
    others = header[:148] + header[156:]
    total = sum(others) + 8 * ord(' ')
    if _number(header[148:156]) not in (total, total - 256 * sum(byte > 127 for byte in others)):
        raise _DamageError('the checksum of the header is wrong')


def _is_of_volume(keyword):
    """Return whether an attribute tells how a member is divided among several archives."""
    return keyword.startswith('GNU.volume.') and keyword != 'GNU.volume.label'


def _number(field):
    """Return a number in a header: octal digits, or after a set first bit binary."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], 'big')
    digits = _NUMBER.fullmatch(field)
    if not digits:
        raise _DamageError(f'{field!r} is not a number')
    return int(digits[1] or b'0', 8)


def _text(field):
    return field.split(b'\0', 1)[0].decode('utf-8', 'surrogateescape')


def _parse_attributes(content):
    """Return the attributes in an extended header of pax: lines of length, keyword and value."""
    attributes, position = {}, 0
    while position < len(content) and content[position]:
        found = _ATTRIBUTE.match(content, position)
        end = position + int(found[1]) if found else 0
        keyword = found[2].decode('utf-8', 'surrogateescape') if found else ''
        if not (found and found.end() < end <= len(content) and content[end - 1 : end] == b'\n'):
            raise _DamageError('its attributes are not lines of length, keyword and value')
        if '.' not in keyword and keyword not in _ATTRIBUTES:
            raise _DamageError(f'it has the unknown attribute {keyword!r}')
        value = content[found.end() : end - 1]
        if keyword == 'size':
            if not re.fullmatch(rb'[0-9]{1,19}', value):
                raise _DamageError(f'its size is {value[:30]!r}')
            attributes[keyword] = int(value)
        else:
            attributes[keyword] = value.decode('utf-8', 'surrogateescape')
        position = end
    if any(content[position:]):
        raise _DamageError('its attributes are followed by other data')
    return attributes
