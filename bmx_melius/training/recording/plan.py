"""Plan of a run as text: logged before training, and by --dry-run instead of training."""

import math

from ...analysis.checking import check
from ...errors import UserError, counted
from ...nn.marks import ACTIVATION, CONVOLUTION, DENSE, ROLE
from ...nn.quantizers import FULL_PRECISION
from ..objective import LABEL_SMOOTHING
from ..optimization import BATCH
from ..options.presets import describe_preset

CHECKED_PIXELS = 16 * 64 * 64  # of the images with which a network is checked: few large images, or more small images
_PROBLEMS = 10  # maximum number of problems that the plan lists


def describe_run(options, model, source, graph, counts, schedule, attention=None, initial=None):
    """Return the plan of a run as text.

    Parameters
    ----------
    options : TrainingOptions
    model : dict
        Arguments of `get_model`.
    source : Source
    graph : Graph
        Graph of the network.
    counts : dict
        Counts of the network, as in `Summary.counts`.
    schedule : callable int -> float
        Learning rate of an update; updates are counted from 1.
    attention : AttentionTransfer, optional
    initial : dict of str to (str or None), optional
        Further lines about the weights from which the run starts: heading -> text.
    """
    spec, updates = source.spec, source.updates_per_epoch
    total = updates * options.num_epochs
    rates = ', '.join(f'{schedule(update):.3g} in update {update}' for update in sorted({1, max(1, total // 2), total}))
    return '\n'.join(
        (
            f'preset     {describe_preset(options)}',
            f'network    {", ".join(filter(None, (options.model, model.get("initial_layers"))))}, {counted(source.classes, "class")}: '
            f'{counts["ops"]:,.0f} OPs, {counts["size_bytes"] / 2**20:.2f} MB; {_describe_bits(options, graph)}',
            *(f'{heading:10} {text}' for heading, text in (initial or {}).items() if text),
            f'data       {source.origin}: {source.train_images:,} training and '
            f'{counted(source.validation_images, "validation image", ",")}; '
            f'augmentation {_describe_augmentation(options)}{_describe_bootstrap(options.bootstrap)}',
            f'input      {spec.channels} x {spec.size} x {spec.size}, validation: short side {spec.resize}, centre {spec.size}',
            f'updates    {counted(options.num_epochs, "epoch")} of {counted(updates, "update", ",")} of '
            f'{counted(source.images_per_update, "image")}',
            f'optimizer  {options.optimizer}'
            + (f', binary weights {options.binary_optimizer} at {options.binary_lr:g}' if options.binary_optimizer else '')
            + f', weight decay {options.wd:g}, seed {options.seed}'
            + (f'; the moving average of the weights is evaluated and exported (ema {options.ema:g})' if options.ema else ''),
            f'objective  {_describe_objective(options, attention)}',
            f'rate       {options.lr_mode}, {counted(options.warmup_epochs, "epoch")} of warm-up: {rates}; scaling {options.lr_scaling} by '
            f'{source.images_per_update} / {BATCH} images{_describe_factors(options)}',
            f'results    {options.save_dir}',
        )
    )


def duration(seconds):
    """Return a time as text: 3725 -> '1 h 2 min', 75 -> '1 min 15 s', 9.6 -> '10 s'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f'{hours:,} h {minutes} min'
    return f'{minutes} min {rest} s' if minutes else f'{rest} s' if rest else f'{seconds:.2g} s'


def describe_check(net, batches, options):
    """Return the problems that `check` finds in a network with its initial weights as text: a line each.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialized.
    batches : iterable of (NDArray, NDArray)
        Images and labels; images of the first batch are used.
    options : TrainingOptions
    """
    images = next(iter(batches))[0]
    images = images[: min(32, max(4, CHECKED_PIXELS // math.prod(images.shape[2:])))]
    device = net.collect_params().list_ctx()[0]
    try:
        problems = check(net, images.as_in_context(device).astype(options.dtype)).problems
    except UserError as error:
        return f'not possible: {error}'
    if not problems:
        return f'bmx.check finds no problem (one pass on {counted(len(images), "image")})'
    lines = [f'bmx.check finds {len(problems)} {"problem" if len(problems) == 1 else "problems"} (docs/training.md explains them):']
    lines += problems[:_PROBLEMS] + ([f'... and {len(problems) - _PROBLEMS} more'] if len(problems) > _PROBLEMS else [])
    if any(name.endswith('gamma') and parameter.init == 'zeros' for name, parameter in net.collect_params().items()):
        lines.append('(with gammas of 0, as by --last-gamma, gradients of 0 in residual blocks are intended in the first update)')
    return '\n           '.join(lines)


def _describe_augmentation(options):
    parts = [options.augmentation]
    if options.no_mirror:
        parts.append('without mirroring')
    if options.randaugment:
        parts.append('{} operations of RandAugment of magnitude {}'.format(*options.randaugment))
    if options.random_erasing:
        parts.append(f'random erasing with probability {options.random_erasing:g}')
    return ', '.join(parts)


def _describe_bootstrap(bootstrap):
    if not bootstrap:
        return ''
    return '; drawn once with replacement' if bootstrap is True else f'; drawn in each epoch with the weights in {bootstrap}'


def _describe_factors(options):
    text = '' if options.lr_factor == 1 else f', times {options.lr_factor:g}'
    if options.pretrained_lr_factor == 1:
        return text
    return f'{text}; loaded weights at {options.pretrained_lr_factor:g} times the rate'


def _describe_bits(options, graph):
    """Return the bits of activations and weights as the layers have marked them: ``--bits 1`` denotes more in low-bit networks."""
    if options.bits is None and ':' not in options.model:
        return 'float network of GluonCV'
    activations, weights = _bits(graph, ACTIVATION), _bits(graph, CONVOLUTION, DENSE)
    return f'activations of {activations}, weights of {weights} bits'


def _bits(graph, *roles):
    found = sorted({int(node.marks['bits']) for node in graph.nodes if node.marks.get(ROLE) in roles})
    return ' and '.join(map(str, found or [FULL_PRECISION]))


def _describe_objective(options, attention):
    parts = ['cross-entropy with the labels']
    if options.label_smoothing:
        parts.append(f'smoothed by {LABEL_SMOOTHING:g}')
    if options.mixup:
        parts.append(f'of mixtures (mixup-alpha {options.mixup_alpha:g}, off in the last {counted(options.mixup_off_epoch, "epoch")})')
    if options.cutmix:
        parts.append('of images with a rectangle of another one (cutmix)')
    if options.class_weights:
        weights = options.class_weight_values
        parts.append(f'weighted by class ({options.class_weights}: {min(weights):.3g} to {max(weights):.3g})')
    if options.teacher:
        second = f' and, one after the other, of {", ".join(options.assistants)}' if options.assistants else ''
        parts.append(
            f'and with the answers of {options.teacher}{second} (temperature {options.temperature:g}, hard-weight {options.hard_weight:g})'
        )
    if attention:
        parts.append(f'and its {attention}')
    return ' '.join(parts)
