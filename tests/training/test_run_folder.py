"""What a run tells of itself: how fast it is, and the files in its folder."""

import datetime
import errno
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import gluoncv
import mxnet as mx
import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure
from support.checkpointed_runs import Killed, kill_at
from support.training_runs import OPTIONS, TINY, history_of, read_csv, train, train_apart, train_until, weights_of

import bmx_melius
import train_imagenet
from bmx_melius.analysis import drawing
from bmx_melius.graph.tracing import read_graph
from bmx_melius.training.optimization import make_schedule
from bmx_melius.training.options import checks
from bmx_melius.training.progress import Pace, Progress
from bmx_melius.training.recording import environment, plots
from bmx_melius.training.recording.run_folder import RunFolder
from model_zoo import get_model

PLOTS = ['accuracy.png', 'loss.png', 'lr.png']
FLAGS = [*TINY, '--dataset', 'digits', '--num-epochs', '3', '--batch-size', '128']  # 8 updates an epoch


def test_the_pace_is_that_of_the_last_seconds():
    pace = Pace(seconds=10)
    pace.start(100.0, 7, 3.0)
    now, updates, waiting = 100.0, 7, 3.0
    for seconds, waited in [(1, 0.9)] * 50 + [(0.5, 0.1)] * 30:  # at first slow, and waiting for data
        now, updates, waiting = now + seconds, updates + 1, waiting + waited
        pace.add(now, updates, waiting)
    assert pace.updates_per_second == pytest.approx(2)
    assert pace.waiting_share == pytest.approx(0.2)


def test_the_pace_of_updates_longer_than_its_window_is_that_of_the_last():
    pace = Pace(seconds=10)
    pace.start(0.0, 0, 0.0)
    pace.add(100.0, 1, 90.0)
    pace.add(120.0, 2, 95.0)
    assert (pace.updates_per_second, pace.waiting_share) == (1 / 20, 5 / 20)


@pytest.mark.parametrize('wait,work', [(0.06, 0.02), (0.02, 0.06), (0, 0.04)])
def test_the_share_of_waiting_is_the_one_a_slow_source_makes(wait, work, monkeypatch):
    clock = [5.0]
    monkeypatch.setattr(time, 'perf_counter', lambda: clock[0])

    def slow_source():
        for batch in range(8):
            clock[0] += wait
            yield batch

    progress = Progress()
    for _ in progress.timed(slow_source()):
        clock[0] += work
        progress.add([], [], [])
    assert progress.pace.waiting_share == pytest.approx(wait / (wait + work))
    assert progress.pace.updates_per_second == pytest.approx(1 / (wait + work))
    assert progress.waiting / progress.running == pytest.approx(wait / (wait + work))
    assert progress.batch == 8


# ---- the folder of a run ----


@pytest.fixture(scope='module')
def finished(make_once):
    """The folder of a run that was stopped in its second epoch and resumed."""

    def make(folder):
        run = folder / 'run'
        train_until('epoch 2, update 4', signal.SIGINT, *FLAGS, '--save-dir', run)
        before = (run / 'metrics.csv').read_text()
        train_apart('--resume', '--save-dir', run)
        assert (run / 'metrics.csv').read_text().startswith(before)

    return make_once('resumed-run', make) / 'run'


def test_a_resumed_run_continues_the_same_tables_curves_and_log(finished):
    rows = read_csv(finished / 'metrics.csv')
    assert [row['epoch'] for row in rows] == ['1', '2', '3']
    assert [{name: float(value) for name, value in row.items()} for row in rows] == history_of(finished)
    log = (finished / 'experiment.log').read_text()
    assert 'stopped in epoch 2' in log and 'continuing at epoch 2' in log and 'epoch 3:' in log
    for plot in PLOTS:
        assert (finished / plot).read_bytes().startswith(b'\x89PNG')


def test_every_session_is_described(finished):
    config = json.loads((finished / 'config.json').read_text())
    first, second = config['sessions']
    assert (first['epoch'], first['update'], second['epoch']) == (0, 0, 1) and second['update'] >= 4
    assert first['arguments']['batch_size'] == 128 and first['arguments']['seed'] == 0 and not first['arguments']['resume']
    assert second['arguments']['resume'] and '--resume' in second['command']
    assert first['versions'] == {
        'python': platform.python_version(),
        'bmx_melius': bmx_melius.__version__,
        'mxnet': mx.__version__,
        'gluoncv': gluoncv.__version__,
        'numpy': np.__version__,
    }
    assert first['host'] == socket.gethostname() and first['threads'] and first['processor'] and first['usable_cores'] >= 1
    starts = [datetime.datetime.fromisoformat(session['started']) for session in (first, second)]
    assert starts[0] <= starts[1] and all(start.tzinfo for start in starts)  # whole seconds: both may be the same
    net = get_model('meliusnet_flex', **OPTIONS, initial_layers='thumbnail', classes=10)
    assert config['counts'] == bmx_melius.summary(net, (1, 1, 8, 8)).counts


