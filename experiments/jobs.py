"""The trainings of studies: each a process of its own, several at a time, all of them going on where they were interrupted."""

import collections
import contextlib
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

from results import is_finished
from study import HERE, Row
from tqdm import tqdm

from bmx_melius import UserError
from bmx_melius.files import replacing
from bmx_melius.training.saving.checkpoints import Checkpoints

SCRIPT = HERE.parent / 'train_imagenet.py'
COMMAND, OUTPUT, LOCK = 'command.json', 'output.log', 'lock'  # files beside those of the training
SECONDS = 0.5  # between two looks at the processes


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
        """Start the training and return its process; None, with a `failure`, where another one is still going on in the folder.

        The process holds a lock on the folder, which it keeps even if this program is killed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / LOCK, 'w') as lock, open(self.folder / OUTPUT, 'a') as output:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.failure = f'another process is still training in {self.folder}; wait for it, or end it'
                return None
            with replacing(self.folder / COMMAND) as temporary, open(temporary, 'w') as file:
                json.dump(self.arguments, file)
            # In a session of its own it does not get the terminal's Ctrl-C, which this program passes on: two would end it at once.
            return subprocess.Popen(
                self.command, stdout=output, stderr=subprocess.STDOUT, env=environment, pass_fds=[lock.fileno()], start_new_session=True
            )

    def check(self):
        """Note a failure where the folder holds a run of other flags."""
        if not (self.folder / Checkpoints.STATE).exists():
            return
        try:
            found = shlex.join(json.loads((self.folder / COMMAND).read_text()))
        except (OSError, ValueError, TypeError) as error:
            self.failure = f'{self.folder} holds a run of unknown flags ({COMMAND}: {error}); remove it, or choose another --out'
            return
        if found != shlex.join(self.arguments):
            self.failure = f'{self.folder} holds a run of other flags: {found}; remove it, or choose another --out'

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
            said = lines and lines[-1].startswith('error: ')
            self.failure = lines[-1] if said else f'ended with status {status}, see {self.folder / OUTPUT}'


def run_all(runs, jobs):
    """Train what is not finished, `jobs` at a time; failures are noted in the runs.

    Raises
    ------
    KeyboardInterrupt
        On SIGINT, when the running ones have stopped with a checkpoint.
    """
    environment = {'OMP_NUM_THREADS': str(max(1, len(os.sched_getaffinity(0)) // jobs)), **os.environ}
    for run in runs:
        run.check()
    waiting = collections.deque(run for run in runs if not run.failure and not is_finished(run.folder))
    running = {}  # process -> run
    with _bar(len(waiting)) as bar, _stopping(running):
        over = 0
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.popleft()
                process = run.start(environment)
                if process:
                    running[process] = run
                else:
                    over += 1
                    tqdm.write(f'{run.label}: {run.failure}')
            for process in [process for process in running if process.poll() is not None]:
                run = running.pop(process)
                run.end(process.returncode)
                over += 1
                tqdm.write(f'{run.label}: {run.failure or "finished"}')
            states = [(run, *run.progress()) for run in running.values()]
            bar.n = over + sum(epoch / epochs for _, epoch, epochs in states if epochs)
            bar.set_postfix_str('; '.join(f'{run.label}, epoch {min(epoch + 1, epochs)}/{epochs}' for run, epoch, epochs in states))
            time.sleep(SECONDS)


def _bar(total):
    return tqdm(
        total=total,
        disable=None,
        dynamic_ncols=True,
        bar_format='{percentage:3.0f}% |{bar}| {n:.1f} of {total} runs [{elapsed}<{remaining}{postfix}]',
    )


@contextlib.contextmanager
def _stopping(running):
    """Whatever ends the block, stop the processes among the keys of `running` as Ctrl-C does, and wait for them."""
    try:
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
