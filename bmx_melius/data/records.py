"""RecordIO files of images, as MXNet's im2rec packs them, checked before MXNet's reader, which a broken one can crash, opens them."""

import mmap
import os
import struct
import warnings

import numpy as np
from mxnet.gluon.data import Dataset

from ..errors import UserError
from ..reporting import progress_bar
from .encoded_images import START, TAIL, EncodedImages, has_known_start, is_cut_off, name_some

CLASSES_FILE = 'classes.txt'  # beside record files: the names of the classes, one a line, in the order of their labels
MAGIC = 0xCED7230A
LENGTH_BITS = 29  # of the second word of a frame; the upper 3 tell whether the record goes on in another part
FRAME = 8  # bytes before each part of a record: the two words, magic and length
LABEL_HEADER = 24  # flag, label, id, id2 of mx.recordio.IRHeader
HEAD = FRAME + LABEL_HEADER + START
CHUNK = 20000  # records looked at in one step


class RecordFile(EncodedImages):
    """A record file and its index.

    Opening looks at the first and last bytes of every record: the index must fit, and every record must be complete, with one label.

    Parameters
    ----------
    path, index_path : str
        The ``.rec`` file and the ``.idx`` file that im2rec writes beside it.

    Attributes
    ----------
    keys : numpy.ndarray of int64
        The records' numbers in the index, in the order of the file.
    labels : numpy.ndarray of int64

    Raises
    ------
    OSError
        When a file cannot be read.
    UserError
        When something is wrong with them: names the file, the record and what to do.
    """

    remedy = 'pack the file again (im2rec leaves out what it cannot decode, unless told to --pass-through)'

    def __init__(self, path, index_path):
        self.path, self.index_path = path, index_path
        self._size = os.path.getsize(path)
        self.keys, self._offsets = self._read_index()
        self._ends = np.append(self._offsets[1:], self._size)
        self.labels, self._strange, self._cut_off = np.zeros(len(self.keys), np.int64), [], []
        self._check_records()

    def __len__(self):
        return len(self.keys)

    def _read_index(self):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings('ignore', message='.*no data', category=UserWarning)  # that is an error below
                index = np.loadtxt(self.index_path, dtype=np.int64, delimiter='\t', ndmin=2)
        except ValueError as error:
            raise UserError(f'{self.index_path} is no index of a record file (lines of number, tab, offset): {error}') from error
        if index.shape[1] != 2:
            raise UserError(f'{self.index_path} holds no records: pack the images again with im2rec')
        index = index[np.argsort(index[:, 1], kind='stable')]
        return index[:, 0], index[:, 1]

    def _check_records(self):
        """Look at every record."""
        self._refuse(slice(None), np.append(self._offsets[1:], self._offsets[-1] + HEAD) > self._size, 'the file is truncated')
        with open(self.path, 'rb') as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(content, 'madvise'):
            content.madvise(mmap.MADV_RANDOM)  # read the pages that are touched, not their neighbours
        view = np.frombuffer(content, np.uint8)
        with progress_bar(total=len(self), description=f'checking {os.path.basename(self.path)}', unit='records') as bar:
            for first in range(0, len(self), CHUNK):
                self._check_chunk(view, slice(first, first + CHUNK))
                bar.update(min(CHUNK, len(self) - first))

    def _check_chunk(self, view, chunk):
        offsets, ends = self._offsets[chunk], self._ends[chunk]
        heads = view[offsets[:, None] + np.arange(HEAD)]
        magic, frame, flag, label = heads[:, : FRAME + 8].copy().view(np.uint32).T
        length = (frame & (1 << LENGTH_BITS) - 1).astype(np.int64)
        in_one_part = frame >> LENGTH_BITS == 0
        labels = label.copy().view(np.float32)
        self._refuse(chunk, magic != MAGIC, 'it does not start with the mark of a record')
        self._refuse(
            chunk,
            in_one_part & (offsets + FRAME + (length + 3) // 4 * 4 != ends),
            'it is not as long as it says; the file is truncated, or not the one of the index',
        )
        self._refuse(chunk, flag != 0, 'it has several labels (im2rec --pack-label), where one is needed')
        self._refuse(chunk, ~(labels >= 0) | (labels != np.floor(labels)), 'its label is no class number')
        self.labels[chunk] = labels.astype(np.int64)
        tails = view[np.maximum(ends[:, None] - np.arange(TAIL, 0, -1), 0)]
        for position, (head, tail) in enumerate(zip(heads[:, FRAME + LABEL_HEADER :], tails), start=chunk.start):
            start = head.tobytes()
            if not has_known_start(start):
                self._strange.append(position)
            elif is_cut_off(start, tail.tobytes()):
                self._cut_off.append(position)

    def _refuse(self, chunk, wrong, why):
        """Raise the error that names the first of the records of `chunk` that are `wrong`."""
        if wrong.any():
            key, offset = self.keys[chunk][wrong][0], self._offsets[chunk][wrong][0]
            raise UserError(f'{self.path}: record {key} (at byte {offset}) is broken: {why}. Copy the file again, or pack it with im2rec')

    def read(self, index):
        size = int(self._ends[index] - self._offsets[index])
        with open(self.path, 'rb', buffering=0) as file:
            file.seek(self._offsets[index])
            content = file.read(size)
        if len(content) != size:
            raise ValueError(f'{self.path}: {self.name([index])} is truncated')
        parts, begin = [], 0
        while begin < size:
            length = struct.unpack_from('<II', content, begin)[1] & (1 << LENGTH_BITS) - 1
            parts.append(content[begin + FRAME : begin + FRAME + length])
            begin += FRAME + (length + 3) // 4 * 4
        return struct.pack('<I', MAGIC).join(parts)[LABEL_HEADER:]  # a record is split where its content has the mark of one

    def suspects(self, threads):
        return self._strange, self._cut_off

    def name(self, indices):
        return f'record {name_some(self.keys[list(indices)].tolist())}'


class RecordImages(Dataset):
    """The images of a `RecordFile`, decoded one by one by an `InputSpec`, so that they are prepared as files in folders are."""

    def __init__(self, records, spec):
        self._records, self._spec = records, spec

    def __len__(self):
        return len(self._records)

    def __getitem__(self, index):
        content = self._records.read(index)
        return self._spec.decode(content, f'{self._records.name([index])} of {self._records.path}'), int(self._records.labels[index])


def read_class_names(records, classes):
    """The names of the classes beside a record file that `bmx-melius pack-images` has written, or None where there are none.

    Parameters
    ----------
    records : RecordFile
    classes : int
        How many there must be at least.

    Raises
    ------
    UserError
        When the file has fewer names.
    """
    path = os.path.join(os.path.dirname(records.path), CLASSES_FILE)
    if not os.path.isfile(path):
        return None
    with open(path, encoding='utf-8') as file:
        names = file.read().splitlines()
    if len(names) < classes:
        raise UserError(f'{path} names {len(names)} classes, but {records.path} has labels up to {classes - 1}: remove it or mend it')
    return names
