#!/usr/bin/env python
"""Train a binary network: on ImageNet, on your own images, or on handwritten digits."""

import os
import signal
import sys

# Imports take seconds. Until they are done, Ctrl-C is handled by the system instead of Python, to end the program without a traceback.
if __name__ == '__main__' and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# MXNet reads these variables during its import. Without the first two it runs elementwise operators, a third of a binary network's training
# step, in one thread: its tuning overestimates the cost of threads, and it reserves a core for itself if the number of threads is not set.
os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
if not os.environ.get('OMP_NUM_THREADS', '').isdigit():  # at a value that is not a number the import of MXNet would abort
    os.environ['OMP_NUM_THREADS'] = str(len(os.sched_getaffinity(0)))
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')  # waiting threads sleep instead of spinning, so that other programs can use the core
os.environ.setdefault('NNVM_AUTO_SEARCH_MATCH_RANGE', '1')  # compare memory plans and use the smallest; read at the first step

# With the role of a server or scheduler in DMLC_ROLE, the import of MXNet would block until the end of the job; `serve` runs these instead.
os.environ['BMX_MELIUS_ROLE'] = os.environ.pop('DMLC_ROLE', '')

import model_zoo
from bmx_melius import UserError
from bmx_melius.distributed import join_workers
from bmx_melius.distributed.servers import serve
from bmx_melius.files.io import check_folder
from bmx_melius.reporting import LOG, keep_screen_for_warnings, logging_to_screen
from bmx_melius.training.interruption import STOPPED_AT_ONCE
from bmx_melius.training.loop import train
from bmx_melius.training.options.config_file import expand_config
from bmx_melius.training.options.flags import make_parser
from bmx_melius.training.options.parsing import parse_flags
from bmx_melius.training.run import Run
from bmx_melius.training.series.ensembles import EnsembleTraining
from bmx_melius.training.series.run_series import parse_series
from bmx_melius.training.series.stages import StagedTraining

ROLE = os.environ.pop('BMX_MELIUS_ROLE')
if ROLE:
    os.environ['DMLC_ROLE'] = ROLE


def run(config, decode=True):
    """Train the run that a configuration describes and export the best weights; return the exit status.

    A dry run only checks it, and decodes all images if `decode` is True.
    """
    save_dir = config.output.save_dir
    check_folder(save_dir)
    with join_workers(config.kvstore, f'Continue with --resume --save-dir {save_dir}') as workers:
        if workers.rank != 0:
            keep_screen_for_warnings()
        prepared = Run(config, model_zoo, workers)
        if config.dry_run:
            prepared.check(decode)
            return 0
        with prepared.start():
            status = train(prepared)
            if status == 0 and prepared.is_writer:
                prepared.export()
            return status


def main(arguments=None, program='train_imagenet.py'):
    """Run the program, which messages call `program`; return the exit status."""
    try:
        if ROLE in ('server', 'scheduler'):
            return serve(ROLE)
        arguments = expand_config(sys.argv[1:] if arguments is None else arguments, make_parser(model_zoo, program))
        series = parse_series(arguments, model_zoo, (EnsembleTraining, StagedTraining), program)
        config = None if series else parse_flags(arguments, model_zoo, program)
        with logging_to_screen():
            if series:
                return series.run(run)
            status = run(config)
            if status:
                LOG.info('continue with --resume --save-dir %s', config.output.save_dir)
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
