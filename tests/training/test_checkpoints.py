"""Checkpoints: they bring back everything, and a kill or a full disk at any moment leaves a complete one."""

import contextlib
import errno
import json
import os
import resource
import signal

import mxnet as mx
import numpy as np
import pytest
from support.checkpointed_runs import OPTIONS, Killed, Run, finish_epoch, flip_bit, kill_at, make, step, weights

from bmx_melius.distributed.workers import Workers
from bmx_melius.errors import UserError
from bmx_melius.training.progress import Progress
from bmx_melius.training.saving import checkpoints as module
from bmx_melius.training.saving.checkpoints import Checkpoints
from bmx_melius.training.saving.stored_checkpoints import read_last


@pytest.mark.parametrize('optimizer', ['radam', 'adam', 'sgd', 'nag'])
def test_network_and_optimizer_continue_identically_after_loading(tmp_path, optimizer):
    net, trainer = make(optimizer, updates=7)
    progress = Progress(epoch=1, batch=3, loss=0.1 + 0.2, correct=5, seen=18, history=[{'epoch': 1, 'top1': 0.3}])
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, progress)
    other, other_trainer = make(optimizer, seed=1)
    assert Checkpoints(tmp_path, OPTIONS).load(other, other_trainer) == progress
    for number in range(7, 11):
        for a, b in ((net, trainer), (other, other_trainer)):
            step(a, b, number)
        assert trainer.learning_rate == other_trainer.learning_rate
    np.testing.assert_equal(weights(net), weights(other))


def test_arrays_are_loaded_again_and_deleted_with_their_checkpoint(tmp_path):
    net, trainer = make()
    checkpoints, progress = Checkpoints(tmp_path, OPTIONS), Progress(epoch=0, batch=3)
    arrays = {'counts': np.arange(70, dtype=np.uint16), 'rows': np.empty((0, 2))}
    checkpoints.save(net, trainer, progress, arrays)
    loaded = Checkpoints(tmp_path, OPTIONS).load_arrays()
    np.testing.assert_equal(loaded, arrays)
    assert [array.dtype for array in loaded.values()] == [np.uint16, float]
    for _ in range(2):  # the checkpoint before is kept as well
        finish_epoch(progress, 0.5)
        checkpoints.save(net, trainer, progress)
    assert not list(tmp_path.glob('*.npz')) and checkpoints.load_arrays() == {}


def test_the_last_two_the_best_and_every_nth_epoch_are_kept(tmp_path):
    net, trainer = make()
    checkpoints, progress = Checkpoints(tmp_path, OPTIONS, keep_every=4), Progress()
    best = None
    for epoch, top1 in enumerate([0.1, 0.2, 0.5, 0.3, 0.5, 0.4, 0.4, 0.2, 0.1], start=1):
        step(net, trainer, epoch)
        finish_epoch(progress, top1)
        checkpoints.save(net, trainer, progress)
        best = weights(net) if epoch == 3 else best
    assert sorted(os.listdir(tmp_path)) == [
        'checkpoint-previous.json',
        'checkpoint.json',
        'epoch-0003.params',
        'epoch-0004.params',
        'epoch-0008.params',
        'epoch-0008.states',
        'epoch-0009.params',
        'epoch-0009.states',
    ]
    row, path = checkpoints.best(progress)
    assert row == progress.best and row['epoch'] == 3, 'the first of equals'
    net.load_parameters(path)
    np.testing.assert_equal(weights(net), best)


