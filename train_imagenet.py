#!/usr/bin/env python
"""Train a binary network: on ImageNet, on images of your own, or on handwritten digits."""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time

# Until everything is imported, which takes seconds, Ctrl-C ends the program without a traceback: the system does it, not Python.
if __name__ == '__main__' and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# MXNet reads these when it is imported. Without them it computes elementwise operators, a third of a binary network's training step, in
# one thread: its tuning judges other threads too dear, and it keeps a core for itself where their number was not set by hand.
os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
os.environ.setdefault('OMP_NUM_THREADS', str(len(os.sched_getaffinity(0))))
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')  # threads that wait leave their core to other programs instead of spinning

# Importing MXNet in the role of a server or scheduler of a distributed job would do nothing else, ever: `serve` takes care of that.
os.environ['BMX_MELIUS_ROLE'] = os.environ.pop('DMLC_ROLE', '')

import mxnet as mx
from mxnet import autograd, gluon

from bmx_melius import UserError
from bmx_melius.analysis.evaluation import Accuracy
from bmx_melius.analysis.graph import Graph
from bmx_melius.analysis.summary import Summary
from bmx_melius.arguments import Parser, positive_int
from bmx_melius.data.datasets import DATASETS, LEVELS
from bmx_melius.data.opening import open_source
from bmx_melius.distributed import join_workers
from bmx_melius.distributed.lockstep import Lockstep
from bmx_melius.distributed.servers import serve
from bmx_melius.exported import description_fields
from bmx_melius.files import check_folder, remove_leftovers
from bmx_melius.reporting import LOG, keep_screen_for_warnings, logging_to_file, logging_to_screen
from bmx_melius.seeding import seed_for
from bmx_melius.training import options as flags
from bmx_melius.training.checkpoints import Checkpoints
from bmx_melius.training.export import export_network
from bmx_melius.training.flips import FlipCounter
from bmx_melius.training.folder_lock import locked
from bmx_melius.training.interruption import STOPPED_AT_ONCE, Interruption
from bmx_melius.training.network import make_network, model_arguments
from bmx_melius.training.objective import make_objective
from bmx_melius.training.optimization import make_trainer
from bmx_melius.training.plan import describe_run
from bmx_melius.training.precision import check_dtype
from bmx_melius.training.presets import DEFAULT, OPTIMIZERS, PRESETS
from bmx_melius.training.report import Bar, show
from bmx_melius.training.run_folder import LOG_FILE, RunFolder
from bmx_melius.training.scalars import Scalars
from bmx_melius.training.schedules import MODES, SCALINGS
from bmx_melius.training.start import start, warn_of_little_space
from model_zoo import get_model, get_model_list
from model_zoo.registry import get_pretrained_list, get_pretrained_options, listed_name

ROLE = os.environ.pop('BMX_MELIUS_ROLE')
if ROLE:
    os.environ['DMLC_ROLE'] = ROLE

EPILOG = """\
examples:
  train_imagenet.py --model meliusnet22 --dataset digits           handwritten digits, nothing to download
  train_imagenet.py --model meliusnet22 --use-rec                  the paper's protocol, ~/.mxnet/datasets/imagenet/rec/{train,val}.rec
  train_imagenet.py --model meliusnetA --data-dir photos           folders photos/train/CLASS/*.jpg and photos/val/CLASS/*.jpg
  train_imagenet.py --model meliusnet22 --use-rec --dry-run        show what would be done, decode all images, train nothing
  train_imagenet.py --resume --save-dir params                     continue a run that was killed; no other flag is needed

Ctrl-C stops after the running batch; --resume goes on from there. A second Ctrl-C stops at once; --resume goes on from the last
checkpoint. A run that was stopped or killed and resumed ends with the weights of the uninterrupted one, bit for bit, on the CPU of the
same machine with as many threads. Record files need -j 1 for that: with several decoding threads MXNet's ImageRecordIter draws random
numbers for augmentation in the order in which the threads come to it.
"""


