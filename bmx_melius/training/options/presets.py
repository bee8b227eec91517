"""Training protocols: default values of the flags of ``bmx-melius train``, for each preset, dataset and optimizer."""

import dataclasses
import fractions
import math
import os

from ...arguments import flag_of, require
from ...data.datasets import DATASETS
from ...data.folders import count_training_images
from ...nn.quantizers import FULL_PRECISION
from ..network import NETWORK_OPTIONS
from ..optimization import SCALINGS
from ..optimizer_names import optimizer_defaults
from ..teacher import TeacherOptions

OF_BINARY_WEIGHTS = ('binary_optimizer', 'binary_lr', 'binary_optimizer_params')
# A preset's values of these flags apply only to the preset's optimizer.
OF_OPTIMIZER = ('lr', 'wd', 'warmup_epochs', 'momentum', 'optimizer_params', *OF_BINARY_WEIGHTS)

# MeliusNet, section 4.1; batch size and augmentation level: the authors' code and training logs. Defaults of the optimizer are in
# `OPTIMIZERS`; the clipping threshold is a default of the network.
PROTOCOL = {
    'optimizer': 'radam',
    'num_epochs': DATASETS['imagenet'].num_epochs,
    'batch_size': 64,
    'lr_mode': 'cosine',
    'warmup_lr': 0.0,
    'lr_decay': 0.1,
    'lr_decay_epoch': [40, 60],  # for mode step, as in GluonCV
    'lr_power': 2.0,  # for mode poly, as in GluonCV
    'no_wd': False,
    'augmentation': 'medium',
    'initialization': 'gaussian',
    'bits': 1,
}

# Rates that decay at some epochs, without warm-up and weight decay.
STEP = {**PROTOCOL, 'lr_mode': 'step', 'warmup_epochs': 0, 'wd': 0.0}
LOGGED = {**STEP, 'optimizer': 'adam', 'lr': 0.001, 'batch_size': 128}

# Shared by methods whose authors use the same program: HWGQ and LQ-Net; DoReFa-Net, TTQ and SYQ.
LINEAR = {
    **PROTOCOL,
    'lr': 0.1,
    'wd': 5e-5,
    'warmup_epochs': 0,
    'num_epochs': 64,
    'batch_size': 256,
    'lr_mode': 'poly',
    'lr_power': 1.0,
    'augmentation': 'low',
}
TENSORPACK = {
    **STEP,
    'optimizer': 'adam',
    'optimizer_params': {'epsilon': 1e-5},
    'wd': 5e-6,
    'no_wd': True,
    'lr_decay': 0.2,
    'augmentation': 'low',
}
REACTNET = {
    **PROTOCOL,
    'optimizer': 'adam',
    'lr': 0.0025,
    'wd': 1e-5,
    'warmup_epochs': 0,
    'num_epochs': 128,
    'batch_size': 512,
    'lr_mode': 'poly',
    'lr_power': 1.0,
    'no_wd': True,
}

