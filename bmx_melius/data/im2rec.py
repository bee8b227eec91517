"""im2rec packing: record files from image folders, written by MXNet's im2rec and checked against the list of images."""

import contextlib
import dataclasses
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.pool import ThreadPool

import numpy as np

from ..errors import UserError, name_some
from ..files.io import read_text
from ..reporting import ProgressLine
from ..vision.pixels import decode, format_of
from ..vision.preprocessing import InputSpec
from .encoded_images import BLOCK, START, TAIL, looks_complete
from .folders import ImageFolder, is_divided, open_folders
from .imagenet import SYNSET
from .mxnet_decoder import as_decoded_alike, decodes_alike
from .records import CLASSES_FILE, RecordFile

PARTS = ('train', 'val')
IMAGENET = {'classes': 1000, 'train': 1281167, 'val': 50000}  # ImageNet-1k: ILSVRC 2012, classification
ORDER_SEED = 0  # training images are shuffled, so that each worker's share of the file has images of all classes
PASS_THROUGH = ['--pass-through']  # options of im2rec that pack files without encoding them again
ERROR_TIMEOUT = 2  # seconds for a failed im2rec process to print its error


@dataclasses.dataclass(frozen=True)
class ImageList:
    """Images to be packed, with their labels.

    Attributes
    ----------
    root : str
    class_names : list of str
    images : dict of str to list of (str, int)
        For 'train' and 'val', the path relative to `root` and the label of each image.
    """

    root: str
    class_names: list
    images: dict

    def counts(self):
        """Return the numbers of classes and images, with the keys of `IMAGENET`."""
        return {'classes': len(self.class_names), **{part: len(images) for part, images in self.images.items()}}

    def difference_from_imagenet(self):
        """Return one line that describes how the counts differ from ImageNet-1k's, or None."""
        different = [f'{name} {count:,} instead of {IMAGENET[name]:,}' for name, count in self.counts().items() if count != IMAGENET[name]]
        return f'{self.root} is not all of ImageNet-1k: {", ".join(different)}' if different else None

    def looks_like_imagenet(self):
        """Return whether the class names are ImageNet's (WordNet identifiers)."""
        return all(SYNSET.fullmatch(name) for name in self.class_names)


def list_images(root, val_labels=None, val_fraction=None):
    """List the training and validation images in a folder, labelled by the alphabetical order of the classes.

    Parameters
    ----------
    root, val_fraction
        The folder, and how it is divided if it has no folders train and val; see `open_folders`.
    val_labels : str or None
        Text file with the classes of images that lie directly in ROOT/val, as in ImageNet's archive: one line per image, in the order of
        the file names, ending with the class name. If every line has two words, the first is the file name.

    Returns
    -------
    ImageList

    Raises
    ------
    UserError
        As `open_folders`, or when `val_labels` does not match the images.
    """
    if val_labels is None:
        train, validation = open_folders(root, InputSpec(), val_fraction)
        items = {'train': train.items, 'val': validation.items}
    else:
        if val_fraction or not is_divided(root):
            raise UserError(f'--val-labels are for images in {os.path.join(root, "val")}: leave out --val-fraction, and create this folder')
        train = ImageFolder(os.path.join(root, 'train'), InputSpec())
        items = {'train': train.items, 'val': _flat_images(os.path.join(root, 'val'), val_labels, train.class_names)}
    images = {part: [(os.path.relpath(path, root), label) for path, label in items[part]] for part in PARTS}
    for path, _ in images['train'] + images['val']:
        if path != path.strip() or re.search('[\t\r\n]', path):
            raise UserError(
                f'{os.path.join(root, path)!r}: im2rec cannot read file names that contain tabs or line breaks, or end with blanks; '
                'rename the file'
            )
    order = np.random.RandomState(ORDER_SEED).permutation(len(images['train']))
    images['train'] = [images['train'][number] for number in order]
    return ImageList(root, train.class_names, images)


def _flat_images(folder, val_labels, class_names):
    """Return the paths and labels of the images directly in `folder`, with the classes in the file `val_labels`."""
    lines = [line.split() for line in read_text(val_labels).splitlines() if line.strip()]
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    if all(len(words) == 2 for words in lines):
        labels = dict(lines)
        unknown = [name for name in names if name not in labels]
        if unknown:
            raise UserError(f'{val_labels} has no class for {name_some([os.path.join(folder, name) for name in unknown])}')
    else:
        if len(lines) != len(names):
            raise UserError(f'{val_labels} has {len(lines):,} lines, but {folder} has {len(names):,} files')
        labels = dict(zip(names, (words[-1] for words in lines)))
    numbers = {name: number for number, name in enumerate(class_names)}
    unknown = sorted({labels[name] for name in names} - set(numbers))
    if unknown:
        raise UserError(f'{val_labels} has the class {unknown[0]!r}, of which there are no training images')
    return [(os.path.join(folder, name), numbers[labels[name]]) for name in names]


