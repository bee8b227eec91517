#!/usr/bin/env python
"""Run studies: train what they compare with every seed, go on with what was interrupted, and put the results in a table and a plot."""
import argparse
import collections
import dataclasses
import fcntl
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

from results import is_finished, write_results
from study import HERE, Row, known_studies, read_study
from tqdm import tqdm

from bmx_melius import UserError
from bmx_melius.commands.arguments import Parser, positive_int
from bmx_melius.files import replacing
from bmx_melius.training.checkpoints import Checkpoints

SCRIPT = HERE.parent / 'train_imagenet.py'
COMMAND, OUTPUT, LOCK = 'command.json', 'output.log', 'lock'  # files beside those of the training
SECONDS = .5  # between two looks at the processes

EPILOG = """\
examples:
  run.py blocks --quick                               handwritten digits, three seeds, in minutes
  run.py all --quick --jobs 2                         all studies
  run.py stems -- --data-dir /data --num-gpus 4       ImageNet; what follows -- is passed to train_imagenet.py

Each run is a process of its own in the folder DIR/STUDY/ROW/seedN. The same command again skips what is finished and goes on with what
was interrupted; Ctrl-C leaves a checkpoint. A run that fails is named under the table; the others go on, and the exit status is 1.
"""


@dataclasses.dataclass
class Run:
    """One training of a row of a study."""

    row: Row
    seed: int
    folder: pathlib.Path
    arguments: list
    failure: str = ''  # why it ended too early

    @property
    def label(self):
        return f'{self.folder.parent.parent.name}: {self.row.name}, seed {self.seed}'

    @property
    def command(self):
        """The command line of the training, as one types it; with ``--resume`` where there is something to go on with."""
        interrupted = (self.folder / Checkpoints.STATE).exists()
        return [sys.executable, str(SCRIPT), *self.arguments, '--save-dir', str(self.folder), *(['--resume'] if interrupted else [])]

    def start(self, environment):
        """Start the training; its process holds a lock on the folder, so that no other run writes there even if this program is killed.

        Raises
        ------
        UserError
            When the folder holds a run of other flags, or one that is still going on.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / LOCK, 'w') as lock, open(self.folder / OUTPUT, 'a') as output:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f'another process is still training in {self.folder}; wait for it, or end it') from error
            with replacing(self.folder / COMMAND) as temporary, open(temporary, 'w') as file:
                json.dump(self.arguments, file)
            # In a session of its own it does not get the terminal's Ctrl-C, which this program passes on: two would end it at once.
            return subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT, env=environment, pass_fds=[lock.fileno()],
                                    start_new_session=True)

    def check(self):
        """Raise `UserError` where the folder holds a run of other flags."""
        if (self.folder / Checkpoints.STATE).exists():
            found = json.loads((self.folder / COMMAND).read_text())
            if found != self.arguments:
                raise UserError(f'{self.folder} holds a run of other flags: {shlex.join(found)}; remove it, or choose another --out')

    def progress(self):
        """Epochs that are over, and all: from the checkpoint; (0, 0) before there is one, and where the training will say it is damaged."""
        try:
            state = Checkpoints.read(self.folder)
        except UserError:
            return 0, 0
        return (state['progress']['epoch'], state['options']['num_epochs']) if state else (0, 0)

    def end(self, status):
        """Note how the training ended."""
        if status or not is_finished(self.folder):
            lines = (self.folder / OUTPUT).read_text(errors='replace').strip().splitlines()
            self.failure = lines[-1] if lines else f'it ended with status {status}'


def run_all(runs, jobs):
    """Train what is not finished, `jobs` at a time; failures are noted in the runs.

    Raises
    ------
    KeyboardInterrupt
        On SIGINT or SIGTERM, when the running ones have stopped with a checkpoint.
    """
    environment = {'OMP_NUM_THREADS': str(max(1, len(os.sched_getaffinity(0)) // jobs)), **os.environ}
    waiting, running = collections.deque(), {}
    bar = tqdm(total=len(runs), disable=None, dynamic_ncols=True,
               bar_format='{percentage:3.0f}% |{bar}| {n:.1f} of {total} runs [{elapsed}<{remaining}{postfix}]')
    with bar:
        for run in runs:
            try:
                run.check()
            except UserError as error:
                run.failure = str(error)
            if is_finished(run.folder) or run.failure:
                bar.total -= 1
            else:
                waiting.append(run)
        over = 0
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.popleft()
                    try:
                        running[run.start(environment)] = run
                    except UserError as error:
                        run.failure = str(error)
                        over += 1
                for process in [process for process in running if process.poll() is not None]:
                    run = running.pop(process)
                    run.end(process.returncode)
                    over += 1
                    tqdm.write(f'{run.label}: {run.failure or "finished"}')
                states = [(run, *run.progress()) for run in running.values()]
                bar.n = over + sum(epoch / epochs for _, epoch, epochs in states if epochs)
                bar.set_postfix_str('; '.join(f'{run.label}, epoch {epoch + 1} of {epochs or "?"}' for run, epoch, epochs in states))
                time.sleep(SECONDS)
        except BaseException:
            for process in running:
                process.send_signal(signal.SIGINT)
            for process in running:
                process.wait()
            raise


def make_parser():
    """The flags."""
    parser = Parser(description=__doc__, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument('studies', nargs='*', metavar='STUDY', help=f'{", ".join(known_studies())}, all, or the path of a .yaml file')
    parser.add_argument('--list', action='store_true', help='show the studies')
    parser.add_argument('--dry-run', action='store_true', help='show the commands, train nothing')
    parser.add_argument('--quick', action='store_true', help='small networks on handwritten digits instead of ImageNet')
    parser.add_argument('--seeds', type=seeds, metavar='N,N', help='(default: those of the study)')
    parser.add_argument('--jobs', type=positive_int, default=1, metavar='N',
                        help='runs at the same time; they share the cores (default: %(default)s)')
    parser.add_argument('--out', type=pathlib.Path, metavar='DIR', help='(default: out/experiments; with --quick: out/experiments-quick)')
    return parser


def seeds(text):
    """'1,2,3' -> [1, 2, 3]."""
    numbers = [int(number) for number in text.split(',')]
    if len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f'expected different numbers from 0 on with commas between, not {text!r}')
    return numbers


def show_studies():
    """Print what there is."""
    for name in known_studies():
        study, quick = read_study(name), read_study(name, quick=True)
        print(f'{name}: {study.title}\n  rows: {"; ".join(row.name for row in study.rows)}')
        print(f'  runs: {len(study.rows) * len(study.seeds)}; with --quick {len(quick.rows) * len(quick.seeds)}')


def run(options, further):
    """Do what the flags say; return the exit status."""
    if options.list:
        show_studies()
        return 0
    names = known_studies() if options.studies == ['all'] else options.studies
    if not names:
        raise UserError(f'which study? {", ".join(known_studies())}, or all; see --list')
    out = options.out or HERE.parent / 'out' / ('experiments-quick' if options.quick else 'experiments')
    studies = []
    for study in (read_study(name, options.quick) for name in names):
        studies.append((study, [
            Run(row, seed, out.resolve() / study.name / row.folder / f'seed{seed}', row.arguments(seed) + further)
            for seed in options.seeds or study.seeds for row in study.rows
        ]))  # fmt: skip
    runs = [one for _, of_study in studies for one in of_study]
    if options.dry_run:
        for one in runs:
            print(shlex.join(one.command))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_all(runs, options.jobs)
    for study, of_study in studies:
        print(write_results(study, of_study, out / study.name))
    return int(any(one.failure for one in runs))


def main(arguments=None):
    """Run the program; return the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    own, further = arguments, []
    if '--' in arguments:
        own, further = arguments[:arguments.index('--')], arguments[arguments.index('--') + 1:]
    try:
        return run(make_parser().parse_args(own), further)
    except KeyboardInterrupt:
        print('stopped; the same command goes on from there', file=sys.stderr)
        return 128 + signal.SIGINT
    except (UserError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main())
