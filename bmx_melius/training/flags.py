"""Flags of ``train_imagenet.py``: from the command line, and the run that is resumed, to a `RunConfig`."""

import argparse
import json
import os

import mxnet as mx

from ..arguments import Parser, flag_of, positive_int, require
from ..data.datasets import DATASETS, LEVELS
from ..errors import UserError
from .config import RunConfig
from .network import INITIALIZERS
from .optimization import MODES, SCALINGS
from .presets import DEFAULT, OPTIMIZERS, PRESETS, with_defaults
from .recording.scalars import check_installed
from .saving.checkpoints import Checkpoints

KVSTORES = ('device', 'local', 'nccl', 'dist_sync', 'dist_device_sync', 'horovod')

# Flags of GluonCV's scripts that ask for something this program does not do.
REFUSED = {
    '--use-dali': 'NVIDIA DALI is not supported; record files are read by MXNet (--use-rec)',
    '--dali-cpu': 'NVIDIA DALI is not supported; record files are read by MXNet (--use-rec)',
    '--use_se': 'no network of this zoo has squeeze-and-excitation layers',
    '--use-gn': 'group normalization is not implemented',
    '--batch-norm': 'every network of this zoo has batch normalization',
}

# A resumed run may change these: they decide neither what is computed nor on what. (For record files see RecordSource on threads.)
CHANGEABLE = {
    'resume',
    'dry_run',
    'log_interval',
    'logging_file',
    'tensorboard',
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

EPILOG = """\
examples:
  train_imagenet.py --model meliusnet22 --dataset digits           handwritten digits, nothing to download
  train_imagenet.py --model meliusnet22 --use-rec                  the paper's protocol, ~/.mxnet/datasets/imagenet/rec/{train,val}.rec
  train_imagenet.py --model meliusnetA --data-dir photos           folders photos/train/CLASS/*.jpg and photos/val/CLASS/*.jpg
  train_imagenet.py --model meliusnet22 --use-rec --dry-run        show what would be done, decode all images, train nothing
  train_imagenet.py --resume --save-dir params                     continue a run that was killed; no other flag is needed

Ctrl-C stops after the running batch; --resume continues from there. A second Ctrl-C stops at once; --resume continues from the last
checkpoint. A run that was stopped or killed and resumed ends with the weights of
the uninterrupted one, bit for bit, on the CPU of the same machine with as many threads. Record files need -j 1 for that: with several
decoding threads MXNet's ImageRecordIter draws random numbers for augmentation in the order in which the threads come to it.
"""


def parse_flags(arguments, zoo):
    """Return the configuration of a run.

    Parameters
    ----------
    arguments : list of str or None
        Of the command line; None takes those of the process.
    zoo : module
        As `model_zoo`: the networks and published weights that flags may name.

    Returns
    -------
    RunConfig

    Raises
    ------
    UserError
        For a flag that cannot be honoured, alone or beside the others.
    """
    parser = make_parser(zoo)
    options = parser.parse_args(arguments)
    if not options.resume:
        if not options.dry_run:
            Checkpoints.refuse_run(options.save_dir)
        return _available(RunConfig.from_flags(with_defaults(vars(options))))
    saved = Checkpoints.read(options.save_dir)
    if not saved:
        raise UserError(f'there is no run to resume in {options.save_dir}: point --save-dir to one')
    parser.set_defaults(**saved['options'])
    options, before = vars(parser.parse_args(arguments)), vars(parser.parse_args([]))
    config = RunConfig.from_flags(with_defaults(options))
    chosen = config.to_flags()
    changed = [name for name in saved['options'] if name in chosen and name not in CHANGEABLE and chosen[name] != before[name]]
    if changed:
        flags = ', '.join(f'{flag_of(name)} {before[name]}' for name in changed)
        raise UserError(
            f'the run in {options["save_dir"]} was started with {flags}; leave that as it is, or start a new run from its weights '
            'with --resume-params and another --save-dir'
        )
    return _available(config)


def make_parser(zoo):
    """Return the parser. Names and meaning of flags are those of GluonCV's script where it has them."""
    parser = Parser(
        prog='train_imagenet.py',
        description='Train a binary network: on ImageNet, on your own images, or on handwritten digits.',
        epilog=EPILOG,
        allow_abbrev=False,
    )
    _add_network_flags(parser.add_argument_group('network'), zoo)
    _add_data_flags(parser.add_argument_group('data'))
    _add_training_flags(parser.add_argument_group('training'))
    _add_objective_flags(parser.add_argument_group('objective'), zoo)
    _add_output_flags(parser.add_argument_group('saving and resuming'))
    for flag in REFUSED:
        parser.add_argument(flag, nargs='?', action=_Refuse, help=argparse.SUPPRESS)
    return parser


def _add_network_flags(group, zoo):
    group.add_argument('--model', type=_network_of(zoo), help='one of ' + ', '.join(zoo.get_model_list()))
    group.add_argument(
        '--initial-layers', metavar='STEM', help='grouped_stem, imagenet or thumbnail (default: grouped_stem; for small images thumbnail)'
    )
    group.add_argument(
        '--clip-threshold',
        type=float,
        metavar='T',
        help="cancel the gradient of a sign where its input exceeds this (default: the network's own, MeliusNet 1.3)",
    )
    group.add_argument(
        '--bits', type=int, choices=(1, 32), help=f'of activations and weights; 32 trains the float twin of the network{_default("bits")}'
    )
    group.add_argument(
        '--weight-bits',
        type=int,
        choices=(1, 32),
        help='of weights alone; 32 beside binary activations is the first of two stages, whose weights the second one takes '
        'by --resume-params (default: as --bits)',
    )
    group.add_argument(
        '--last-gamma',
        action='store_true',
        help='start the last normalization of each residual block at zero, in networks that have such blocks',
    )
    group.add_argument(
        '--model-options',
        type=_json_object,
        default={},
        metavar='JSON',
        help='further arguments of the network, for example of meliusnet_flex \'{"block_numbers": [2, 2], "transitions": [0.5]}\'',
    )
    _add_pretrained(
        group,
        zoo,
        '--use-pretrained',
        'start from published weights of SOURCE, whose networks have options of their own, see '
        'docs/zoo.md; without it from those of this project, which has published none',
    )
    group.add_argument(
        '--initialization',
        choices=INITIALIZERS,
        help=f'of the weights; gaussian is Xavier(gaussian, in, 2){_default("initialization")}',
    )
    group.add_argument('--mode', choices=('hybrid', 'imperative'), default='hybrid', help='hybrid is faster (default: %(default)s)')
    group.add_argument(
        '--dtype',
        choices=('float32', 'float16'),
        default='float32',
        help='what the network computes in, where MXNet can (float16: on GPUs); loss, normalization and the weights that '
        'the optimizer keeps stay float32 (default: %(default)s)',
    )


def _add_data_flags(group):
    group.add_argument(
        '--dataset',
        choices=DATASETS,
        default='imagenet',
        help='imagenet stands for any images of yours, digits come with scikit-learn, dummy is random numbers, to time '
        'training without reading data (default: %(default)s)',
    )
    group.add_argument(
        '--data-dir',
        metavar='DIR',
        help='folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with the files of mnist, fashion-mnist, cifar10 or '
        'cifar100 (default: ~/.mxnet/datasets/DATASET)',
    )
    group.add_argument('--use-rec', action='store_true', help='read record files, packed with: bmx-melius pack-images')
    group.add_argument('--rec-train', metavar='FILE', help='training record file (default: DATA_DIR/rec/train.rec)')
    group.add_argument('--rec-train-idx', metavar='FILE', help='its index (default: the same name, .idx)')
    group.add_argument('--rec-val', metavar='FILE', help='validation record file (default: DATA_DIR/rec/val.rec)')
    group.add_argument('--rec-val-idx', metavar='FILE', help='its index (default: the same name, .idx)')
    group.add_argument(
        '-j',
        '--num-data-workers',
        dest='num_workers',
        type=int,
        metavar='N',
        help='threads that decode and augment (default: imagenet 4, digits and dummy 0, others 2)',
    )
    group.add_argument('--input-size', type=positive_int, metavar='N', help='height and width of the input (default: imagenet 224)')
    group.add_argument(
        '--crop-ratio',
        type=float,
        metavar='R',
        help='validation crops INPUT_SIZE from images of INPUT_SIZE / R (default: imagenet 0.875, digits 0.8, others 1)',
    )
    group.add_argument(
        '--augmentation',
        choices=LEVELS,
        help='low: crop and mirror; medium: resized crop and mirror; high: colours too; small images are shifted '
        'instead, digits never mirrored' + _default('augmentation'),
    )


def _add_training_flags(group):
    group.add_argument(
        '--preset',
        choices=PRESETS,
        default=DEFAULT,
        help='the protocol that sets the defaults of other flags, see docs/training.md (default: %(default)s)',
    )
    group.add_argument('--num-epochs', type=positive_int, metavar='N', help=f'fewer on small datasets{_default("num_epochs")}')
    group.add_argument('--batch-size', type=positive_int, metavar='N', help=f'for each device{_default("batch_size")}')
    group.add_argument('--num-gpus', type=int, default=0, metavar='N', help='0 trains on the CPU (default: %(default)s)')
    group.add_argument(
        '--kvstore',
        choices=KVSTORES,
        default='device',
        help='how devices and processes exchange gradients; docs/distributed.md tells of several (default: %(default)s)',
    )
    group.add_argument('--optimizer', choices=OPTIMIZERS, help=_default('optimizer').strip())
    group.add_argument('--lr', type=float, help=f'base learning rate ({_by_optimizer("lr")}; digits: 4 times that)')
    group.add_argument(
        '--lr-scaling',
        choices=SCALINGS,
        default='none',
        help='multiply --lr by the images of an update / 64 (linear) or the root of that (sqrt) (default: %(default)s)',
    )
    group.add_argument('--wd', type=float, help=f'weight decay; binary weights have none ({_by_optimizer("wd")})')
    group.add_argument('--no-wd', action='store_true', help='no weight decay on biases and normalization')
    group.add_argument('--momentum', type=float, help='of sgd and nag (default: 0.9)')
    group.add_argument('--lr-mode', choices=MODES, help=_default('lr_mode').strip())
    group.add_argument('--lr-decay', type=float, metavar='F', help=f'factor of mode step{_default("lr_decay")}')
    group.add_argument(
        '--lr-decay-epoch', type=_epochs, metavar='E,E', help='epochs at which it is applied (default: 40,60 of 120, in proportion)'
    )
    group.add_argument('--lr-decay-period', type=int, default=0, metavar='N', help='or: apply it every N epochs (default: 0, off)')
    group.add_argument(
        '--warmup-epochs',
        type=int,
        metavar='N',
        help=f'of linearly growing rate ({_by_optimizer("warmup_epochs")}, in proportion to the epochs of the preset)',
    )
    group.add_argument('--warmup-lr', type=float, metavar='LR', help=f'rate the warm-up starts from{_default("warmup_lr")}')
    group.add_argument('--seed', type=int, default=0, help='of every random number (default: %(default)s)')


def _add_objective_flags(group, zoo):
    group.add_argument('--mixup', action='store_true', help='train on mixtures of two images')
    group.add_argument('--mixup-alpha', type=float, metavar='A', help="an image's share is drawn from Beta(A, A) (default: 0.2)")
    group.add_argument('--mixup-off-epoch', type=int, metavar='N', help='no mixtures in the last N epochs (default: 0)')
    group.add_argument('--label-smoothing', action='store_true', help='spread a tenth of each label over all classes')
    group.add_argument(
        '--teacher', metavar='NAME', help='learn from this network too: one of this zoo or of GluonCV, or the prefix of an exported one'
    )
    group.add_argument('--teacher-params', metavar='FILE', help='weights of a teacher by name')
    _add_pretrained(
        group,
        zoo,
        '--teacher-pretrained',
        '... or published ones of SOURCE; without it those of GluonCV. They are downloaded if they are not in ~/.mxnet/models',
    )
    group.add_argument('--teacher-options', type=_json_object, metavar='JSON', help='further arguments of a teacher by name')
    group.add_argument('--temperature', type=float, metavar='T', help="softens the teacher's answers (default: 20)")
    group.add_argument('--hard-weight', type=float, metavar='W', help='share of the labels in the loss, 0 to 1 (default: 0.5)')


def _add_output_flags(group):
    group.add_argument(
        '--save-dir',
        default='params',
        metavar='DIR',
        help='checkpoint (each epoch), log, curves and the exported network go there (default: %(default)s)',
    )
    group.add_argument(
        '--save-frequency',
        type=int,
        default=10,
        metavar='N',
        help='besides the last and the best weights keep those of every N-th epoch, 0: none (default: %(default)s)',
    )
    group.add_argument(
        '--save-interval',
        type=int,
        default=0,
        metavar='N',
        help='also write a checkpoint every N updates, for long epochs, 0: only after epochs (default: %(default)s)',
    )
    group.add_argument('--resume', action='store_true', help='continue the run in SAVE_DIR, with its flags')
    group.add_argument('--resume-params', metavar='FILE', help='start a new run from these weights')
    group.add_argument(
        '--resume-states',
        metavar='FILE',
        help='... and this state of the optimizer: the .states of a checkpoint, or of Trainer.save_states',
    )
    group.add_argument('--resume-epoch', type=int, default=0, metavar='N', help='... as if N epochs were over (default: %(default)s)')
    group.add_argument(
        '--log-interval', type=int, default=50, metavar='N', help='log every N updates, 0: only epochs (default: %(default)s)'
    )
    group.add_argument('--track-flips', action='store_true', help='count changes of sign of binary weights: flips.csv and flips.png')
    group.add_argument('--tensorboard', action='store_true', help='also write curves for TensorBoard to SAVE_DIR/tensorboard')
    group.add_argument('--logging-file', metavar='FILE', help='(default: SAVE_DIR/experiment.log)')
    group.add_argument(
        '--dry-run', action='store_true', help='check flags and files, show the plan, decode all images, train and write nothing'
    )


def _add_pretrained(group, zoo, flag, help):
    """Add a flag for published weights: False, True, or their source."""
    sources = zoo.get_pretrained_list()
    help = f'{help} (SOURCE: {", ".join(sources)})'
    group.add_argument(flag, nargs='?', const=True, default=False, choices=sources, metavar='SOURCE', help=help)


def _available(config):
    """Return the configuration. Raises `UserError` where this machine or its installation of MXNet lacks something that it asks for."""
    features, gpus = mx.runtime.Features(), mx.context.num_gpus()
    if config.output.tensorboard:
        check_installed()
    problem = f'this machine has {gpus}'
    if not features.is_enabled('CUDA'):
        problem = 'this MXNet was built without CUDA; install a build with it, or leave the flag out'
    require(config.num_gpus <= gpus, f'--num-gpus {config.num_gpus}: {problem}')
    require(
        config.kvstore != 'nccl' or features.is_enabled('NCCL'),
        '--kvstore nccl: this MXNet was built without NCCL; take --kvstore device',
    )
    require(
        not config.kvstore.startswith('dist') or 'DMLC_ROLE' in os.environ,
        f'--kvstore {config.kvstore}: start all processes by python -m bmx_melius.distributed.launcher, or as docs/distributed.md says',
    )
    return config


class _Refuse(argparse.Action):
    """The action of a flag in `REFUSED`."""

    def __call__(self, parser, namespace, values, flag=None):
        parser.error(f'{flag}: {REFUSED[flag]}')


def _default(name):
    """' (default: 64)' for a flag whose default is the protocol's."""
    return f' (default: {PRESETS[DEFAULT][name]})'


def _by_optimizer(name):
    """'default: radam 0.002, adam 0.001, ...' for a flag whose default is the optimizer's."""
    return 'default: ' + ', '.join(f'{optimizer} {getattr(row, name):g}' for optimizer, row in OPTIMIZERS.items())


def _network_of(zoo):
    """The argument type of --model: the name under which a network is listed, 'MeliusNet_22' -> 'meliusnet22'."""

    def listed(name):
        found = zoo.listed_name(name)
        if found is None:
            raise argparse.ArgumentTypeError(f'unknown network {name!r}; known: {", ".join(zoo.get_model_list())}')
        return found

    return listed


def _epochs(text):
    """'40,60' -> [40, 60]."""
    return [int(epoch) for epoch in text.split(',')]


def _json_object(text):
    """'{"a": 1}' -> {'a': 1}."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value
