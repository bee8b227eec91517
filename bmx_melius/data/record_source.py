"""Sources of batches from record files: read by `mx.io.ImageRecordIter`, or image by image."""

import itertools

import mxnet as mx

from ..arithmetic import seed_for
from ..errors import DataError, UserError, last_line
from .image_source import ImageSource, TrainingImages
from .records import RecordImages, read_class_names
from .source import Source


class RecordSource(Source):
    """Training and validation batches from two record files, which are checked on construction; labels are 0 .. classes - 1.

    Class names are read from the file classes.txt beside the training images, if it exists (`bmx-melius pack-images` writes it).

    A new iterator is created for each epoch, with a seed that depends on the epoch, so the order of the images depends only on the seed
    and the epoch. With one decoding thread the same holds for augmentation. With several threads, `ImageRecordIter` passes each image to
    the next free thread, each of which has a separate random generator, so the augmentation of an image depends on timing. (The argument
    `seed_aug` would avoid this, but it seeds the generator for each image with its position in the batch: all batches of an epoch would
    have the augmentations of the first one.)

    With several machines, each reads a fixed, contiguous share of the file, shuffled again in each epoch, so that its disk cache has to
    hold only this share. The combinations of images in an update therefore vary less than on one machine. im2rec's lists are shuffled, so
    each share has images of all classes.

    Parameters
    ----------
    train, validation : RecordFile
    spec, batching
        See `Source`.
    augmentation : Augmentation
    threads : int
        Number of decoding threads. MXNet uses fewer on machines with few cores.
    """

    def __init__(self, train, validation, spec, augmentation, batching, threads):
        classes, class_names = _classes(train)
        super().__init__(train.path, spec, classes, class_names, len(train), len(validation), batching)
        _require_same_classes(train, validation, classes)
        self._train, self._validation, self._threads = train, validation, threads
        self._training_arguments = augmentation.record_arguments(spec)
        self._validation_arguments = {'resize': spec.resize or spec.size}
        self._check_encoded(train, validation, threads)
        # If ImageRecordIter resizes before it crops, an undecodable image kills the process with SIGFPE; otherwise it raises an exception.
        if 'resize' in self._training_arguments:
            self.decode_training_images()
            self._decode_training_images = lambda: None

    def training_labels(self):
        return self._train.labels

    def train(self, epoch, first=0):
        if first == self.updates_per_epoch:
            return
        passes = (
            self._read(self._train, self.batching.size, shuffle=True, seed=seed_for(self.batching.seed, epoch), **self._training_arguments)
            for _ in itertools.count()
        )  # the last part may lack one batch, which a second pass supplies
        for number, batch in zip(range(self.updates_per_epoch), itertools.chain.from_iterable(passes)):
            if number >= first:
                yield batch.data[0], batch.label[0]

    def validation(self):
        share = len(self.validation_share)
        if not share:
            return
        batches = self._read(self._validation, min(self.batching.size, share), **self._validation_arguments)
        for batch in itertools.islice(batches, self.batching.limit):
            images = batch.data[0].shape[0] - batch.pad  # `pad` is correct only in the first pass of an iterator
            yield batch.data[0][:images], batch.label[0][:images]

    def _read(self, records, batch_size, **arguments):
        """Yield the batches of one pass over this process's part of a record file. Raises `DataError` when images cannot be read."""
        normalization = {f'{name}_{channel}': value for name in ('mean', 'std') for channel, value in zip('rgb', getattr(self.spec, name))}
        try:
            yield from mx.io.ImageRecordIter(
                path_imgrec=records.path,
                path_imgidx=records.index_path,
                data_shape=self.spec.shape,
                batch_size=batch_size,
                num_parts=self.batching.parts,
                part_index=self.batching.part,
                preprocess_threads=self._threads,
                verbose=False,
                **normalization,
                **arguments,
            )
        except mx.MXNetError as error:
            bad = records.undecodable(self._threads, range(len(records)))
            raise DataError(
                records.describe(bad) if bad else f'{records.path}: MXNet failed to read the file: {last_line(error)}'
            ) from error


class RecordImageSource(ImageSource):
    """Training and validation batches from two record files, whose images are read and decoded one by one, as from a folder.

    It does what `ImageRecordIter` cannot: it decodes every image by the rule of `bmx_melius.vision.pixels.decode`, and it draws images with
    replacement. Batches do not depend on the number of threads.

    Parameters
    ----------
    train, validation : RecordFile
    spec, augmentation, batching, threads, bootstrap
        See `ImageSource`.
    """

    def __init__(self, train, validation, spec, augmentation, batching, threads, bootstrap=False):
        classes, class_names = _classes(train)
        images = TrainingImages(
            RecordImages(train, spec), RecordImages(validation, spec), class_names or list(map(str, range(classes))), train.path
        )
        super().__init__(images, spec, augmentation, batching, threads, bootstrap)
        self.class_names = class_names
        _require_same_classes(train, validation, classes)
        self._check_encoded(train, validation, threads)


def _classes(train):
    """Return the number of classes and their names, or None, of a record file."""
    classes = int(train.labels.max()) + 1
    if classes > len(train):
        record = train.keys[train.labels.argmax()]
        raise UserError(
            f'{train.path}: the label of record {record} is {classes - 1}, but there are only {len(train)} training images: labels must be '
            'class numbers from 0 on'
        )
    class_names = read_class_names(train, classes)
    return len(class_names) if class_names else classes, class_names


def _require_same_classes(train, validation, classes):
    """Raise `UserError` if the validation images have more classes than the training images."""
    if validation.labels.max() >= classes:
        raise UserError(
            f'{validation.path} has labels up to {validation.labels.max()}, {train.path} only up to {classes - 1}: '
            'pack both from lists with the same classes'
        )
