"""The training loop: `Training`, whose methods ``train_imagenet.py`` calls in order, and `fit`, which calls them for any network.

Each batch of `Training.batches`, in each of `Training.epochs`, is passed to `Training.update`; `Training.validate` ends the epoch.
"""

import contextlib
import dataclasses
import itertools
import math
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..analysis.evaluation import Accuracy, Confusion, class_numbers
from ..arithmetic import seed_for
from ..distributed.lockstep import Lockstep
from ..distributed.workers import Workers
from ..errors import UserError, did_you_mean, last_line
from ..files.folder_lock import locked
from ..files.io import remove_leftovers
from ..nn.methods.schedules import begin_epoch
from ..nn.methods.updates import finish_update
from ..reporting import LOG, ProgressLine, showing_messages
from ..signatures import picked
from .fit_arguments import check_arguments, naming_arguments
from .interruption import Interruption
from .objective import Objective
from .optimization import BATCH, OptimizerOptions, ScheduleOptions, make_trainer
from .optimizer_names import optimizer_defaults
from .progress import Progress
from .recording.history_files import HistoryFiles
from .recording.plots import Schedule
from .saving.checkpoints import Checkpoints
from .saving.stored_checkpoints import read_last, refuse_run
from .weight_average import WeightAverage

# Options of the trainer that belong to batches of a known size or to runs that are extended.
_NOT_OF_FIT = ('lr_scaling', 'num_training_samples', 'resume_epoch')

CONFUSED_CLASSES = 4096  # the largest number of classes whose confusion is counted: 134 MB
_CONFUSION = 'confusion'  # in the arrays of checkpoints


class Stopped(Exception):  # noqa: N818  like StopIteration, it is not always an error
    """Raised by `Training` when all workers stop after the same update, because of a signal or of data that cannot be read.

    Attributes
    ----------
    signal : int or None
    error : DataError or None
    """

    def __init__(self, signal, error):
        super().__init__(str(error or f'signal {signal}'))
        self.signal, self.error = signal, error