@pytest.mark.parametrize('operation', ['replace', 'unlink', 'fsync'])
def test_a_kill_at_any_moment_of_saving_leaves_the_old_or_the_new_state_complete(tmp_path, monkeypatch, operation):
    """Every place where saving touches the disk is reached, with a kill before and after it."""
    for moment in range(100):
        run = Run(tmp_path / str(moment), epochs=2)
        with monkeypatch.context() as patch:
            patch.setattr(module.os, operation, kill_at(moment, getattr(os, operation)))
            try:
                run.train_and_save(3)
                break
            except Killed:
                pass
        resumed = Run(tmp_path / str(moment))
        epoch = resumed.resume()
        assert epoch in (2, 3) and resumed.checkpoints.load_arrays() == {'number': epoch}
        np.testing.assert_equal(weights(resumed.net), run.saved[epoch])
        resumed.net.load_parameters(resumed.checkpoints.best(resumed.progress)[1])
        np.testing.assert_equal(weights(resumed.net), run.saved[epoch], 'the best weights are there, too')
        resumed.train_and_save(4)  # and the run can continue
        assert read_last(tmp_path / str(moment))['progress']['epoch'] == epoch + 1
    assert moment >= 4


def test_the_options_of_the_run_are_kept(tmp_path):
    net, trainer = make()
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, Progress())
    assert read_last(tmp_path)['options'] == OPTIONS
    assert json.loads((tmp_path / 'checkpoint.json').read_text())['options'] == OPTIONS


def test_only_rank_0_writes_checkpoints(tmp_path):
    net, trainer = make()
    second = Workers()
    second.rank = 1
    Checkpoints(tmp_path / 'a', OPTIONS, workers=second).save(net, trainer, Progress())
    assert not os.listdir(tmp_path)


@contextlib.contextmanager
def files_limited_to(size):
    """Let writing beyond `size` bytes of a file fail as on a full disk, with an error, in this process."""
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_becomes_full_at_any_byte_loses_no_checkpoint_and_is_reported(tmp_path, long_run):
    """Files are limited to ever fewer bytes; the weights, then the optimizer's state and then the JSON do not fit."""
    run = tmp_path / 'run'
    net, trainer = make(updates=1)
    Checkpoints(run, OPTIONS).save(net, trainer, Progress())
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    sizes = sorted(map(len, before.values()))
    named = set()
    for limit in [size - 1 for size in sizes] + (list(range(0, sizes[-1], 97)) if long_run else []):
        net, trainer = make()
        checkpoints = Checkpoints(run, OPTIONS)
        progress = checkpoints.load(net, trainer)
        step(net, trainer, 1)
        mx.nd.waitall()
        progress.epoch += 1
        with pytest.raises(UserError) as raised, files_limited_to(limit):
            checkpoints.save(net, trainer, progress)
        message = str(raised.value)
        assert 'the checkpoint cannot be written' in message and '--resume' in message and len(message.splitlines()) == 1
        named.update(word for word in ('epoch-0001.params', 'epoch-0001.states', 'checkpoint.json') if word in message)
        assert before == {path.name: path.read_bytes() for path in run.iterdir()}
    assert len(named) >= 2
    Checkpoints(run, OPTIONS).load(net, trainer)


def test_a_checkpoint_is_complete_even_if_files_of_the_previous_one_cannot_be_deleted(tmp_path, monkeypatch):
    run, unlink = Run(tmp_path, epochs=2), os.unlink

    def refuse_one(path):
        if path.endswith('epoch-0001.states'):
            raise PermissionError(errno.EPERM, 'Operation not permitted', path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, 'unlink', refuse_one)
        with pytest.raises(PermissionError):
            run.train_and_save(3)
    resumed = Run(tmp_path)
    assert resumed.resume() == 3
    np.testing.assert_equal(weights(resumed.net), run.saved[3])


def test_files_of_checkpoints_that_were_not_finished_are_removed_and_nothing_else(tmp_path):
    net, trainer = make()
    for name in ('epoch-0007-000003.states', 'mine.params', 'epoch.txt'):
        (tmp_path / name).write_bytes(b'')
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, Progress())
    assert sorted(os.listdir(tmp_path)) == ['checkpoint.json', 'epoch-0000.params', 'epoch-0000.states', 'epoch.txt', 'mine.params']


def test_saving_twice_at_one_place_keeps_the_checkpoint_before(tmp_path):
    run = Run(tmp_path, epochs=2)
    run.checkpoints.save(run.net, run.trainer, run.progress, {'number': np.array(2)})
    flip_bit(tmp_path / 'epoch-0002.params', 100)
    assert run.resume() == 1
