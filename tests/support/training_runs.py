"""Training runs for tests: tiny networks and data, the program in this process or in another, and uninterrupted runs to compare with."""

import json
import os
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest

import bmx_melius.__main__
import train_imagenet
from bmx_melius.data.small_images import open_digits
from bmx_melius.training.progress import TIMINGS
from model_zoo import get_model
from support.forked_program import SCRIPT, ForkedProgram
from support.images import make_folders, overwrite, pack_folders, record_span

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


def history_of(folder):
    """The rows of the finished epochs of a run."""
    return json.loads((folder / 'checkpoint.json').read_text())['progress']['history']


def assert_same_end(folder, other):
    """Two finished runs have the same weights, optimizer and history, bit for bit, and exported the same network."""
    states = [json.loads((path / 'checkpoint.json').read_text()) for path in (folder, other)]
    for state in states:
        for row in state['progress']['history']:
            for name in TIMINGS:
                row.pop(name)
        state['options'] = state['checksum'] = None
    assert states[0] == states[1]
    for name in (states[0]['weights'], states[0]['states'], 'meliusnet_flex-0000.params'):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    assert (folder / 'meliusnet_flex-symbol.json').exists()


@pytest.fixture(scope='module')
def finished(data_flags, make_once):
    """The folders of uninterrupted runs, by kind of data, made when first asked for."""

    class Finished(dict):
        def __missing__(self, kind):
            folder = make_once(f'finished-{kind}', lambda folder: train_apart(*data_flags[kind], '--save-dir', folder / 'run'))
            self[kind] = folder / 'run'
            return self[kind]

    return Finished()


def damage(path, number):
    """Overwrite the image of a record behind its first bytes; return what was there."""
    offset, length = record_span(path[: -len('.rec')], number)
    with open(path, 'rb') as file:
        file.seek(offset + 8)
        before = file.read(length - 10)
    overwrite(path, offset + 8, b'\0' * (length - 10))
    return offset + 8, before


def evaluated(network, data, run, epoch, capsys):
    """What `bmx-melius evaluate` says of the weights of a run after an epoch."""
    assert bmx_melius.__main__.main(['evaluate', network, str(data), '--params', f'{run}/epoch-{epoch:04d}.params', '--json']) == 0
    return json.loads(capsys.readouterr().out)


def accuracy_on_test_digits(net):
    """Top-1 accuracy of a network on the test digits, computed from its logits in MXNet."""
    pixels, labels = zip(*open_digits().test)
    inputs = (np.stack([image.asnumpy()[1:-1, 1:-1, 0] for image in pixels])[:, None] - 77.9) / 95.9
    return np.mean(net(mx.nd.array(inputs)).asnumpy().argmax(axis=1) == labels)


def accuracy_after(model, run, epoch):
    """Return `accuracy_on_test_digits` of the network with the weights of a run after an epoch."""
    net = get_model(**model)
    net.load_parameters(f'{run}/epoch-{epoch:04d}.params')
    return accuracy_on_test_digits(net)
