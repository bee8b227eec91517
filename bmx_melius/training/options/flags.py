"""Command-line flags of the training program, declared in groups. Those that GluonCV's training script also has keep name and meaning."""

import argparse
import dataclasses
from typing import Any

from ...arguments import Parser, add_val_fraction, epochs, json_object, number, numbers, positive_int, switch, whole_number
from ...data.datasets import DATASETS, LEVELS
from ...data.random_operations import MAX_MAGNITUDE
from ...errors import UserError
from ...nn.binarization import APPROXIMATIONS
from ..network import INITIALIZERS
from ..optimization import MODES, SCALINGS
from ..optimizer_names import OPTIMIZERS, optimizer_name
from .presets import AUTO, BAGGING, DEFAULT, ENSEMBLE_TRAININGS, FEW, FEW_IMAGES, PRESETS

KVSTORES = ('device', 'local', 'nccl', 'dist_sync', 'dist_device_sync', 'horovod')


def reductions(text):
    """Convert divisors of channels to the fractions that remain: '2,2.5' -> [0.5, 0.4]."""
    divisors = numbers(text)
    if min(divisors) < 1:
        raise argparse.ArgumentTypeError(f'expected numbers of at least 1 by which the channels are divided, not {text!r}')
    return [1 / divisor for divisor in divisors]


# Names of flags in GluonCV's and BMXNet-v2's scripts -> flag with the same meaning here. A name may have dashes or underscores.
ALIASES = {
    '--rgb-mean': '--mean',
    '--rgb-std': '--std',
    # of BMXNet-v2's image_classification.py
    '--bits-a': '--activation-bits',
    '--downsample-sc-groups': '--shortcut-groups',
    '--epochs': '--num-epochs',
    '--data-path': '--data-dir',
    '--num-worker': '--num-data-workers',
    '--prefix': '--save-dir',
    '--log': '--logging-file',
    '--lr-steps': '--lr-decay-epoch',
    '--start-epoch': '--resume-epoch',
}


@dataclasses.dataclass(frozen=True)
class ModelFlag:
    """A flag of these scripts for an item of --model-options: its key, its value or the type of its argument, and the help text.

    `gluoncv` begins the names of the networks of GluonCV that take it; networks of `zoo.takes_option` are known.
    """

    option: str
    value: Any
    help: str
    gluoncv: str = '-'


MODEL_FLAGS = {
    '--growth-rate': ModelFlag('growth_rate', positive_int, 'channels that each block of MeliusNet or BinaryDenseNet adds'),
    '--init-features': ModelFlag('init_features', positive_int, 'channels after the stem'),
    '--block-config': ModelFlag('block_numbers', epochs, 'blocks in each stage of meliusnet_flex or binary_densenet_flex'),
    '--reduction': ModelFlag('transitions', reductions, 'divisors of the channels in the transitions of these networks, such as 2,2.5,3'),
    '--dilated': ModelFlag('dilations', [1, 1, 2, 4], 'dilate the last stages of MeliusNet or BinaryDenseNet instead of halving the map'),
    '--batch-norm': ModelFlag('batch_norm', True, 'batch normalization in VGG', gluoncv='vgg'),
    '--use_se': ModelFlag('use_se', True, 'squeeze-and-excitation layers in ResNeXt', gluoncv='resnext'),
}

OF_MODEL_FLAGS = 'of_model_flags'  # attribute of parsed arguments: the items that they give

