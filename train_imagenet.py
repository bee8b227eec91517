#!/usr/bin/env python
"""Train a binary network: on ImageNet, on your own images, or on handwritten digits."""

import os
import signal
import sys

# Imports take seconds. Until they are done, Ctrl-C is handled by the system instead of Python, to end the program without a traceback.
if __name__ == '__main__' and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from bmx_melius.process import usable_cores  # without MXNet

# MXNet reads these variables during its import. Without the first two it runs elementwise operators, a third of a binary network's training
# step, in one thread: its tuning overestimates the cost of threads, and it reserves a core for itself if the number of threads is not set.
os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
os.environ.setdefault('OMP_NUM_THREADS', str(usable_cores()))
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')  # waiting threads sleep instead of spinning, so that other programs can use the core
os.environ.setdefault('NNVM_AUTO_SEARCH_MATCH_RANGE', '1')  # compare memory plans and use the smallest; read at the first step

# With the role of a server or scheduler in DMLC_ROLE, the import of MXNet would block until the end of the job; `serve` runs these instead.
os.environ['BMX_MELIUS_ROLE'] = os.environ.pop('DMLC_ROLE', '')

import model_zoo
from bmx_melius import UserError
from bmx_melius.data.opening import AugmentationOptions, DataOptions, InputOptions, open_source
from bmx_melius.data.source import Batching
from bmx_melius.distributed import join_workers
from bmx_melius.distributed.servers import serve
from bmx_melius.files.io import check_folder
from bmx_melius.reporting import LOG, keep_screen_for_warnings, logging_to_screen
from bmx_melius.training.initial_weights import start_weights
from bmx_melius.training.interruption import STOPPED_AT_ONCE
from bmx_melius.training.loop import Stopped, Training
from bmx_melius.training.network import check_dtype, make_network, model_arguments
from bmx_melius.training.objective import make_objective, make_teacher
from bmx_melius.training.optimization import OptimizerOptions, ScheduleOptions, make_trainer
from bmx_melius.training.options.parsing import parse_arguments, read_options
from bmx_melius.training.run import INTERRUPTED, Run
from bmx_melius.training.series import read_series
from bmx_melius.training.teacher import TeacherOptions

ROLE = os.environ.pop('BMX_MELIUS_ROLE')
if ROLE:
    os.environ['DMLC_ROLE'] = ROLE


def prepare(options, workers):
    """Return what the `TrainingOptions` of a run describe: a `Training`, and the `Run` that records it in its folder."""
    devices = workers.devices(options.num_gpus, options.gpus)
    check_dtype(options.dtype, devices[0])

    # Data: batches of normalized images, shuffled and augmented in each epoch
    batching = Batching(options.images_per_batch, options.seed, workers.rank, workers.count, options.test_run)
    data = open_source(batching, options.make(DataOptions), options.make(InputOptions), options.make(AugmentationOptions))
    options.measure(data)

    # Network: one of the zoo, of GluonCV or of the user, with random weights or the weights of another run
    model = model_arguments(options, data.classes, model_zoo.get_pretrained_options(options.model, options.use_pretrained))
    net = make_network(options, model_zoo.get_model, model, data.spec, devices)
    notes = start_weights(options, model_zoo.get_model, net, model, data.validation() if workers.rank == 0 else None)

    # Loss: softmax cross-entropy, with mixup, label smoothing, class weights or a teacher
    teacher = make_teacher(net, data.classes, data.spec.shape, devices, model_zoo.get_model, options.make(TeacherOptions))
    objective = make_objective(options, data.classes, teacher)

    # Trainer: optimizer and learning-rate schedule
    sizes = data.updates_per_epoch, data.images_per_update
    trainer = make_trainer(net, *sizes, workers, options.make(OptimizerOptions), options.make(ScheduleOptions))

    training = options.make(Training, net, data, objective, trainer, workers=workers)
    return training, Run(options, training, model, notes)


def train(options, decode=True):
    """Train a network with the `TrainingOptions` of a run, and export the best weights; return the exit status.

    A dry run shows the plan, and decodes all images if `decode` is True.
    """
    check_folder(options.save_dir)
    with join_workers(options.kvstore, f'Continue with --resume --save-dir {options.save_dir}') as workers:
        if workers.rank != 0:
            keep_screen_for_warnings()
        training, run = prepare(options, workers)
        if options.dry_run:
            run.check(decode)
            return 0
        with run:  # in its folder; from the last checkpoint
            with training.interruption:  # Ctrl-C and SIGTERM stop after the current batch
                try:
                    for _ in training.epochs():
                        for images, labels in training.batches():
                            training.update(images, labels)  # forward, backward, step of the optimizer
                            run.end_update()  # progress bar, log
                        training.validate()
                        run.end_epoch()  # checkpoint, tables, plots
                        if run.is_interrupted():
                            return INTERRUPTED
                except Stopped as stopped:
                    return run.stop(stopped)
            run.export()
            return 0


def main(arguments=None, program='train_imagenet.py'):
    """Run the program, which messages call `program`; return the exit status."""
    try:
        if ROLE in ('server', 'scheduler'):
            return serve(ROLE)
        arguments = parse_arguments(sys.argv[1:] if arguments is None else list(arguments), model_zoo, program)
        with logging_to_screen():
            series = read_series(arguments, model_zoo)
            if series:
                return series.run(train)  # the stages of a preset, or the members of an ensemble
            options = read_options(arguments, model_zoo)
            status = train(options)
            if status:
                LOG.info('continue with --resume --save-dir %s', options.save_dir)
            return status
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