def make_parser():
    """The flags. Names and meaning are those of GluonCV's script where it has them."""
    parser = Parser(description=__doc__, epilog=EPILOG, allow_abbrev=False)

    group = parser.add_argument_group('network')
    group.add_argument('--model', type=network, help='one of ' + ', '.join(get_model_list()))
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
        '--bits', type=int, choices=(1, 32), help=f'of activations and weights; 32 trains the float twin of the network{default("bits")}'
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
        type=json_object,
        default={},
        metavar='JSON',
        help='further arguments of the network, for example of meliusnet_flex \'{"block_numbers": [2, 2], "transitions": [0.5]}\'',
    )
    add_pretrained(
        group,
        '--use-pretrained',
        'start from published weights of SOURCE, whose networks have options of their own, see '
        'docs/zoo.md; without it from those of this project, which has published none',
    )
    group.add_argument(
        '--initialization',
        choices=flags.INITIALIZERS,
        help=f'of the weights; gaussian is Xavier(gaussian, in, 2){default("initialization")}',
    )
    group.add_argument('--mode', choices=('hybrid', 'imperative'), default='hybrid', help='hybrid is faster (default: %(default)s)')
    group.add_argument(
        '--dtype',
        choices=('float32', 'float16'),
        default='float32',
        help='what the network computes in, where MXNet can (float16: on GPUs); loss, normalization and the weights that '
        'the optimizer keeps stay float32 (default: %(default)s)',
    )

    group = parser.add_argument_group('data')
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
        'instead, digits never mirrored' + default('augmentation'),
    )

    group = parser.add_argument_group('training')
    group.add_argument(
        '--preset',
        choices=PRESETS,
        default=DEFAULT,
        help='the protocol that sets the defaults of other flags, see docs/training.md (default: %(default)s)',
    )
    group.add_argument('--num-epochs', type=positive_int, metavar='N', help=f'fewer on small datasets{default("num_epochs")}')
    group.add_argument('--batch-size', type=positive_int, metavar='N', help=f'for each device{default("batch_size")}')
    group.add_argument('--num-gpus', type=int, default=0, metavar='N', help='0 trains on the CPU (default: %(default)s)')
    group.add_argument(
        '--kvstore',
        choices=flags.KVSTORES,
        default='device',
        help='how devices and processes exchange gradients; docs/distributed.md tells of several (default: %(default)s)',
    )
    group.add_argument('--optimizer', choices=OPTIMIZERS, help=default('optimizer').strip())
    group.add_argument('--lr', type=float, help=f'base learning rate ({by_optimizer("lr")}; digits: 4 times that)')
    group.add_argument(
        '--lr-scaling',
        choices=SCALINGS,
        default='none',
        help='multiply --lr by the images of an update / 64 (linear) or the root of that (sqrt) (default: %(default)s)',
    )
    group.add_argument('--wd', type=float, help=f'weight decay; binary weights have none ({by_optimizer("wd")})')
    group.add_argument('--no-wd', action='store_true', help='no weight decay on biases and normalization')
    group.add_argument('--momentum', type=float, help='of sgd and nag (default: 0.9)')
    group.add_argument('--lr-mode', choices=MODES, help=default('lr_mode').strip())
    group.add_argument('--lr-decay', type=float, metavar='F', help=f'factor of mode step{default("lr_decay")}')
    group.add_argument(
        '--lr-decay-epoch', type=epochs, metavar='E,E', help='epochs at which it is applied (default: 40,60 of 120, in proportion)'
    )
    group.add_argument('--lr-decay-period', type=int, default=0, metavar='N', help='or: apply it every N epochs (default: 0, off)')
    group.add_argument(
        '--warmup-epochs',
        type=int,
        metavar='N',
        help=f'of linearly growing rate ({by_optimizer("warmup_epochs")}, in proportion to the epochs of the preset)',
    )
    group.add_argument('--warmup-lr', type=float, metavar='LR', help=f'rate the warm-up starts from{default("warmup_lr")}')
    group.add_argument('--seed', type=int, default=0, help='of every random number (default: %(default)s)')

    group = parser.add_argument_group('objective')
    group.add_argument('--mixup', action='store_true', help='train on mixtures of two images')
    group.add_argument('--mixup-alpha', type=float, metavar='A', help="an image's share is drawn from Beta(A, A) (default: 0.2)")
    group.add_argument('--mixup-off-epoch', type=int, metavar='N', help='no mixtures in the last N epochs (default: 0)')
    group.add_argument('--label-smoothing', action='store_true', help='spread a tenth of each label over all classes')
    group.add_argument(
        '--teacher', metavar='NAME', help='learn from this network too: one of this zoo or of GluonCV, or the prefix of an exported one'
    )
    group.add_argument('--teacher-params', metavar='FILE', help='weights of a teacher by name')
    add_pretrained(
        group,
        '--teacher-pretrained',
        '... or published ones of SOURCE; without it those of GluonCV. They are downloaded if they are not in ~/.mxnet/models',
    )
    group.add_argument('--teacher-options', type=json_object, metavar='JSON', help='further arguments of a teacher by name')
    group.add_argument('--temperature', type=float, metavar='T', help="softens the teacher's answers (default: 20)")
    group.add_argument('--hard-weight', type=float, metavar='W', help='share of the labels in the loss, 0 to 1 (default: 0.5)')

    group = parser.add_argument_group('saving and resuming')
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
    for flag in flags.REFUSED:
        parser.add_argument(flag, nargs='?', action=flags.Refuse, help=argparse.SUPPRESS)
    return parser


