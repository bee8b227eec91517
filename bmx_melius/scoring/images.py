"""Lists of encoded images in folders, record files of MXNet, and tar archives."""

import array
import contextlib
import dataclasses
import functools
import os
import posixpath
import stat
from typing import List, Optional, Sequence

from ..data.record_format import read_places, read_record, without_labels
from ..data.tar_format import FILE, OTHER, SYMBOLIC_LINK, read_members
from ..errors import UserError, name_some, printable
from ..files.io import read_bytes
from ..reporting import LOG
from ..vision.pixels import SUFFIXES, require_file_size

RECORD, TAR = '.rec', '.tar'
_PACKED = ('.tar.gz', '.tgz', '.tar.bz2', '.tbz2', '.tar.xz', '.txz', '.tar.zst', '.zip')  # archives that are not read
_MAX_LINKS = 40  # that lead from one to the next, as in Linux


@dataclasses.dataclass(frozen=True)
class EncodedImage:
    """Where the content of an image file is stored.

    Attributes
    ----------
    name : str
        Name in the results: a path, or the file and the member of an archive or the number of a record, ``train.rec/17``.
    file : str
        Absolute path.
    size : int
        Bytes in `file`; 0 if it cannot be read. A record extends to the next one that the index names.
    offset : int or None
        First byte in `file`; None: the image is the whole file.
    in_record : bool
        Whether the bytes are the frames of a record.
    """

    name: str
    file: str
    size: int
    offset: Optional[int] = None
    in_record: bool = False

    def read(self) -> bytes:
        """Return the content of the image file. Raises `UserError`, among them `FileError`, if it is too large or cannot be read."""
        if not self.in_record:
            require_file_size(self.size, self.name)
        if self.offset is None:
            with contextlib.suppress(OSError):  # which reading it reports
                _require_file(self.file)
            return read_bytes(self.file)
        with open(self.file, 'rb') as file:
            file.seek(self.offset)
            if self.in_record:
                return self._read_record(file)
            content = file.read(self.size)
        if len(content) != self.size:
            raise UserError(f'{self.name}: {self.file} is truncated')
        return content

    @property
    def place(self):
        """Name of the file without its folder, and place in it: what two images of the same folder cannot share."""
        return os.path.basename(self.file), self.offset

    def _read_record(self, file):
        try:
            image = without_labels(read_record(file))
        except ValueError as error:
            raise UserError(f'{self.name}: {error}') from error
        if file.tell() > self.offset + self.size:
            raise UserError(f'{self.name}: the record is longer than its index says')
        return image


@dataclasses.dataclass(frozen=True)
class _LinkedImage(EncodedImage):
    """An image whose name in an archive is a link to another member, or to none of them."""

    has_target: bool = True

    def read(self):
        if not self.has_target:
            raise UserError(f'{self.name} is a link to a file that is not in the archive')
        return super().read()

    @property
    def place(self):
        return None  # of another image; an archive that is named twice has another image twice


@dataclasses.dataclass(frozen=True)
class Listing:
    """The images of several sources.

    Attributes
    ----------
    images : list of EncodedImage
        In the order of sources and names.
    doubts : list of str
        Which sources may lack images although what they have is sound, and what to do.
    """

    images: List[EncodedImage]
    doubts: List[str]
    _sources: Sequence[str]
    _states: Sequence[int]

    def changes(self):
        """List the sources again, and compare the files with the listing by size and time of modification.

        Returns
        -------
        changed : list of str
            Absolute paths of files that have been changed or added.
        gone : int
            Number of files that have been changed or removed.
        """
        files = [file for source in self._sources for _, file in _files_of(source)]
        now, before = [_state(file) for file in files], set(self._states)
        return [file for file, state in zip(files, now) if state not in before], len(before.difference(now))


@dataclasses.dataclass(frozen=True)
class _Remarks:
    """Remarks on the files of a listing, lists of str, which are logged together."""

    doubts: List[str] = dataclasses.field(default_factory=list)
    without_index: List[str] = dataclasses.field(default_factory=list)
    skipped_members: List[str] = dataclasses.field(default_factory=list)
    skipped_archives: List[str] = dataclasses.field(default_factory=list)

    def log(self):
        for meaning, names in (
            ('without an index (.idx) it is not known whether these record files were cut between two records', self.without_index),
            ('members of archives that do not have the suffix of an image are left out', self.skipped_members),
            ('archives of other kinds than .tar are left out', self.skipped_archives),
            ('archives may be incomplete', self.doubts),
        ):
            if names:
                LOG.warning('%s: %s', meaning, printable(name_some(names)))


def list_images(sources):
    """List the images of several sources.

    Either all images are listed, or an error is raised: of record files and archives all bytes between the images are accounted for (see
    `read_places` and `read_members`). Where a format cannot tell that it is complete, a warning is logged.

    Parameters
    ----------
    sources : list of str
        Image files; record files, with their ``.idx`` beside them or without; tar archives that are not compressed; and folders, whose
        images, record files and archives are found in all subfolders, also behind symbolic links, but each folder once: the first of its
        names in the order of names counts. Hidden files and folders are left out, also in archives.

    Returns
    -------
    Listing

    Raises
    ------
    UserError
        If a source has no images, is damaged or of another kind, or if two images have the same name or the same place.
    OSError
        If a folder, a record file or an archive cannot be read. An image file that cannot be read raises when its content is read.
    """
    images, states, remarks = [], array.array('q'), _Remarks()
    for source in sources:
        before = len(images)
        for path, file in _files_of(source, remarks):
            states.append(_state(file))  # before it is read
            images += _images_in_file(path, file, remarks)
        if len(images) == before:
            raise UserError(
                f'{source} and its subfolders have no images ({" ".join(SUFFIXES)}), record files ({RECORD}) and archives ({TAR})'
            )
    _require_different(images)
    remarks.log()
    return Listing(images, remarks.doubts, tuple(sources), states)


