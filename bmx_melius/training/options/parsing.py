"""Options of a run from command-line arguments: parsed once, merged with the options of a resumed run, completed and checked."""

import argparse
import dataclasses
import os

from ...arguments import flag_of, require
from ...errors import UserError
from ...files.io import sha256
from ...reporting import LOG
from ...signatures import picked
from ..class_weights import class_weights
from ..network import NETWORK_OPTIONS
from ..saving.stored_checkpoints import read_last, refuse_run
from .checks import check_options
from .config_file import expand_config
from .flags import MODEL_FLAGS, OF_MODEL_FLAGS, PROGRAM, make_parser
from .inherited import with_inherited
from .presets import AUTO, DEFAULT, FEW, few_images, with_defaults

# Flags that a resumed training may change, because they do not affect the result. (For num_workers with record files see RecordSource.)
# A single run may also change when it ends, by num_epochs and early_stop, which changes the result: see `Run`.
CHANGEABLE = {
    'resume',
    'dry_run',
    'log_interval',
    'logging_file',
    'tensorboard',
    'write_summary',
    'interrupt_at',
    'gpus',
    'save_frequency',
    'save_interval',
    'save_dir',
    'num_workers',
    'data_dir',
    'rec_train',
    'rec_train_idx',
    'rec_val',
    'rec_val_idx',
    'teacher_params',
}
_NOT_GIVEN = object()