PRESETS = {
    'meliusnet': PROTOCOL,
    # MeliusNet, supplement B. Not in the paper but in the authors' code: adam, no weight decay, no warm-up.
    'naive': {
        **STEP,
        'optimizer': 'adam',
        'lr': 0.001,
        'num_epochs': 40,
        'lr_decay_epoch': [35, 37],
    },
    # MeliusNet, section 4.2 (32-bit networks). Not in the paper but as in GluonCV: weight decay 0.0001, momentum 0.9.
    'full-precision': {**PROTOCOL, 'bits': 32, 'optimizer': 'sgd', 'lr': 0.1, 'warmup_epochs': 5, 'num_epochs': 90, 'augmentation': 'high'},
    # The first 150 of the 150 + 20 epochs of the authors' log (docs/training-reference.md); the paper has 120 epochs and a rate of 0.002.
    'meliusnet59': {**PROTOCOL, 'lr': 0.003, 'num_epochs': 150},
    # The rows "Original" of MeliusNet's table 2; docs/training-reference.md lists what is not known of them. The first two are settings of
    # the authors' logs (github.com/hpi-xnor/BMXNet-v2-wiki, Binary-Network-Results) for Bethge et al. 2019, arXiv:1906.08637, the third one
    # is the value for the network of 34 layers in Liu et al. 2018, arXiv:1808.00278 (README of github.com/liuzechun/Bi-Real-net).
    'resnet-e': {**LOGGED, 'num_epochs': 40, 'lr_decay_epoch': [34, 37]},
    'binary-densenet': {**LOGGED, 'num_epochs': 50, 'lr_decay_epoch': [40, 45]},
    'birealnet': {
        **STEP,
        'optimizer': 'sgd',
        'lr': 0.08,
        'num_epochs': 40,
        'batch_size': 1024,
        'lr_decay_epoch': [20, 30],
        'augmentation': 'low',
    },
    # The stages of Martinez et al. 2020, arXiv:2003.11535, with the schedule of their replication in Larq Zoo (docs/training-reference.md).
    'real-to-binary': {
        **STEP,
        'optimizer': 'adam',
        'lr': 0.001,
        'warmup_epochs': 5,
        'num_epochs': 75,
        'batch_size': 256,
        'lr_decay': 0.3,
        'lr_decay_epoch': [40, 60, 70],
    },
    # The other methods: each as its authors' code trains it; docs/training-reference.md has the source of each row, and what differs.
    'reactnet': REACTNET,
    'reactnet-a': {**REACTNET, 'lr': 0.00125, 'batch_size': 256},
    'quicknet': {
        **PROTOCOL,
        'optimizer': 'sgd',
        'lr': 0.1,
        'wd': 0.0,
        'binary_optimizer': 'adam',
        'binary_lr': 0.01,
        'binary_optimizer_params': {'epsilon': 1e-7},
        'num_epochs': 600,
        'batch_size': 2048,
    },
    'xnor-net': {
        **STEP,
        'optimizer': 'adam',
        'lr': 0.001,
        'num_epochs': 55,
        'batch_size': 800,
        'lr_decay': [0.5, 0.2, 0.5, 0.2],
        'lr_decay_epoch': [18, 29, 43, 52],
        'augmentation': 'low',
    },
    'bnn': {
        **STEP,
        'optimizer': 'sgd',
        'lr': 0.1,
        'wd': 1e-4,
        'num_epochs': 100,
        'batch_size': 256,
        'lr_decay_epoch': [30, 60, 90],
    },
    'abc-net': {**PROTOCOL, 'optimizer': 'adam', 'lr': 0.0001, 'wd': 0.0, 'warmup_epochs': 0, 'batch_size': 50},
    'groupnet': {
        **STEP,
        'optimizer': 'adam',
        'lr': 0.0005,
        'num_epochs': 40,
        'batch_size': 256,
        'lr_decay_epoch': [20, 30],
    },
    'cbcn': {
        **STEP,
        'optimizer': 'nag',
        'lr': 0.1,
        'wd': 5e-4,
        'num_epochs': 200,
        'batch_size': 128,
        'lr_decay': 0.2,
        'lr_decay_epoch': [60, 120, 160],
        'augmentation': 'low',
    },
    'hwgq': {**LINEAR, 'optimizer': 'sgd'},
    'lq-net': {**LINEAR, 'optimizer': 'nag', 'no_wd': True},
    'syq': {**TENSORPACK, 'lr': 0.0001, 'num_epochs': 60, 'batch_size': 32, 'lr_decay_epoch': [28, 42]},
    'dorefa': {**TENSORPACK, 'lr': 0.0002, 'num_epochs': 90, 'batch_size': 256, 'lr_decay_epoch': [60, 75], 'augmentation': 'high'},
    'ttq': {**TENSORPACK, 'lr': 0.0001, 'num_epochs': 100, 'batch_size': 128, 'lr_decay_epoch': [56, 64]},
    'ir-net': {
        **STEP,
        'optimizer': 'nag',
        'lr': 0.8,
        'wd': 1e-5,
        'warmup_epochs': 4,
        'num_epochs': 100,
        'batch_size': 2048,
        'lr_decay_epoch': [30, 60, 90],
        'augmentation': 'high',
    },
    'recu': {**PROTOCOL, 'optimizer': 'sgd', 'lr': 0.1, 'wd': 1e-4, 'warmup_epochs': 5, 'num_epochs': 200, 'batch_size': 512},
    'adabin': {**PROTOCOL, 'optimizer': 'sgd', 'lr': 0.1, 'wd': 1e-5, 'warmup_epochs': 0, 'num_epochs': 120, 'batch_size': 256},
    'bnext': {**PROTOCOL, 'optimizer': 'adam', 'lr': 0.001, 'wd': 0.0, 'warmup_epochs': 5, 'num_epochs': 512, 'batch_size': 512},
    # The second of two stages; the rate of both falls linearly from 0.00064 to 0 in 50 + 700 epochs.
    'pokebnn': {
        **PROTOCOL,
        'optimizer': 'adam',
        'optimizer_params': {'beta2': 0.99},
        'lr': 0.000597,
        'wd': 5e-5,
        'warmup_epochs': 0,
        'num_epochs': 700,
        'batch_size': 8192,
        'lr_mode': 'poly',
        'lr_power': 1.0,
        'no_wd': True,
    },
    # Of no paper: for some hundred photos and a CPU. 128 pixels cost a third of 224; small batches make more updates of few images, at a
    # rate scaled by the square root of the batch size, as for a preset on small datasets; 40 epochs, a third of the paper's.
    'photos': {**PROTOCOL, 'input_size': 128, 'batch_size': 16, 'lr': 0.001, 'wd': 0.0, 'warmup_epochs': 0, 'num_epochs': 40},
}
DEFAULT = 'meliusnet'
FEW = 'photos'  # the preset for folders with fewer than `FEW_IMAGES` training images, unless a preset is given
FEW_IMAGES = 10 * PROTOCOL['batch_size']  # 10 updates of the default preset
AUTO = 'auto'  # the preset of the network, `DEFAULT` if its row in the zoo names none


