"""Training runs of studies: separate processes, several at a time, which resume when they were interrupted."""

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
from typing import Optional

from results import is_finished
from study import HERE, StudyRow
from tqdm import tqdm

from bmx_melius import UserError
from bmx_melius.files.io import replacing
from bmx_melius.training.saving.stored_checkpoints import LAST, read_last

SCRIPT = HERE.parent / 'train_imagenet.py'
COMMAND, OUTPUT, LOCK = 'command.json', 'output.log', 'lock'  # additional files in the folder of a run
POLL_INTERVAL = 0.5  # seconds


@dataclasses.dataclass
class Run:
    """Training run of a row of a study with one seed."""

    row: StudyRow
    seed: int
    folder: pathlib.Path
    arguments: list
    failure: str = ''  # reason why the run failed
    tuned: Optional[object] = None  # the value of the tuned flag that was chosen for this run

    @property
    def label(self):
        return f'{self.folder.parent.parent.name}: {self.row.name}, seed {self.seed}'

    @property
    def command(self):
        """Command line of the training, with ``--resume`` if the folder has a checkpoint."""
        interrupted = (self.folder / LAST).exists()
        return [sys.executable, str(SCRIPT), *self.arguments, '--save-dir', str(self.folder), *(['--resume'] if interrupted else [])]

    def start(self, environment):
        """Start the training and return its process; if another process trains in the folder, set `failure` and return None.

        The training process inherits a lock on the folder, so the lock persists if this program is killed.
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
            # In a new session, so that it receives Ctrl-C only from this program and not also from the terminal: two would end it at once.
            return subprocess.Popen(
                self.command, stdout=output, stderr=subprocess.STDOUT, env=environment, pass_fds=[lock.fileno()], start_new_session=True
            )

    def check(self):
        """Set `failure` if the folder holds a run with other flags."""
        if not (self.folder / LAST).exists():
            return
        try:
            found = shlex.join(json.loads((self.folder / COMMAND).read_text()))
        except (OSError, ValueError, TypeError) as error:
            self.failure = f'{self.folder} holds a run of unknown flags ({COMMAND}: {error}); remove it, or choose another --out'
            return
        if found != shlex.join(self.arguments):
            self.failure = f'{self.folder} holds a run of other flags: {found}; remove it, or choose another --out'

    def progress(self):
        """Return the numbers of finished and of all epochs from the checkpoint; (0, 0) if there is none or it is damaged."""
        try:
            state = read_last(self.folder)
        except UserError:
            return 0, 0
        return (state['progress']['epoch'], state['options']['num_epochs']) if state else (0, 0)

    def end(self, status):
        """Set `failure` if the training ended with an error or without results."""
        if status or not is_finished(self.folder):
            lines = (self.folder / OUTPUT).read_text(errors='replace').strip().splitlines()
            said = lines and lines[-1].startswith('error: ')
            self.failure = lines[-1] if said else f'ended with status {status}, see {self.folder / OUTPUT}'


def run_all(runs, jobs):
    """Train the unfinished runs, `jobs` at a time; store errors in their attribute `failure`.

    Raises
    ------
    KeyboardInterrupt
        On SIGINT, after the running trainings have written a checkpoint and stopped.
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
            time.sleep(POLL_INTERVAL)


def _bar(total):
    return tqdm(
        total=total,
        disable=None,
        dynamic_ncols=True,
        bar_format='{percentage:3.0f}% |{bar}| {n:.1f} of {total} runs [{elapsed}<{remaining}{postfix}]',
    )


@contextlib.contextmanager
def _stopping(running):
    """At the end of the block, also after an exception, interrupt the processes (keys of `running`) and wait for them."""
    try:
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
