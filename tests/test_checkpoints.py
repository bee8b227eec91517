"""Checkpoints: they bring back everything, and a kill at any moment leaves a whole one."""

import errno
import json
import os
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import bmx_melius  # noqa: F401  registers radam
from bmx_melius.distributed.workers import Workers
from bmx_melius.errors import UserError
from bmx_melius.training import checkpoints as module
from bmx_melius.training.checkpoints import Checkpoints, load_optimizer
from bmx_melius.training.progress import Progress
from bmx_melius.training.schedules import make_schedule

OPTIONS = {'model': 'test', 'lr': 0.01}


def make(optimizer='radam', seed=0, **settings):
    """A small network with running statistics, and its trainer."""
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix='net_')  # the trainer sorts parameters by name: two networks must have the same names
    with net.name_scope():
        net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(2, in_units=4))
    net.initialize(mx.init.Normal(1))
    arguments = {'learning_rate': 0.01, 'lr_scheduler': make_schedule('cosine', 0.01, 5, 4), **settings}
    return net, gluon.Trainer(net.collect_params(), optimizer, arguments, update_on_kvstore=False)


def step(net, trainer, number):
    """One update with data that depends on `number`."""
    x = mx.nd.array(np.random.RandomState(number).randn(6, 3))
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    trainer.step(6)


def weights(net):
    return [value.data().asnumpy() for _, value in sorted(net._collect_params_with_prefix().items())]


def finish_epoch(progress, top1):
    progress.loss, progress.correct, progress.seen = 1.0, 1, 2
    progress.end_epoch(top1=top1)


@pytest.mark.parametrize('optimizer', ['radam', 'adam', 'sgd', 'nag'])
def test_network_and_optimizer_go_on_as_if_nothing_had_happened(tmp_path, optimizer):
    net, trainer = make(optimizer)
    for number in range(7):
        step(net, trainer, number)
    progress = Progress(epoch=1, batch=3, loss=0.1 + 0.2, correct=5, seen=18, history=[{'epoch': 1, 'top1': 0.3}])
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, progress)
    other, other_trainer = make(optimizer, seed=1)
    assert Checkpoints(tmp_path, OPTIONS).load(other, other_trainer) == progress
    for number in range(7, 11):
        for a, b in ((net, trainer), (other, other_trainer)):
            step(a, b, number)
        assert trainer.learning_rate == other_trainer.learning_rate
    np.testing.assert_equal(weights(net), weights(other))


def test_the_state_of_an_optimizer_brings_moments_and_counts_and_leaves_settings_alone(tmp_path):
    net, trainer = make('nag', momentum=0.9, wd=0.1)
    for number in range(3):
        step(net, trainer, number)
    trainer.save_states(str(tmp_path / 'states'))
    other, other_trainer = make('nag', momentum=0.5, wd=0.2)
    step(other, other_trainer, 0)
    load_optimizer(other_trainer, str(tmp_path / 'states'))
    assert (other_trainer.optimizer.momentum, other_trainer.optimizer.wd, other_trainer.optimizer.num_update) == (0.5, 0.2, 3)
    assert other_trainer.learning_rate == trainer.learning_rate
    step(other, other_trainer, 3)
    assert other_trainer.optimizer.num_update == 4


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    net, trainer = make('adam')
    step(net, trainer, 0)
    trainer.save_states(str(tmp_path / 'states'))
    with pytest.raises(ValueError, match='the state of Adam, not of SGD'):
        load_optimizer(make('sgd')[1], str(tmp_path / 'states'))


def test_arrays_come_back_and_their_file_goes_with_their_checkpoint(tmp_path):
    net, trainer = make()
    checkpoints, progress = Checkpoints(tmp_path, OPTIONS), Progress(epoch=0, batch=3)
    arrays = {'counts': np.arange(70, dtype=np.uint16), 'rows': np.empty((0, 2))}
    checkpoints.save(net, trainer, progress, arrays)
    loaded = Checkpoints(tmp_path, OPTIONS).load_arrays()
    np.testing.assert_equal(loaded, arrays)
    assert [array.dtype for array in loaded.values()] == [np.uint16, float]
    finish_epoch(progress, 0.5)
    checkpoints.save(net, trainer, progress)
    assert not list(tmp_path.glob('*.npz')) and checkpoints.load_arrays() == {}


