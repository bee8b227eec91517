"""Batches from record files, through `mx.io.ImageRecordIter`."""

import itertools

import mxnet as mx

from ..errors import DataError, UserError, last_line
from ..seeding import seed_for
from .records import read_class_names
from .source import Source


class RecordSource(Source):
    """Training and validation images of two record files, labelled 0 .. classes - 1, which are checked first.

    Their names are those in the file classes.txt beside the training images, if there is one (`bmx-melius pack-images` writes it).

    The iterator is made anew for each epoch, with the seed of the epoch, so the order of the images depends on seed and epoch alone. So
    does their augmentation with one decoding thread. With several, `ImageRecordIter` hands each image to the next free thread, and each
    thread draws from a generator of its own, so which image is augmented how depends on their pace. (Its argument `seed_aug` would fix
    that, but restarts the generator at each image with its place in the batch: all batches of an epoch would share the augmentations of
    the first one.)

    Of several machines each reads a fixed, contiguous share of the file, in another order each epoch: its own disk need cache no more
    than that. Which images meet in one update therefore varies less than on one machine; im2rec's lists are shuffled, so that each share
    has images of all classes.

    Parameters
    ----------
    train, validation : RecordFile
    spec, batch_size, part, parts
        As of `Source`.
    augmentation : Augmentation
    threads : int
        Decoding threads. MXNet uses fewer on a small machine.
    seed : int
    """

    def __init__(self, train, validation, spec, augmentation, batch_size, part, parts, threads, seed):
        classes = int(train.labels.max()) + 1
        class_names = read_class_names(train, classes)
        classes = len(class_names) if class_names else classes
        super().__init__(train.path, spec, classes, class_names, len(train), len(validation), batch_size, part, parts)
        if validation.labels.max() >= classes:
            raise UserError(
                f'{validation.path} has labels up to {validation.labels.max()}, {train.path} only up to {classes - 1}: '
                'pack both from lists with the same classes'
            )
        self._train, self._validation, self._threads, self._seed = train, validation, threads, seed
        self._training_arguments = augmentation.record_arguments(spec)
        self._validation_arguments = {'resize': spec.resize or spec.size}
        for records in (train, validation):
            records.check_ends(threads)
        validation.decode_all(threads)
        # Where ImageRecordIter resizes first, an undecodable image ends the process with SIGFPE; else with an exception.
        if self._resizes_first:
            train.decode_all(threads)

    @property
    def _resizes_first(self):
        return 'resize' in self._training_arguments

    def decode_training_images(self):
        if not self._resizes_first:  # else it is done
            self._train.decode_all(self._threads)

    def train(self, epoch, first=0):
        if first == self.updates_per_epoch:
            return
        passes = (
            self._read(
                self._train,
                self.batch_size,
                shuffle=True,
                seed=seed_for(self._seed, epoch),
                num_parts=self.parts,
                part_index=self.part,
                **self._training_arguments,
            )
            for _ in itertools.count()
        )  # the last part may be a batch short
        for number, batch in zip(range(self.updates_per_epoch), itertools.chain.from_iterable(passes)):
            if number >= first:
                yield batch.data[0], batch.label[0]

    def validation(self):
        share = len(self.validation_share)
        if not share:
            return
        batches = self._read(
            self._validation, min(self.batch_size, share), num_parts=self.parts, part_index=self.part, **self._validation_arguments
        )
        for batch in batches:
            images = batch.data[0].shape[0] - batch.pad  # `pad` is right in the first pass of an iterator only
            yield batch.data[0][:images], batch.label[0][:images]

    def _read(self, records, batch_size, **arguments):
        normalization = {f'{name}_{channel}': value for name in ('mean', 'std') for channel, value in zip('rgb', getattr(self.spec, name))}
        try:
            yield from mx.io.ImageRecordIter(
                path_imgrec=records.path,
                path_imgidx=records.index_path,
                data_shape=self.spec.shape,
                batch_size=batch_size,
                preprocess_threads=self._threads,
                verbose=False,
                **normalization,
                **arguments,
            )
        except mx.MXNetError as error:
            bad = records.undecodable(self._threads, range(len(records)))
            raise DataError(records.describe(bad) if bad else f'{records.path}: MXNet cannot go on reading: {last_line(error)}') from error
