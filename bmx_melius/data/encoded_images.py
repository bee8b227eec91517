"""Encoded images in files or records: what can be told without decoding them, and which cannot be decoded."""

import abc
import os
from multiprocessing.pool import ThreadPool

import mxnet as mx

from ..errors import UserError
from ..reporting import LOG, progress_bar

JPEG_START, JPEG_END = b'\xff\xd8\xff', b'\xff\xd9'
PNG_START, PNG_END = b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'
START = 8  # bytes that tell the format
TAIL = 64  # bytes: some encoders append a few after the end marker
NAMED = 5  # so many bad images are named in a message
BLOCK = 32  # images decoded by a thread in one step


def has_known_start(start):
    """Whether the first bytes are those of a JPEG or PNG file. Other formats that OpenCV decodes are rare in training data."""
    return start.startswith((JPEG_START, PNG_START))


def is_cut_off(start, tail):
    """Whether a JPEG or PNG file, of which the first `START` and the last `TAIL` bytes are given, lacks its end marker.

    Decoders fill the missing part with gray and do not complain.
    """
    if start.startswith(JPEG_START):
        return JPEG_END not in tail
    return start.startswith(PNG_START) and PNG_END not in tail


def name_some(names):
    """The first few of a list of names or numbers, as text."""
    return ', '.join(map(str, names[:NAMED])) + (f' and {len(names) - NAMED:,} more' if len(names) > NAMED else '')


class EncodedImages(abc.ABC):
    """Encoded images with numbers from 0, which can be checked before any of them is used.

    Attributes
    ----------
    path : str
        Of the file or folder that holds them.
    remedy : str
        What the user can do about images that cannot be decoded.
    """

    path: str
    remedy: str

    @abc.abstractmethod
    def __len__(self):
        """How many images there are."""

    @abc.abstractmethod
    def read(self, index):
        """Return the bytes of an image; several threads may do so. Raises `OSError` or `ValueError`."""

    @abc.abstractmethod
    def suspects(self, threads):
        """Return two lists of numbers of images: those that do not start like a JPEG or PNG file, and those that lack their end."""

    @abc.abstractmethod
    def name(self, indices):
        """Return how messages call the images with these numbers."""

    def check_ends(self, threads):
        """Look at the first and last bytes of every image and decode those that are suspect; log which are cut off.

        Raises
        ------
        UserError
            When images cannot be decoded: names them.
        OSError
            When a file cannot be read.
        """
        strange, cut_off = self.suspects(threads)
        self._require_decodable(threads, sorted(strange + cut_off))
        if cut_off:
            LOG.warning('%s: the image of %s is cut off; its missing part is gray', self.path, self.name(cut_off))

    def decode_all(self, threads):
        """Decode every image in so many threads, some milliseconds each. Raises as `check_ends` does."""
        self._require_decodable(threads, range(len(self)))

    def _require_decodable(self, threads, indices):
        bad = self.undecodable(threads, indices)
        if bad:
            raise UserError(self.describe(bad))

    def undecodable(self, threads, indices):
        """Return which of the images with these numbers cannot be decoded."""
        with ThreadPool(threads) as pool:
            sound = pool.imap(self._can_be_decoded, indices, BLOCK)
            bar = progress_bar(sound, total=len(indices), description=f'decoding {os.path.basename(self.path)}', unit='images')
            return [index for is_sound, index in zip(bar, indices) if not is_sound]

    def describe(self, bad):
        """One line that names the images with these numbers as undecodable and says what to do."""
        return f'{self.path}: no image can be decoded from {self.name(bad)}; {self.remedy}'

    def _can_be_decoded(self, index):
        try:
            mx.image.imdecode(self.read(index), flag=0)
        except (mx.MXNetError, ValueError):
            return False
        return True