def test_the_last_the_best_and_every_nth_epoch_are_kept(tmp_path):
    net, trainer = make()
    checkpoints, progress = Checkpoints(tmp_path, OPTIONS, keep_every=4), Progress()
    best = None
    for epoch, top1 in enumerate([0.1, 0.2, 0.5, 0.3, 0.5, 0.4, 0.4, 0.2, 0.1], start=1):
        step(net, trainer, epoch)
        finish_epoch(progress, top1)
        checkpoints.save(net, trainer, progress)
        best = weights(net) if epoch == 3 else best
    assert sorted(os.listdir(tmp_path)) == [
        'checkpoint.json',
        'epoch-0003.params',
        'epoch-0004.params',
        'epoch-0008.params',
        'epoch-0009.params',
        'epoch-0009.states',
    ]
    assert progress.best['epoch'] == 3, 'the first of equals'
    net.load_parameters(checkpoints.best_weights(progress))
    np.testing.assert_equal(weights(net), best)


class Killed(BaseException):
    """Stands for the end of the process."""


class Run:
    """A run whose epochs have one update; it remembers the weights it saved after each."""

    def __init__(self, folder):
        self.net, self.trainer = make()
        self.checkpoints, self.progress, self.saved = Checkpoints(folder, OPTIONS), Progress(), {}

    def train_and_save(self, number):
        step(self.net, self.trainer, number)
        finish_epoch(self.progress, 0.1 * number)
        self.saved[self.progress.epoch] = weights(self.net)
        self.checkpoints.save(self.net, self.trainer, self.progress, {'number': np.array(number)})


@pytest.mark.parametrize('operation', ['replace', 'unlink', 'fsync'])
def test_a_kill_at_any_moment_of_saving_leaves_the_old_or_the_new_state_whole(tmp_path, monkeypatch, operation):
    """Every place where saving touches the disk is reached, with a kill before and after it."""
    for moment in range(100):
        run = Run(tmp_path / str(moment))
        run.train_and_save(1)
        with monkeypatch.context() as patch:
            patch.setattr(module.os, operation, kill_at(moment, getattr(os, operation)))
            try:
                run.train_and_save(2)
                break
            except Killed:
                pass
        resumed = Run(tmp_path / str(moment))
        resumed.progress = resumed.checkpoints.load(resumed.net, resumed.trainer)
        epoch = resumed.progress.epoch
        assert epoch in (1, 2) and resumed.checkpoints.load_arrays() == {'number': epoch}
        np.testing.assert_equal(weights(resumed.net), run.saved[epoch])
        resumed.net.load_parameters(resumed.checkpoints.best_weights(resumed.progress))
        np.testing.assert_equal(weights(resumed.net), run.saved[epoch], 'the best weights are there, too')
        resumed.train_and_save(3)  # and the run can go on
        assert Checkpoints.read(tmp_path / str(moment))['progress']['epoch'] == epoch + 1
    assert moment >= 4


def kill_at(moment, function):
    """`function`, but the process ends before (even moments) or after (odd moments) its call number moment // 2."""
    calls = iter(range(1000))

    def call(*arguments):
        number = next(calls)
        if moment == 2 * number:
            raise Killed
        result = function(*arguments)
        if moment == 2 * number + 1:
            raise Killed
        return result

    return call


def test_no_checkpoint_is_none_and_a_damaged_one_is_named(tmp_path):
    assert Checkpoints.read(tmp_path) is None
    (tmp_path / 'checkpoint.json').write_text('{"format":')
    with pytest.raises(UserError, match='checkpoint.json'):
        Checkpoints.read(tmp_path)
    (tmp_path / 'checkpoint.json').write_text('{"format": 99}')
    with pytest.raises(UserError, match='version'):
        Checkpoints.read(tmp_path)


