#!/usr/bin/env python
"""Run studies: train each of their rows with every seed, resume interrupted runs, and write the results as a table and a plot."""

import argparse
import pathlib
import shlex
import signal
import sys

from jobs import Run, run_all
from measurements import measure_accuracy, measure_latency
from results import read_run, write_results
from study import HERE, SCALES, known_studies, read_study

from bmx_melius import UserError
from bmx_melius.arguments import Parser, positive_int

EPILOG = """\
examples:
  run.py blocks --quick                               handwritten digits, three seeds, in minutes
  run.py all --quick --jobs 2                         all studies
  run.py all --fashion --test-dir FOLDER              a part of Fashion-MNIST, as docs/experiments.md divides it
  run.py methods --quick --rows meliusnet,densenet    some rows of a study, and those that they are compared with
  run.py stems -- --data-dir /data --num-gpus 4       ImageNet; arguments after -- are passed to bmx-melius train

Each run is a separate process in the folder DIR/STUDY/ROW/seedN, each trial run of a tuned flag in DIR/STUDY/ROW/FLAG-VALUE. The same
command again skips finished and resumes interrupted runs;
Ctrl-C stops with a checkpoint. Failed runs are listed below the table; the others continue, and the exit status is 1.
"""


def make_parser():
    """Return the parser of the command line."""
    parser = Parser(description=__doc__, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument('studies', nargs='*', metavar='STUDY', help=f'{", ".join(known_studies())}, all, or the path of a .yaml file')
    parser.add_argument('--list', action='store_true', help='list the studies')
    parser.add_argument('--dry-run', action='store_true', help='print the commands without training')
    scale = parser.add_mutually_exclusive_group()
    for name, images in SCALES.items():
        text = f'small networks on {images} instead of ImageNet'
        scale.add_argument(f'--{name}', dest='scale', action='store_const', const=name, help=text)
    parser.add_argument(
        '--test-dir', metavar='DIR', help='folder of the files of Fashion-MNIST, whose test images are evaluated at the end'
    )
    parser.add_argument('--seeds', type=seeds, metavar='N,N', help='random seeds (default: the seeds of the study)')
    parser.add_argument('--rows', type=lambda text: text.split(','), metavar='ROW,ROW', help='only these rows (default: all)')
    parser.add_argument(
        '--jobs', type=positive_int, default=1, metavar='N', help='number of concurrent runs, which share the cores (default: %(default)s)'
    )
    parser.add_argument(
        '--out',
        type=pathlib.Path,
        metavar='DIR',
        help='output folder (default: out/experiments; with --quick: out/experiments-quick, and so on)',
    )
    return parser


def seeds(text):
    """'1,2,3' -> [1, 2, 3]."""
    numbers = [int(number) for number in text.split(',')]
    if len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f'expected different non-negative numbers, separated by commas, not {text!r}')
    return numbers


def show_studies():
    """Print the studies in this folder."""
    with_scale = {scale: known_studies(scale) for scale in SCALES}
    for name in known_studies():
        study = read_study(name)
        print(f'{name}: {study.title}\n  rows: {"; ".join(row.name for row in study.rows)}')
        numbers = [f'with --{scale} {_number_of_runs(read_study(name, scale))}' for scale, names in with_scale.items() if name in names]
        print(f'  runs: {"; ".join([_number_of_runs(study), *numbers])}')


def _number_of_runs(study):
    trials = len(study.rows) * len(study.tuning.values) if study.tuning else 0
    return f'{len(study.runs())} and {trials} trial runs' if trials else str(len(study.runs()))


def tune(study, folder, further, jobs):
    """Train the trial runs of a study, those that are not finished; return the best value of the tuned flag for each row.

    The best value has the highest validation accuracy; of equal values the first. Rows whose trial runs all failed are left out.
    """
    trials = trial_runs(study, folder, further)
    run_all([run for runs in trials.values() for run in runs.values()], jobs)
    found = {}
    for name, runs in trials.items():
        finished = {value: read_run(run.folder)['best_top1'] for value, run in runs.items() if not run.failure}
        if finished:
            found[name] = max(finished, key=finished.get)
    return found


def trial_runs(study, folder, further):
    """Return the trial runs of a study: name of a row -> value of the tuned flag -> run."""
    tuning, found = study.tuning, {}
    for row in study.rows:
        trials = {value: tuning.trial(row, value) for value in tuning.values}
        found[row.name] = {
            value: Run(trial, tuning.seed, folder / row.folder / f'{tuning.flag}-{value}', trial.arguments(tuning.seed) + further)
            for value, trial in trials.items()
        }
    return found


def final_runs(study, folder, further, seeds, tuned):
    """Return the runs of a study with the seeds, and with the value of the tuned flag that was found for each row (`tune`)."""
    found = []
    for row, seed in study.runs(seeds):
        chosen = [f'--{study.tuning.flag}', str(tuned[row.name])] if row.name in tuned else []
        run = Run(row, seed, folder / row.folder / f'seed{seed}', row.arguments(seed) + chosen + further, tuned=tuned.get(row.name))
        if study.tuning and not chosen:
            run.failure = f'all trial runs of --{study.tuning.flag} failed'
        found.append(run)
    return found


def run(options, further):
    """Run the selected studies; return the exit status."""
    if options.list:
        show_studies()
        return 0
    names = known_studies(options.scale) if options.studies == ['all'] else options.studies
    if not names:
        raise UserError(f'no study is given: choose from {", ".join(known_studies())}, or all; see --list')
    out = (options.out or HERE.parent / 'out' / '-'.join(['experiments', *filter(None, [options.scale])])).resolve()
    studies = [read_study(name, options.scale) for name in names]
    if options.rows:
        studies = [study.only(options.rows) for study in studies]
    if options.dry_run:
        for study in studies:
            show_commands(study, out / study.name, further, options.seeds)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tuned = {study.name: tune(study, out / study.name, further, options.jobs) if study.tuning else {} for study in studies}
    runs = {study.name: final_runs(study, out / study.name, further, options.seeds, tuned[study.name]) for study in studies}
    run_all([one for of_study in runs.values() for one in of_study], options.jobs)
    for study in studies:
        measure_accuracy(runs[study.name], options.test_dir)
        if study.latency:
            measure_latency(runs[study.name], out / study.name)
        print(write_results(study, runs[study.name], out / study.name))
    return int(any(one.failure for of_study in runs.values() for one in of_study))


def show_commands(study, folder, further, seeds):
    """Print the commands of a study: of the trial runs, then the others, to which the value of the tuned flag will be added."""
    if study.tuning:
        for runs in trial_runs(study, folder, further).values():
            for one in runs.values():
                print(shlex.join(one.command))
        print(f'# then, with the best --{study.tuning.flag} of each row:')
    for one in final_runs(study, folder, further, seeds, {}):
        print(shlex.join(one.command))


def main(arguments=None):
    """Run the program; return the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    own, further = arguments, []
    if '--' in arguments:
        own, further = arguments[: arguments.index('--')], arguments[arguments.index('--') + 1 :]
    try:
        return run(make_parser().parse_args(own), further)
    except KeyboardInterrupt:
        print('stopped; the same command continues from here', file=sys.stderr)
        return 128 + signal.SIGINT
    except (UserError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main())
