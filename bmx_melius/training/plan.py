"""What a run is going to do, in words: shown before it starts, and with --dry-run instead of it."""

from .objective import LABEL_SMOOTHING
from .presets import describe_preset
from .schedules import BATCH


def describe_run(options, model, source, counts, schedule):
    """The plan of a run as text.

    Parameters
    ----------
    options : argparse.Namespace
        Complete, as `options.parse` returns it.
    model : dict
        Arguments of `get_model`.
    source : Source
    counts : dict
        Of `bmx_melius.summary`.
    schedule : function from the number of an update, from 1, to its learning rate
    """
    spec, updates = source.spec, source.updates_per_epoch
    total = updates * options.num_epochs
    rates = ', '.join(f'{schedule(update):.3g} in update {update}' for update in sorted({1, max(1, total // 2), total}))
    return '\n'.join(
        (
            f'preset     {describe_preset(options)}',
            f'network    {options.model}, {model["initial_layers"]}, {source.classes} classes: {counts["ops"]:,.0f} OPs, '
            f'{counts["size_bytes"] / 2**20:.2f} MB; activations of {options.bits}, weights of {options.weight_bits} bits',
            f'data       {source.origin}: {source.train_images:,} training and {source.validation_images:,} validation images; '
            f'augmentation {options.augmentation}',
            f'input      {spec.channels} x {spec.size} x {spec.size}, validation: short side {spec.resize}, centre {spec.size}',
            f'updates    {options.num_epochs} epochs of {updates:,} updates of {source.images_per_update} images',
            f'optimizer  {options.optimizer}, weight decay {options.wd:g}, seed {options.seed}',
            f'objective  {_objective(options)}',
            f'rate       {options.lr_mode}, {options.warmup_epochs} epochs of warm-up: {rates}; scaling {options.lr_scaling} by '
            f'{source.images_per_update} / {BATCH} images',
            f'results    {options.save_dir}',
        )
    )


def _objective(options):
    parts = ['cross-entropy with the labels']
    if options.label_smoothing:
        parts.append(f'smoothed by {LABEL_SMOOTHING:g}')
    if options.mixup:
        parts.append(f'of mixtures (mixup-alpha {options.mixup_alpha:g}, off in the last {options.mixup_off_epoch} epochs)')
    if options.teacher:
        parts.append(
            f'and with the answers of {options.teacher} (temperature {options.temperature:g}, hard-weight {options.hard_weight:g})'
        )
    return ' '.join(parts)