NO_DALI = 'NVIDIA DALI is not supported; leave it out, record files are read by MXNet (--use-rec)'
# Flags of these scripts for features that this program does not have.
REFUSED = {
    '--use-gn': "GluonCV's group normalization fails with MXNet 1.9; leave it out for batch normalization",
    **dict.fromkeys(
        [
            '--use-dali', '--dali-cpu', '--dali-separ-val', '--dali-threads', '--dali-validation-threads', '--dali-prefetch-queue',
            '--dali-nvjpeg-memory-padding', '--dali-fuse-decoder', '--flag', '--data-pred', '--image-shape', '--input-layout',
            '--conv-layout', '--batchnorm-layout', '--pooling-layout', '--num-examples', '--data-val-resize', '--kv-store',
        ],
        NO_DALI,
    ),
    # of BMXNet-v2's image_classification.py
    '--progress': 'leave it out: the remaining time is shown on the screen',
    '--plot-network': 'leave it out: SAVE_DIR/network.pdf is drawn if graphviz is installed; bmx-melius summary prints a table',
    '--profile': 'use a profiler such as py-spy',
    '--builtin-profiler': 'call mxnet.profiler in a script',
}  # fmt: skip

PROGRAM = 'train_imagenet.py'
EPILOG = """\
examples:
  {program} --model meliusnet22 --dataset digits      # handwritten digits, nothing to download
  {program} --model meliusnet22 --use-rec             # the protocol of the paper, ~/.mxnet/datasets/imagenet/rec/*.rec
  {program} --model meliusnetA --data-dir photos      # photos/train/CLASS/*.jpg and photos/val/CLASS/*.jpg, or photos/CLASS/*.jpg
  {program} --model meliusnet22 --data-dir photos --use-pretrained larq --freeze features   # fine-tune the output layer
  {program} --model nets.small:make_net --model-options '{{"width": 32}}' --dataset digits   # your own network
  {program} --model meliusnet22 --use-rec --dry-run   # show the plan, decode all images, train nothing
  {program} --resume --save-dir params                # continue a run that was killed; no other flag is needed

Ctrl-C stops after the current batch and writes a checkpoint. A second Ctrl-C stops at once; --resume then continues from the last
checkpoint. On the CPU of the same machine, with the same number of threads, a resumed run ends with exactly the weights of an
uninterrupted one. With record files this requires -j 1: with several decoding threads the augmentation by MXNet's ImageRecordIter depends
on timing.
"""


def make_parser(zoo, program=PROGRAM):
    """Return the parser of the training program.

    `zoo` is a module with the interface of `model_zoo`, which lists the networks; `program` is the name of the program in messages.
    """
    parser = Parser(
        prog=program,
        description='Train a binary network: on ImageNet, on your own images, or on handwritten digits.',
        epilog=EPILOG.format(program=program),
        allow_abbrev=False,
    )
    _add_network_flags(parser.add_argument_group('network'), zoo)
    _add_fine_tuning_flags(parser.add_argument_group('fine-tuning'))
    _add_data_flags(parser.add_argument_group('data'))
    _add_training_flags(parser.add_argument_group('training'))
    _add_objective_flags(parser.add_argument_group('objective'), zoo)
    _add_output_flags(parser.add_argument_group('saving and resuming'))
    parser.set_defaults(
        new_parameters=None, bootstrap_sha256=None, class_weight_values=None, few_images=None
    )  # not flags: a resumed run takes them from its checkpoint
    for flag, reason in REFUSED.items():
        parser.add_argument(flag, nargs='?', action=_Refuse, const=reason, help=argparse.SUPPRESS)
    parser.add_argument('--data-backend', type=_data_backend, help=argparse.SUPPRESS)
    known = parser._option_string_actions
    for alias, flag in ALIASES.items():
        known[alias] = known[flag]
        known[flag].option_strings.append(alias)
    for name, action in list(known.items()):
        known.update({'--' + name[2:].replace(*pair): action for pair in ('-_', '_-') if name.startswith('--')})
    return parser


