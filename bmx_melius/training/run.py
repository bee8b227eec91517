"""Run of the training program: what its folder holds, from the plan and the checkpoints to the exported network."""

import contextlib
import itertools
import math
import os
import time

import mxnet as mx

from ..analysis.summary import Summary
from ..data.imagenet import with_words
from ..errors import UserError, counted
from ..files.exported import description_fields
from ..files.folder_lock import locked
from ..files.io import check_folder, remove_leftovers
from ..graph.tracing import read_graph
from ..reporting import LOG, logging_to_file
from .progress import Progress
from .recording.flips import FlipCounter
from .recording.plan import describe_run, duration
from .recording.plots import Schedule
from .recording.progress_bar import Bar
from .recording.run_folder import LOG_FILE, RunFolder
from .recording.scalars import Scalars
from .saving.checkpoints import Checkpoints
from .saving.export import export_network
from .saving.optimizer_state import load_optimizer
from .saving.stored_checkpoints import refuse_run, verify_file

INTERRUPTED = 3  # exit status of --interrupt-at, as in BMXNet-v2
MEASURED = 3  # updates of which `measure` takes the mean
MEASURED_SECONDS = 20  # after which it begins no other update or prediction


class Run:
    """Run in the folder ``--save-dir``. Its context locks the folder, writes the log, and loads the initial state of the training.

    Parameters
    ----------
    options : TrainingOptions
    training : Training
    model : dict
        Arguments of `get_model`.
    notes : dict of str to (str or None)
        Lines of the plan about the weights from which the run starts: heading -> text.

    Raises
    ------
    UserError
        When the network is not a classifier of the classes in the data.
    """

    def __init__(self, options, training, model, notes):
        self._options, self._training = options, training
        source, net, self._is_writer = training.data, training.net, training.workers.rank == 0
        self._graph = read_graph(net, (1, *source.spec.shape))
        _require_classifier(self._graph, options.model, source.classes)
        self._counts = Summary.of(self._graph).counts
        self._description = description_fields(model, source.spec, self._counts, with_words(source.class_names), source.split)
        schedule = training.trainer.optimizer.lr_scheduler
        self._plan = describe_run(options, model, source, self._graph, self._counts, schedule, training.objective.attention, notes)
        self._checkpoints = Checkpoints(options.save_dir, vars(options), options.save_frequency, training.workers, self._description)
        self._flips = FlipCounter(net, source.updates_per_epoch) if options.track_flips and self._is_writer else None
        self._folder = RunFolder(
            options.save_dir,
            options.model,
            self._counts,
            Schedule(schedule, source.updates_per_epoch, options.num_epochs),
            with_words(source.class_names),
            self._flips,
            writes=self._is_writer,
            summary=options.write_summary,
        )
        self._bar = self._context = None

    def check(self, decode=True):
        """Log the plan and an estimate of the time, and with `decode` decode all images, without writing files (--dry-run)."""
        options, training = self._options, self._training
        LOG.info(self._plan)
        _start(options, self._checkpoints, training.net, training.trainer, training.data)
        if decode:
            training.data.decode_training_images()
        if not options.resume and training.workers.count == 1:
            updates, update, epoch = measure(training)
            epochs = options.num_epochs
            LOG.info(
                'time       about %s: %s of %s, measured in %s of %.3g s',
                duration(epochs * epoch),
                counted(epochs, 'epoch'),
                duration(epoch),
                counted(updates, 'update'),
                update,
            )
        LOG.info('nothing was trained (--dry-run)')

    def __enter__(self):
        options, training, folder = self._options, self._training, self._options.save_dir
        log = options.logging_file or os.path.join(folder, LOG_FILE)
        with contextlib.ExitStack() as stack:
            if self._is_writer:
                stack.enter_context(locked(folder))
            stack.enter_context(logging_to_file(log if self._is_writer else f'{log}.{training.workers.rank}'))
            LOG.info(self._plan)
            if self._is_writer:
                if not options.resume:  # checked again: another process may have started there since the flags were parsed
                    refuse_run(folder)
                remove_leftovers(folder)
            _warn_if_disk_space_is_low(options, training.net)
            progress = _start(options, self._checkpoints, training.net, training.trainer, training.data)
            arrays = self._checkpoints.load_arrays() if options.resume else {}
            training.start(progress, arrays)
            if self._flips:
                self._flips.start(arrays)
            scalars = Scalars if options.tensorboard or options.write_summary else None
            self._folder.start(vars(options), self._graph, progress, scalars, training.confusion)
            if options.resume and self._checkpoints.options['num_epochs'] != options.num_epochs:
                self.save()  # so that --resume continues to the new last epoch
            per_update = training.data.images_per_update
            per_epoch = training.data.updates_per_epoch * per_update
            done = progress.epoch * per_epoch + progress.batch * per_update
            self._bar = stack.enter_context(Bar(options.num_epochs * per_epoch, done, self._is_writer))
            self._context = stack.pop_all()
        return self

    def __exit__(self, *exception):
        return self._context.__exit__(*exception)

    def end_update(self):
        """Record the last update: flips, progress bar and log; and write a checkpoint every ``--save-interval`` updates."""
        self._folder.end_update()
        self._show_update()
        interval, progress = self._options.save_interval, self._training.progress
        if interval and progress.batch % interval == 0 and progress.batch < self._training.data.updates_per_epoch:
            self.save()

    def end_epoch(self):
        """Record the last epoch: write a checkpoint, the tables and the plots."""
        self._folder.end_epoch()
        self.save()
        training = self._training
        self._folder.show_epoch(training.progress, training.confusion, ends=training.stops_early)
        self._folder.add_histograms(training.net, training.progress)

    def save(self):
        """Write a checkpoint. All workers must call this."""
        self._training.save(self._checkpoints, self._folder.arrays())

    def stop(self, stopped):
        """Write a checkpoint after `Stopped`; return the exit status. Raises `UserError` if the reason was an error."""
        self.save()
        if stopped.error:
            raise UserError(f'{stopped.error}; then continue with --resume --save-dir {self._options.save_dir}, nothing is lost')
        LOG.info('stopped in epoch %d after update %d', self._training.progress.epoch + 1, self._training.progress.batch)
        return 128 + stopped.signal

    def is_interrupted(self):
        """Return whether ``--interrupt-at`` stops the run after the last epoch, for the exit status `INTERRUPTED`."""
        epoch = self._training.progress.epoch
        stops = self._options.interrupt_at == epoch < self._options.num_epochs
        if stops:
            LOG.info('stopped after epoch %d (--interrupt-at)', epoch)
        return stops

    def export(self):
        """Export the weights of the best epoch to the folder of the run."""
        if not self._is_writer:
            return
        training = self._training
        best, weights = self._checkpoints.best(training.progress)
        training.net.load_parameters(weights, ctx=training.devices)
        target = export_network(self._options.save_dir, training.net, training.data.spec.shape, self._description, best)
        LOG.info(
            'the best network is that of epoch %d: top-1 %.2f%%, top-5 %.2f%%; exported to %s and %s',
            best['epoch'],
            100 * best['top1'],
            100 * best['top5'],
            target.symbol_file,
            target.parameter_file(0),
        )

    def _show_update(self):
        """Show the last update in the progress bar and, every ``--log-interval`` updates, in the log."""
        progress, source, rate = self._training.progress, self._training.data, self._training.trainer.learning_rate
        images_per_second = progress.pace.updates_per_second * source.images_per_update
        speed = f'{images_per_second:,.{0 if images_per_second >= 100 else 1}f} images/s'
        waiting = f'{progress.pace.waiting_share:.0%} waiting for data'
        self._bar.advance(
            source.images_per_update,
            f'epoch {progress.epoch + 1}/{self._options.num_epochs}',
            f'loss {progress.mean_loss:.3f}',
            f'top-1 {progress.accuracy:.1%}',
            f'rate {rate:.1e}',
            speed,
            waiting,
        )
        if self._options.log_interval and progress.batch % self._options.log_interval == 0:
            LOG.info(
                'epoch %d, update %d of %d: loss %.4f, training top-1 %.2f%%, %s, %s, learning rate %.3g',
                progress.epoch + 1,
                progress.batch,
                source.updates_per_epoch,
                progress.mean_loss,
                100 * progress.accuracy,
                speed,
                waiting,
                rate,
            )
            self._folder.add_scalars(
                {
                    'update/loss': progress.mean_loss,
                    'update/top1': progress.accuracy,
                    'update/learning_rate': rate,
                    'update/images_per_second': images_per_second,
                    'update/waiting': progress.pace.waiting_share,
                },
                progress,
            )


