#!/usr/bin/env python
"""Run studies: train each of their rows with every seed, resume interrupted runs, and write the results as a table and a plot."""

import argparse
import pathlib
import shlex
import signal
import sys

from jobs import Run, run_all
from measurements import measure_accuracy, measure_latency
from results import write_results
from study import HERE, known_studies, read_study

from bmx_melius import UserError
from bmx_melius.arguments import Parser, positive_int

EPILOG = """\
examples:
  run.py blocks --quick                               handwritten digits, three seeds, in minutes
  run.py all --quick --jobs 2                         all studies
  run.py stems -- --data-dir /data --num-gpus 4       ImageNet; arguments after -- are passed to train_imagenet.py

Each run is a separate process in the folder DIR/STUDY/ROW/seedN. The same command again skips finished runs and resumes interrupted ones;
Ctrl-C stops with a checkpoint. Failed runs are listed below the table; the others continue, and the exit status is 1.
"""


def make_parser():
    """Return the parser of the command line."""
    parser = Parser(description=__doc__, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument('studies', nargs='*', metavar='STUDY', help=f'{", ".join(known_studies())}, all, or the path of a .yaml file')
    parser.add_argument('--list', action='store_true', help='list the studies')
    parser.add_argument('--dry-run', action='store_true', help='print the commands without training')
    parser.add_argument('--quick', action='store_true', help='small networks on handwritten digits or rendered glyphs instead of ImageNet')
    parser.add_argument('--seeds', type=seeds, metavar='N,N', help='random seeds (default: those of the study)')
    parser.add_argument(
        '--jobs', type=positive_int, default=1, metavar='N', help='number of concurrent runs, which share the cores (default: %(default)s)'
    )
    parser.add_argument(
        '--out', type=pathlib.Path, metavar='DIR', help='output folder (default: out/experiments; with --quick: out/experiments-quick)'
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
    for name in known_studies():
        study, quick = read_study(name), read_study(name, quick=True)
        print(f'{name}: {study.title}\n  rows: {"; ".join(row.name for row in study.rows)}')
        print(f'  runs: {len(study.runs())}; with --quick {len(quick.runs())}')


def run(options, further):
    """Run the selected studies; return the exit status."""
    if options.list:
        show_studies()
        return 0
    names = known_studies() if options.studies == ['all'] else options.studies
    if not names:
        raise UserError(f'no study is given: choose from {", ".join(known_studies())}, or all; see --list')
    out = options.out or HERE.parent / 'out' / ('experiments-quick' if options.quick else 'experiments')
    studies = []
    for study in (read_study(name, options.quick) for name in names):
        studies.append(
            (
                study,
                [
                    Run(row, seed, out.resolve() / study.name / row.folder / f'seed{seed}', row.arguments(seed) + further)
                    for row, seed in study.runs(options.seeds)
                ],
            )
        )
    runs = [one for _, of_study in studies for one in of_study]
    if options.dry_run:
        for one in runs:
            print(shlex.join(one.command))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_all(runs, options.jobs)
    for study, of_study in studies:
        measure_accuracy(of_study)
        if study.latency:
            measure_latency(of_study, out / study.name)
        print(write_results(study, of_study, out / study.name))
    return int(any(one.failure for one in runs))


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
