"""Training in stages: the runs of a preset in `STAGES`, one after the other, each in a subfolder of ``--save-dir``.

The folder has ``stages.json`` with the flags of the user, and for each stage a folder of an ordinary run, such as
``2-binary-activations``. A stage begins with the weights of the best epoch of the one before, whose exported network may also be its
teacher.
"""

import json
import os
import sys

from ..arguments import flag_of, require
from ..data.datasets import DATASETS
from ..errors import UserError, last_line
from ..exported import Exported
from ..files import check_folder, read_text, write_json
from ..reporting import LOG
from .flag_groups import PROGRAM, make_parser
from .flags import chosen_values, configure, parse_flags
from .network import create_network, model_arguments
from .presets import DEPENDENT, PREVIOUS_NETWORK, PREVIOUS_WEIGHTS, STAGES
from .saving.stored_checkpoints import read_last, refuse_run

FILE = 'stages.json'
SET_BY_STAGES = (
    *('bits', 'weight_bits', 'use_pretrained', 'resume_params', 'resume_states', 'resume_epoch'),
    *('teacher', 'teacher_params', 'teacher_pretrained', 'teacher_options'),
)
PREDECESSOR = (PREVIOUS_WEIGHTS, PREVIOUS_NETWORK)


class StagedTraining:
    """The stages of a preset, as runs in subfolders of a folder.

    Parameters
    ----------
    arguments : list of str
        Command-line arguments.
    options : dict
        Values of all flags, without defaults that depend on other flags.
    zoo : module
        As in `parse_flags`.
    """

    def __init__(self, arguments, options, zoo):
        self._arguments, self._options, self._zoo = arguments, options, zoo
        self._folder, self._stages = options['save_dir'], STAGES[options['preset']]

    @classmethod
    def parse(cls, arguments, zoo, program=PROGRAM):
        """Return the training that the arguments describe, None for a single run. Raises `UserError` like `parse_flags`."""
        arguments = sys.argv[1:] if arguments is None else list(arguments)
        parser = make_parser(zoo, program)
        options = parser.parse_args(arguments)
        saved = _read(options.save_dir)
        if not options.resume:
            require(
                options.dry_run or not saved,
                f'{options.save_dir} holds a run already: continue it with --resume, or choose another --save-dir',
            )
            if options.preset not in STAGES:
                return None
            _check(vars(options), parser.parse_args([]), zoo)
        elif not saved:
            return None
        else:
            options = chosen_values(parser, saved, arguments)
        return cls(arguments, vars(options), zoo)

    def run(self, run):
        """Run the stages that are not finished; return the exit status.

        `run` is a function ``(config, decode)`` that trains and exports the run of a `RunConfig` and returns its exit status; `decode` is
        whether a dry run decodes the images. After a status other than 0, the following stages are not started.
        """
        self._check_networks()
        for number, stage in enumerate(self._stages):
            folder, before = self._stage_folder(number), self._folder_before(number)
            LOG.info('stage %d of %d, %s: %s', number + 1, len(self._stages), stage.name, self._describe(stage, before))
            config = self._configure(stage, folder, before)
            if self._is_finished(folder):
                LOG.info('%s is finished', folder)
                continue
            if not self._options['dry_run']:
                self._save()
            status = run(config, decode=number == 0)
            if status:
                LOG.info('stopped in stage %d of %d; continue with --resume --save-dir %s', number + 1, len(self._stages), self._folder)
                return status
        return 0

    def _check_networks(self):
        """Raise `UserError` if the network of a stage does not exist, which otherwise only the end of the stage before would show."""
        for number, stage in enumerate(self._stages):
            config = self._configure(stage, self._stage_folder(number), self._folder_before(number)).network
            try:
                create_network(config, self._zoo.get_model, model_arguments(config, classes=2))
            except UserError as error:
                raise UserError(
                    f'{config.model} has no network for stage {number + 1} of --preset {self._options["preset"]}, {stage.name}: {error}'
                ) from error

    def _configure(self, stage, folder, before):
        """Return the configuration of a stage, which continues from its checkpoint if it has one."""
        if read_last(folder):
            changes = self._arguments if self._options['resume'] else []
            return parse_flags([*changes, '--resume', '--save-dir', folder], self._zoo)
        values = {**self._options, 'resume': False, 'save_dir': folder}
        for name, value in self._flags(stage).items():
            if value in PREDECESSOR:
                value = self._of_predecessor(value, before)
            if values[name] is None or value is False:
                values[name] = value
        if values['teacher'] is None:
            values.update(dict.fromkeys(DEPENDENT['teacher']))
        return configure(values, self._zoo)

    def _of_predecessor(self, which, before):
        """Return the weights or the exported network of the stage before, None in a dry run if it is not finished."""
        if not self._is_finished(before):
            return None
        exported = self._exported(before)
        if which == PREVIOUS_NETWORK:
            return os.path.abspath(exported.prefix)
        epoch = json.loads(read_text(exported.description_file))['metrics']['epoch']
        return os.path.join(before, f'epoch-{epoch:04d}.params')

    def _describe(self, stage, before):
        values = {name: value for name, value in self._flags(stage).items() if value not in (*PREDECESSOR, False)}
        chosen = {name: self._options[name] for name in values if self._options[name] is not None}
        flags = ' '.join(f'{flag_of(name)} {value}' for name, value in {**values, **chosen}.items())
        if before is None:
            return flags
        return f'{flags}; starts from the best weights of {before}' + (', its teacher' if PREVIOUS_NETWORK in stage.flags.values() else '')

    def _flags(self, stage):
        """Return the values of the flags of a stage, with the learning rate for the dataset."""
        factor = DATASETS[self._options['dataset']].lr_factor
        return {name: value * factor if name == 'lr' else value for name, value in stage.flags.items()}

    def _folder_before(self, number):
        return self._stage_folder(number - 1) if number else None

    def _stage_folder(self, number):
        return os.path.join(self._folder, f'{number + 1}-{self._stages[number].name}')

    def _exported(self, folder):
        return Exported.in_run(folder, self._options['model'])

    def _is_finished(self, folder):
        return os.path.exists(self._exported(folder).description_file)  # written last

    def _save(self):
        check_folder(self._folder)
        os.makedirs(self._folder, exist_ok=True)
        write_json(os.path.join(self._folder, FILE), {**self._options, 'resume': False, 'dry_run': False})


def _read(folder):
    """Return the flags of the staged training in a folder, None if there is none with a checkpoint."""
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return None
    try:
        options = json.loads(read_text(path))
        stages = STAGES[options['preset']]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f'{path} is damaged: {last_line(error)}; put back a copy, or continue each stage in its subfolder with --resume'
        ) from error
    return options if read_last(os.path.join(folder, f'1-{stages[0].name}')) else None


def _check(options, defaults, zoo):
    """Raise `UserError` for flags that stages set themselves, or that they do not support."""
    for name in SET_BY_STAGES:
        require(
            options[name] == getattr(defaults, name), f'{flag_of(name)} is set by the stages of --preset {options["preset"]}: leave it out'
        )
    require(
        options['kvstore'] in ('device', 'local', 'nccl'),
        f'--kvstore {options["kvstore"]}: the stages of --preset {options["preset"]} are trained by one process; '
        'train them one by one, with the flags that --dry-run shows',
    )
    model = options['model']
    require(
        not model or zoo.takes_option(model, 'bits'),
        f'--model {model}: the stages of --preset {options["preset"]} end with a binary network, and this is a float network of GluonCV; '
        'choose a network of this project',
    )
    if not options['dry_run']:
        refuse_run(options['save_dir'])