class TrainingOptions(argparse.Namespace):
    """Values of all flags of a run, complete and checked; attributes are named like the flags, which `flags.py` describes.

    Four attributes are not flags: a resumed run takes them from its checkpoint. `few_images` is the number of training images in a folder
    that has few of them, which limits the batch. `new_parameters` has the names of the parameters that were
    not loaded from other weights (None: no weights were loaded), `class_weight_values` the weight of each class, and `bootstrap_sha256` the
    checksum of the file `bootstrap`.
    """

    @property
    def images_per_batch(self):
        """Number of images of an update in this process, over all of its devices."""
        return self.batch_size * max(1, self.num_gpus)

    def make(self, kind, *arguments, **others):
        """Return an object of a class, of these arguments and of the options for which it has parameters or fields."""
        return kind(*arguments, **others, **picked(kind, vars(self)))

    def measure(self, data):
        """Set the options of a new run that its training images determine, of which `data` is the source.

        These are mean and standard deviation of the channels, and the weights of the classes. A resumed run keeps the values of its start.
        """
        if self.channels:
            self.mean, self.std = list(data.spec.mean), list(data.spec.std)
        if self.class_weights and not self.resume:
            self.class_weight_values = class_weights(self.class_weights, data)

    def replace(self, **changes):
        """Return a copy with some values changed."""
        return TrainingOptions(**{**vars(self), **changes})


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Parsed command-line arguments: values by the names of flags, with underscores.

    Attributes
    ----------
    given, defaults : dict
        Values of the flags that were given, and the defaults of all, which are None where they depend on other flags.
    """

    given: dict
    defaults: dict

    def values(self, zoo):
        """Return the values of all flags; `zoo` as in `parse_arguments`."""
        return merge(zoo, self.defaults, self.given)


def parse_arguments(arguments, zoo, program=PROGRAM):
    """Parse the command-line arguments of the training program, a list of str; return `Arguments`.

    Parameters
    ----------
    arguments : list of str
    zoo : module
        Module with the interface of `model_zoo`, which defines the available networks and published weights.
    program : str
        Name of the program in messages.

    Raises
    ------
    UserError
        When a flag is unknown or its value is malformed.
    """
    parser = make_parser(zoo, program)
    flags = [action for action in parser._actions if action.dest not in ('help', 'config') and action.help != argparse.SUPPRESS]
    defaults = {**parser._defaults, **{action.dest: action.default for action in flags}}
    if any(argument.startswith('--config') for argument in arguments):
        arguments = expand_config(arguments, parser)
    found = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(defaults, _NOT_GIVEN)))
    given = {name: value for name, value in vars(found).items() if name in defaults and value is not _NOT_GIVEN}
    of_model_flags, _ = given.pop(OF_MODEL_FLAGS, {}), defaults.pop(OF_MODEL_FLAGS)
    if of_model_flags:
        given['model_options'] = {**given.get('model_options', {}), **of_model_flags}
    binary = zoo.listed_name(f'binary_{given["model"]}') if 'model' in given and not given.keys().isdisjoint(NETWORK_OPTIONS) else None
    if binary and given['model'] in zoo.get_gluoncv_list():  # BMXNet-v2 has binary networks of these names, such as resnet18_v1
        given['model'] = binary
    return Arguments(given, defaults)


def merge(zoo, defaults, *others):
    """Return the values of all flags, those in `defaults`: of dicts with values of a flag the last one counts.

    The preset `AUTO` becomes the preset of the network in `zoo`. A folder with few images has a preset of its own if none is given.
    """
    values = {name: next((other[name] for other in reversed(others) if name in other), default) for name, default in defaults.items()}
    if values['preset'] == AUTO:
        return {**values, 'preset': zoo.preset_of(values['model'] or '') or DEFAULT}
    if values['few_images'] is None and not any('preset' in other for other in others) and few_images(values) is not None:
        return {**values, 'preset': FEW}
    return values


def read_options(arguments, zoo):
    """Return the `TrainingOptions` of a run, or of the run in the folder that is resumed.

    Parameters
    ----------
    arguments : Arguments
    zoo
        As in `parse_arguments`.

    Raises
    ------
    UserError
        When a flag, or a combination of flags, is invalid, and when a resumed run would be changed.
    """
    values = arguments.values(zoo)
    if not values['resume']:
        if not values['dry_run']:
            refuse_run(values['save_dir'])
        given = arguments.given
        if given.get('lr_factor', 1) != 1 and ('lr_decay_epoch' in given or given.get('lr_mode') == 'step'):
            LOG.warning(
                '--lr-factor %g multiplies all learning rates; the factor at the steps, which is --lr-factor in BMXNet-v2, is --lr-decay',
                given['lr_factor'],
            )
        return complete(with_inherited(values) if values['resume_params'] else values, zoo)
    saved = read_last(values['save_dir'])
    if not saved:
        raise UserError(f'there is no run to resume in {values["save_dir"]}: point --save-dir to one')
    before = saved_values(saved['options'], arguments, zoo)
    options = complete(merge(zoo, arguments.defaults, before, arguments.given), zoo)
    require_unchanged(before, vars(options), CHANGEABLE | {'num_epochs', 'early_stop'})
    return options


def parse_options(arguments, zoo, program=PROGRAM):
    """Return the `TrainingOptions` of a run: `read_options` of `parse_arguments`, with their parameters and errors."""
    return read_options(parse_arguments(arguments, zoo, program), zoo)


def saved_values(saved, arguments, zoo):
    """Return the values of the flags with which a training was started, `saved`, a dict, with the name of its network as it is listed now.

    Raises `UserError` if it was started with a network of the user that the `Arguments` do not name again: the name
    ``package.module:function`` would be executed, and the folder of the run may be someone else's.
    """
    for name in ('model', 'teacher'):
        path = saved.get(name)
        if isinstance(path, str) and ':' in path and arguments.given.get(name) != path:
            raise UserError(
                f'the run in {arguments.values(zoo)["save_dir"]} builds a network by the Python function {path}: '
                f'give {flag_of(name)} {path} as well, if it may be executed'
            )
    return {**saved, 'model': zoo.listed_name(saved['model']) or saved['model']} if saved.get('model') else saved


def require_unchanged(saved, chosen, changeable=frozenset(CHANGEABLE)):
    """Raise `UserError` if a flag in `saved`, a dict, that is not `changeable` has another value in the dict `chosen`."""
    if saved.get('bootstrap_sha256') and isinstance(chosen['bootstrap'], str):
        changeable = changeable | {'bootstrap'}
    changed = [name for name in saved if name in chosen and name not in changeable and chosen[name] != saved[name]]
    if changed:
        flags = ', '.join(f'{flag_of(name)} {saved[name]}' for name in changed)
        raise UserError(
            f'the run in {chosen["save_dir"]} was started with {flags}; leave these unchanged, or start a new run from its weights '
            'with --resume-params and another --save-dir'
        )


def complete(values, zoo):
    """Return the `TrainingOptions` for the values of all flags, a dict, with defaults that depend on other flags. Raises `UserError`."""
    options = TrainingOptions(**with_defaults(values, zoo))
    check_options(options)
    if options.last_gamma and options.model in zoo.get_model_list() and not zoo.takes_option(options.model, 'last_gamma'):
        LOG.warning('--last-gamma has no effect: in %s no normalization ends a residual block', options.model)
        options.last_gamma = False
    if not options.resume:  # a resumed run has the options of its network; another --model is refused as a change
        for flag, row in MODEL_FLAGS.items():
            takes = zoo.takes_option(options.model, row.option) or options.model.startswith(row.gluoncv) or ':' in options.model
            require(
                row.option not in options.model_options or takes,
                f'{flag} ({row.option} in --model-options): the network {options.model} has no such option; leave it out',
            )
    if isinstance(options.bootstrap, str) and os.path.isfile(options.bootstrap):  # opening the data reports a missing file
        checksum = sha256(options.bootstrap)
        if options.resume and options.bootstrap_sha256 not in (None, checksum):
            raise UserError(f'--bootstrap: {options.bootstrap} has other weights than the run was started with; give the file with these')
        options.bootstrap_sha256 = options.bootstrap_sha256 if options.resume else checksum
    return options