def _add_network_flags(group, zoo):
    group.add_argument(
        '--model',
        type=_network_of(zoo),
        help='one of '
        + ', '.join(zoo.get_model_list())
        + ', or a float network of GluonCV that classifies images, such as mobilenet0.5 and '
        'resnet18_v1; or package.module:function, a function of your own that returns a HybridBlock for classes=N and --model-options. '
        'These and GluonCV networks take none of --initial-layers, --clip-threshold, --bits and --weight-bits',
    )
    group.add_argument(
        '--initial-layers',
        metavar='STEM',
        help='grouped_stem, imagenet, thumbnail, alexnet, alexnet_same or quicknet (default: as in the network; thumbnail for small '
        'images)',
    )
    group.add_argument(
        '--clip-threshold',
        type=number,
        metavar='T',
        help='set the gradient of the sign function to zero where |input| > T (default: the threshold of the network, 1.3 for MeliusNet)',
    )
    group.add_argument(
        '--bits',
        type=whole_number,
        choices=(*range(1, 9), 32),
        help='1: quantized activations and weights, with 2 bits where the network has 2; 2 to 8: of MeliusNet, BinaryDenseNet and ResNetE; '
        f'32: the full-precision counterpart of the network{_default("bits")}',
    )
    group.add_argument(
        '--weight-bits',
        type=whole_number,
        choices=(1, 32),
        help='bits of weights; 32 with binary activations is the first stage of two-stage training, whose second stage takes the '
        'weights by --resume-params (default: --bits)',
    )
    _add_bmxnet_flags(group)
    group.add_argument(
        '--last-gamma',
        action='store_true',
        help='initialize the scale of the last normalization in each residual block to zero, in networks that have such blocks',
    )
    group.add_argument(
        '--model-options',
        type=json_object,
        default={},
        metavar='JSON',
        help='further arguments of get_model, for example for meliusnet_flex \'{"block_numbers": [2, 2], "transitions": [0.5]}\'',
    )
    _add_pretrained(
        group,
        zoo,
        '--use-pretrained',
        'start from published weights of SOURCE, which define options of the network (see docs/importing.md); without SOURCE from the '
        'weights of networks that ship with them, such as meliusnet_fashion, or of GluonCV for its networks; others than those that ship '
        'are downloaded. For data of another number of classes the output layer is newly initialized',
    )
    group.add_argument(
        '--initialization',
        choices=INITIALIZERS,
        help=f'initialization of the weights; gaussian is Xavier(gaussian, in, 2){_default("initialization")}',
    )
    group.add_argument(
        '--mode',
        type=lambda name: 'hybrid' if name == 'symbolic' else name,
        choices=('hybrid', 'imperative'),
        default='hybrid',
        help='hybrid is faster; symbolic: the same (default: %(default)s)',
    )
    group.add_argument(
        '--dtype',
        choices=('float32', 'float16'),
        default='float32',
        help='data type of the network, where MXNet supports it (float16: on GPUs); the loss, normalization and the master weights of the '
        'optimizer stay float32 (default: %(default)s)',
    )


def _add_bmxnet_flags(group):
    """Add options of MeliusNet, BinaryDenseNet and residual networks that are flags in BMXNet-v2, whose names are also accepted."""
    group.add_argument(
        '--activation-bits',
        type=whole_number,
        choices=(*range(1, 9), 32),
        help='bits of activations, if not --bits; 32: real activations',
    )
    group.add_argument(
        '--activation-method',
        type=_quantizer,
        metavar='NAME',
        help='quantizer of activations: sign (also det_sign), approx_sign, round, dorefa, and with --activation-bits 32 relu, clip, '
        'leaky_clip, identity (default: the quantizer of the network, with several bits round, with 32 relu)',
    )
    group.add_argument(
        '--weight-quantization',
        type=_quantizer,
        metavar='NAME',
        help='quantizer of weights: sign (also det_sign), approx_sign, dorefa (default: as in the network, with several bits dorefa)',
    )
    group.add_argument(
        '--approximation',
        choices=APPROXIMATIONS,
        help='scale binary convolutions: binet by the mean magnitude of each filter, xnor also by the magnitude of the input',
    )
    group.add_argument(
        '--downsample-structure',
        metavar='LAYERS',
        help='layers of transitions in MeliusNet and BinaryDenseNet, from bn, relu, max_pool, pool, cs:N, fp_conv:N, q_conv '
        '(default: as in the network, for example bn,max_pool,relu,fp_conv)',
    )
    group.add_argument(
        '--slices', type=whole_number, choices=(1, 2, 4, 8), help='slices of the channels to which blocks of ResNetE add (default: 1)'
    )
    group.add_argument(
        '--shortcut-groups',
        type=positive_int,
        metavar='N',
        help='groups of the 1x1 convolutions in shortcuts of residual networks (default: 1)',
    )
    for flag, alias, what in (
        ('--binary-shortcut', '--fp-downsample-sc', 'binary 1x1 convolutions in shortcuts of residual networks'),
        ('--strided-shortcut', '--pool-downsample-sc', 'stride instead of average pooling in shortcuts of residual networks'),
    ):
        destination = flag[2:].replace('-', '_')
        group.add_argument(flag, action='store_true', default=None, help=f'{what}, as is the default of BMXNet-v2; {alias}: the opposite')
        group.add_argument(alias, dest=destination, action='store_false', default=None, help=argparse.SUPPRESS)
    for flag, row in MODEL_FLAGS.items():
        metavar = 'N' if row.value is positive_int else 'N,...'
        kind = {'type': _option(row), 'metavar': metavar} if callable(row.value) else {'nargs': 0, 'const': {row.option: row.value}}
        group.add_argument(
            flag, dest=OF_MODEL_FLAGS, action=_AddOptions, default={}, help=f'{row.help}; {row.option} of --model-options', **kind
        )


