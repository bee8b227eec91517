"""Checks of encoded images in files or records: cheap tests of their first and last bytes, and full decoding."""

import abc
import os
import struct
from multiprocessing.pool import ThreadPool

from ..errors import UserError, last_line
from ..reporting import ProgressLine
from ..vision.pixels import decode, format_of

START = 12  # bytes that identify the format
TAIL = 64  # bytes: some encoders append a few after the end marker
BLOCK = 32  # images decoded by a thread in one step
_ENDS = {'JPEG': b'\xff\xd9', 'PNG': b'IEND\xaeB`\x82', 'GIF': b';'}
_SIZES = {'WebP': ('<4xI', 8), 'BMP': ('<2xI', 0)}  # where the first bytes have the size of the file, and what is not counted in it


def looks_complete(start, tail, size):
    """Return whether the first `START` and last `TAIL` bytes of a file fit a complete image; formats without a sign of it never do.

    `size` is the size of the file in bytes.
    """
    form = format_of(start)
    if form is None:
        return False
    if form.name in _ENDS:
        return _ENDS[form.name] in tail
    layout, more = _SIZES.get(form.name, ('', 0))
    return bool(layout) and len(start) == START and 0 < struct.unpack_from(layout, start)[0] + more <= size


class EncodedImages(abc.ABC):
    """Base class of indexed collections of encoded images, which can be checked before they are used.

    Attributes
    ----------
    path : str
        File or folder that contains the images.
    remedy : str
        Advice for error messages about images that cannot be decoded.
    channels : int
        Channels of the decoded images.
    """

    path: str
    remedy: str
    channels: int = 3

    @abc.abstractmethod
    def __len__(self):
        """Return the number of images."""

    @abc.abstractmethod
    def read(self, index):
        """Return the encoded bytes of an image. Thread-safe. Raises `OSError` or `ValueError`."""

    @abc.abstractmethod
    def suspects(self, threads):
        """Return the indices of the images whose first and last bytes do not fit a complete image."""

    @abc.abstractmethod
    def name(self, indices):
        """Return the names of the images at `indices` for use in messages."""

    def check_ends(self, threads):
        """Check the first and last bytes of every image, and decode suspicious images.

        Raises
        ------
        UserError
            When images cannot be decoded; the message names them.
        OSError
            When a file cannot be read.
        """
        self._require_decodable(threads, self.suspects(threads))

    def decode_all(self, threads):
        """Decode every image in `threads` threads, which takes some milliseconds each. Raises like `check_ends`."""
        self._require_decodable(threads, range(len(self)))

    def _require_decodable(self, threads, indices):
        bad = self.undecodable(threads, indices)
        if bad:
            raise UserError(self.describe(bad))

    def undecodable(self, threads, indices):
        """Return the `indices` whose images cannot be decoded."""
        with ThreadPool(threads) as pool:
            sound = pool.imap(self._can_be_decoded, indices, BLOCK)
            bar = ProgressLine(sound, total=len(indices), description=f'decoding {os.path.basename(self.path)}', unit='images')
            return [index for is_sound, index in zip(bar, indices) if not is_sound]

    def describe(self, bad):
        """Return the error message for images, given by index, that cannot be decoded."""
        try:
            self.decode(self.read(bad[0]), self.name(bad[:1]))
            reason = ''
        except ValueError as error:
            reason = f' ({last_line(error)})'
        return f'{self.path}: no image can be decoded from {self.name(bad)}; {self.remedy}{reason}'

    def decode(self, content, name):
        """Decode the content of an image to find out whether that is possible. Raises `ValueError`."""
        decode(content, name, self.channels)

    def _can_be_decoded(self, index):
        try:
            self.decode(self.read(index), '')
        except ValueError:
            return False
        return True