def few_images(options):
    """Return the number of training images in the folder of a run, given as a dict of flags, if there are few; else None."""
    dataset = DATASETS[options['dataset']]
    if options['dataset'] != 'imagenet' or options['use_rec'] or options['rec_train'] or options['rec_val']:
        return None
    folder = os.path.expanduser(options['data_dir'] or dataset.data_dir)
    count = count_training_images(folder, options['val_fraction'], FEW_IMAGES)
    return None if count == FEW_IMAGES else count


def _dataset_of(name, images):
    """Return a row of `DATASETS`; `images`, the number of training images if there are few, limits the batch to half of them."""
    row = DATASETS[name]
    return row if images is None else dataclasses.replace(row, batch_limit=max(2, 1 << (images // 2).bit_length() - 1))


@dataclasses.dataclass(frozen=True)
class Stage:
    """Stage of a preset (see `series`).

    Attributes
    ----------
    name : str
        Name of its folder.
    flags : dict
        Values of flags, which flags of the user override except for False.
    protocol : dict
        Values that replace the values in the row of the preset, and are scaled like these.
    """

    name: str
    flags: dict
    protocol: dict = dataclasses.field(default_factory=dict)


PREVIOUS_WEIGHTS, PREVIOUS_NETWORK = '{weights}', '{network}'  # of the stage before: the weights of its best epoch, the exported network
TAUGHT = {
    'resume_params': PREVIOUS_WEIGHTS,
    'teacher': PREVIOUS_NETWORK,
    'temperature': 1.0,
    'hard_weight': 0.5,
    'attention_weight': 1.0,
}
# Presets that are trained in several runs, one after the other (see `series`).
STAGES = {
    'real-to-binary': (
        Stage('float', {'bits': 32, 'track_flips': False}),
        Stage('binary-activations', {'bits': 1, 'weight_bits': 32, 'track_flips': False, **TAUGHT}),
        Stage('binary', {'bits': 1, 'weight_bits': 1, **TAUGHT}, {'lr': 0.0002}),
    ),
    **dict.fromkeys(
        ('reactnet', 'reactnet-a'),
        (
            Stage('binary-activations', {'bits': 1, 'weight_bits': 32, 'track_flips': False}),
            Stage('binary', {'bits': 1, 'weight_bits': 1, 'resume_params': PREVIOUS_WEIGHTS}, {'wd': 0.0}),
        ),
    ),
    'pokebnn': (
        Stage(
            'binary-activations',
            {'bits': 1, 'weight_bits': 32, 'track_flips': False},
            {'lr': 0.00062, 'num_epochs': 50, 'lr_mode': 'step', 'lr_decay_epoch': []},
        ),
        Stage('binary', {'bits': 1, 'weight_bits': 1, 'resume_params': PREVIOUS_WEIGHTS}),
    ),
    'groupnet': (
        Stage(
            'float',
            {'bits': 32, 'track_flips': False},
            {'optimizer': 'sgd', 'lr': 0.05, 'wd': 1e-4, 'lr_decay_epoch': [25, 35], 'initialization': 'xavier'},
        ),
        Stage('binary', {'bits': 1, 'resume_params': PREVIOUS_WEIGHTS}),
    ),
}

# How the members of an ensemble are trained (see `series`); JOINT is a single run with the loss of the vote.
ENSEMBLE_TRAININGS = BAGGING, BOOSTING, JOINT = ('bagging', 'boosting', 'joint')

# Flag -> flags that require it, with their defaults (as in GluonCV).
DEPENDENT = {
    'mixup': {'mixup_alpha': 0.2, 'mixup_off_epoch': 0},
    'teacher': {field.name: field.default for field in dataclasses.fields(TeacherOptions) if field.name not in ('teacher', 'num_epochs')},
}


def preset_values(row, dataset, optimizer=None, num_epochs=None):
    """Return the values of a preset's flags for a dataset.

    Presets are defined for ImageNet. For a dataset with `f` times ImageNet's default number of epochs, the preset's number of epochs is
    multiplied by `f` and its learning rate by the dataset's `lr_factor`. The warm-up epochs (rounded up) and the epochs at which the rate
    decays (rounded down) are scaled with the number of epochs. Small datasets limit the batch size, and the rate is then reduced in
    proportion for sgd and nag, else by the square root (see `scaled_rate`).

    Parameters
    ----------
    row : dict
        Value of `PRESETS`.
    dataset : Dataset
    optimizer : str or None
        Replaces the preset's optimizer; learning rate, weight decay, warm-up and momentum then come from `OPTIMIZERS`.
    num_epochs : int or None
        Replaces the preset's number of epochs.

    Returns
    -------
    dict
        Flag names with underscores -> values; None if a flag does not apply.
    """
    optimizer = optimizer or row['optimizer']
    defaults = optimizer_defaults(optimizer)
    of_optimizer = {name: getattr(defaults, name, None) for name in OF_OPTIMIZER}
    of_optimizer['optimizer_params'] = {}
    values = {**of_optimizer, **row} if optimizer == row['optimizer'] else {**row, **of_optimizer, 'optimizer': optimizer}
    epochs = num_epochs or max(1, round(row['num_epochs'] * dataset.num_epochs / DATASETS['imagenet'].num_epochs))
    share = fractions.Fraction(epochs, row['num_epochs'])  # exact, so that no epoch changes by rounding errors
    batch_size = min(row['batch_size'], dataset.batch_limit or row['batch_size'])
    values.update(
        num_epochs=epochs,
        batch_size=batch_size,
        warmup_epochs=min(math.ceil(values['warmup_epochs'] * share), epochs - 1),
        lr_decay_epoch=[int(epoch * share) for epoch in row['lr_decay_epoch']],
    )
    if values.get('input_size', 0) > dataset.input.size:
        del values['input_size']  # small images keep their size
    # rates of `OPTIMIZERS` are for batches of 64, rates of a preset for its batches
    ratio = batch_size / row['batch_size'] if optimizer == row['optimizer'] else 1
    for name, of in (('lr', optimizer), ('binary_lr', values['binary_optimizer'])):
        if values[name] is not None:
            values[name] *= dataset.lr_factor * SCALINGS[optimizer_defaults(of).lr_scaling](ratio)
    return values


def with_defaults(options, zoo):
    """Return the values of all flags, with None replaced by defaults that depend on other flags.

    `options` and the result are dicts whose keys are flag names with underscores. `zoo` has the interface of `model_zoo`; the value of
    an option that the network does not take (see `NETWORK_OPTIONS`) stays None. Raises `UserError` for a flag that has no effect in
    combination with the others.
    """
    values = dict(options)
    require(values['model'], 'no network is given: use --model, for example --model meliusnet22')
    without = {name for name in NETWORK_OPTIONS if not zoo.takes_option(values['model'], name)}
    is_ensemble = zoo.get_members(values['model'], values['model_options']) is not None
    require(
        is_ensemble or values['ensemble_training'] is None,
        f'--ensemble-training {values["ensemble_training"]}: the network {values["model"]} is not an ensemble; leave the flag out',
    )
    if is_ensemble and values['ensemble_training'] is None:
        values['ensemble_training'] = JOINT  # otherwise each member is a run, see `series`
    for name in sorted(without):
        require(
            values[name] is None, f'{flag_of(name)} {values[name]}: the network {values["model"]} has no such option; leave the flag out'
        )

    def fill_in(name, value):
        if values[name] is None and name not in without:
            values[name] = value

    if values['gpus'] is not None:
        require(
            not values['num_gpus'] or values['num_gpus'] == len(values['gpus']), '--num-gpus and --gpus contradict each other: give one'
        )
        values['num_gpus'] = len(values['gpus'])
    if any(values[name] for name in ('lr_decay', 'lr_decay_epoch', 'lr_decay_period')):
        fill_in('lr_mode', 'step')  # as in GluonCV and BMXNet-v2, whose default it is
    values['use_rec'] = bool(values['use_rec'] or values['rec_train'] or values['rec_val'])
    if values['preset'] == FEW and values['few_images'] is None:  # a resumed run keeps the number
        values['few_images'] = few_images(values)
    dataset = _dataset_of(values['dataset'], values['few_images'] if values['batch_size'] is None else None)
    fill_in('data_dir', dataset.data_dir)
    fill_in('crop_ratio', dataset.crop_ratio)
    if not values['use_pretrained']:  # otherwise the weights determine the stem
        fill_in('initial_layers', dataset.initial_layers or zoo.default_of(values['model'], 'initial_layers'))
    fill_in('num_workers', dataset.num_workers)
    row = PRESETS[values['preset']]
    optimizer = values['optimizer'] or row['optimizer']
    require(
        values['momentum'] is None or optimizer_defaults(optimizer).momentum is not None,
        f'--momentum {values["momentum"]}: {optimizer} has no such argument; leave the flag out, or use --optimizer sgd or nag',
    )
    chosen = preset_values(row, dataset, values['optimizer'], values['num_epochs'])
    weight_bits = values['weight_bits'] or values['bits'] or chosen['bits']
    if values['binary_optimizer'] is None and (weight_bits == FULL_PRECISION or 'bits' in without):
        chosen.update(dict.fromkeys(OF_BINARY_WEIGHTS))  # there are none
    elif values['binary_optimizer'] not in (None, chosen['binary_optimizer']):
        lr = optimizer_defaults(values['binary_optimizer']).lr * dataset.lr_factor
        chosen.update(binary_lr=lr, binary_optimizer_params={})
    for name, value in chosen.items():
        fill_in(name, value)
    fill_in('input_size', dataset.input.size)
    fill_in('weight_bits', values['bits'])
    for name in OF_BINARY_WEIGHTS[1:]:
        require(values['binary_optimizer'] or values[name] is None, f'{flag_of(name)} has no effect without --binary-optimizer')
    for needed, dependent in DEPENDENT.items():
        for name, value in dependent.items():
            if values[needed]:
                fill_in(name, value)
            else:
                require(values[name] is None or values[name] is False, f'{flag_of(name)} has no effect without {flag_of(needed)}')
    return values


def describe_preset(options):
    """Return a text that lists which flags in `TrainingOptions` have the values of the preset and which are overridden."""
    rows = _dataset_of(options.dataset, options.few_images), DATASETS[options.dataset]
    limited, values = (preset_values(PRESETS[options.preset], row) for row in rows)
    values = limited if limited['batch_size'] == options.batch_size else values
    kept, overridden = [], []
    for name, value in values.items():
        if name.startswith('lr_decay') and options.lr_mode != 'step':
            continue
        if name == 'lr_power' and options.lr_mode != 'poly':
            continue
        chosen, flag = getattr(options, name), flag_of(name)
        if chosen is None and name in NETWORK_OPTIONS:
            continue
        if chosen == value:
            kept += [f'{flag} {_format(value)}'] if value not in (None, {}) else []
        else:
            overridden.append(f'{flag} {_format(chosen)} (not {_format(value)})')
    why = '' if options.few_images is None else f' (the default for fewer than {FEW_IMAGES} training images in a folder)'
    return f'{options.preset}{why}: {" ".join(kept)}' + (f'; overridden: {", ".join(overridden)}' if overridden else '')


def _format(value):
    if isinstance(value, (list, tuple)):
        return ','.join(map(str, value))
    if isinstance(value, bool):
        return 'on' if value else 'off'
    return f'{value:g}' if isinstance(value, float) else str(value)