def _gpus(text):
    """'0,2' -> [0, 2]; '' -> []."""
    numbers = [number.strip() for number in text.split(',')] if text.strip() else []
    if not all(number.isascii() and number.isdigit() for number in numbers) or len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f'expected different numbers of GPUs separated by commas, such as 0,2, not {text!r}')
    return [int(number) for number in numbers]


def _quantizer(name):
    """Return the name of a quantizer for its name in BMXNet-v2: 'det_sign' -> 'sign'."""
    return 'sign' if name == 'det_sign' else name


def _add_fine_tuning_flags(group):
    group.add_argument(
        '--freeze',
        metavar='PATTERN',
        help='do not train the loaded parameters whose names contain a match of this regular expression: "features" for all but the output '
        'layer; frozen batch normalization uses its running statistics (names as in .params files; --dry-run lists some)',
    )
    group.add_argument(
        '--pretrained-lr-factor',
        type=number,
        default=1.0,
        metavar='F',
        help='multiply the learning rate of loaded parameters by F; new parameters keep the full rate (default: 1)',
    )


def _add_data_flags(group):
    group.add_argument(
        '--dataset',
        choices=DATASETS,
        default='imagenet',
        help='imagenet also denotes any other record files or image folders; digits are part of scikit-learn; glyphs are rendered from the '
        'typefaces in matplotlib; dummy is random numbers, for timing training without reading data (default: %(default)s)',
    )
    group.add_argument(
        '--data-dir',
        metavar='DIR',
        help='folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with CLASS/*.jpg, which is split (--val-fraction), or with the files '
        'of mnist, fashion-mnist, cifar10 or cifar100 (default: ~/.mxnet/datasets/DATASET)',
    )
    add_val_fraction(group)
    group.add_argument('--use-rec', action='store_true', help='read record files, as written by bmx-melius pack-images')
    group.add_argument('--rec-train', metavar='FILE', help='training record file (default: DATA_DIR/rec/train.rec)')
    group.add_argument('--rec-train-idx', metavar='FILE', help='its index (default: the same name, .idx)')
    group.add_argument('--rec-val', metavar='FILE', help='validation record file (default: DATA_DIR/rec/val.rec)')
    group.add_argument('--rec-val-idx', metavar='FILE', help='its index (default: the same name, .idx)')
    group.add_argument(
        '--bootstrap',
        nargs='?',
        const=True,
        default=False,
        metavar='FILE',
        help='train on as many images drawn with replacement: once for the whole run, or, with an .npy FILE of a weight for each '
        'training image, in each epoch with these probabilities (done for the members of an ensemble by --ensemble-training); a resumed '
        'run may read the same weights from another FILE',
    )
    group.add_argument(
        '-j',
        '--num-data-workers',
        dest='num_workers',
        type=whole_number,
        metavar='N',
        help='threads that decode and augment images (default: imagenet 4, digits and dummy 0, others 2)',
    )
    group.add_argument('--input-size', type=positive_int, metavar='N', help='height and width of the input (default: imagenet 224)')
    group.add_argument(
        '--channels',
        type=positive_int,
        metavar='N',
        help='channels of the images in folders: 3 (RGB, the default), 1 (gray), or as many as .npy and TIFF files have',
    )
    for name, what in (('mean', 'mean'), ('std', 'standard deviation')):
        group.add_argument(
            f'--{name}',
            type=_list_of_numbers,
            metavar='A,B,...',
            help=f'{what} of each channel, for pixels of 0 to 255 (default: as for the dataset; with --channels measured)',
        )
    group.add_argument(
        '--crop-ratio',
        type=number,
        metavar='R',
        help='validation crops INPUT_SIZE from images of INPUT_SIZE / R (default: imagenet 0.875, digits 0.8, others 1)',
    )
    group.add_argument(
        '--augmentation',
        choices=LEVELS,
        help='low: crop and mirror; medium: resized crop and mirror; high: also colour jitter; small images are shifted instead '
        'of resized, digits never mirrored' + _default('augmentation'),
    )
    group.add_argument(
        '--no-mirror',
        action='store_true',
        help='do not mirror training images, for classes that mirroring changes, such as letters, digits and directions',
    )
    group.add_argument(
        '--randaugment',
        type=_two_numbers,
        metavar='N,M',
        help=f'after that, apply N operations of RandAugment with the magnitude M, 0 to {MAX_MAGNITUDE}, such as 2,9',
    )
    group.add_argument(
        '--random-erasing',
        type=number,
        default=0.0,
        metavar='P',
        help='replace a rectangle by random pixels with probability P, such as 0.25',
    )


