"""Checkpoints: they bring back everything, and a kill at any moment leaves a whole one."""

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import bmx_melius  # noqa: F401  registers radam
from bmx_melius.distributed.workers import Workers
from bmx_melius.errors import UserError
from bmx_melius.training.optimization import make_schedule
from bmx_melius.training.progress import Progress
from bmx_melius.training.saving import checkpoints as module
from bmx_melius.training.saving.checkpoint_state import read_state, write_state
from bmx_melius.training.saving.checkpoints import Checkpoints
from bmx_melius.training.saving.stored_checkpoints import description_of, read_last

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
def test_network_and_optimizer_continue_identically_after_loading(tmp_path, optimizer):
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
def test_a_kill_at_any_moment_of_saving_leaves_the_old_or_the_new_state_complete(tmp_path, monkeypatch, operation):
    """Every place where saving touches the disk is reached, with a kill before and after it."""
    for moment in range(100):
        run = Run(tmp_path / str(moment))
        for number in (1, 2):
            run.train_and_save(number)
        with monkeypatch.context() as patch:
            patch.setattr(module.os, operation, kill_at(moment, getattr(os, operation)))
            try:
                run.train_and_save(3)
                break
            except Killed:
                pass
        resumed = Run(tmp_path / str(moment))
        resumed.progress = resumed.checkpoints.load(resumed.net, resumed.trainer)
        epoch = resumed.progress.epoch
        assert epoch in (2, 3) and resumed.checkpoints.load_arrays() == {'number': epoch}
        np.testing.assert_equal(weights(resumed.net), run.saved[epoch])
        resumed.net.load_parameters(resumed.checkpoints.best(resumed.progress)[1])
        np.testing.assert_equal(weights(resumed.net), run.saved[epoch], 'the best weights are there, too')
        resumed.train_and_save(4)  # and the run can continue
        assert read_last(tmp_path / str(moment))['progress']['epoch'] == epoch + 1
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


OLD = Path(__file__).parent / 'data' / 'checkpoint_format_2'  # written by the version before checksums


MALFORMED = ['{"format":', '[]', 'null', '3', '{}', '{"format": []}', '[' * 100_000, '{"format": 3}', '{"format": 2}']


@pytest.mark.parametrize('content', MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_checkpoint_is_named_in_one_line(tmp_path, content):
    assert read_last(tmp_path) is None
    (tmp_path / 'checkpoint.json').write_text(content)
    with pytest.raises(UserError, match='checkpoint.json .* damaged') as raised:
        read_last(tmp_path)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    'change',
    [
        lambda state: state.pop('weights'),
        lambda state: state.update(weights='../../epoch-0001.params'),
        lambda state: state.update(kept=['epoch-0001.params', 3]),
        lambda state: state.update(options=[]),
        lambda state: state.update(network='a'),
        lambda state: state.update(progress=None),
        lambda state: state['progress'].pop('epoch'),
        lambda state: state['progress'].update(batch=-1),
        lambda state: state['progress'].update(further=0),
        lambda state: state['progress']['history'][0].pop('top1'),
        lambda state: state['progress']['history'].append(None),
    ],
)
def test_a_checkpoint_with_a_field_missing_or_malformed_is_named(tmp_path, change):
    state = json.loads((OLD / 'nag' / 'checkpoint.json').read_text())
    (tmp_path / 'checkpoint.json').write_text(json.dumps(state))
    assert read_last(tmp_path) == state
    change(state)
    (tmp_path / 'checkpoint.json').write_text(json.dumps(state))
    with pytest.raises(UserError, match="checkpoint.json is damaged: its field '.*' is missing or malformed"):
        read_last(tmp_path)


