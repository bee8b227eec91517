"""Training run: data, network, optimizer and files, constructed from a configuration."""

import contextlib
import dataclasses
import os

from ..analysis.graph import Graph
from ..analysis.summary import Summary
from ..data.imagenet import with_words
from ..data.opening import open_source
from ..data.source import Batching
from ..errors import UserError
from ..files.exported import description_fields
from ..files.folder_lock import locked
from ..files.io import remove_leftovers, sha256
from ..reporting import LOG, logging_to_file
from .class_weights import class_weights
from .initial_weights import load_initial_weights, set_trained
from .loop import MEASURED, measure
from .network import check_dtype, make_network, model_arguments
from .objective import make_objective
from .optimization import make_trainer
from .recording.flips import FlipCounter
from .recording.plan import describe_check, describe_run, duration
from .recording.plots import Schedule
from .recording.run_folder import LOG_FILE, RunFolder
from .recording.scalars import Scalars
from .saving.checkpoints import Checkpoints
from .saving.export import export_network
from .saving.stored_checkpoints import refuse_run
from .start import start, warn_if_disk_space_is_low
from .weight_average import WeightAverage


class Run:
    """Training run in one of its workers.

    Parameters
    ----------
    config : RunConfig
    zoo : module
        Module with the interface of `model_zoo`, which defines networks by name.
    workers : Workers
        Workers that train together; rank 0 writes the files.

    Attributes
    ----------
    devices : list of mx.Context
    source : Source
        Training and validation images.
    net : gluon.HybridBlock
    objective : Objective
    trainer : gluon.Trainer
    progress : Progress
        None before `start`.
    folder : RunFolder
        None before `start`.
    average : WeightAverage
        None before `start`, and without ``--ema``.

    Raises
    ------
    UserError
        When data, network and flags do not match.
    """

    def __init__(self, config, zoo, workers):
        self.workers = workers
        self.devices = workers.devices(config.num_gpus, config.gpus)
        check_dtype(config.network.dtype, self.devices[0])
        config = dataclasses.replace(config, data=_with_checksum(config.data, config.resume))
        self.source = open_source(config.data, Batching(config.images_per_batch, config.seed, workers.rank, workers.count))
        spec = self.source.spec
        if config.data.channels:  # measured, if not given
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, mean=list(spec.mean), std=list(spec.std)))
        pretrained = zoo.get_pretrained_options(config.network.model, config.network.use_pretrained)
        model = model_arguments(config.network, self.source.classes, pretrained)
        self.net = make_network(config, zoo.get_model, model, spec, self.devices)
        initial = {}
        if not config.resume:
            new, initial['weights'] = load_initial_weights(config, zoo.get_model, self.net, model)
            config = dataclasses.replace(config, fine_tuning=dataclasses.replace(config.fine_tuning, new_parameters=new))
        initial['frozen'] = set_trained(config.fine_tuning, self.net)
        if self.is_writer and not config.resume:
            initial['check'] = describe_check(self.net, self.source.validation(), config.network)
        if config.objective.class_weights and not config.resume:
            values = class_weights(config.objective.class_weights, self.source)
            config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, class_weight_values=values))
        self.config = config
        self.objective = make_objective(config, zoo.get_model, self.net, self.source.classes, spec.shape, self.devices)
        self.trainer = make_trainer(config, self.net, self.source.updates_per_epoch, self.source.images_per_update, workers)
        self._graph = Graph.read(self.net, (1, *spec.shape))
        _require_classifier(self._graph, config.network.model, self.source.classes)
        self._counts = Summary.of(self._graph).counts
        self._description = description_fields(model, spec, self._counts, with_words(self.source.class_names))
        schedule = self.trainer.optimizer.lr_scheduler
        self._plan = describe_run(config, model, self.source, self._graph, self._counts, schedule, self.objective.attention, initial)
        output = config.output
        self._checkpoints = Checkpoints(output.save_dir, config.to_flags(), output.save_frequency, workers, self._description)
        self._flips = FlipCounter(self.net, self.source.updates_per_epoch) if output.track_flips and self.is_writer else None
        self.progress = self.folder = self.average = None

    @property
    def is_writer(self):
        """Whether this worker writes the files of the run."""
        return self.workers.rank == 0

    def check(self, decode=True):
        """Log the plan and an estimate of the time, and with `decode` decode all images, without writing files (--dry-run)."""
        LOG.info(self._plan)
        start(self.config, self._checkpoints, self.net, self.trainer, self.source)
        if decode:
            self.source.decode_training_images()
        if not self.config.resume and self.workers.count == 1:
            update, epoch = measure(self)
            epochs = self.config.optimizer.num_epochs
            LOG.info(
                'time       about %s: %d epochs of %s, measured in %d updates of %.3g s',
                duration(epochs * epoch),
                epochs,
                duration(epoch),
                MEASURED,
                update,
            )
        LOG.info('nothing was trained (--dry-run)')

    @contextlib.contextmanager
    def start(self):
        """Prepare training for the block: lock the folder, write the log, and load the initial state of network and optimizer."""
        config, output = self.config, self.config.output
        log = output.logging_file or os.path.join(output.save_dir, LOG_FILE)
        lock = locked(output.save_dir) if self.is_writer else contextlib.nullcontext()
        with lock, logging_to_file(log if self.is_writer else f'{log}.{self.workers.rank}'):
            LOG.info(self._plan)
            if self.is_writer:
                if not config.resume:  # checked again: another process may have started there since the flags were parsed
                    refuse_run(output.save_dir)
                remove_leftovers(output.save_dir)
            warn_if_disk_space_is_low(config, self.net)
            self.progress = start(config, self._checkpoints, self.net, self.trainer, self.source)
            self.average = self._start_average()
            if self._flips:
                self._flips.start(self._checkpoints.load_arrays())
            schedule = Schedule(self.trainer.optimizer.lr_scheduler, self.source.updates_per_epoch, config.optimizer.num_epochs)
            self.folder = RunFolder(
                output.save_dir,
                config.network.model,
                self._counts,
                schedule,
                self._flips,
                writes=self.is_writer,
                summary=output.write_summary,
            )
            self.folder.start(
                config.to_flags(), self._graph, self.progress, Scalars if output.tensorboard or output.write_summary else None
            )
            if config.resume and self._checkpoints.options['num_epochs'] != config.optimizer.num_epochs:
                self.save()  # so that --resume continues to the new last epoch
            yield

    def forward(self, images):
        """Return the logits of a batch of images, in the data type of the network."""
        return self.net(images.astype(self.config.network.dtype, copy=False))

    def forward_in_training(self, images):
        """Return the logits, as `forward` does, and a list of the feature maps that the objective compares; empty if it compares none."""
        if not self.objective.attention:
            return self.forward(images), []
        logits, *maps = self.objective.attention.student(images.astype(self.config.network.dtype, copy=False))
        return logits, maps

    def average_update(self):
        """Include the weights after an update in their average, if there is one."""
        if self.average:
            self.average.update(self.progress.epoch * self.source.updates_per_epoch + self.progress.batch)

    def evaluated_weights(self):
        """Return a context in which the network has the weights that are evaluated and saved: with ``--ema`` their average."""
        return self.average.applied() if self.average else contextlib.nullcontext()

    def save(self):
        """Write a checkpoint. All workers must call this."""
        arrays = self.folder.arrays()
        if self.average:
            self.workers.average_statistics(self.net)
            arrays = {**arrays, **self.average.arrays(self.average.trained())}
        with self.evaluated_weights():
            self._checkpoints.save(self.net, self.trainer, self.progress, arrays)

    def _start_average(self):
        """Return the `WeightAverage` of the run, None without ``--ema``; the network of a resumed run gets its trained weights."""
        if self.config.ema is None:
            return None
        average = WeightAverage(self.net, self.config.ema)
        arrays = self._checkpoints.load_arrays()
        if arrays:  # the first checkpoint of a run has its initial weights only
            average.resume(arrays)
        return average

    def export(self):
        """Export the weights of the best epoch to the folder of the run."""
        best, weights = self._checkpoints.best(self.progress)
        self.net.load_parameters(weights, ctx=self.devices)
        target = export_network(self.config.output.save_dir, self.net, self.source.spec.shape, self._description, best)
        LOG.info(
            'the best network is that of epoch %d: top-1 %.2f%%, top-5 %.2f%%; exported to %s and %s',
            best['epoch'],
            100 * best['top1'],
            100 * best['top5'],
            target.symbol_file,
            target.parameter_file(0),
        )


def _with_checksum(data, resume):
    """Return a `DataConfig` with the checksum of the weights of images. Raises `UserError` if those of a resumed run have changed."""
    if not isinstance(data.bootstrap, str) or not os.path.isfile(data.bootstrap):  # opening the data reports a missing file
        return data
    checksum, started_with = sha256(data.bootstrap), data.bootstrap_sha256
    if resume and started_with not in (None, checksum):
        raise UserError(f'--bootstrap: {data.bootstrap} has other weights than the run was started with; give the file with these')
    return data if resume else dataclasses.replace(data, bootstrap_sha256=checksum)


def _require_classifier(graph, model, classes):
    """Raise `UserError` unless the network has one output, a logit for each class; a function of the user may return any network."""
    shapes = [node.shape for node in graph.outputs]
    if shapes != [(1, classes)]:
        raise UserError(
            f'{model} gives outputs of the shape {" and ".join(map(str, shapes))} for an image, but training needs one of the shape '
            f'{(1, classes)}: a logit for each of the {classes} classes'
        )
