"""RecordIO files of images, as written by MXNet's im2rec; they are checked because broken files can crash MXNet's reader."""

import mmap
import os

import mxnet as mx
import numpy as np
from mxnet.gluon.data import Dataset

from ..errors import UserError, counted, last_line, name_some
from ..files.io import read_text
from ..reporting import ProgressLine
from ..vision.pixels import decode
from .encoded_images import START, TAIL, EncodedImages, looks_complete
from .mxnet_decoder import decodes_alike
from .record_format import FRAME, LABEL_HEADER, LENGTH_BITS, MAX_CLASSES, read_places, read_record, without_labels

CLASSES_FILE = 'classes.txt'  # beside record files: the class names, one per line, in the order of the labels
HEAD = FRAME + LABEL_HEADER + START
CHUNK = 20000  # records checked in one step


class RecordFile(EncodedImages):
    """A record file and its index.

    The constructor checks that the index has all records of the file (`read_places`), and the first and last bytes of every record, which
    must have one label.

    Parameters
    ----------
    path, index_path : str
        The ``.rec`` file and the ``.idx`` file that im2rec writes beside it.

    Attributes
    ----------
    keys : numpy.ndarray of int64
        Numbers of the records in the index, in file order.
    labels : numpy.ndarray of int64
        Class labels, in file order.
    unlike_mxnet : list of int
        Indices of the images that MXNet's reader does not decode, or to other pixels than `bmx_melius.vision.pixels.decode`.

    Raises
    ------
    OSError
        When a file cannot be read.
    UserError
        When a file is broken; the message names the file, the record and what to do.
    """

    remedy = 'pack the file again (im2rec skips images that it cannot decode, unless --pass-through is given)'

    def __init__(self, path, index_path):
        self.path, self.index_path = path, index_path
        self.keys, self._offsets, self._ends = read_places(path, index_path)
        self.labels, self._suspects, self.unlike_mxnet = np.zeros(len(self.keys), np.int64), [], []
        self._check_records()

    def __len__(self):
        return len(self.keys)

    def _check_records(self):
        """Check all records, in chunks to bound the memory used."""
        self._refuse(slice(None), self._ends - self._offsets < HEAD, 'it is too short for a label and an image')
        with open(self.path, 'rb') as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(content, 'madvise'):
            content.madvise(mmap.MADV_RANDOM)  # read only the pages that are accessed, without read-ahead
        view = np.frombuffer(content, np.uint8)
        with ProgressLine(total=len(self), description=f'checking {os.path.basename(self.path)}', unit='records') as bar:
            for first in range(0, len(self), CHUNK):
                self._check_chunk(content, view, slice(first, first + CHUNK))
                bar.update(min(CHUNK, len(self) - first))

    def _check_chunk(self, content, view, chunk):
        """Check the headers and the ends of a slice of records; fill in their labels."""
        offsets, ends = self._offsets[chunk], self._ends[chunk]
        heads = view[offsets[:, None] + np.arange(HEAD)]
        _, frame, flag, label = heads[:, : FRAME + 8].copy().view(np.uint32).T
        length, in_one_part = frame & (1 << LENGTH_BITS) - 1, frame >> LENGTH_BITS == 0
        labels = label.copy().view(np.float32)
        self._refuse(chunk, length < LABEL_HEADER, 'its first part is too short for a label')
        self._refuse(chunk, flag != 0, 'it has several labels (im2rec --pack-label), but must have one')
        wrong = ~((labels >= 0) & (labels < MAX_CLASSES)) | (labels != np.floor(labels))
        self._refuse(chunk, wrong, f'its label is not a class number, 0 to {MAX_CLASSES - 1}')
        self.labels[chunk] = labels.astype(np.int64)
        tails = view[np.maximum(ends[:, None] - np.arange(TAIL, 0, -1), 0)]
        begins = offsets + FRAME + LABEL_HEADER
        for position, (head, tail, begin, end) in enumerate(zip(heads[:, FRAME + LABEL_HEADER :], tails, begins, ends), chunk.start):
            if not looks_complete(head.tobytes(), tail.tobytes(), end - begin):
                self._suspects.append(position)
            if in_one_part[position - chunk.start]:
                is_alike = decodes_alike(content, int(begin), int(end))
            else:
                is_alike = decodes_alike(self.read(position))
            if not is_alike:
                self.unlike_mxnet.append(position)

    def _refuse(self, chunk, wrong, why):
        """Raise `UserError`, naming the first record of `chunk` for which the mask `wrong` is set, if there is one."""
        if wrong.any():
            key, offset = self.keys[chunk][wrong][0], self._offsets[chunk][wrong][0]
            raise UserError(f'{self.path}: record {key} (at byte {offset}) is broken: {why}. Copy the file again, or pack it with im2rec')

    def read(self, index):
        with open(self.path, 'rb') as file:
            file.seek(self._offsets[index])
            try:
                return without_labels(read_record(file))
            except ValueError as error:
                raise ValueError(f'{self.path}: {self.name([index])}: {error}') from error

    def suspects(self, threads):
        return self._suspects

    def decode(self, content, name):
        super().decode(content, name)
        if not self.unlike_mxnet:  # MXNet's reader decodes them; an image that it cannot decode would end the process
            try:
                mx.image.imdecode(content, flag=1).wait_to_read()  # decoding is asynchronous
            except mx.MXNetError as error:
                raise ValueError(last_line(error)) from error

    def name(self, indices):
        return f'record {name_some(self.keys[list(indices)].tolist())}'


class RecordImages(Dataset):
    """Dataset of the images of a `RecordFile`, decoded by an `InputSpec`, so that preprocessing is the same as for image folders."""

    def __init__(self, records, spec):
        self._records, self._spec, self.labels = records, spec, records.labels

    def __len__(self):
        return len(self._records)

    def __getitem__(self, index):
        content = self._records.read(index)
        name = f'{self._records.name([index])} of {self._records.path}'
        return decode(content, name, self._spec.channels), int(self._records.labels[index])


def read_class_names(records, classes):
    """Read the class names that `bmx-melius pack-images` writes beside a record file; return None if there is no such file.

    Parameters
    ----------
    records : RecordFile
    classes : int
        Minimum number of names required.

    Raises
    ------
    UserError
        When the file has too few names.
    """
    path = os.path.join(os.path.dirname(records.path), CLASSES_FILE)
    if not os.path.isfile(path):
        return None
    names = read_text(path).splitlines()
    if len(names) < classes:
        raise UserError(
            f'{path} names {counted(len(names), "class")}, but {records.path} has labels up to {classes - 1}: remove or correct it'
        )
    return names
