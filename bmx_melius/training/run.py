"""A training run: everything that its configuration describes, built from it."""

import contextlib
import os

from ..analysis.graph import Graph
from ..analysis.summary import Summary
from ..data.opening import open_source
from ..exported import description_fields
from ..files import remove_leftovers
from ..reporting import LOG, logging_to_file
from .network import check_dtype, make_network, model_arguments
from .objective import make_objective
from .optimization import make_trainer
from .plan import describe_run
from .recording.flips import FlipCounter
from .recording.run_folder import LOG_FILE, RunFolder
from .recording.scalars import Scalars
from .saving.checkpoints import Checkpoints
from .saving.export import export_network
from .saving.folder_lock import locked
from .start import start, warn_of_little_space


class Run:
    """A training run, as one of the processes of its job sees it.

    Parameters
    ----------
    config : RunConfig
    zoo : module
        As `model_zoo`: gives networks by name.
    workers : Workers
        The processes that train together. The one of rank 0 writes the files.

    Attributes
    ----------
    devices : list of mx.Context
    source : Source
        Training and validation images.
    net : gluon.HybridBlock
    objective : Objective
    trainer : gluon.Trainer
    progress : Progress
        From `start` on.
    folder : RunFolder
        From `start` on.

    Raises
    ------
    UserError
        When data, network and flags do not fit together.
    """

    def __init__(self, config, zoo, workers):
        self.config, self.workers = config, workers
        self.devices = workers.devices(config.num_gpus)
        check_dtype(config.network.dtype, self.devices[0])
        self.source = open_source(config.data, config.images_per_batch, config.seed, workers.rank, workers.count)
        spec = self.source.spec
        pretrained = zoo.get_pretrained_options(config.network.model, config.network.use_pretrained)
        model = model_arguments(config.network, self.source.classes, pretrained)
        self.net = make_network(config, zoo.get_model, model, spec, self.devices)
        self.objective = make_objective(config, zoo.get_model, self.source.classes, spec.shape, self.devices)
        self.trainer = make_trainer(config, self.net, self.source.updates_per_epoch, self.source.images_per_update, workers)
        self._graph = Graph.read(self.net, (1, *spec.shape))
        self._counts = Summary.of(self._graph).counts
        self._description = description_fields(model, spec, self._counts, self.source.class_names)
        self._plan = describe_run(config, model, self.source, self._counts, self.trainer.optimizer.lr_scheduler)
        output = config.output
        self._checkpoints = Checkpoints(output.save_dir, config.to_flags(), output.save_frequency, workers, self._description)
        self.progress = self.folder = None

    @property
    def is_writer(self):
        """Whether this process writes the files of the run."""
        return self.workers.rank == 0

    def check(self):
        """Log the plan, load what the run would start from and decode all images, without writing anything (--dry-run)."""
        LOG.info(self._plan)
        start(self.config, self._checkpoints, self.net, self.trainer, self.source)
        self.source.decode_training_images()
        LOG.info('nothing was trained (--dry-run)')

    @contextlib.contextmanager
    def start(self):
        """Within the block the run trains: its folder is locked, its log is written, and network and optimizer have their initial state."""
        config, output = self.config, self.config.output
        log = output.logging_file or os.path.join(output.save_dir, LOG_FILE)
        lock = locked(output.save_dir) if self.is_writer else contextlib.nullcontext()
        with lock, logging_to_file(log if self.is_writer else f'{log}.{self.workers.rank}'):
            LOG.info(self._plan)
            if self.is_writer:
                if not config.resume:
                    self._checkpoints.refuse_run(output.save_dir)  # another process may have trained there since the flags were read
                remove_leftovers(output.save_dir)
            warn_of_little_space(config, self.net)
            self.progress = start(config, self._checkpoints, self.net, self.trainer, self.source)
            flips = None
            if output.track_flips and self.is_writer:
                flips = FlipCounter(self.net, self.source.updates_per_epoch)
                flips.start(self._checkpoints.load_arrays())
            self.folder = RunFolder(
                output.save_dir,
                config.network.model,
                self._counts,
                self.trainer.optimizer.lr_scheduler,
                self.source.updates_per_epoch,
                config.optimizer.num_epochs,
                flips,
                writes=self.is_writer,
            )
            self.folder.start(config.to_flags(), self._graph, self.progress, Scalars if output.tensorboard else None)
            yield

    def forward(self, images):
        """Return the logits for a batch of images, in the type of numbers of the network."""
        return self.net(images.astype(self.config.network.dtype, copy=False))

    def save(self):
        """Write a checkpoint. All processes must call this."""
        self._checkpoints.save(self.net, self.trainer, self.progress, self.folder.arrays())

    def export(self):
        """Export the weights of the best epoch to the folder of the run."""
        best, weights = self._checkpoints.best(self.progress)
        self.net.load_parameters(weights, ctx=self.devices)
        export_network(self.config.output.save_dir, self.net, self.source.spec.shape, self._description, best)
