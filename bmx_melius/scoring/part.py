"""One part of a scoring job: read, preprocess and classify its images, and write their rows to a Parquet file."""

import dataclasses
import errno
import os
import socket
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from ..deployment.runtime.session import Session, classifier_of
from ..errors import UserError, printable
from ..files.exported import Exported
from ..files.io import read_text, replacing, sha256
from ..vision.preprocessing import InputSpec
from .images import EncodedImage

JOB_KEY = b'bmx_melius_job'  # metadata of the Parquet files: the identity of the job


@dataclasses.dataclass(frozen=True)
class Scoring:
    """What is computed for each image, and where the rows are written.

    Attributes
    ----------
    prefix : str
        Absolute prefix of the packed network.
    spec : InputSpec
    class_names : list of str or None
    top : int
        Number of classes in a row.
    logits : bool
        Whether rows contain the logits of all classes.
    batch_size : int
    folder : str
        Absolute path of the folder for Parquet files.
    network : tuple of str
        Digests of the files of the network, as `digests_of_network` returns them.
    identity : str
        Digest of all that determines the rows.
    """

    prefix: str
    spec: InputSpec
    class_names: Optional[List[str]]
    top: int
    logits: bool
    batch_size: int
    folder: str
    network: Tuple[str, str]
    identity: str


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive images of a job, whose rows are one file."""

    number: int
    images: Tuple[EncodedImage, ...]

    @property
    def file_name(self):
        """Name of the Parquet file."""
        return f'part-{self.number:06d}.parquet'

    @property
    def checksum_name(self):
        """Name of the file with the checksum of the Parquet file, in the format of sha256sum. Readers of Parquet folders skip it."""
        return f'_{self.file_name}.sha256'

    def checksum(self, path):
        """Return what the file `checksum_name` contains for the Parquet file that is stored at a path."""
        return f'{sha256(path)}  {self.file_name}\n'


def digests_of_network(prefix: str) -> Tuple[str, str]:
    """Return the SHA-256 of the two files of a packed network."""
    files = Exported(prefix)
    return sha256(files.symbol_file), sha256(files.parameter_file(0))


def score_part(scoring: Scoring, part: Part) -> Tuple[int, int, int]:
    """Classify the images of a part and write their rows; the file appears when it is complete.

    Images that cannot be read or decoded have a row with the reason in the column ``error``.

    Returns
    -------
    number, images, unreadable : int
        Of the part, and its images.

    Raises
    ------
    UserError
        If the network cannot be read, differs from the job's, or gives scores that are not finite, or if the memory is exhausted.
    OSError
        If the file cannot be written.
    """
    import pyarrow.parquet

    session = Session(scoring.prefix, threads=1)  # cheap if this process has another one: they share weights
    if digests_of_network(scoring.prefix) != scoring.network:
        raise UserError(
            f'the network {scoring.prefix} was changed after the start of the command, or is another one on {socket.gethostname()}: '
            'copy its files again'
        )
    classifier = classifier_of(session, scoring.prefix, scoring.spec, scoring.class_names, scoring.prefix)
    columns: Dict[str, List[Any]] = {name: [] for name in _schema(scoring).names}
    for begin in range(0, len(part.images), scoring.batch_size):
        images = part.images[begin : begin + scoring.batch_size]
        try:
            _score_batch(classifier, scoring.top, images, columns)
        except MemoryError as error:
            raise UserError(
                f'{images[0].name} and the {len(images) - 1} images after it need too much memory: '
                'choose a smaller --batch-size or fewer --workers'
            ) from error
    table = pyarrow.Table.from_pydict(columns, _schema(scoring))
    with replacing(os.path.join(scoring.folder, part.file_name)) as temporary:
        pyarrow.parquet.write_table(table, temporary, compression='zstd')
        with replacing(os.path.join(scoring.folder, part.checksum_name)) as checksum_path, open(checksum_path, 'w') as file:
            file.write(part.checksum(temporary))  # appears before the rows, so that they are not computed again if this process is killed
    return part.number, len(part.images), len(part.images) - columns['error'].count(None)


def is_complete(scoring: Scoring, part: Part) -> bool:
    """Return whether the rows of a part have been written by the same job, and are as they were written.

    Raises `OSError` if the file exists and cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    path = os.path.join(scoring.folder, part.file_name)
    try:
        if part.checksum(path) != read_text(os.path.join(scoring.folder, part.checksum_name)):
            return False
        with open(path, 'rb') as file:
            found = pyarrow.parquet.ParquetFile(file).metadata
    except pyarrow.ArrowInvalid:  # not a Parquet file
        return False
    except OSError as error:
        if error.errno in (None, errno.ENOENT):  # of PyArrow, because the file is damaged; not yet written
            return False
        raise
    return found.num_rows == len(part.images) and (found.metadata or {}).get(JOB_KEY) == scoring.identity.encode()


def _schema(scoring):
    import pyarrow

    fields = [('image', pyarrow.string())]
    for number in range(1, scoring.top + 1):
        fields.append((f'class_{number}', pyarrow.int32()))
        if scoring.class_names is not None:
            fields.append((f'name_{number}', pyarrow.string()))
        fields.append((f'probability_{number}', pyarrow.float64()))
    if scoring.logits:
        fields.append(('logits', pyarrow.list_(pyarrow.float32())))
    fields.append(('error', pyarrow.string()))
    return pyarrow.schema(fields, {JOB_KEY: scoring.identity.encode()})


def _score_batch(classifier, top, images, columns):
    """Append the rows of a batch of images to the columns."""
    arrays, errors = [], []
    for image in images:
        try:
            arrays.append(classifier.spec.decoded_array(image.read(), image.name))
            errors.append(None)
        except (UserError, OSError) as error:
            errors.append(printable(str(error)))
    rows = iter(())
    if arrays:
        scores = classifier(np.concatenate(arrays), [image.name for image, error in zip(images, errors) if error is None])
        rows = zip(scores, classifier.most_probable(scores, top))
    for image, error in zip(images, errors):
        row = {'image': printable(image.name), 'error': error}
        if error is None:
            row['logits'], best = next(rows)
            row.update((f'{field}_{place}', value) for place, found in enumerate(best, start=1) for field, value in found.items())
        for name, column in columns.items():
            column.append(row.get(name))