def _add_training_flags(group):
    group.add_argument(
        '--preset',
        choices=(*PRESETS, AUTO),
        default=DEFAULT,
        help='training protocol, which sets the defaults of other flags, auto: the protocol of the network; see docs/training-reference.md '
        f'(default: %(default)s; {FEW} for a folder with fewer than {FEW_IMAGES} training images)',
    )
    group.add_argument(
        '--ensemble-training',
        choices=ENSEMBLE_TRAININGS,
        help='for an ensemble such as resnet18_benn: train the members one after the other, each on a sample of the images (bagging) or on '
        'samples weighted by the errors of the members before (boosting), or all at once with the loss of their vote (joint) '
        f'(default: {BAGGING})',
    )
    group.add_argument(
        '--num-epochs',
        type=positive_int,
        metavar='N',
        help=f'number of epochs; the default is lower for small datasets{_default("num_epochs")}',
    )
    group.add_argument('--batch-size', type=positive_int, metavar='N', help=f'images per update on each device{_default("batch_size")}')
    group.add_argument(
        '--test-run',
        nargs='?',
        const=1,
        type=positive_int,
        metavar='N',
        help='test the whole training: train and validate on only N batches in each epoch (without N: 1)',
    )
    group.add_argument(
        '--num-gpus', type=whole_number, default=0, metavar='N', help='number of GPUs; 0 trains on the CPU (default: %(default)s)'
    )
    group.add_argument('--gpus', type=_gpus, metavar='N,N', help='numbers of the GPUs, such as 0,2, instead of --num-gpus')
    group.add_argument('--cpu', dest='gpus', action='store_const', const=[], help='train on the CPU, as without --num-gpus and --gpus')
    group.add_argument(
        '--kvstore',
        choices=KVSTORES,
        default='device',
        help='how devices and workers exchange gradients; see docs/distributed.md (default: %(default)s)',
    )
    group.add_argument(
        '--optimizer',
        type=optimizer_name,
        metavar='NAME',
        help=f'one of {", ".join(OPTIMIZERS)}, or any other optimizer of MXNet, such as lamb and rmsprop{_default("optimizer")}',
    )
    group.add_argument(
        '--optimizer-params',
        type=json_object,
        metavar='JSON',
        help='further arguments of the optimizer, for example \'{"beta1": 0.8, "clip_gradient": 1}\'',
    )
    group.add_argument(
        '--binary-optimizer',
        type=optimizer_name,
        metavar='NAME',
        help='update binary weights by this optimizer, and all other parameters by --optimizer (default: one optimizer for all)',
    )
    group.add_argument(
        '--binary-lr',
        type=number,
        metavar='LR',
        help='base learning rate of --binary-optimizer, with the same warm-up and decay (default: as for --lr)',
    )
    group.add_argument('--binary-optimizer-params', type=json_object, metavar='JSON', help='further arguments of --binary-optimizer')
    group.add_argument(
        '--lr', type=number, help=f'base learning rate ({_by_optimizer("lr")}; others: as in MXNet; for digits 4 times that)'
    )
    group.add_argument(
        '--lr-scaling',
        choices=SCALINGS,
        default='none',
        help='multiply --lr by (images per update) / 64 (linear) or its square root (sqrt) (default: %(default)s)',
    )
    group.add_argument(
        '--lr-factor',
        type=number,
        default=1.0,
        metavar='F',
        help='multiply all learning rates by F: of a preset, in each of its stages, and given by flags (default: 1)',
    )
    group.add_argument(
        '--wd', type=number, help=f'weight decay; not applied to quantized weights of which only the sign is used ({_by_optimizer("wd")})'
    )
    group.add_argument(
        '--no-wd',
        nargs='?',
        const=True,
        type=switch,
        metavar='on|off',
        help='no weight decay for biases and normalization; "off" where the preset turns it on (default: off)',
    )
    group.add_argument('--momentum', type=number, help='momentum of sgd and nag (default: 0.9)')
    group.add_argument('--lr-mode', choices=MODES, help=f'{_default("lr_mode").strip()}, with one of --lr-decay... step')
    group.add_argument(
        '--lr-power', type=number, metavar='P', help=f'exponent of --lr-mode poly; 1 is a linear decay{_default("lr_power")}'
    )
    group.add_argument(
        '--lr-decay',
        type=_factors,
        metavar='F[,F]',
        help=f'factor of --lr-mode step, or one for each of --lr-decay-epoch{_default("lr_decay")}',
    )
    group.add_argument(
        '--lr-decay-epoch',
        type=epochs,
        metavar='E,E',
        help='epochs at which the factor is applied (default: 40,60 of 120 epochs, in proportion)',
    )
    group.add_argument(
        '--lr-decay-period', type=whole_number, default=0, metavar='N', help='apply the factor every N epochs instead (default: 0, off)'
    )
    group.add_argument(
        '--warmup-epochs',
        type=whole_number,
        metavar='N',
        help=f'epochs of linear warm-up ({_by_optimizer("warmup_epochs")}; scaled with the number of epochs)',
    )
    group.add_argument('--warmup-lr', type=number, metavar='LR', help=f'initial learning rate of the warm-up{_default("warmup_lr")}')
    group.add_argument(
        '--num-training-samples',
        type=positive_int,
        metavar='N',
        help='images of an epoch for which the learning-rate schedule is computed (default: the images of the data)',
    )
    group.add_argument(
        '--early-stop',
        type=whole_number,
        default=0,
        metavar='N',
        help='stop after N epochs without a better top-1 accuracy on the validation images; 0: off (default: %(default)s)',
    )
    group.add_argument(
        '--ema',
        type=number,
        metavar='DECAY',
        help='keep an exponential moving average of all weights and running statistics with this factor, such as 0.999; it is evaluated, '
        'saved as weights and exported (default: off)',
    )
    group.add_argument('--seed', type=whole_number, default=0, help='seed of all random numbers (default: %(default)s)')