def test_a_checkpoint_of_another_version_is_refused_without_falling_back_to_the_previous_one(tmp_path):
    run = Run(tmp_path)
    for number in (1, 2):
        run.train_and_save(number)
    (tmp_path / 'checkpoint.json').write_text('{"format": 99}')
    with pytest.raises(UserError, match='another version'):
        read_last(tmp_path)


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
    net, trainer = make()
    step(net, trainer, 0)
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
    run = Run(tmp_path)
    for number in (1, 2):
        run.train_and_save(number)

    unlink = os.unlink

    def refuse_one(path):
        if path.endswith('epoch-0001.states'):
            raise PermissionError(errno.EPERM, 'Operation not permitted', path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, 'unlink', refuse_one)
        with pytest.raises(PermissionError):
            run.train_and_save(3)
    resumed = Run(tmp_path)
    assert resumed.checkpoints.load(resumed.net, resumed.trainer).epoch == 3
    np.testing.assert_equal(weights(resumed.net), run.saved[3])


def test_files_of_checkpoints_that_were_not_finished_are_removed_and_nothing_else(tmp_path):
    net, trainer = make()
    for name in ('epoch-0007-000003.states', 'mine.params', 'epoch.txt'):
        (tmp_path / name).write_bytes(b'')
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, Progress())
    assert sorted(os.listdir(tmp_path)) == ['checkpoint.json', 'epoch-0000.params', 'epoch-0000.states', 'epoch.txt', 'mine.params']


# ---- damage ----


def flip_bit(path, position, bit=0):
    """Change a bit of a file, as a failing disk does."""
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)


DAMAGES = {
    'flipped': lambda path: flip_bit(path, path.stat().st_size // 2),
    'flipped at the end': lambda path: flip_bit(path, -1, 7),
    'cut off': lambda path: os.truncate(path, path.stat().st_size - 1),
    'empty': lambda path: path.write_bytes(b''),
    'missing': os.unlink,
}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize('name', ['epoch-0002.params', 'epoch-0002.states', 'epoch-0002.npz', 'checkpoint.json'])
def test_a_run_with_a_damaged_file_continues_from_the_previous_checkpoint_and_names_the_file(tmp_path, caplog, name, damage):
    run = Run(tmp_path)
    for number in (1, 2):
        run.train_and_save(number)
    damage(tmp_path / name)
    resumed = Run(tmp_path)
    resumed.progress = resumed.checkpoints.load(resumed.net, resumed.trainer)
    assert resumed.progress.epoch == 1 and resumed.checkpoints.load_arrays() == {'number': 1}
    np.testing.assert_equal(weights(resumed.net), run.saved[1])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(tmp_path / name) in warning and 'continuing from the previous checkpoint, at epoch 2, update 1' in warning
    resumed.train_and_save(2)  # and it ends like the uninterrupted one
    np.testing.assert_equal(resumed.saved[2], run.saved[2])
    caplog.clear()
    again = Run(tmp_path)
    assert again.checkpoints.load(again.net, again.trainer).epoch == 2 and not caplog.records


@pytest.mark.parametrize('name', ['epoch-0000.params', 'epoch-0000.states', 'epoch-0000.npz', 'checkpoint.json'])
def test_a_flipped_bit_in_any_file_of_a_checkpoint_is_detected_and_the_file_named(tmp_path, name, long_run):
    net, trainer = make()
    step(net, trainer, 0)
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, Progress(), {'counts': np.arange(3)})
    content = (tmp_path / name).read_bytes()
    for position in range(0, len(content), 1 if long_run else 29):
        if name == 'checkpoint.json' and content[position : position + 1].isspace():
            continue  # means nothing
        flip_bit(tmp_path / name, position, position % 8)
        with pytest.raises(UserError, match=name) as raised:
            Checkpoints(tmp_path, OPTIONS).load(net, trainer)
        assert len(str(raised.value).splitlines()) == 1
        (tmp_path / name).write_bytes(content)
    Checkpoints(tmp_path, OPTIONS).load(net, trainer)


def test_both_damaged_files_are_named_if_neither_checkpoint_is_intact(tmp_path):
    run = Run(tmp_path)
    for number in (1, 2):
        run.train_and_save(number)
    for name in ('epoch-0001.states', 'epoch-0002.params'):
        flip_bit(tmp_path / name, 100)
    with pytest.raises(UserError, match='epoch-0002.params is damaged.*epoch-0001.states is damaged.*put back a copy'):
        Checkpoints(tmp_path, OPTIONS).load(run.net, run.trainer)