class Training:
    """State of a training: network, data, loss, trainer and progress.

    Parameters
    ----------
    net : gluon.Block
        Initialized network, which maps images to logits.
    data : Source or Loaders
    objective : Objective
    trainer : gluon.Trainer
    num_epochs : int
    workers : Workers, optional
    seed : int
        Seed of random numbers in layers, such as dropout.
    dtype : str
        Data type of the network.
    early_stop : int
        Stop after this many epochs without a better top-1 accuracy on the validation images; 0: never.
    ema : float, optional
        Decay of a `WeightAverage`, whose weights are evaluated and saved.

    Attributes
    ----------
    progress : Progress
    average : WeightAverage or None
    confusion : Confusion or None
        Of the best epoch on the validation images; None if there are none, or more than `CONFUSED_CLASSES` classes.
    interruption : Interruption
        SIGINT and SIGTERM stop the training within its context.
    """

    def __init__(self, net, data, objective, trainer, num_epochs, workers=None, seed=0, dtype='float32', early_stop=0, ema=None):
        self.net, self.data, self.objective, self.trainer, self.num_epochs = net, data, objective, trainer, num_epochs
        self.workers, self.devices = workers or Workers(), next(iter(net.collect_params().values())).list_ctx()
        self.progress, self.interruption = Progress(data.images_per_update), Interruption()
        self._seed, self._dtype, self._early_stop, self._ema = seed, dtype, early_stop, ema
        self._lockstep = Lockstep(self.workers, self.interruption, net)
        self.average, self.confusion, self._started = None, None, 0.0

    @property
    def stops_early(self):
        """Whether no epoch follows although there were to be more, because the last epochs were not better."""
        return self.progress.stops_early(self._early_stop)

    def start(self, progress, arrays):
        """Begin at a `Progress`; `arrays` are the arrays of the checkpoint whose weights the network has, empty for a new training."""
        self.progress = progress
        if _CONFUSION in arrays:
            self.confusion = Confusion.of(arrays[_CONFUSION])
        if self._ema is not None:
            self.average = WeightAverage(self.net, self._ema)
            if arrays:  # the first checkpoint of a run has its initial weights only
                self.average.resume(arrays)

    def epochs(self):
        """Yield the numbers of the epochs that are left, from 0."""
        for epoch in range(self.progress.epoch, self.num_epochs):
            if self.stops_early:
                LOG.info('stopped early: no epoch after epoch %d is better on the validation images', self.progress.best['epoch'])
                return
            begin_epoch(self.net, epoch / self.num_epochs)
            self._started = time.time()
            yield epoch

    def batches(self):
        """Yield the batches (images, labels) of the epoch that are left.

        Raises
        ------
        Stopped
        UserError
            When training diverged: the loss or a parameter is NaN or infinite.
        """
        progress = self.progress
        yield from self._lockstep.updates(progress.timed(self.data.train(progress.epoch, progress.batch)), progress)
        self._raise_if_stopped()

    def update(self, images, labels):
        """Perform an update, with `step`, and add its results to `progress` and to the average of the weights."""
        progress = self.progress
        outputs, targets, losses = self.step(images, labels, progress.epoch, progress.batch)
        progress.add(outputs, [self.objective.labels(target) for target in targets], losses)
        if self.average:
            self.average.update(progress.epoch * self.data.updates_per_epoch + progress.batch)

    def step(self, images, labels, epoch, batch):
        """Change the weights by one update: forward and backward pass on all devices, step of the optimizer, and what methods add to it.

        Return lists of logits, targets and losses, with one item per device.
        """
        if len(images) < len(self.devices):
            raise UserError(
                f'a batch of {len(images)} images cannot be divided among {len(self.devices)} devices: let the loader discard it,'
                " last_batch='discard'"
            )
        mx.random.seed(seed_for(self._seed, epoch, batch))  # for layers with random numbers, such as dropout
        size = len(images) * self.workers.count
        images, targets = self.objective.prepare(images, labels, epoch, batch)
        images, targets = (gluon.utils.split_and_load(array, self.devices, even_split=False) for array in (images, targets))
        with autograd.record():
            outputs, maps = zip(*map(self._forward_in_training, images))
            losses = list(map(self.objective.loss, images, outputs, targets, maps))
        autograd.backward(losses)
        self.trainer.step(size)
        finish_update(self.net)
        return outputs, targets, losses

    def validate(self):
        """Evaluate the network on the validation images, and end the epoch: add a row to ``progress.history``. Raises like `batches`."""
        with self._evaluated_weights():
            results, confusion = self._evaluate()
        self._lockstep.agree(self.progress)
        self._raise_if_stopped()
        self.progress.end_epoch(
            **self.progress.results(self.workers),
            **results,
            learning_rate=self.trainer.learning_rate,
            seconds=round(time.time() - self._started, 1),
        )
        row = self.progress.history[-1]
        if self.progress.best is row:
            self.confusion = confusion
        validation = '' if math.isnan(row['top1']) else ', validation top-1 {top1:.2%}, top-5 {top5:.2%}'
        text = f'epoch {{epoch}}: loss {{loss:.4f}}, training top-1 {{train_top1:.2%}}{validation}, {{seconds:.0f}} s, '
        LOG.info('%s', (text + '{waiting:.0%} of training waiting for data').format(**row))

    def save(self, checkpoints, arrays=None):
        """Write a checkpoint, with additional `arrays`. All workers must call this."""
        arrays = dict(arrays or {})
        if self.confusion:
            arrays[_CONFUSION] = self.confusion.counts.astype(np.min_scalar_type(self.confusion.counts.max()))
        if self.average:
            self.workers.average_statistics(self.net)
            arrays.update(self.average.arrays(self.average.trained()))
        with self._evaluated_weights():
            checkpoints.save(self.net, self.trainer, self.progress, arrays)

    def forward(self, images):
        """Return the logits of a batch of images, in the data type of the network."""
        return self.net(images.astype(self._dtype, copy=False))

    def _forward_in_training(self, images):
        """Return the logits, as `forward` does, and a list of the feature maps that the objective compares; empty if it compares none."""
        if not self.objective.attention:
            return self.forward(images), []
        logits, *maps = self.objective.attention.student(images.astype(self._dtype, copy=False))
        return logits, maps

    @contextlib.contextmanager
    def _evaluated_weights(self):
        """Give the network the weights that are evaluated and saved for the block: with `ema` their average.

        Numbers that follow the progress of the training are those of its end, so that the weights of BNext are binary in every epoch.
        """
        with self.average.applied() if self.average else contextlib.nullcontext():
            begin_epoch(self.net, 1.0)
            try:
                yield
            finally:
                begin_epoch(self.net, self.progress.epoch / self.num_epochs)

    def _evaluate(self):
        """Return the results on the validation images, a dict of columns of the history, and the `Confusion` or None.

        Each worker evaluates its share. `top1`, `top5` and `macro_f1` are 0 to 1, `validation_loss` is the mean cross-entropy with the
        labels.
        """
        self.workers.average_statistics(self.net)
        accuracy, loss, cross_entropy = Accuracy(), 0.0, gluon.loss.SoftmaxCrossEntropyLoss()
        confusion = _make_confusion(self.data.classes)  # the same for all workers, also for one without images
        for images, labels in self._lockstep.batches(self.data.validation()):
            used = self.devices[: len(images)]  # the last batch may have fewer images than there are devices
            images, labels = (gluon.utils.split_and_load(array, used, even_split=False) for array in (images, labels))
            for output, label in zip([self.forward(x) for x in images], labels):
                scores = output.asnumpy()
                classes = scores.shape[1]
                confusion = confusion or _make_confusion(classes)
                accuracy.add(scores, label)
                if confusion:
                    confusion.add(scores.argmax(axis=1), class_numbers(label, classes))
                loss += float(cross_entropy(output.astype('float32', copy=False), label).sum().asscalar())
        *counts, loss = self.workers.sum([*dataclasses.astuple(accuracy), loss])
        total = Accuracy(*counts)
        if confusion:
            confusion = Confusion.of(np.reshape(self.workers.sum(confusion.counts.ravel()), confusion.counts.shape))
        results = {
            'top1': total.top1,
            'top5': total.top5,
            'macro_f1': confusion.macro()['f1'] if confusion else float('nan'),
            'validation_loss': loss / total.images if total.images else float('nan'),
        }
        return results, confusion if total.images else None

    def _raise_if_stopped(self):
        if self._lockstep.stops:
            raise Stopped(self._lockstep.signal, self._lockstep.error)