def _add_objective_flags(group, zoo):
    group.add_argument('--mixup', action='store_true', help='train on mixtures of two images')
    group.add_argument('--mixup-alpha', type=number, metavar='A', help='draw the mixing ratio from Beta(A, A) (default: 0.2)')
    group.add_argument('--cutmix', action='store_true', help='paste a rectangle of another image of the batch into each image')
    group.add_argument('--mixup-off-epoch', type=whole_number, metavar='N', help='turn mixup off in the last N epochs (default: 0)')
    group.add_argument('--label-smoothing', action='store_true', help='distribute 0.1 of the probability of each label over all classes')
    group.add_argument(
        '--class-weights',
        metavar='balanced|FILE',
        help='multiply the loss of an image by the weight of its class: balanced makes classes with few images as important as the others; '
        'or a JSON FILE, an object of class names to weights (1 where it has none) or a list of weights (default: all 1)',
    )
    group.add_argument(
        '--teacher',
        metavar='NAME',
        help='distill this network: a name as for --model, with weights of GluonCV if none are given, or the prefix of an exported network',
    )
    group.add_argument('--teacher-params', metavar='FILE', help='weights of a teacher given by name')
    _add_pretrained(
        group,
        zoo,
        '--teacher-pretrained',
        'or use published weights of SOURCE, without SOURCE of GluonCV; downloaded if they are not in ~/.mxnet/models',
    )
    group.add_argument('--teacher-options', type=json_object, metavar='JSON', help='further arguments of a teacher given by name')
    group.add_argument(
        '--assistants',
        type=_names,
        metavar='NAME,NAME',
        help='second teachers, each for an equal part of the epochs (BNext): prefixes of exported networks, or names of GluonCV; '
        'the loss is the mean of those with both teachers, weighted by their difficulty',
    )
    group.add_argument('--temperature', type=number, metavar='T', help='temperature of the softmax in the distillation loss (default: 20)')
    group.add_argument(
        '--hard-weight', type=number, metavar='W', help='weight of the labels in the distillation loss, 0 to 1 (default: 0.5)'
    )
    group.add_argument(
        '--attention-weight',
        type=number,
        metavar='W',
        help='attention transfer from the teacher: add W times the distances between the normalized spatial attention maps of both '
        'networks at each size of the feature maps; 0: off (default: 0)',
    )


