"""Training as a series of ordinary runs in subfolders of ``--save-dir``, which can be interrupted and resumed anywhere.

The folder has ``stages.json`` with the flags of the user, and for each run a subfolder such as ``2-binary-activations``.
"""

import abc
import os

from ...arguments import flag_of, require
from ...errors import UserError
from ...files.exported import Exported
from ...files.io import check_folder, write_json
from ...reporting import LOG
from ..network import create_network, model_arguments
from ..options.parsing import CHANGEABLE, complete, merge
from ..saving.stored_checkpoints import read_last, refuse_run

FILE = 'stages.json'


class RunSeries(abc.ABC):
    """Base class of series of runs.

    Parameters
    ----------
    options : dict
        Values of all flags, without defaults that depend on other flags.
    zoo : module
        As in `read_options`.
    names : sequence of str
        Names of the runs.
    network : str
        Name of the network of all runs.
    """

    #: what a run is called in messages
    unit = 'stage'

    #: flags whose values the series chooses for each of its runs
    set_by_series = ()

    #: flags with files in the folder, whose values are computed again when a run is resumed, so that the folder may be moved or copied
    set_by_folder = ()

    def __init__(self, options, zoo, names, network):
        self._options, self._zoo, self._names, self._network = options, zoo, names, network
        self._folder = options['save_dir']

    @property
    def options(self):
        """Values of all flags; the series chooses them where the user gave none."""
        return self._options

    @property
    @abc.abstractmethod
    def title(self):
        """What chooses the runs, for messages, such as '--preset real-to-binary'."""

    @abc.abstractmethod
    def values(self, number):
        """Return the values of all flags of a run that differ from the user's, a dict."""

    @abc.abstractmethod
    def describe(self, number):
        """Return a text about a run, for the log."""

    def prepare(self, number):  # noqa: B027  most series need nothing
        """Do what is needed before the run `number` is configured; the previous runs are finished. Not called by dry runs."""

    def finish(self):  # noqa: B027
        """Do what follows the last run. Not called by dry runs."""

    def check(self, defaults):
        """Raise `UserError` for flags that the series sets, or does not support. `defaults` has the values of flags that are not given."""
        for name in self.set_by_series:
            require(self._options[name] == defaults[name], f'{flag_of(name)} is set by the {self.unit}s of {self.title}: leave it out')
        require(
            self._options['kvstore'] in ('device', 'local', 'nccl'),
            f'--kvstore {self._options["kvstore"]}: the {self.unit}s of {self.title} are trained by one process; '
            'train them one by one, with the flags that --dry-run shows',
        )
        if not self._options['dry_run']:
            refuse_run(self._folder)

    def run(self, run):
        """Run what is not finished; return the exit status.

        `run` is a function ``(options, decode)`` that trains and exports the run of `TrainingOptions` and returns its status; `decode` is
        whether a dry run decodes the images. After a status other than 0, the following runs are not started.
        """
        dry_run, count = self._options['dry_run'], len(self._names)
        self._check_networks()
        for number, name in enumerate(self._names):
            LOG.info('%s %d of %d, %s: %s', self.unit, number + 1, count, name, self.describe(number))
            if self.is_finished(number):
                LOG.info('%s is finished', self.folder(number))
                continue
            if not dry_run:
                self._save()
                self.prepare(number)
            status = run(self._configure(number), decode=number == 0)
            if status:
                place = f'{self.unit} {number + 1} of {count}'
                LOG.info('stopped in %s; continue with --resume --save-dir %s', place, self._folder)
                return status
        if not dry_run:
            self.finish()
        return 0

    def folder(self, number):
        """Return the folder of a run."""
        return os.path.join(self._folder, f'{number + 1}-{self._names[number]}')

    def config(self, number):
        """Return the `TrainingOptions` of a new run."""
        return complete({**self._options, 'resume': False, 'save_dir': self.folder(number), **self.values(number)}, self._zoo)

    def exported(self, number):
        """Return the exported network of a run, an `Exported`."""
        return Exported.in_run(self.folder(number), self._network)

    def is_finished(self, number):
        """Return whether a run has exported its network."""
        return os.path.exists(self.exported(number).description_file)  # written last

    def metrics(self, number):
        """Return the metrics of the best epoch of a finished run, a row of its history."""
        return self.exported(number).description().fields['metrics']

    def best_weights(self, number):
        """Return the file of the weights of the best epoch of a finished run."""
        return os.path.join(self.folder(number), f'epoch-{self.metrics(number)["epoch"]:04d}.params')

    def _check_networks(self):
        """Raise `UserError` if the network of a run does not exist, which otherwise only the end of the run before would show."""
        for number, name in enumerate(self._names):
            config = self.config(number)
            try:
                create_network(config, self._zoo.get_model, model_arguments(config, classes=2))
            except UserError as error:
                raise UserError(f'{config.model} has no network for {self.unit} {number + 1} of {self.title}, {name}: {error}') from error

    def _configure(self, number):
        """Return the `TrainingOptions` of a run, which continues from its checkpoint if it has one."""
        saved = read_last(self.folder(number))
        if not saved:
            return self.config(number)
        changes = {name: self._options[name] for name in CHANGEABLE if self._options[name] is not None}
        own = self.values(number)
        changes.update({name: own[name] for name in self.set_by_folder}, resume=True, save_dir=self.folder(number))
        return complete(merge(self._zoo, self._options, saved['options'], changes), self._zoo)

    def _save(self):
        check_folder(self._folder)
        os.makedirs(self._folder, exist_ok=True)
        write_json(os.path.join(self._folder, FILE), {**self._options, 'resume': False, 'dry_run': False})