def test_a_checkout_is_described_by_git_and_another_folder_is_not(tmp_path):
    def git(*arguments):
        return subprocess.run(
            ['git', '-c', 'user.name=a', '-c', 'user.email=a', *arguments], cwd=tmp_path, check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()

    file = tmp_path / 'file.py'
    file.write_text('1')
    assert environment.checkout(str(file)) is None
    git('init', '-q')
    assert environment.checkout(str(file)) is None, 'a package that is installed inside the checkout of something else'
    git('add', '.')
    git('commit', '-qm', 'message')
    assert environment.checkout(str(file)) == {'revision': git('rev-parse', 'HEAD'), 'changed': False}
    file.write_text('2')
    assert environment.checkout(str(file))['changed']


def test_a_checkout_is_not_described_without_git(monkeypatch):
    monkeypatch.setenv('PATH', '')
    assert environment.checkout(environment.__file__) is None


HISTORY = [
    {'epoch': epoch, 'train_top1': 0.1 * epoch, 'train_top5': 0.2 * epoch, 'top1': 0.3 - 0.05 * epoch, 'top5': 0.4, 'loss': 1.0}
    for epoch in (1, 2, 3)
]


def test_the_plot_of_accuracy_shows_the_history_in_percent():
    (axes,) = plots.accuracy(HISTORY, 'meliusnet22').axes
    assert axes.get_title() == 'meliusnet22'
    lines = {line.get_label().split(':')[0]: line for line in axes.lines}
    for name, column in (
        ('validation top-1', 'top1'),
        ('validation top-5', 'top5'),
        ('training top-1', 'train_top1'),
        ('training top-5', 'train_top5'),
    ):
        np.testing.assert_allclose(lines[name].get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(lines[name].get_ydata(), [100 * row[column] for row in HISTORY])
    assert lines['best'].get_label() == 'best: 25.0 %, epoch 1'


def test_the_plot_of_losses_shows_both_and_leaves_out_epochs_without_a_loss_on_validation_images():
    history = [HISTORY[0], *({**row, 'validation_loss': row['epoch'] / 2} for row in HISTORY[1:])]
    lines = {line.get_label().split(':')[0]: line for line in plots.loss(history, 'meliusnet22').axes[0].lines}
    np.testing.assert_allclose(lines['validation'].get_xydata(), [[2, 1], [3, 1.5]])
    np.testing.assert_allclose(lines['training'].get_xydata(), [[1, 1], [2, 1], [3, 1]])


@pytest.mark.parametrize('done', [0, 1, 700, 3600])
def test_the_plot_of_learning_rates_shows_the_schedule_and_the_progress(done):
    schedule = make_schedule('cosine', 0.1, 12, 300, warmup_epochs=2)
    planned, *used = plots.learning_rate(plots.Schedule(schedule, 300, 12), done, [], 'title').axes[0].lines
    updates = np.rint(planned.get_xdata() * 300).astype(int)
    assert updates[0] == 1 and updates[-1] == 3600 and np.all(np.diff(updates) <= 4)
    np.testing.assert_allclose(planned.get_ydata(), [schedule(int(update)) for update in updates])
    np.testing.assert_allclose(used[0].get_xdata() * 300, updates[updates <= done])
    if done:
        assert used[1].get_xdata() == done / 300 and used[1].get_ydata() == schedule(done)


def make_experiment(folder, epochs=3, **arguments):
    counts = {'size_bytes': 3.88 * 2**20, 'ops': 208.1e6}
    return RunFolder(folder, 'meliusnet22', counts, plots.Schedule(make_schedule('cosine', 0.1, epochs, 10), 10, epochs), **arguments)


def make_graph():
    return read_graph(get_model('meliusnet_flex', block_numbers=[1], transitions=[], initial_layers='thumbnail'), (1, 3, 16, 16))


def test_the_title_has_the_name_the_size_and_the_operations(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(plots, 'accuracy', lambda history, title: titles.append(title) or Figure())
    make_experiment(tmp_path).start({}, make_graph(), Progress(epoch=3, history=HISTORY))
    assert titles == ['meliusnet22: 3.88 MB, 208.1 M OPs']


def test_a_kill_while_files_are_written_leaves_complete_files(tmp_path, monkeypatch):
    """Whatever the moment: tables and plots of the last epoch or of this one, and nothing else once the run continues."""
    history = list(HISTORY[:2])
    experiment = make_experiment(tmp_path)
    experiment.start({}, make_graph(), Progress(epoch=2, history=history))
    names = sorted(os.listdir(tmp_path))
    assert set(names) - {'network.pdf'} == {*PLOTS, 'config.json', 'metrics.csv'}  # drawn where there is `dot`
    for moment in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(os, 'replace', kill_at(2 * moment, os.replace))
            with pytest.raises(Killed):
                experiment.show_epoch(Progress(epoch=3, history=HISTORY))
        assert sorted(os.listdir(tmp_path)) == names
        assert len(read_csv(tmp_path / 'metrics.csv')) == (3 if moment > 0 else 2)
        for plot in PLOTS:
            assert image.imread(tmp_path / plot).ndim == 3
    make_experiment(tmp_path).start({}, make_graph(), Progress(epoch=2, history=history))
    assert len(read_csv(tmp_path / 'metrics.csv')) == 2


def test_plots_take_a_small_share_of_the_time_and_the_last_epoch_is_always_shown(tmp_path, monkeypatch):
    clock, drawn = [0.0], []

    class SlowFigure:
        def savefig(self, path):
            clock[0] += 1
            Path(path).touch()

    monkeypatch.setattr(time, 'monotonic', lambda: clock[0])
    monkeypatch.setattr(plots, 'learning_rate', lambda *_, **__: SlowFigure())
    monkeypatch.setattr(plots, 'accuracy', lambda history, title: drawn.append((clock[0], len(history))) or SlowFigure())
    experiment = make_experiment(tmp_path, epochs=100)
    history = [{**HISTORY[0], 'epoch': epoch + 1} for epoch in range(100)]
    for epoch in range(1, 101):
        clock[0] += 3
        experiment.show_epoch(Progress(epoch=epoch, history=history[:epoch]))
        assert len(read_csv(tmp_path / 'metrics.csv')) == epoch
    assert clock[0] == 300 + 2 * len(drawn) and len(drawn) <= 0.05 * clock[0] / 2 + 2
    assert all(time - before <= 40 + 3 + 2 for (before, _), (time, _) in zip(drawn, drawn[1:])), 'and they are not forgotten'
    assert drawn[0][1] == 1 and drawn[-1][1] == 100


@pytest.mark.parametrize('name', ['savefig', 'network', 'config'])
def test_a_file_that_cannot_be_written_is_reported_once_and_the_run_continues(tmp_path, monkeypatch, caplog, name):
    def full(*arguments, **_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    if name == 'savefig':
        monkeypatch.setattr(Figure, 'savefig', full)
        files = PLOTS
    elif name == 'network':
        monkeypatch.setattr(shutil, 'which', lambda program: '/usr/bin/dot')
        monkeypatch.setattr(drawing, 'save', full)
        files = ['network.pdf']
    else:
        (tmp_path / 'config.json').write_text('{"sessions": [')
        files = ['config.json']
    experiment = make_experiment(tmp_path)
    experiment.start({}, make_graph(), Progress(epoch=2, history=HISTORY[:2]))
    experiment.show_epoch(Progress(epoch=3, history=HISTORY))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert sorted(warning.split()[0] for warning in warnings) == files
    assert len(read_csv(tmp_path / 'metrics.csv')) == 3


def test_a_network_is_drawn_once_if_graphviz_is_installed_and_otherwise_a_note_is_logged(tmp_path, monkeypatch, caplog):
    drawn = []
    monkeypatch.setattr(drawing, 'save', lambda picture, path: drawn.append(path) or Path(path).write_text('pdf'))
    caplog.set_level('INFO')
    for program, folders in ((None, []), ('/usr/bin/dot', [str(tmp_path / 'network.pdf')])):
        monkeypatch.setattr(shutil, 'which', lambda name, program=program: program)
        caplog.clear()
        make_experiment(str(tmp_path)).start({}, make_graph(), Progress())
        assert drawn == folders
        assert sum('network.pdf' in record.getMessage() for record in caplog.records) == (not program)
    make_experiment(str(tmp_path)).start({}, make_graph(), Progress())
    assert len(drawn) == 1


def test_only_rank_0_writes_the_folder_of_a_run(tmp_path):
    experiment = make_experiment(tmp_path, writes=False)
    experiment.start({}, make_graph(), Progress(epoch=3, history=HISTORY))
    experiment.show_epoch(Progress(epoch=3, history=HISTORY))
    assert not os.listdir(tmp_path)


# ---- TensorBoard ----


def read_values(folder):
    """What TensorBoard shows: a dict of curve to list of (update, value message); values that a later session purged are gone."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    shown = {}
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime):
        content, position = path.read_bytes(), 0
        while position < len(content):
            (length,) = struct.unpack_from('Q', content, position)
            event = Event.FromString(content[position + 12 : position + 12 + length])
            position += length + 16
            if event.session_log.status == SessionLog.START:
                shown = {name: [point for point in points if point[0] < event.step] for name, points in shown.items()}
            for value in event.summary.value:
                shown.setdefault(value.tag, []).append((event.step, value))
    return shown


def read_scalars(folder):
    return {name: [(update, value.simple_value) for update, value in points] for name, points in read_values(folder).items()}


def test_tensorboard_shows_the_history_of_a_run_that_was_killed_and_resumed(tmp_path):
    pytest.importorskip('tensorboardX')
    train_until('epoch 2, update 4', signal.SIGKILL, *FLAGS, '--tensorboard', '--save-dir', tmp_path)
    train_apart('--resume', '--save-dir', tmp_path)
    shown = read_scalars(tmp_path / 'tensorboard')
    history = history_of(tmp_path)
    for name in ('loss', 'train_top1', 'top1', 'top5', 'learning_rate'):
        assert shown[f'epoch/{name}'] == [(8 * row['epoch'], pytest.approx(row[name])) for row in history]
    assert [update for update, _ in shown['update/loss']] == list(range(1, 25))
    schedule = make_schedule('cosine', 0.008, 3, 8)
    assert shown['update/learning_rate'] == [(update, pytest.approx(schedule(update))) for update in range(1, 25)]


def test_a_summary_has_the_histograms_of_weights_and_gradients_of_each_epoch_also_of_an_interrupted_run(tmp_path, capsys):
    pytest.importorskip('tensorboardX')
    summary = ['--write-summary', tmp_path / 'summary']
    train(*FLAGS, *summary, '--interrupt-at', '2', '--save-frequency', '1', '--save-dir', tmp_path / 'run', status=3)
    assert 'stopped after epoch 2 (--interrupt-at)' in capsys.readouterr().out
    train('--resume', *summary, '--save-dir', tmp_path / 'run')
    shown = read_values(tmp_path / 'summary')
    assert [update for update, _ in shown['epoch/loss']] == [8, 16, 24] and not (tmp_path / 'run' / 'tensorboard').exists()
    name = next(name for name in shown if name.endswith('dense0_weight'))
    for epoch, (update, value) in enumerate(shown[name], start=1):
        weights = weights_of(tmp_path / 'run', epoch)['output.weight'].astype(np.float64)
        assert update == 8 * epoch and (value.histo.num, value.histo.min, value.histo.max) == (weights.size, weights.min(), weights.max())
        assert value.histo.sum_squares == pytest.approx((weights**2).sum())
    gradients = shown[f'{name}/gradient']
    assert len(gradients) == 3
    for _, value in gradients:  # gradients of a softmax cancel out over the classes
        assert value.histo.num == weights.size and value.histo.max > 0.1 and value.histo.sum == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize('flags', [['--tensorboard'], ['--write-summary', 'summary']])
def test_tensorboard_without_its_package_is_refused_before_any_work(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checks, 'TENSORBOARD_PACKAGE', 'a_package_that_is_not_there')
    train(*FLAGS, *flags, '--save-dir', tmp_path / 'run', status=2)
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f'error: {flags[0]}') and 'pip install' in message
    assert not os.listdir(tmp_path)


@pytest.mark.long
def test_memory_does_not_grow_over_two_thousand_updates(tmp_path):
    """20 MB were measured, in the first epochs; 60 MB are 33 KB an update, less than the activations of one batch."""
    program = (
        'import logging, sys, train_imagenet\n'
        'from bmx_melius.bench.first_result import resident_bytes\n'
        'from bmx_melius.reporting import LOG\n'
        'found = []\n'
        'handler = logging.Handler()\n'
        "handler.emit = lambda record: found.append(resident_bytes()) if ', update ' in record.getMessage() else None\n"
        'LOG.addHandler(handler)\n'
        'assert train_imagenet.main(sys.argv[1:]) == 0\n'
        "print('resident', len(found), found[200], found[-1])\n"
    )
    options = json.dumps({'block_numbers': [1, 1], 'transitions': [0.5]})
    flags = ['--model', 'meliusnet_flex', '--model-options', options, '--dataset', 'digits', '--batch-size', '10', '--num-epochs', '20']
    command = [sys.executable, '-c', program, *flags, '--log-interval', '1', '--track-flips', '--save-dir', tmp_path / 'run']
    environment = {**os.environ, 'PYTHONPATH': str(Path(train_imagenet.__file__).parent)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    updates, warm, end = map(int, done.stdout.splitlines()[-1].split()[1:])
    assert updates >= 2000
    assert end - warm < 60 << 20