class Loaders:
    """Batches of a user in the form of a `Source`: two sized iterables of pairs (images, labels), such as Gluon's data loaders."""

    images_per_update = 0  # they may have any sizes
    classes = None  # of the network

    def __init__(self, train, validation):
        self._train, self._validation, self.updates_per_epoch = train, validation, len(train)

    def train(self, epoch, first=0):
        """Return an iterator over the training batches that are left."""
        return map(_pair, itertools.islice(self._train, first, None))

    def validation(self):
        """Return an iterator over the validation batches; over none if there are no validation data."""
        return map(_pair, () if self._validation is None else self._validation)


@naming_arguments(OptimizerOptions, ScheduleOptions)
def fit(
    net, train_data, validation_data=None, num_epochs=1, *, optimizer='radam', lr=None, trainer=None, loss=None, seed=0, early_stop=0,
    ema=None, dtype='float32', save_dir=None, resume=False, verbose=True, on_batch=None, on_epoch=None, **options,
):  # fmt: skip
    """Train a classification network on batches of the user.

    Parameters
    ----------
    net : gluon.Block
        Initialized network, which maps images to logits (N, classes). It is trained on the devices on which it is initialized.
    train_data, validation_data : sized iterable of (NDArray, NDArray)
        Batches of images and class numbers (N,), such as `gluon.data.DataLoader`; each epoch iterates over them once. Without validation
        data, None, the columns of the history about them are NaN, and the last epoch counts as the best one.
    num_epochs : int, optional
    optimizer : str
        Name of an optimizer of MXNet.
    lr : float, optional
        Learning rate; by default as in ``bmx-melius train`` for the optimizer. It decays in a cosine to 0.
    trainer : gluon.Trainer, optional
        Used instead of `optimizer`, `lr` and `options`.
    loss : Objective, or callable (logits, labels) -> NDArray (N,), optional
        By default softmax cross-entropy. An `Objective` has label smoothing, mixup, a teacher or class weights.
    seed : int
        Seed of random numbers in layers, such as dropout. `train_data` determines the order of the images.
    early_stop : int
        Stop after this many epochs without a better top-1 accuracy on the validation images; 0: never.
    ema : float, optional
        Decay of an exponential moving average of the weights, which is evaluated and saved in place of them, such as 0.999.
    dtype : str
        Data type of the network, to which images are converted: 'float32', or 'float16' after ``net.cast('float16')``.
    save_dir : str, optional
        Folder of checkpoints, one after each epoch, and of the tables and plots of `HistoryFiles`, such as ``metrics.csv``.
    resume : bool
        Continue from the last checkpoint in `save_dir`; an interrupted epoch is repeated from its beginning.
    verbose : bool
        Show a line for each epoch: on standard error, or by the logging that the program has configured.
    on_batch, on_epoch : callable, optional
        Called after each update, and after the checkpoint and the tables of each epoch, with the `Training`; its `progress` has the
        numbers. Training ends when `on_epoch` returns True.
    **options
        Further arguments of the optimizer and of the learning-rate schedule, fields of `optimization.OptimizerOptions` and
        `optimization.ScheduleOptions`, such as ``warmup_epochs=5``, ``lr_mode='step'`` and ``wd=1e-4``.

    Returns
    -------
    list of dict
        A row for each epoch, as in `Progress.history`. With `save_dir` the network has the weights of the best epoch afterwards, without it
        of the last one.

    Raises
    ------
    UserError
        When an argument has a wrong type or value, training diverged, the network is not initialized or does not fit the images, a batch
        has fewer images than there are devices, or checkpoints cannot be written or do not fit.

    Examples
    --------
    >>> import mxnet as mx
    >>> from mxnet import gluon
    >>> from bmx_melius.training import fit
    >>> images, labels = mx.nd.random.normal(shape=(64, 8)), mx.nd.arange(64) % 2
    >>> batches = gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), batch_size=16)
    >>> net = gluon.nn.Dense(2)
    >>> net.initialize()
    >>> options = {'num_epochs': 2, 'verbose': False}
    >>> history = fit(net, batches, batches, on_epoch=lambda training: print(training.progress.epoch), **options)
    1
    2
    >>> [row['epoch'] for row in history]
    [1, 2]
    """
    if resume and not save_dir:
        raise UserError('resume=True needs save_dir, the folder of the run to continue')
    if resume and not read_last(save_dir):
        raise UserError(f'there is no run to resume in {save_dir}: point save_dir to one')
    _require_known(options)
    numbers = {'num_epochs': num_epochs, 'lr': lr, 'seed': seed, 'early_stop': early_stop, 'ema': ema, 'dtype': dtype}
    check_arguments(net, train_data, validation_data, optimizer, loss, trainer, {**options, **numbers})
    data, workers, schedule = Loaders(train_data, validation_data), Workers(), None
    _finish_initialization(net, data, dtype)
    if trainer is None:
        optimizer = optimizer.lower()
        options.update(optimizer=optimizer, lr=optimizer_defaults(optimizer).lr if lr is None else lr, num_epochs=num_epochs, dtype=dtype)
        if options.get('binary_optimizer') and options.get('binary_lr') is None:
            options['binary_lr'] = optimizer_defaults(options['binary_optimizer'].lower()).lr
        of_optimizer, of_schedule = (kind(**picked(kind, options)) for kind in (OptimizerOptions, ScheduleOptions))
        # Names have numbers that differ when a network is made again in the same process, and then perhaps another order.
        ordered = list({id(parameter): parameter for parameter in net._collect_params_with_prefix().values()}.values())
        trainer = make_trainer(net, data.updates_per_epoch, BATCH, workers, of_optimizer, of_schedule, ordered)
        schedule = trainer.optimizer.lr_scheduler
    objective = loss if isinstance(loss, Objective) else Objective(loss=loss)
    training = Training(net, data, objective, trainer, num_epochs, seed=seed, dtype=dtype, early_stop=early_stop, ema=ema)
    with contextlib.ExitStack() as stack:
        if verbose:
            stack.enter_context(showing_messages())
        checkpoints = files = None
        if save_dir:
            stack.enter_context(locked(save_dir))
            if not resume:
                refuse_run(save_dir)
            remove_leftovers(save_dir)
            checkpoints = Checkpoints(save_dir, {'num_epochs': num_epochs})
            files = HistoryFiles(save_dir, type(net).__name__, Schedule(schedule, data.updates_per_epoch, num_epochs))
        progress = checkpoints.load(net, trainer) if resume else training.progress
        training.start(progress, checkpoints.load_arrays() if resume else {})
        if files:
            files.write(progress, training.confusion)
        try:
            for epoch in training.epochs():
                title = f'epoch {epoch + 1} of {num_epochs}'
                for images, labels in ProgressLine(training.batches(), total=data.updates_per_epoch, description=title, unit='batches'):
                    with _running_on(images, mx.MXNetError):
                        training.update(images, labels)
                    if on_batch:
                        on_batch(training)
                training.validate()
                if checkpoints:
                    training.save(checkpoints)
                    files.show_epoch(training.progress, training.confusion, ends=training.stops_early)
                if on_epoch and on_epoch(training):
                    if files:  # with the plots, which `show_epoch` may have left out
                        files.write(training.progress, training.confusion)
                    break
        except Stopped as stopped:
            raise stopped.error from None
        if checkpoints and training.progress.history:
            net.load_parameters(checkpoints.best(training.progress)[1], ctx=training.devices)
        elif training.average:
            training.average.keep()
        begin_epoch(net, 1.0)
    return training.progress.history