def _require_different(images):
    """Raise `UserError` if two images have the same name or place: 'photos' and './photos' are the same place."""
    folder_of = functools.lru_cache(None)(os.path.realpath)
    names, places = set(), set()
    for image in images:
        place = image.place and (folder_of(os.path.dirname(image.file)), *image.place)
        if image.name in names or place in places:
            raise UserError(f'the image {image.name} is named twice: give each folder and file, and archive each image, once')
        names.add(image.name)
        if place:
            places.add(place)


def _files_of(source, remarks=None):
    """Yield (name in the results, absolute path) of the image files, record files and archives that a source is or has in its folders."""
    if not os.path.isdir(source):
        if not _is_source(source):
            raise UserError(
                f'{source} is not a folder, an image ({" ".join(SUFFIXES)}), a record file ({RECORD}) or an archive without '
                f'compression ({TAR})'
            )
        os.stat(source)  # raises OSError if there is none
        yield source, os.path.abspath(source)
        return
    for folder, names in _names_in_folders(source, set()):
        absolute = os.path.abspath(folder)
        for name in names:
            path = os.path.join(folder, name)
            if _is_source(name):
                yield path, os.path.join(absolute, name)
            elif remarks and name.lower().endswith(_PACKED):
                remarks.skipped_archives.append(path)


def _names_in_folders(folder, visited):
    """Yield (folder, names of its files) for a folder and its subfolders, except those in the set `visited`."""
    place = os.path.realpath(folder)
    if place in visited:  # a link to a folder that has another name here: a few links could give each image millions of names
        return
    visited.add(place)
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith('.'))
    yield folder, [name for name, is_folder in found if not is_folder]
    for name, is_folder in found:
        if is_folder:
            yield from _names_in_folders(os.path.join(folder, name), visited)


def _is_source(path):
    return path.lower().endswith((*SUFFIXES, RECORD, TAR))


def _state(file):
    """Return a number that changes, within this process, when a file or the index beside it is changed."""
    index = [_index_of(file)] if file.lower().endswith(RECORD) else []
    return hash((file, *map(_times, [file, *index])))


def _times(file):
    try:
        status = os.stat(file)
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    return (status.st_size, status.st_mtime_ns) if kind == stat.S_IFREG else kind


def _index_of(path):
    return os.path.splitext(path)[0] + '.idx'


def _images_in_file(path, file, remarks):
    """Return the images of a file, which has the name `path` in the results and the absolute path `file`."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in (RECORD, TAR):
        _require_file(path)
        return (_images_in_records if suffix == RECORD else _images_in_archive)(path, file, remarks)
    size = 0
    with contextlib.suppress(OSError):  # a broken link, or a file that was removed after the listing: one of millions, not an error of all
        size = os.path.getsize(file)
    return [EncodedImage(path, path if path == file else file, size)]  # one string instead of two equal strings: there may be millions


def _images_in_records(path, file, remarks):
    index = _index_of(path) if os.path.exists(_index_of(path)) else None
    if index:
        _require_file(index)
    else:
        remarks.without_index.append(path)
    keys, offsets, ends = (values.tolist() for values in read_places(path, index))
    return [EncodedImage(f'{path}/{key}', file, end - offset, offset, True) for key, offset, end in zip(keys, offsets, ends)]


def _images_in_archive(path, file, remarks):
    members, doubt = read_members(path)
    if doubt:
        remarks.doubts.append(doubt)
    files = {posixpath.normpath(member.name): member for member in members if member.kind != OTHER}
    images = []
    for member in members:
        if not _is_visible_image(member.name):
            if member.kind == FILE and not _is_hidden(member.name):
                remarks.skipped_members.append(f'{path}/{member.name}')
        elif member.kind != OTHER:
            content = _content_of(member, files)
            if content and content.is_sparse:
                raise UserError(f'{path} has the sparse file {printable(member.name)}: archive the images again, without --sparse')
            kind = EncodedImage if member.kind == FILE else functools.partial(_LinkedImage, has_target=content is not None)
            images.append(kind(f'{path}/{member.name}', file, content.size if content else 0, content.offset if content else 0))
    if not images:
        raise UserError(f'{path} has no images ({" ".join(SUFFIXES)})')
    return images


def _content_of(member, files):
    """Return the member of an archive to which a link finally leads, None if there is none; for another member that member."""
    for _ in range(_MAX_LINKS):
        if member is None or member.kind == FILE:
            return member
        folder = posixpath.dirname(member.name) if member.kind == SYMBOLIC_LINK else ''
        member = files.get(posixpath.normpath(posixpath.join(folder, member.target)))
    return None


def _is_visible_image(member):
    """Return whether a member of an archive has the name of an image; ``._a.jpg``, which macOS adds for ``a.jpg``, is not."""
    return member.lower().endswith(SUFFIXES) and not _is_hidden(member)


def _is_hidden(member):
    return any(part.startswith('.') and part.strip('.') for part in member.split('/'))


def _require_file(path):
    """Raise `UserError` if a path names a pipe or device, whose content may never come or never end."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f'{path} is not a regular file, but a pipe, a device or a folder')