def add_pretrained(group, flag, help):
    """A flag for published weights: False, True, or whose they are."""
    sources = get_pretrained_list()
    group.add_argument(
        flag, nargs='?', const=True, default=False, choices=sources, metavar='SOURCE', help=f'{help} (SOURCE: {", ".join(sources)})'
    )


def default(name):
    """' (default: 64)' for a flag whose default is the protocol's."""
    return f' (default: {PRESETS[DEFAULT][name]})'


def by_optimizer(name):
    """'default: radam 0.002, adam 0.001, ...' for a flag whose default is the optimizer's."""
    return 'default: ' + ', '.join(f'{optimizer} {getattr(row, name):g}' for optimizer, row in OPTIMIZERS.items())


def network(name):
    """The name under which a network is listed: 'MeliusNet_22' -> 'meliusnet22', 'resnet18_e1' -> 'resnet_e18'."""
    listed = listed_name(name)
    if listed is None:
        raise argparse.ArgumentTypeError(f'unknown network {name!r}; known: {", ".join(get_model_list())}')
    return listed


def epochs(text):
    """'40,60' -> [40, 60]."""
    return [int(epoch) for epoch in text.split(',')]


def json_object(text):
    """'{"a": 1}' -> {'a': 1}."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def run(options):
    """Prepare, train and export as the flags say; return the exit status."""
    check_folder(options.save_dir)
    with join_workers(options.kvstore, f'Go on with --resume --save-dir {options.save_dir}') as workers:
        return run_in_step(options, workers)


def run_in_step(options, workers):
    """The same with the other processes of a job."""
    is_first = workers.rank == 0
    if not is_first:
        keep_screen_for_warnings()
    devices = workers.devices(options.num_gpus)
    check_dtype(options.dtype, devices[0])
    source = open_source(options, workers.rank, workers.count)
    model = model_arguments(options, source.classes, get_pretrained_options(options.model, options.use_pretrained))
    net = make_network(options, get_model, model, source.spec, devices)
    objective = make_objective(options, get_model, source.classes, source.spec.shape, devices)
    trainer = make_trainer(options, net, source.updates_per_epoch, source.images_per_update, workers)
    graph = Graph.read(net, (1, *source.spec.shape))
    counts = Summary.of(graph).counts
    plan = describe_run(options, model, source, counts, trainer.optimizer.lr_scheduler)
    description = description_fields(model, source.spec, counts, source.class_names)
    checkpoints = Checkpoints(options.save_dir, vars(options), options.save_frequency, workers, description)
    if options.dry_run:
        LOG.info(plan)
        start(options, checkpoints, net, trainer, source)
        source.decode_training_images()
        LOG.info('nothing was trained (--dry-run)')
        return 0

    flips = FlipCounter(net, source.updates_per_epoch) if options.track_flips and is_first else None
    log = options.logging_file or os.path.join(options.save_dir, LOG_FILE)
    lock = locked(options.save_dir) if is_first else contextlib.nullcontext()
    with lock, logging_to_file(log if is_first else f'{log}.{workers.rank}'):
        LOG.info(plan)
        if is_first:
            if not options.resume:
                Checkpoints.refuse_run(options.save_dir)  # another process may have trained there since the flags were read
            remove_leftovers(options.save_dir)
        warn_of_little_space(options, net)
        progress = start(options, checkpoints, net, trainer, source)
        if flips:
            flips.start(checkpoints.load_arrays())
        experiment = RunFolder(
            options.save_dir,
            options.model,
            counts,
            trainer.optimizer.lr_scheduler,
            source.updates_per_epoch,
            options.num_epochs,
            flips,
            writes=is_first,
        )
        experiment.start(vars(options), graph, progress, Scalars if options.tensorboard else None)
        status = train(options, net, objective, trainer, source, workers, checkpoints, experiment, progress, devices)
        if status == 0 and is_first:
            best, weights = checkpoints.best(progress)
            net.load_parameters(weights, ctx=devices)
            export_network(options.save_dir, net, source.spec.shape, description, best)
        return status


def train(options, net, objective, trainer, source, workers, checkpoints, experiment, progress, devices):
    """Train from where `progress` is to the last epoch; return 0, or the exit status of a run that was stopped."""
    images_per_epoch = source.updates_per_epoch * source.images_per_update
    done = progress.epoch * images_per_epoch + progress.batch * source.images_per_update
    with Interruption() as interruption, Bar(options.num_epochs * images_per_epoch, done, workers.rank == 0) as bar:
        lockstep = Lockstep(workers, interruption)
        for epoch in range(progress.epoch, options.num_epochs):
            started = time.time()
            for images, labels in lockstep.updates(progress.timed(source.train(epoch, progress.batch)), progress):
                mx.random.seed(seed_for(options.seed, epoch, progress.batch))  # for layers that draw, such as dropout
                images, targets = objective.prepare(images, labels, epoch, progress.batch)
                images, targets = (gluon.utils.split_and_load(array, devices) for array in (images, targets))
                with autograd.record():
                    outputs = [net(x.astype(options.dtype, copy=False)) for x in images]
                    losses = [objective.loss(x, output, target) for x, output, target in zip(images, outputs, targets)]
                autograd.backward(losses)
                trainer.step(source.images_per_update)
                progress.add(outputs, [objective.labels(target) for target in targets], losses)
                experiment.end_update()
                show(bar, experiment, options, progress, source, trainer.learning_rate)
                if options.save_interval and progress.batch % options.save_interval == 0 and progress.batch < source.updates_per_epoch:
                    checkpoints.save(net, trainer, progress, experiment.arrays())
            if not lockstep.stops:
                top1, top5 = evaluate(net, options.dtype, source, workers, devices, lockstep)
                lockstep.agree(progress)
            if lockstep.stops:
                checkpoints.save(net, trainer, progress, experiment.arrays())
                if lockstep.error:
                    raise UserError(f'{lockstep.error}; then go on with --resume --save-dir {options.save_dir}, nothing is lost')
                LOG.info(
                    'stopped in epoch %d after update %d; go on with --resume --save-dir %s', epoch + 1, progress.batch, options.save_dir
                )
                return 128 + lockstep.signal
            progress.end_epoch(
                **progress.results(workers),
                top1=top1,
                top5=top5,
                learning_rate=trainer.learning_rate,
                seconds=round(time.time() - started, 1),
            )
            LOG.info(
                'epoch {epoch}: loss {loss:.4f}, training top-1 {train_top1:.2%}, validation top-1 {top1:.2%}, top-5 {top5:.2%}, '
                '{seconds:.0f} s, {waiting:.0%} of training waiting for data'.format(**progress.history[-1])
            )
            experiment.end_epoch()
            checkpoints.save(net, trainer, progress, experiment.arrays())
            experiment.show_epoch(progress)
    return 0


def evaluate(net, dtype, source, workers, devices, lockstep):
    """Top-1 and top-5 accuracy on the validation images, 0 to 1; each process evaluates its part of them."""
    workers.average_statistics(net)
    accuracy = Accuracy()
    for images, labels in lockstep.batches(source.validation()):
        used = devices[: len(images)]  # the last batch may be smaller than their number
        images, labels = (gluon.utils.split_and_load(array, used, even_split=False) for array in (images, labels))
        for output, label in zip([net(x.astype(dtype, copy=False)) for x in images], labels):
            accuracy.add(output, label)
    of_all = Accuracy(*workers.sum(dataclasses.astuple(accuracy)))
    return of_all.top1, of_all.top5


def main(arguments=None):
    """Run the program; return the exit status."""
    try:
        if ROLE in ('server', 'scheduler'):
            return serve(ROLE)
        options = flags.parse(make_parser, arguments)
        with logging_to_screen():
            return run(options)
    except KeyboardInterrupt:
        print(STOPPED_AT_ONCE, file=sys.stderr)
        return 128 + signal.SIGINT
    except (UserError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2


if __name__ == '__main__':
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