def test_saving_twice_at_one_place_keeps_the_checkpoint_before(tmp_path):
    run = Run(tmp_path)
    for number in (1, 2):
        run.train_and_save(number)
    run.checkpoints.save(run.net, run.trainer, run.progress, {'number': np.array(2)})
    flip_bit(tmp_path / 'epoch-0002.params', 100)
    assert run.checkpoints.load(run.net, run.trainer).epoch == 1


def test_damaged_best_weights_are_refused_and_missing_ones_passed_over(tmp_path, caplog):
    run = Run(tmp_path)
    for number, top1 in enumerate([0.2, 0.9, 0.3, 0.4], start=1):
        step(run.net, run.trainer, number)
        finish_epoch(run.progress, top1)
        run.checkpoints.save(run.net, run.trainer, run.progress)
    best = tmp_path / 'epoch-0002.params'
    resumed = Run(tmp_path)
    progress = resumed.checkpoints.load(resumed.net, resumed.trainer)
    assert resumed.checkpoints.best(progress) == (progress.history[1], str(best))
    flip_bit(best, 300)
    with pytest.raises(UserError, match='epoch-0002.params is damaged.*or remove the file'):
        resumed.checkpoints.best(progress)
    best.unlink()
    assert resumed.checkpoints.best(progress) == (progress.history[3], str(tmp_path / 'epoch-0004.params'))
    assert 'epoch-0002.params is missing' in caplog.text
    for name in ('epoch-0003.params', 'epoch-0004.params'):
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match='has no weights of a finished epoch'):
        resumed.checkpoints.best(progress)


def test_weights_that_are_taken_from_a_checkpoint_are_verified(tmp_path):
    run = Run(tmp_path)
    run.train_and_save(1)
    weights = tmp_path / 'epoch-0001.params'
    assert description_of(str(weights)) is None, 'this network has none'
    flip_bit(weights, 300)
    with pytest.raises(UserError, match='epoch-0001.params is damaged'):
        description_of(str(weights))


def test_an_edited_checkpoint_is_detected(tmp_path):
    Run(tmp_path).train_and_save(1)
    path = tmp_path / 'checkpoint.json'
    state = read_state(str(path))
    path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 0.02'))
    with pytest.raises(UserError, match='damaged or was changed'):
        read_last(tmp_path)
    state['options']['lr'] = 0.03
    write_state(str(path), state)
    assert read_last(tmp_path)['options']['lr'] == 0.03


# ---- the version before ----


@pytest.mark.parametrize('optimizer, settings', [('radam', {}), ('nag', {'momentum': 0.9})])
def test_a_checkpoint_of_format_2_is_continued_and_gets_checksums(tmp_path, optimizer, settings):
    run = tmp_path / 'run'
    shutil.copytree(OLD / optimizer, run)
    net, trainer = make(optimizer, seed=1, **settings)
    checkpoints = Checkpoints(run, OPTIONS)
    progress = checkpoints.load(net, trainer)
    assert progress == Progress(epoch=1, batch=3, loss=0.1 + 0.2, correct=5, seen=18, history=[{'epoch': 1, 'top1': 0.3}])
    np.testing.assert_equal(checkpoints.load_arrays(), {'counts': np.arange(5)})
    assert checkpoints.best(progress)[1] == str(run / 'epoch-0001.params')
    for number in range(7, 11):
        step(net, trainer, number)
        progress.batch += 1
        checkpoints.save(net, trainer, progress)
    assert trainer.optimizer.num_update == 11
    with np.load(OLD / optimizer / 'expected.npz') as expected:  # of the version before, on another machine
        for name, parameter in net._collect_params_with_prefix().items():
            np.testing.assert_allclose(parameter.data().asnumpy(), expected[name], rtol=1e-5, atol=1e-7)
    flip_bit(run / 'epoch-0001.params', 300)
    with pytest.raises(UserError, match='epoch-0001.params is damaged'):
        checkpoints.best(progress)
