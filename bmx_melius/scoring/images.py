"""Lists of encoded images in folders, record files of MXNet, and tar archives."""

import contextlib
import dataclasses
import functools
import os
import stat
import tarfile
from typing import Optional

from ..data.record_format import read_index, read_record, scan_offsets, without_labels
from ..errors import UserError
from ..files.io import read_bytes
from ..vision.pixels import SUFFIXES, require_file_size

RECORD, TAR = '.rec', '.tar'


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
        Bytes in `file`; 0 if it cannot be read. Those of a record extend to the next one that the index names.
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

    def _read_record(self, file):
        try:
            image = without_labels(read_record(file))
        except ValueError as error:
            raise UserError(f'{self.name}: {error}') from error
        if file.tell() > self.offset + self.size:
            raise UserError(f'{self.name}: the record is longer than its index says')
        return image


def list_images(sources):
    """Return the images of several sources, a list of `EncodedImage` in the order of sources and names.

    Parameters
    ----------
    sources : list of str
        Image files; record files, with their ``.idx`` beside them or without; tar archives that are not compressed; and folders, whose
        images, record files and archives are found in all subfolders, also behind symbolic links, but each folder once: the first of its
        names in the order of names counts. Hidden files and folders are left out, also in archives.

    Raises
    ------
    UserError
        If a source has no images, is damaged or of another kind, or if two images have the same name or the same place.
    OSError
        If a folder, a record file or an archive cannot be read. An image file that cannot be read raises when its content is read.
    """
    images = [image for source in sources for image in _images_of(source)]
    folder_of = functools.lru_cache(None)(os.path.realpath)

    def place(image):
        folder, name = os.path.split(image.file)
        return folder_of(folder), name, image.offset

    for key in (lambda image: image.name, place):  # 'photos' and './photos' are the same place
        found = set()
        for image in images:
            if key(image) in found:
                raise UserError(f'the image {image.name} is named twice: give each folder and file, and archive each image, once')
            found.add(key(image))
    return images


def _images_of(source):
    if not os.path.isdir(source):
        if not _is_source(source):
            raise UserError(
                f'{source} is none of a folder, an image ({" ".join(SUFFIXES)}), a record file ({RECORD}) and an archive ({TAR})'
            )
        os.stat(source)  # raises OSError if there is none
        return _images_in_file(source, os.path.abspath(source))
    images = []
    for folder, names in _sources_in_folders(source, set()):
        absolute = os.path.abspath(folder)
        for name in names:
            images += _images_in_file(os.path.join(folder, name), os.path.join(absolute, name))
    if not images:
        raise UserError(f'{source} and its subfolders have no images ({" ".join(SUFFIXES)}), record files ({RECORD}) and archives ({TAR})')
    return images


def _sources_in_folders(folder, visited):
    """Yield (folder, names of its images, record files and archives) for a folder and its subfolders, except those in the set `visited`."""
    place = os.path.realpath(folder)
    if place in visited:  # a link to a folder that has another name here: a few links could give each image millions of names
        return
    visited.add(place)
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith('.'))
    yield folder, [name for name, is_folder in found if not is_folder and _is_source(name)]
    for name, is_folder in found:
        if is_folder:
            yield from _sources_in_folders(os.path.join(folder, name), visited)


def _is_source(path):
    return path.lower().endswith((*SUFFIXES, RECORD, TAR))


def _images_in_file(path, file):
    """Return the images of a file, which has the name `path` in the results and the absolute path `file`."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in (RECORD, TAR):
        _require_file(path)
    if suffix == RECORD:
        return _images_in_records(path, file)
    if suffix == TAR:
        return _images_in_archive(path, file)
    size = 0
    with contextlib.suppress(OSError):  # a broken link, or a file that was removed after the listing: one of millions, not an error of all
        size = os.path.getsize(file)
    return [EncodedImage(path, path if path == file else file, size)]  # one string instead of two equal ones: there may be millions


def _images_in_records(path, file):
    index, size = os.path.splitext(path)[0] + '.idx', os.path.getsize(path)
    if os.path.exists(index):
        _require_file(index)
        keys, offsets = (array.tolist() for array in read_index(index))
    else:
        offsets = scan_offsets(path)
        keys = range(len(offsets))
    sizes = [end - begin for begin, end in zip(offsets, [*offsets[1:], size])]
    if min(sizes) <= 0:
        raise UserError(f'{index} belongs to another record file than {path}: copy both again, or delete the index')
    return [EncodedImage(f'{path}/{key}', file, size, offset, True) for key, offset, size in zip(keys, offsets, sizes)]


def _images_in_archive(path, file):
    try:
        with tarfile.open(path, 'r:') as archive:  # ':' refuses compression: a member must be readable without those before it
            members = [member for member in archive if member.isreg() and _is_visible_image(member.name)]
    except tarfile.TarError as error:
        raise UserError(f'{path} is not a tar archive without compression ({error}): unpack it, or archive the images again') from error
    if not members:
        raise UserError(f'{path} has no images ({" ".join(SUFFIXES)})')
    if any(member.issparse() for member in members):
        raise UserError(f'{path} has sparse files: archive the images again')
    return [EncodedImage(f'{path}/{member.name}', file, member.size, member.offset_data) for member in members]


def _is_visible_image(member):
    """Return whether a member of an archive is an image; ``._a.jpg``, which macOS adds for ``a.jpg``, is none."""
    hidden = any(part.startswith('.') and part.strip('.') for part in member.split('/'))
    return member.lower().endswith(SUFFIXES) and not hidden


def _require_file(path):
    """Raise `UserError` if a path names a pipe or device, whose content may never come or never end."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f'{path} is not a regular file, but a pipe, a device or a folder')