def _make_confusion(classes):
    """Return an empty `Confusion`, None if there are too many classes, or if their number is not known."""
    return Confusion(classes) if classes is not None and classes <= CONFUSED_CLASSES else None


def _require_known(options):
    """Raise `UserError` for arguments of `fit` that the trainer does not have, or that depend on what only ``bmx-melius train`` knows."""
    known = {field.name for kind in (OptimizerOptions, ScheduleOptions) for field in dataclasses.fields(kind)} - set(_NOT_OF_FIT)
    for name in options:
        if name not in known:
            raise UserError(f'fit has no argument {name}{did_you_mean(name, known)}')


def _pair(batch):
    """Return images and labels of a batch. Raises `UserError` unless it is a pair of arrays of MXNet, with a label for each image."""
    if len(batch) != 2 or not all(isinstance(array, mx.nd.NDArray) for array in batch):
        raise UserError(
            'each batch must be a pair of arrays of MXNet, images and labels: a gluon.data.DataLoader makes them of other arrays'
        )
    images, labels = batch
    if labels.shape != images.shape[:1]:
        raise UserError(
            f'the labels of a batch of {len(images)} images must be class numbers, an array of shape ({len(images)},), not {labels.shape}'
        )
    return batch


def _finish_initialization(net, data, dtype):
    """Run a network once if the shapes of its parameters are not known yet. Raises `UserError` if it is not initialized or does not fit."""
    parameters = net.collect_params().values()
    try:
        devices = [parameter.list_ctx() for parameter in parameters]
    except RuntimeError as error:
        raise UserError('the network is not initialized: call net.initialize() before training') from error
    if any(0 in (parameter.shape or (0,)) for parameter in parameters):
        images, _ = next(data.train(0))
        with _running_on(images, mx.MXNetError, ValueError):  # the second one of hybridized networks, whose shapes are inferred
            net(images.as_in_context(devices[0][0]).astype(dtype, copy=False))


@contextlib.contextmanager
def _running_on(images, *errors):
    """Raise `UserError` for errors of these kinds in the block, which runs the network on images."""
    try:
        yield
    except UserError:
        raise
    except errors as error:
        raise UserError(f'the network does not run on images of shape {images.shape}: {last_line(error)}') from error
