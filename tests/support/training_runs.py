"""Training runs for tests: tiny networks and data, the program in this process or in another, and uninterrupted runs to compare with."""

import contextlib
import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest

import bmx_melius.__main__
import model_zoo
import train_imagenet
from bmx_melius.data.small_images import open_digits
from bmx_melius.training import Training
from bmx_melius.training.options.parsing import parse_arguments
from bmx_melius.training.progress import TIMINGS
from bmx_melius.training.series import read_series
from model_zoo import get_model
from support.forked_program import SCRIPT, ForkedProgram
from support.images import make_folders, pack_folders

OPTIONS = {'block_numbers': [1, 1], 'transitions': [0.5], 'growth_rate': 32, 'init_features': 32}
TINY = ['--model', 'meliusnet_flex', '--initial-layers', 'thumbnail', '--model-options', json.dumps(OPTIONS), '--log-interval', '1']
SMALL = [*TINY, '--input-size', '16', '--batch-size', '4', '--num-epochs', '3']  # 30 images: 7 updates an epoch


@pytest.fixture(scope='module')
def images(make_once):
    """A folder with images of three classes, in folders and in record files packed by MXNet's im2rec."""

    def make(folder):
        make_folders(folder)
        pack_folders(folder)

    return make_once('images-and-records', make)


@pytest.fixture(scope='module')
def data_flags(images):
    """The flags that name each kind of data."""
    return {
        'records': [*SMALL, '--use-rec', '--rec-train', f'{images}/rec/train.rec', '--rec-val', f'{images}/rec/val.rec', '-j', '1'],
        'folders': [*SMALL, '--data-dir', str(images), '-j', '2', '--augmentation', 'high'],
        'digits': [*TINY, '--dataset', 'digits', '--num-epochs', '2', '--batch-size', '128'],
    }


def train(*arguments, status=0):
    """Run the program in this process and check its exit status."""
    assert train_imagenet.main([str(argument) for argument in arguments]) == status


def start_command(*arguments):
    """Start the program in a new interpreter, as users do; with one thread for each operator, as processes of `ForkedProgram` have."""
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train_apart(*arguments, status=0, start=ForkedProgram):
    """Run the program in a separate process, as runs that are compared bit for bit must be: it decides on the number of threads.

    Return what it printed.
    """
    with start(*arguments) as process:
        output = process.stdout.read()
        assert process.wait() == status, output
    return output


def train_until(line, number, *arguments, start=ForkedProgram):
    """Run the program in a separate process; when it prints a line that begins so, send it a signal. Return (status, output)."""
    with start(*arguments) as process:
        output = []
        for printed in process.stdout:
            output.append(printed)
            if printed.startswith(line):
                process.send_signal(number)
                line = 'never again'
        status = process.wait()
    assert line == 'never again', ''.join(output)
    return status, ''.join(output)


