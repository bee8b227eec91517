"""Checks of encoded images in files or records: cheap tests of their first and last bytes, and full decoding."""

import abc
import os
from multiprocessing.pool import ThreadPool

import mxnet as mx

from ..errors import UserError
from ..reporting import LOG, progress_bar

JPEG_START, JPEG_END = b'\xff\xd8\xff', b'\xff\xd9'
PNG_START, PNG_END = b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'
START = 8  # bytes that identify the format
TAIL = 64  # bytes: some encoders append a few after the end marker
NAMED = 5  # maximum number of images listed in a message
BLOCK = 32  # images decoded by a thread in one step


def has_known_start(start):
    """Return whether the first bytes are those of a JPEG or PNG file. Other formats that OpenCV decodes are rare in training data."""
    return start.startswith((JPEG_START, PNG_START))


def is_cut_off(start, tail):
    """Return whether a JPEG or PNG file lacks its end marker, given its first `START` and last `TAIL` bytes.

    Decoders fill the missing part with gray without reporting an error.
    """
    if start.startswith(JPEG_START):
        return JPEG_END not in tail
    return start.startswith(PNG_START) and PNG_END not in tail


def name_some(names):
    """Return the first `NAMED` items of a list of names or numbers as text, with the number of those left out."""
    return ', '.join(map(str, names[:NAMED])) + (f' and {len(names) - NAMED:,} more' if len(names) > NAMED else '')


class EncodedImages(abc.ABC):
    """Base class of indexed collections of encoded images, which can be checked before they are used.

    Attributes
    ----------
    path : str
        File or folder that contains the images.
    remedy : str
        Advice for error messages about images that cannot be decoded.
    """

    path: str
    remedy: str

    @abc.abstractmethod
    def __len__(self):
        """Return the number of images."""

    @abc.abstractmethod
    def read(self, index):
        """Return the encoded bytes of an image. Thread-safe. Raises `OSError` or `ValueError`."""

    @abc.abstractmethod
    def suspects(self, threads):
        """Return two lists of image indices: images that do not start like a JPEG or PNG file, and images without an end marker."""

    @abc.abstractmethod
    def name(self, indices):
        """Return the names of the images at `indices` for use in messages."""

    def check_ends(self, threads):
        """Check the first and last bytes of every image, decode the suspicious ones, and log which images are truncated.

        Raises
        ------
        UserError
            When images cannot be decoded; the message names them.
        OSError
            When a file cannot be read.
        """
        unrecognized, cut_off = self.suspects(threads)
        self._require_decodable(threads, sorted(unrecognized + cut_off))
        if cut_off:
            LOG.warning('%s: the image of %s is cut off; its missing part is gray', self.path, self.name(cut_off))

    def decode_all(self, threads):
        """Decode every image in `threads` threads, which takes some milliseconds each. Raises like `check_ends`."""
        self._require_decodable(threads, range(len(self)))

    def _require_decodable(self, threads, indices):
        bad = self.undecodable(threads, indices)
        if bad:
            raise UserError(self.describe(bad))

    def undecodable(self, threads, indices):
        """Return those of `indices` whose images cannot be decoded."""
        with ThreadPool(threads) as pool:
            sound = pool.imap(self._can_be_decoded, indices, BLOCK)
            bar = progress_bar(sound, total=len(indices), description=f'decoding {os.path.basename(self.path)}', unit='images')
            return [index for is_sound, index in zip(bar, indices) if not is_sound]

    def describe(self, bad):
        """Return the error message for images, given by index, that cannot be decoded."""
        return f'{self.path}: no image can be decoded from {self.name(bad)}; {self.remedy}'

    def _can_be_decoded(self, index):
        try:
            mx.image.imdecode(self.read(index), flag=0)
        except (mx.MXNetError, ValueError):
            return False
        return True