def _start(options, checkpoints, net, trainer, source):
    """Load the state of a run into network and optimizer, and return its `Progress`. A new run has its initial weights already.

    A new run, except a dry run, writes a checkpoint at once, so that it can always be resumed.
    """
    if options.resume:
        progress = checkpoints.load(net, trainer)
        if progress.images_per_update != source.images_per_update:
            raise UserError(
                f'the run in {options.save_dir} was started with {progress.images_per_update} images per update, but would continue '
                f'with {source.images_per_update}: start as many processes as before'
            )
        _accept_number_of_epochs(options, checkpoints.options, progress, trainer, source.updates_per_epoch)
        LOG.info('continuing at epoch %d, update %d', progress.epoch + 1, progress.batch + 1)
        return progress
    if options.resume_states:
        try:
            verify_file(options.resume_states)
            load_optimizer(trainer, options.resume_states)
        except UserError as error:
            raise UserError(f'--resume-states: {error}') from error
    progress = Progress(source.images_per_update, epoch=options.resume_epoch)
    if not options.dry_run:
        checkpoints.save(net, trainer, progress)
    return progress


def _accept_number_of_epochs(options, saved, progress, trainer, updates):
    """Log what a change of the number of epochs means for the learning rate. Raises `UserError` if it is too small."""
    before = saved['num_epochs']
    if options.num_epochs == before:
        return
    begun = progress.epoch + (progress.batch > 0)
    if options.num_epochs < begun:
        raise UserError(f'--num-epochs {options.num_epochs}: the run in {options.save_dir} is in epoch {begun} already')
    change = (
        f'the run is {"extended" if options.num_epochs > before else "shortened"} from {before} to {counted(options.num_epochs, "epoch")}'
    )
    if options.lr_mode == 'step':
        effect = 'the learning rate decays at the same epochs as before'
    else:
        effect = f'the {options.lr_mode} schedule is recomputed over {counted(options.num_epochs, "epoch")}'
    done = progress.epoch * updates + progress.batch
    rates = [row['learning_rate'] for row in progress.history[-1:] if 'learning_rate' in row]
    if done < options.num_epochs * updates:
        last = f' (the last one was {rates[0]:.3g})' if rates else ''
        effect += f', so that it continues with {trainer.optimizer.lr_scheduler(done + 1):.3g}{last}'
    LOG.info('%s: %s', change, effect)


