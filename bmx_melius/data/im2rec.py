"""Record files from folders of images, packed by MXNet's im2rec and checked against what was listed."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading

import numpy as np

from ..errors import UserError
from ..preprocessing import InputSpec
from ..reporting import progress_bar
from .encoded_images import name_some
from .folders import ImageFolder, open_folders
from .records import CLASSES_FILE, RecordFile

PARTS = ('train', 'val')
IMAGENET = {'classes': 1000, 'train': 1281167, 'val': 50000}  # ImageNet-1k: ILSVRC 2012, classification
SYNSET = re.compile(r'n\d{8}')  # what ImageNet's classes are called
ORDER_SEED = 0  # training images are packed in random order, so that each machine's share of the file has images of all classes
AS_IT_IS = ['--pass-through']  # options of im2rec that pack a file's bytes
LAST_WORDS = 2  # seconds for a process of im2rec that failed to say why


@dataclasses.dataclass(frozen=True)
class ImageList:
    """What is to be packed.

    Attributes
    ----------
    root : str
    class_names : list of str
    images : dict of str to list of (str, int)
        For 'train' and 'val': path below `root`, and label.
    """

    root: str
    class_names: list
    images: dict

    def counts(self):
        """How many classes and images there are, under the keys of `IMAGENET`."""
        return {'classes': len(self.class_names), **{part: len(images) for part, images in self.images.items()}}

    def difference_from_imagenet(self):
        """One line that tells how the counts differ from ImageNet-1k's, or None."""
        different = [f'{name} {count:,} instead of {IMAGENET[name]:,}' for name, count in self.counts().items() if count != IMAGENET[name]]
        return f'{self.root} is not all of ImageNet-1k: {", ".join(different)}' if different else None

    def looks_like_imagenet(self):
        """Whether the classes are called as in ImageNet."""
        return all(SYNSET.fullmatch(name) for name in self.class_names)


def list_images(root, val_labels=None):
    """List the images of ROOT/train/CLASS/* and ROOT/val/CLASS/*, labelled by the alphabetical order of the classes.

    Parameters
    ----------
    root : str
    val_labels : str or None
        For images that lie in ROOT/val itself, as in ImageNet's archive: a text file with one line for each, in the order of their
        names, that ends with the class's name; where the line has two words, the first is the name of the file.

    Returns
    -------
    ImageList

    Raises
    ------
    UserError
        When a folder lacks images, the parts have not the same classes, or the file does not fit.
    """
    for part in PARTS:
        if not os.path.isdir(os.path.join(root, part)):
            raise UserError(f'there is no folder {os.path.join(root, part)}: put the images into {root}/train/CLASS/ and {root}/val/CLASS/')
    if val_labels is None:
        train, validation = open_folders(root, InputSpec())
        items = {'train': train.items, 'val': validation.items}
    else:
        train = ImageFolder(os.path.join(root, 'train'), InputSpec())
        items = {'train': train.items, 'val': _flat_images(os.path.join(root, 'val'), val_labels, train.class_names)}
    images = {part: [(os.path.relpath(path, root), label) for path, label in items[part]] for part in PARTS}
    for path, _ in images['train'] + images['val']:
        if path != path.strip() or re.search('[\t\r\n]', path):
            raise UserError(
                f'{os.path.join(root, path)!r}: im2rec cannot read a list with tabs, line breaks or blanks at the end of a '
                'name; rename the file'
            )
    order = np.random.RandomState(ORDER_SEED).permutation(len(images['train']))
    images['train'] = [images['train'][number] for number in order]
    return ImageList(root, train.class_names, images)