def pack(images, target, resize, quality, threads):
    """Write TARGET/{train,val}.{rec,idx,lst} and TARGET/classes.txt; on an error nothing is left behind.

    Only training images are resized. Validation images are packed unchanged, so that accuracies agree with the same files read
    from folders or by ``bmx-melius predict``; those that MXNet's reader would decode in another way are stored as files with the same
    pixels.

    Parameters
    ----------
    images : ImageList
    target : str
        Folder to create; must not exist.
    resize : int
        Length of the short side of training images, in pixels; 0 packs them unchanged.
    quality : int
        JPEG quality of the resized images, 1 to 100.
    threads : int
        Number of im2rec processes that decode and encode.

    Raises
    ------
    UserError
        When an image cannot be packed, when im2rec fails, or when a record file does not have the listed images and labels.
    OSError
        When a file cannot be written.
    """
    if os.path.exists(target):
        raise UserError(f'{target} exists already: remove it, or choose another folder with --output')
    parent = os.path.dirname(os.path.abspath(target))
    with tempfile.TemporaryDirectory(prefix='.packing-', dir=parent) as folder:
        new = os.path.join(folder, 'rec')
        os.mkdir(new)
        with open(os.path.join(new, CLASSES_FILE), 'w', encoding='utf-8') as file:
            file.writelines(f'{name}\n' for name in images.class_names)
        resizing = ['--resize', str(resize), '--quality', str(quality)] if resize else PASS_THROUGH
        for part, encoding in (('val', PASS_THROUGH), ('train', resizing)):  # the longer step comes last
            converted = _convert(images, part, os.path.join(folder, part), threads)
            _write_list(new, part, [(converted.get(path, path), label) for path, label in images.images[part]])
            _run_im2rec(os.path.join(new, part), images.root, len(images.images[part]), encoding, threads)
            _write_list(new, part, images.images[part])
            _check(new, images, part, encoding == PASS_THROUGH, threads)
        for entry in os.scandir(new):
            with open(entry.path, 'rb') as file:
                os.fsync(file.fileno())
        os.rename(new, target)


def _write_list(folder, part, images):
    with open(os.path.join(folder, f'{part}.lst'), 'w') as file:
        file.writelines(f'{number}\t{label}\t{path}\n' for number, (path, label) in enumerate(images))


def _convert(images, part, folder, threads):
    """Write the images of a part that MXNet's reader would decode in another way to `folder`, as files that it decodes alike.

    Returns
    -------
    dict of str to str
        Path in the list -> path of the new file.

    Raises
    ------
    UserError
        When images cannot be decoded, among those that are converted or do not look complete.
    """
    os.mkdir(folder)

    def convert(number):
        path = images.images[part][number][0]
        with open(os.path.join(images.root, path), 'rb') as file:
            size = os.fstat(file.fileno()).st_size
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else contextlib.nullcontext(b'') as content:
                is_complete = looks_complete(content[:START], content[max(0, size - TAIL) :], size)
                if is_complete and decodes_alike(content):
                    return None
                encoded = content[:]
        try:
            if not is_complete:
                decode(encoded, path, 3)
            replaced = as_decoded_alike(encoded, path)
        except UserError:
            return False
        if replaced is encoded:
            return None
        target = os.path.join(folder, f'{number}.{"jpg" if format_of(replaced).name == "JPEG" else "png"}')
        with open(target, 'wb') as file:
            file.write(replaced)
        return target

    listed = images.images[part]
    with ThreadPool(threads) as pool:
        results = list(pool.imap(convert, range(len(listed)), BLOCK))
    _refuse_undecodable(images, part, [number for number, result in enumerate(results) if result is False])
    return {path: result for (path, _), result in zip(listed, results) if result}


def _refuse_undecodable(images, part, bad):
    if bad:
        names = [os.path.join(images.root, images.images[part][number][0]) for number in bad]
        try:
            with open(names[0], 'rb') as file:
                decode(file.read(), names[0], 3)
            reason = ''
        except UserError as error:
            reason = f' ({error})'
        raise UserError(
            f'{len(bad)} of {len(images.images[part]):,} images cannot be decoded: {name_some(names)}; remove or repair them{reason}'
        )


def _run_im2rec(prefix, root, images, encoding, threads):
    """Write PREFIX.rec and PREFIX.idx from the `images` images listed in PREFIX.lst; `encoding` are options of im2rec."""
    # With one process im2rec stops at the first image that it cannot decode; with several it skips such images.
    command = [sys.executable, '-u', '-m', 'mxnet.tools.im2rec', prefix, root, '--num-thread', str(max(2, threads)), *encoding]
    failed, line = False, ''
    with ProgressLine(total=images, description=f'packing {os.path.basename(prefix)}', unit='images') as bar, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', start_new_session=True
    ) as process:
        try:
            for line in filter(str.strip, process.stdout):
                count = re.search(r' count: (\d+)$', line)
                if count:
                    bar.update(int(count.group(1)) - bar.done)
                if re.match(r'Process .*Process-\d+:$', line):  # a process failed; the others would wait for it forever
                    failed = True
                    threading.Timer(ERROR_TIMEOUT, _kill, [process]).start()
        except BaseException:
            _kill(process)
            raise
    if failed or process.returncode:
        raise UserError(f'im2rec failed: {line.strip()}')


def _kill(process):
    """Kill im2rec and its processes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _check(folder, images, part, decode, threads):
    """Compare a record file with the list of images.

    With `decode`, also decode all images, because im2rec does not do that with --pass-through.
    """
    listed = images.images[part]
    records = RecordFile(*(os.path.join(folder, f'{part}.{suffix}') for suffix in ('rec', 'idx')))
    missing = set(range(len(listed))) - set(records.keys.tolist())
    undecodable = records.undecodable(threads, range(len(records))) if decode else []
    _refuse_undecodable(images, part, sorted(missing.union(records.keys[undecodable].tolist())))
    labels = np.array([label for _, label in listed])
    if len(records) != len(listed) or not np.array_equal(labels[records.keys], records.labels):
        raise UserError(f'{part}.rec does not have the {len(listed):,} images and labels listed: pack them again')