def _warn_if_disk_space_is_low(options, net):
    """Log a warning when the disk does not have enough space for the checkpoints of the run."""
    size = sum(4 * math.prod(parameter.shape) for parameter in net.collect_params().values())
    every_nth = options.num_epochs // options.save_frequency if options.save_frequency else 0
    weights = 4 + every_nth  # of the new, the last, the previous and the best checkpoint
    needed = size * (weights + 3 * 2)  # up to two moments per weight, for the new, the last and the previous checkpoint
    free = check_folder(options.save_dir)
    if free < needed:
        LOG.warning(
            '%s has %.3g MB free, and the checkpoints will take about %.3g MB: free some space, or raise --save-frequency',
            options.save_dir,
            free / 1e6,
            needed / 1e6,
        )


def measure(training):
    """Perform a few updates and predictions, which change the weights; return the updates, their mean seconds, and the seconds of an epoch.

    Reading and augmenting the images is included. The first update and prediction, in which MXNet plans its memory, are not, unless the
    first took longer than `MEASURED_SECONDS`: then the estimate is too high.
    """
    begin = started = time.perf_counter()
    times = []
    for number, (images, labels) in enumerate(itertools.islice(training.data.train(0), MEASURED + 1)):
        _, _, losses = training.step(images, labels, 0, number)
        for loss in losses:
            loss.wait_to_read()
        mx.nd.waitall()
        times.append(time.perf_counter() - started)
        started = time.perf_counter()
        if started - begin > MEASURED_SECONDS:
            break
    times = times[1:] or times
    images = next(iter(training.data.validation()))[0].as_in_context(training.devices[0])
    for _ in range(2):
        started = time.perf_counter()
        training.forward(images).wait_to_read()
        seconds = (time.perf_counter() - started) / len(images)
        if time.perf_counter() - begin > MEASURED_SECONDS:
            break
    mean = sum(times) / len(times)
    return len(times), mean, mean * training.data.updates_per_epoch + seconds * len(training.data.validation_share)


def _require_classifier(graph, model, classes):
    """Raise `UserError` unless the network has one output, a logit for each class; a function of the user may return any network."""
    shapes = [node.shape for node in graph.outputs]
    if shapes != [(1, classes)]:
        raise UserError(
            f'{model} gives outputs of the shape {" and ".join(map(str, shapes))} for an image, but training needs one of the shape '
            f'{(1, classes)}: a logit for each of the {classes} classes'
        )
