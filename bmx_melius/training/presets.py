"""Training protocols: what the flags of train_imagenet.py are where the user leaves them out. All their numbers are here."""

import dataclasses
import fractions
import math

from ..arguments import flag_of, require
from ..data.datasets import DATASETS


@dataclasses.dataclass(frozen=True)
class OptimizerDefaults:
    """Defaults of flags for one optimizer, and the arguments that have no flag."""

    lr: float
    wd: float
    warmup_epochs: int
    momentum: 'float | None' = None  # None: it has none
    arguments: dict = dataclasses.field(default_factory=dict)


# The row of radam is the protocol of the MeliusNet paper, section 4.1, which also warms up adam and sgd for 5 epochs.
OPTIMIZERS = {
    'radam': OptimizerDefaults(lr=0.002, wd=0.0, warmup_epochs=0, arguments={'beta1': 0.95, 'beta2': 0.999, 'epsilon': 1e-5}),
    'adam': OptimizerDefaults(lr=0.001, wd=0.0, warmup_epochs=5),
    'sgd': OptimizerDefaults(lr=0.1, wd=1e-4, warmup_epochs=5, momentum=0.9),
    'nag': OptimizerDefaults(lr=0.1, wd=1e-4, warmup_epochs=5, momentum=0.9),
}
OF_THE_OPTIMIZER = ('lr', 'wd', 'warmup_epochs', 'momentum')  # a preset's values of these hold for the preset's optimizer alone

# MeliusNet, section 4.1. What an optimizer brings along is in its row above; the clipping threshold is the network's.
PROTOCOL = {
    'optimizer': 'radam',
    'num_epochs': DATASETS['imagenet'].num_epochs,
    'batch_size': 64,
    'lr_mode': 'cosine',
    'warmup_lr': 0.0,
    'lr_decay': 0.1,
    'lr_decay_epoch': [40, 60],  # of mode step: GluonCV's
    'augmentation': 'medium',
    'initialization': 'gaussian',
    'bits': 1,
}

PRESETS = {
    'meliusnet': PROTOCOL,
    # The paper's comparison with naive networks. Where it is silent, as the authors' program has it: adam, no weight decay, no warm-up.
    'naive': {
        **PROTOCOL,
        'optimizer': 'adam',
        'lr': 0.001,
        'wd': 0.0,
        'warmup_epochs': 0,
        'num_epochs': 40,
        'lr_mode': 'step',
        'lr_decay_epoch': [35, 37],
    },
    # The networks with 32 bits beside the binary ones. Where the paper is silent, as GluonCV trains: weight decay 0.0001, momentum 0.9.
    'full-precision': {**PROTOCOL, 'bits': 32, 'optimizer': 'nag', 'lr': 0.1, 'warmup_epochs': 5, 'num_epochs': 90, 'augmentation': 'high'},
    # The largest network. Of its 150 + 20 epochs these are the 150; see docs/training.md.
    'meliusnet59': {**PROTOCOL, 'lr': 0.003, 'num_epochs': 150},
}
DEFAULT = 'meliusnet'

# Flags that need another one -> that one, and their defaults beside it (GluonCV's).
DEPENDENT = {
    'mixup': {'mixup_alpha': 0.2, 'mixup_off_epoch': 0},
    'teacher': {'temperature': 20.0, 'hard_weight': 0.5, 'teacher_params': None, 'teacher_pretrained': False, 'teacher_options': None},
}


def preset_values(preset, dataset, optimizer=None, num_epochs=None):
    """What a preset says on a dataset.

    Presets are written for ImageNet. On a dataset with `f` times ImageNet's number of epochs the preset's number is multiplied by `f`,
    and its learning rate by the dataset's `lr_factor`. The epochs of the warm-up (rounded up) and those at which the rate decays (rounded
    down) keep their share of the run, also where the run has another number of epochs.

    Parameters
    ----------
    preset : str
        A row of `PRESETS`.
    dataset : Dataset
    optimizer : str or None
        In place of the preset's own; another one has the rate, weight decay, warm-up and momentum of its row in `OPTIMIZERS`.
    num_epochs : int or None
        In place of the preset's own.

    Returns
    -------
    dict of the names of flags (with underscores) to values, None where a flag has no meaning.
    """
    row = PRESETS[preset]
    optimizer = optimizer or row['optimizer']
    of_optimizer = {name: getattr(OPTIMIZERS[optimizer], name) for name in OF_THE_OPTIMIZER}
    values = {**of_optimizer, **row} if optimizer == row['optimizer'] else {**row, **of_optimizer, 'optimizer': optimizer}
    epochs = num_epochs or max(1, round(row['num_epochs'] * dataset.num_epochs / DATASETS['imagenet'].num_epochs))
    share = fractions.Fraction(epochs, row['num_epochs'])  # exact: an event that falls on an epoch stays there
    values.update(
        num_epochs=epochs,
        warmup_epochs=min(math.ceil(values['warmup_epochs'] * share), epochs - 1),
        lr_decay_epoch=[int(epoch * share) for epoch in row['lr_decay_epoch']],
        lr=values['lr'] * dataset.lr_factor,
    )
    return values


def with_defaults(options):
    """Return the values of all flags, a dict by their names with underscores, with defaults that depend on other flags in place of None.

    Raises `UserError` for a flag that means nothing beside the others.
    """
    values = dict(options)

    def fill_in(name, value):
        if values[name] is None:
            values[name] = value

    require(values['model'], 'which network? Give --model, for example --model meliusnet22')
    values['use_rec'] = bool(values['use_rec'] or values['rec_train'] or values['rec_val'])
    dataset = DATASETS[values['dataset']]
    fill_in('data_dir', dataset.data_dir)
    fill_in('input_size', dataset.input.size)
    fill_in('crop_ratio', dataset.crop_ratio)
    if not values['use_pretrained']:  # the weights decide
        fill_in('initial_layers', dataset.initial_layers)
    fill_in('num_workers', dataset.num_workers)
    optimizer = values['optimizer'] or preset_values(values['preset'], dataset)['optimizer']
    require(
        values['momentum'] is None or OPTIMIZERS[optimizer].momentum is not None,
        f'--momentum {values["momentum"]}: {optimizer} has no such momentum; leave it out, or take sgd or nag',
    )
    for name, value in preset_values(values['preset'], dataset, values['optimizer'], values['num_epochs']).items():
        fill_in(name, value)
    fill_in('weight_bits', values['bits'])
    for needed, dependent in DEPENDENT.items():
        for name, value in dependent.items():
            if values[needed]:
                fill_in(name, value)
            else:
                require(values[name] is None or values[name] is False, f'{flag_of(name)} means nothing without {flag_of(needed)}')
    return values


def describe_preset(config):
    """Return in words which flags of a `RunConfig` have their preset's values, and which do not."""
    preset, chosen_values = config.optimizer.preset, config.to_flags()
    values = preset_values(preset, DATASETS[config.data.dataset])
    kept, overridden = [], []
    for name, value in values.items():
        if name.startswith('lr_decay') and config.optimizer.lr_mode != 'step':
            continue
        chosen, flag = chosen_values[name], flag_of(name)
        if chosen == value:
            kept += [f'{flag} {_in_words(value)}'] if value is not None else []
        else:
            overridden.append(f'{flag} {_in_words(chosen)} (not {_in_words(value)})')
    return f'{preset}: {" ".join(kept)}' + (f'; overridden: {", ".join(overridden)}' if overridden else '')


def _in_words(value):
    if isinstance(value, (list, tuple)):
        return ','.join(map(str, value))
    return f'{value:g}' if isinstance(value, float) else str(value)