@pytest.mark.parametrize('content', [None, b'', b'no weights'])
@pytest.mark.parametrize('suffix', ['params', 'states', 'npz'])
def test_missing_or_damaged_files_are_named(tmp_path, suffix, content):
    net, trainer = make()
    checkpoints = Checkpoints(tmp_path, OPTIONS)
    checkpoints.save(net, trainer, Progress(), {'counts': np.arange(3)})
    file = tmp_path / f'epoch-0000.{suffix}'
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UserError, match='checkpoint.json'):
        checkpoints.load_arrays() if suffix == 'npz' else checkpoints.load(net, trainer)


def test_the_options_of_the_run_are_kept(tmp_path):
    net, trainer = make()
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, Progress())
    assert Checkpoints.read(tmp_path)['options'] == OPTIONS
    assert json.loads((tmp_path / 'checkpoint.json').read_text())['options'] == OPTIONS


def test_only_one_of_several_machines_writes(tmp_path):
    net, trainer = make()
    second = Workers()
    second.rank = 1
    Checkpoints(tmp_path / 'a', OPTIONS, workers=second).save(net, trainer, Progress())
    assert not os.listdir(tmp_path)


LIMITED = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
from test_checkpoints import OPTIONS, Checkpoints, Progress, UserError, make, step
net, trainer = make()
checkpoints = Checkpoints({folder!r}, OPTIONS)
progress = checkpoints.load(net, trainer)
step(net, trainer, 1)
progress.epoch += 1
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails as on a full disk, with an error
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    checkpoints.save(net, trainer, progress)
except UserError as error:
    print(error)
"""


def test_a_disk_that_is_full_at_any_byte_loses_no_checkpoint_and_is_named(tmp_path, long_run):
    """Files are limited to ever fewer bytes; the weights, then the optimizer's state and then the JSON do not fit."""
    run = tmp_path / 'run'
    net, trainer = make()
    step(net, trainer, 0)
    Checkpoints(run, OPTIONS).save(net, trainer, Progress())
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    sizes = sorted(map(len, before.values()))
    named = set()
    for limit in [size - 1 for size in sizes] + (list(range(0, sizes[-1], 97)) if long_run else []):
        program = LIMITED.format(tests=os.path.dirname(__file__), folder=str(run), limit=limit)
        done = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True, check=True)
        message = done.stdout.strip()
        assert 'no checkpoint can be written' in message and '--resume' in message and len(message.splitlines()) == 1
        named.update(word for word in ('epoch-0001.params', 'epoch-0001.states', 'checkpoint.json') if word in message)
        assert before == {path.name: path.read_bytes() for path in run.iterdir()}
    assert len(named) >= 2
    Checkpoints(run, OPTIONS).load(net, trainer)


def test_a_checkpoint_is_whole_though_the_files_of_the_one_before_cannot_be_deleted(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.train_and_save(1)

    unlink = os.unlink

    def refuse_one(path):
        if path.endswith('epoch-0001.states'):
            raise PermissionError(errno.EPERM, 'Operation not permitted', path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, 'unlink', refuse_one)
        with pytest.raises(PermissionError):
            run.train_and_save(2)
    resumed = Run(tmp_path)
    assert resumed.checkpoints.load(resumed.net, resumed.trainer).epoch == 2
    np.testing.assert_equal(weights(resumed.net), run.saved[2])


def test_files_of_checkpoints_that_were_not_finished_are_removed_and_nothing_else(tmp_path):
    net, trainer = make()
    for name in ('epoch-0007-000003.states', 'mine.params', 'epoch.txt'):
        (tmp_path / name).write_bytes(b'')
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, Progress())
    assert sorted(os.listdir(tmp_path)) == ['checkpoint.json', 'epoch-0000.params', 'epoch-0000.states', 'epoch.txt', 'mine.params']