def _flat_images(folder, val_labels, class_names):
    with open(val_labels, encoding='utf-8') as file:
        lines = [line.split() for line in file if line.strip()]
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    if all(len(words) == 2 for words in lines):
        labels = dict(lines)
        unknown = [name for name in names if name not in labels]
        if unknown:
            raise UserError(f'{val_labels} has no class for {os.path.join(folder, unknown[0])} (and {len(unknown) - 1} more)')
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
    """Write TARGET/{train,val}.{rec,idx,lst} and TARGET/classes.txt: the whole folder, or nothing.

    Only training images are resized. Validation images are packed as they are, so that a network sees the pixels that it sees when the
    same files are read from folders or given to ``bmx-melius predict``.

    Parameters
    ----------
    images : ImageList
    target : str
        A folder that does not exist yet.
    resize : int
        Length of the short side of training images, in pixels; 0 packs them as they are, too.
    quality : int
        Of the resized JPEG images, 1 to 100.
    threads : int
        Processes of im2rec that decode and encode.

    Raises
    ------
    UserError
        When an image cannot be packed, when im2rec fails, or when the record files have not the images and labels listed.
    OSError
        When a file cannot be written.
    """
    if os.path.exists(target):
        raise UserError(f'there is a {target} already: remove it, or choose another folder with --output')
    parent = os.path.dirname(os.path.abspath(target))
    with tempfile.TemporaryDirectory(prefix='.packing-', dir=parent) as folder:
        new = os.path.join(folder, 'rec')
        os.mkdir(new)
        with open(os.path.join(new, CLASSES_FILE), 'w', encoding='utf-8') as file:
            file.writelines(f'{name}\n' for name in images.class_names)
        for part in PARTS:
            with open(os.path.join(new, f'{part}.lst'), 'w') as file:
                file.writelines(f'{number}\t{label}\t{path}\n' for number, (path, label) in enumerate(images.images[part]))
        resizing = ['--resize', str(resize), '--quality', str(quality)] if resize else AS_IT_IS
        for part, encoding in (('val', AS_IT_IS), ('train', resizing)):  # what takes longer comes last
            _run_im2rec(os.path.join(new, part), images.root, len(images.images[part]), encoding, threads)
            _check(new, images, part, encoding == AS_IT_IS, threads)
        for entry in os.scandir(new):
            with open(entry.path, 'rb') as file:
                os.fsync(file.fileno())
        os.rename(new, target)


def _run_im2rec(prefix, root, images, encoding, threads):
    """Make PREFIX.rec and PREFIX.idx of so many images that PREFIX.lst has; `encoding` are the options that say how."""
    # With one process im2rec stops at the first image that it cannot decode; with several it leaves it out.
    command = [sys.executable, '-u', '-m', 'mxnet.tools.im2rec', prefix, root, '--num-thread', str(max(2, threads)), *encoding]
    failed, line = False, ''
    with progress_bar(total=images, description=f'packing {os.path.basename(prefix)}', unit='images') as bar, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', start_new_session=True
    ) as process:
        try:
            for line in filter(str.strip, process.stdout):
                count = re.search(r' count: (\d+)$', line)
                if count:
                    bar.update(int(count.group(1)) - bar.n)
                if re.match(r'Process .*Process-\d+:$', line):  # one of its processes ended: the others would wait for it for ever
                    failed = True
                    threading.Timer(LAST_WORDS, _kill, [process]).start()
        except BaseException:
            _kill(process)
            raise
    if failed or process.returncode:
        raise UserError(f'im2rec failed: {line.strip()}')


def _kill(process):
    """End im2rec and its processes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _check(folder, images, part, decode, threads):
    """Compare a record file with what was listed, and `decode` its images in so many threads: im2rec has not where it copies files."""
    listed = images.images[part]
    records = RecordFile(*(os.path.join(folder, f'{part}.{suffix}') for suffix in ('rec', 'idx')))
    missing = set(range(len(listed))) - set(records.keys.tolist())
    undecodable = records.undecodable(threads, range(len(records))) if decode else []
    bad = sorted(missing.union(records.keys[undecodable].tolist()))
    if bad:
        names = [os.path.join(images.root, listed[number][0]) for number in bad]
        raise UserError(f'{len(bad)} of {len(listed):,} images cannot be decoded: {name_some(names)}; remove or mend them')
    labels = np.array([label for _, label in listed])
    if len(records) != len(listed) or not np.array_equal(labels[records.keys], records.labels):
        raise UserError(f'{part}.rec does not have the {len(listed):,} images and labels listed: pack them again')
