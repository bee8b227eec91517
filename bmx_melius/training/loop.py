"""The training loop."""

import dataclasses
import itertools
import time

import mxnet as mx
from mxnet import autograd, gluon

from ..analysis.evaluation import Accuracy
from ..arithmetic import seed_for
from ..distributed.lockstep import Lockstep
from ..errors import UserError
from ..nn.methods.updates import finish_update
from ..reporting import LOG
from .interruption import Interruption
from .recording.progress_bar import Bar

INTERRUPTED = 3  # as in BMXNet-v2
MEASURED = 3  # updates of which `measure` takes the mean


def train(run):
    """Train a run from its current state to its last epoch.

    Parameters
    ----------
    run : Run
        Within ``run.start()``.

    Returns
    -------
    int
        Exit status: 0, 128 + the signal number if a signal stopped the run, or `INTERRUPTED` if ``--interrupt-at`` did.

    Raises
    ------
    UserError
        When training diverged, when data cannot be read, or when a checkpoint cannot be written; the message says how to continue.
    """
    output, source, progress = run.config.output, run.source, run.progress
    num_epochs = run.config.optimizer.num_epochs
    images_per_epoch = source.updates_per_epoch * source.images_per_update
    done = progress.epoch * images_per_epoch + progress.batch * source.images_per_update
    with Interruption() as interruption, Bar(num_epochs * images_per_epoch, done, run.is_writer) as bar:
        lockstep = Lockstep(run.workers, interruption, run.net)
        for epoch in range(progress.epoch, num_epochs):
            if progress.stops_early(run.config.early_stop):
                LOG.info('stopped early: no epoch after epoch %d is better on the validation images', progress.best['epoch'])
                break
            started = time.time()
            for images, labels in lockstep.updates(progress.timed(source.train(epoch, progress.batch)), progress):
                update(run, images, labels)
                report_update(run, bar)
                if output.save_interval and progress.batch % output.save_interval == 0 and progress.batch < source.updates_per_epoch:
                    run.save()
            if not lockstep.stops:
                with run.evaluated_weights():
                    results = evaluate(run, lockstep)
                lockstep.agree(progress)
            if lockstep.stops:
                run.save()
                if lockstep.error:
                    raise UserError(f'{lockstep.error}; then continue with --resume --save-dir {output.save_dir}, nothing is lost')
                LOG.info('stopped in epoch %d after update %d', epoch + 1, progress.batch)
                return 128 + lockstep.signal
            progress.end_epoch(
                **progress.results(run.workers),
                **results,
                learning_rate=run.trainer.learning_rate,
                seconds=round(time.time() - started, 1),
            )
            LOG.info(
                'epoch {epoch}: loss {loss:.4f}, training top-1 {train_top1:.2%}, validation top-1 {top1:.2%}, top-5 {top5:.2%}, '
                '{seconds:.0f} s, {waiting:.0%} of training waiting for data'.format(**progress.history[-1])
            )
            run.folder.end_epoch()
            run.save()
            run.folder.show_epoch(progress, ends=progress.stops_early(run.config.early_stop))
            run.folder.add_histograms(run.net, progress)
            if run.config.interrupt_at == epoch + 1 < num_epochs:
                LOG.info('stopped after epoch %d (--interrupt-at)', epoch + 1)
                return INTERRUPTED
    return 0


def update(run, images, labels):
    """Perform one update: forward and backward pass on all devices, the step of the optimizer, and what methods add to it."""
    progress = run.progress
    outputs, targets, losses = _step(run, images, labels, progress.epoch, progress.batch)
    progress.add(outputs, [run.objective.labels(target) for target in targets], losses)
    run.average_update()
    run.folder.end_update()


def _step(run, images, labels, epoch, batch):
    """Change the weights by one update; return lists of logits, targets and losses, with one item per device."""
    mx.random.seed(seed_for(run.config.seed, epoch, batch))  # for layers with random numbers, such as dropout
    images, targets = run.objective.prepare(images, labels, epoch, batch)
    images, targets = (gluon.utils.split_and_load(array, run.devices) for array in (images, targets))
    with autograd.record():
        outputs, maps = zip(*map(run.forward_in_training, images))
        losses = list(map(run.objective.loss, images, outputs, targets, maps))
    autograd.backward(losses)
    run.trainer.step(run.source.images_per_update)
    finish_update(run.net)
    return outputs, targets, losses


def measure(run):
    """Perform a few updates and predictions, which change the weights; return the seconds of an update and of an epoch.

    Reading and augmenting the images is included, the first update, in which MXNet plans its memory, is not.
    """
    times, started = [], time.perf_counter()
    for number, (images, labels) in enumerate(itertools.islice(run.source.train(0), MEASURED + 1)):
        _, _, losses = _step(run, images, labels, 0, number)
        for loss in losses:
            loss.wait_to_read()
        mx.nd.waitall()
        times.append(time.perf_counter() - started)
        started = time.perf_counter()
    update_seconds = sum(times[1:]) / len(times[1:]) if times[1:] else times[0]
    images = next(iter(run.source.validation()))[0].as_in_context(run.devices[0])
    for _ in range(2):  # the first one includes planning
        started = time.perf_counter()
        run.forward(images).wait_to_read()
        seconds = (time.perf_counter() - started) / len(images)
    return update_seconds, update_seconds * run.source.updates_per_epoch + seconds * len(run.source.validation_share)


def evaluate(run, lockstep):
    """Return the results on the validation images, a dict of columns of the history; each worker evaluates its share.

    `top1` and `top5` are 0 to 1, `validation_loss` is the mean cross-entropy with the labels.
    """
    run.workers.average_statistics(run.net)
    accuracy, loss, cross_entropy = Accuracy(), 0.0, gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in lockstep.batches(run.source.validation()):
        used = run.devices[: len(images)]  # the last batch may have fewer images than there are devices
        images, labels = (gluon.utils.split_and_load(array, used, even_split=False) for array in (images, labels))
        for output, label in zip([run.forward(x) for x in images], labels):
            accuracy.add(output, label)
            loss += float(cross_entropy(output.astype('float32', copy=False), label).sum().asscalar())
    *counts, loss = run.workers.sum([*dataclasses.astuple(accuracy), loss])
    total = Accuracy(*counts)
    return {'top1': total.top1, 'top5': total.top5, 'validation_loss': loss / total.images if total.images else float('nan')}


def report_update(run, bar):
    """Show the last update in the progress bar and, every `log_interval` updates, in the log."""
    progress, source, rate = run.progress, run.source, run.trainer.learning_rate
    images_per_second = progress.pace.updates_per_second * source.images_per_update
    speed = f'{images_per_second:,.{0 if images_per_second >= 100 else 1}f} images/s'
    waiting = f'{progress.pace.waiting_share:.0%} waiting for data'
    bar.advance(
        source.images_per_update,
        f'epoch {progress.epoch + 1}/{run.config.optimizer.num_epochs}',
        f'loss {progress.mean_loss:.3f}',
        f'top-1 {progress.accuracy:.1%}',
        f'rate {rate:.1e}',
        speed,
        waiting,
    )
    log_interval = run.config.output.log_interval
    if log_interval and progress.batch % log_interval == 0:
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
        run.folder.add_scalars(
            {
                'update/loss': progress.mean_loss,
                'update/top1': progress.accuracy,
                'update/learning_rate': rate,
                'update/images_per_second': images_per_second,
                'update/waiting': progress.pace.waiting_share,
            },
            progress,
        )