def error_of(capsys):
    """The one line that was printed to standard error, as a user sees it."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith('error: '), lines
    return lines[0]


def read_csv(path):
    """The rows of a table, each a dict of text."""
    with open(path, newline='') as file:
        return list(csv.DictReader(file))


def state_of(folder):
    """What the last checkpoint of a run has in its JSON file."""
    return json.loads((folder / 'checkpoint.json').read_text())


def refused(capsys, *arguments):
    """Run the program in this process, which must refuse its arguments; return its only line of errors."""
    capsys.readouterr()
    train(*arguments, status=2)
    return error_of(capsys)


def printed_by(capsys, *arguments, status=0):
    """Run the program in this process; return what it printed."""
    capsys.readouterr()
    train(*arguments, status=status)
    return capsys.readouterr().out


def history_of(folder):
    """The rows of the finished epochs of a run."""
    return state_of(folder)['progress']['history']


def weights_of(folder, epoch):
    """The weights of a run after an epoch, by their names, in NumPy."""
    return {name: array.asnumpy() for name, array in mx.nd.load(str(folder / f'epoch-{epoch:04d}.params')).items()}


def description_of(folder, name='meliusnet_flex'):
    """The description beside the exported network of a run."""
    return json.loads((folder / f'{name}-summary.json').read_text())


def contents_of(folder):
    """The bytes of all files in a folder, by their paths."""
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def assert_equal_files(folder, other, *names):
    """The files of these names in two folders are equal."""
    for name in names:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


@contextlib.contextmanager
def interrupted_in(number):
    """Interrupt this process, as by Ctrl-C, in an update of training: the first one is number 1."""
    updates, update = itertools.count(1), Training.update

    def interrupted(*arguments):
        if next(updates) == number:
            os.kill(os.getpid(), signal.SIGINT)
        update(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, 'update', interrupted)
        yield


def series_of(*arguments):
    """The series of runs that the arguments of the program describe; None if it is a single run."""
    return read_series(parse_arguments([str(argument) for argument in arguments], model_zoo), model_zoo)


def interrupt_series(update, updates, flags, whole, folder, names):
    """Interrupt a series of runs with `updates` updates each, as by Ctrl-C, in an update of the whole series. Return the number of the run.

    The runs before are copied from a finished series in the folder `whole`; `names` are the folders of its runs, in order.
    """
    number = (update - 1) // updates
    for name in names[:number]:
        shutil.copytree(whole / name, folder / name)
    if number:
        shutil.copy(whole / 'stages.json', folder)
    with interrupted_in(update - number * updates):
        train(*(['--resume'] if number else flags), '--save-dir', folder, status=128 + signal.SIGINT)
    return number + 1


def assert_same_end(folder, other):
    """Two finished runs have the same weights, optimizer and history, bit for bit, and exported the same network."""
    states = [state_of(folder), state_of(other)]
    for state in states:
        for row in state['progress']['history']:
            for name in TIMINGS:
                row.pop(name)
        state['options'] = state['checksum'] = None
    assert states[0] == states[1]
    assert_equal_files(folder, other, states[0]['weights'], states[0]['states'], 'meliusnet_flex-0000.params')
    assert (folder / 'meliusnet_flex-symbol.json').exists()


class Runs(dict):
    """The folders of uninterrupted runs, by kind, made when first asked for; tests do not change them."""

    def __init__(self, make_once, flags, name, train):
        self._make = lambda kind: make_once(f'{name}-{kind}', lambda folder: train(*flags[kind], '--save-dir', folder / 'run'))

    def __missing__(self, kind):
        self[kind] = self._make(kind) / 'run'
        return self[kind]


@pytest.fixture(scope='module')
def finished(data_flags, make_once):
    """The folders of uninterrupted runs by kind of data."""
    return Runs(make_once, data_flags, 'finished', train_apart)


def evaluated(network, data, run, epoch, capsys):
    """What `bmx-melius evaluate` says of the weights of a run after an epoch."""
    assert bmx_melius.__main__.main(['evaluate', network, str(data), '--params', f'{run}/epoch-{epoch:04d}.params', '--json']) == 0
    return json.loads(capsys.readouterr().out)


def inputs_of_digits(part):
    """The inputs of a network for a part of the digits, and their labels, as for validation."""
    pixels, labels = zip(*part)
    return mx.nd.array((np.stack([image.asnumpy()[1:-1, 1:-1, 0] for image in pixels])[:, None] - 77.9) / 95.9), np.array(labels)


def accuracy_on_test_digits(net):
    """Top-1 accuracy of a network on the test digits, computed from its logits in MXNet."""
    inputs, labels = inputs_of_digits(open_digits().test)
    return np.mean(net(inputs).asnumpy().argmax(axis=1) == labels)


def accuracy_after(model, run, epoch):
    """Return `accuracy_on_test_digits` of the network with the weights of a run after an epoch."""
    net = get_model(**model)
    net.load_parameters(f'{run}/epoch-{epoch:04d}.params')
    return accuracy_on_test_digits(net)