def _names(text):
    return [name.strip() for name in text.split(',')]


def _add_output_flags(group):
    group.add_argument(
        '--config',
        metavar='FILE',
        help='read flags from a YAML or JSON file, such as "lr: 0.001", or from the config.json of a run (all but its folder); those of '
        'the command line override them',
    )
    group.add_argument(
        '--save-dir',
        default='params',
        metavar='DIR',
        help='folder for checkpoints (after each epoch), log, plots and the exported network (default: %(default)s)',
    )
    group.add_argument(
        '--save-frequency',
        type=whole_number,
        default=10,
        metavar='N',
        help='keep the weights of every N-th epoch, besides the last and the best weights; 0: none (default: %(default)s)',
    )
    group.add_argument(
        '--save-interval',
        type=whole_number,
        default=0,
        metavar='N',
        help='also write a checkpoint every N updates, for long epochs; 0: only after epochs (default: %(default)s)',
    )
    group.add_argument(
        '--resume',
        nargs='?',
        const=True,
        default=False,
        action=_Resume,
        metavar='FILE',
        help='continue the run in SAVE_DIR, with its flags; --num-epochs N extends it; with a FILE of weights --resume-params FILE',
    )
    group.add_argument(
        '--resume-params', metavar='FILE', help='initial weights of a new run; of another number of classes: all but the output layer'
    )
    group.add_argument(
        '--resume-states',
        metavar='FILE',
        help='initial state of the optimizer, with --resume-params: a .states file of a checkpoint or of Trainer.save_states',
    )
    group.add_argument(
        '--resume-epoch',
        type=whole_number,
        default=0,
        metavar='N',
        help='number of finished epochs, with --resume-params (default: %(default)s)',
    )
    group.add_argument(
        '--log-interval',
        type=whole_number,
        default=50,
        metavar='N',
        help='log every N updates; 0: only after epochs (default: %(default)s)',
    )
    group.add_argument('--track-flips', action='store_true', help='count sign changes of binary weights; writes flips.csv and flips.png')
    group.add_argument('--tensorboard', action='store_true', help='also write scalars for TensorBoard to SAVE_DIR/tensorboard')
    group.add_argument(
        '--write-summary',
        metavar='DIR',
        help='as --tensorboard, but in DIR and with histograms of the weights and of the gradients of the last update after each epoch',
    )
    group.add_argument(
        '--interrupt-at',
        type=positive_int,
        metavar='N',
        help='stop after epoch N with exit status 3, as if interrupted; --resume continues',
    )
    group.add_argument('--logging-file', metavar='FILE', help='log file (default: SAVE_DIR/experiment.log)')
    group.add_argument(
        '--dry-run',
        action='store_true',
        help='check flags and files, show the plan and decode all images, without training or writing files',
    )


