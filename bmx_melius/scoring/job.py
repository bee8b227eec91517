"""A scoring job: its images in parts, a folder with one Parquet file for each part, and resuming after an interruption.

Each image is in one part, the rows of a part appear at once under a name that depends only on the part, and a part that exists is not
computed again. So every image has exactly one row, however often workers or the program are killed.
"""

import contextlib
import hashlib
import json
import os

from ..errors import UserError, name_some, printable
from ..files.exported import Exported
from ..files.folder_lock import locked
from ..files.io import read_text, remove_leftovers, write_json
from .part import Part, Scoring, digests_of_network, is_complete

JOB_FILE, SUCCESS_FILE, LOCK_FILE = '_job.json', '_SUCCESS', '_lock'  # readers of Parquet folders skip names that begin with _


class Job:
    """Images to classify and the folder of their rows.

    Parameters
    ----------
    listing : Listing
        The images.
    part_size : int
        Images of a part; the last one may be smaller.
    folder : str
        Folder for the Parquet files.
    **computed
        The remaining fields of a `Scoring`.

    Attributes
    ----------
    scoring : Scoring
    parts : list of Part
    """

    def __init__(self, listing, part_size, folder, *, prefix, spec, class_names, top, logits, batch_size):
        prefix, folder = os.path.abspath(Exported(prefix).prefix), os.path.abspath(folder)
        self._listing, images = listing, listing.images
        self.parts = [
            Part(number, tuple(images[begin : begin + part_size])) for number, begin in enumerate(range(0, len(images), part_size))
        ]
        network = digests_of_network(prefix)
        self._description = {
            'network': list(network),
            'input': spec.to_json(),
            'classes': class_names,
            'top': top,
            'logits': logits,
            'images': len(images),
            'listing': _digest(*((image.name, image.size, image.offset) for image in images)),
            'part_size': part_size,
        }
        self.scoring = Scoring(prefix, spec, class_names, top, logits, batch_size, folder, network, identity=_digest(self._description))

    @contextlib.contextmanager
    def opened(self):
        """Lock the folder for the block, which is created if it does not exist; yield the parts that are not yet complete.

        Raises
        ------
        UserError
            If another process writes to the folder, or if it has the rows of another job.
        """
        folder = self.scoring.folder
        self._require_same(folder)
        with locked(folder, LOCK_FILE):
            self._require_same(folder)
            remove_leftovers(folder)  # of a killed program
            write_json(os.path.join(folder, JOB_FILE), self._description)
            missing = [part for part in self.parts if not is_complete(self.scoring, part)]
            if missing:
                self._unmark()
            try:
                yield missing
            finally:
                remove_leftovers(folder)  # of the workers that an error or a signal has ended

    def finish(self):
        """Mark the folder as complete by the file ``_SUCCESS``.

        Raises
        ------
        UserError
            If rows are missing; if the sources have been changed since they were listed, in which case the parts with rows of files that
            were changed are removed; or if a source may lack images.
        """
        changed, gone = self._listing.changes()
        if changed or gone:
            self._unmark()
            files = set(changed)
            for part in self.parts:
                if any(image.file in files for image in part.images):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.scoring.folder, part.file_name))
            what = f'changed or added: {name_some(changed)}' if changed else f'{gone:,} files were removed'
            raise UserError(
                f'the sources were changed while they were scored ({printable(what)}): the rows of changed files are removed, run the same '
                'command again, with a new folder if there are other images now'
            )
        missing = [part.file_name for part in self.parts if not is_complete(self.scoring, part)]
        if missing:
            raise UserError(
                f'{self.scoring.folder} lacks {len(missing)} files, the first one {missing[0]}: make sure that workers on other machines '
                'write to the same file system, and run the same command again'
            )
        if self._listing.doubts:
            self._unmark()
            raise UserError(
                f'{self.scoring.folder} has the rows of all images that were found, but not {SUCCESS_FILE}, because there may be more: '
                f'{printable(name_some(self._listing.doubts))}; then run the same command again'
            )
        with open(os.path.join(self.scoring.folder, SUCCESS_FILE), 'w', encoding='utf-8'):
            pass

    def _unmark(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.scoring.folder, SUCCESS_FILE))

    def _require_same(self, folder):
        """Raise `UserError` unless the folder is new, empty or of this job."""
        path = os.path.join(folder, JOB_FILE)
        if not os.path.exists(path):
            if os.path.isdir(folder) and any(not name.startswith(('.', '_')) for name in os.listdir(folder)):
                raise UserError(f'{folder} has other files: give a new folder')
            return
        try:
            stored = json.loads(read_text(path))
        except ValueError as error:
            raise UserError(f'{path} is damaged ({error}): give a new folder, or delete this one') from error
        if stored != self._description:
            stored = stored if isinstance(stored, dict) else {}
            different = [name for name, value in self._description.items() if stored.get(name) != value]
            raise UserError(f'{folder} has the rows of another job ({", ".join(different)} differ): give a new folder, or delete this one')


def _digest(*contents):
    """Return the SHA-256 of JSON objects, one after the other: there may be millions."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()