def _add_pretrained(group, zoo, flag, help):
    """Add a flag for published weights; its value is False, True or the name of their source."""
    sources = zoo.get_pretrained_list()
    help = f'{help} (SOURCE: {", ".join(sources)})'
    group.add_argument(flag, nargs='?', const=True, default=False, choices=sources, metavar='SOURCE', help=help)


class _Refuse(argparse.Action):
    """Argparse action of the flags in `REFUSED`, which raises an error."""

    def __call__(self, parser, namespace, values, flag=None):
        parser.error(f'{flag}: {self.const}')


class _AddOptions(argparse.Action):
    """Argparse action that adds the items of a dict to the items of other flags."""

    def __call__(self, parser, namespace, values, flag=None):
        given = getattr(namespace, self.dest)
        setattr(namespace, self.dest, {**(given if isinstance(given, dict) else {}), **(self.const or values)})


class _Resume(argparse.Action):
    """Argparse action of --resume, which with a file is --resume-params, as in BMXNet-v2."""

    def __call__(self, parser, namespace, values, flag=None):
        setattr(namespace, 'resume' if values is True else 'resume_params', values)


def _option(row):
    """Return the argument type of a `ModelFlag`: the text of its value -> an item of --model-options."""
    return lambda text: {row.option: row.value(text)}


def _data_backend(name):
    """Return the name of the backend that reads images, 'mxnet'. Raises `ArgumentTypeError` for others."""
    if name != 'mxnet':
        raise argparse.ArgumentTypeError(f'{name}: {NO_DALI}' if name.startswith('dali') else f'expected mxnet, not {name!r}')
    return name


def _default(name):
    """Return the help text ' (default: 64)' of a flag whose default is set by the preset."""
    return f' (default: {PRESETS[DEFAULT][name]})'


def _by_optimizer(name):
    """Return the help text 'default: radam 0.002, adam 0.001, ...' of a flag whose default depends on the optimizer."""
    return 'default: ' + ', '.join(f'{optimizer} {getattr(row, name):g}' for optimizer, row in OPTIMIZERS.items())


def _network_of(zoo):
    """Return the argument type of --model, which converts names to those listed by zoo or GluonCV, 'MeliusNet_22' -> 'meliusnet22'."""

    def listed(name):
        try:
            found = zoo.listed_name(name)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if found is None:
            raise argparse.ArgumentTypeError(zoo.unknown_network(name))
        return found

    return listed


def _list_of_numbers(text):
    """'1,2.5' -> [1.0, 2.5]."""
    return list(numbers(text))


def _factors(text):
    """'0.1' -> 0.1, '0.5,0.2' -> [0.5, 0.2]."""
    factors = _list_of_numbers(text)
    return factors if len(factors) > 1 else factors[0]


def _two_numbers(text):
    """'2,9' -> [2, 9]."""
    try:
        first, second = map(int, text.split(','))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'expected two whole numbers N,M, not {text!r}') from error
    return [first, second]
