"""F1 and confusion in the results of a training, and the tables and plots in the folder of `fit`."""

import csv
import logging
import subprocess
import sys
from types import SimpleNamespace

import matplotlib.image
import mxnet as mx
import numpy as np
import pytest
import sklearn.metrics
from mxnet import gluon
from support.small_networks import sequence
from support.training_runs import TINY, inputs_of_digits, read_csv, state_of, train_apart

from bmx_melius.analysis import confusion_plot
from bmx_melius.data.small_images import open_digits
from bmx_melius.distributed.workers import Workers
from bmx_melius.training import Objective, Training, fit, loop
from bmx_melius.training.recording import history_files, plots
from bmx_melius.training.saving import stored_checkpoints
from model_zoo import get_model

RANDOM = np.random.RandomState(1)
LABELS = RANDOM.choice(5, 60, p=[0.5, 0.25, 0.2, 0.05, 0])  # no image of class 4
IMAGES = (RANDOM.randn(60, 6) + np.eye(6)[LABELS]).astype(np.float32)
TABLES_AND_PLOTS = {'metrics.csv', 'classes.csv', 'accuracy.png', 'loss.png', 'lr.png', 'confusion.png'}


def batches(images=IMAGES, labels=LABELS, size=16):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), batch_size=size)


def make_net():
    mx.random.seed(2)
    net = sequence(gluon.nn.Dense(5))
    net.initialize(mx.init.Normal(0.5))
    return net


def expected_results(net):
    """Macro F1, confusion matrix, and precision, recall and F1 of the classes, by scikit-learn."""
    predictions = net(mx.nd.array(IMAGES)).asnumpy().argmax(axis=1)
    return (
        sklearn.metrics.f1_score(LABELS, predictions, average='macro', zero_division=0),
        sklearn.metrics.confusion_matrix(LABELS, predictions, labels=range(5)),
        sklearn.metrics.precision_recall_fscore_support(LABELS, predictions, labels=range(5), zero_division=0)[:3],
    )


def assert_is_picture(path):
    assert matplotlib.image.imread(path).ndim == 3


# --- F1 and confusion -----------------------------------------------------------------------------------------------------------------


def test_f1_and_confusion_of_each_epoch_are_those_of_scikit_learn(tmp_path):
    expected, run = [], tmp_path / 'run'
    fit(make_net(), batches(), batches(size=7), 3, lr=0.3, save_dir=str(run), on_epoch=lambda it: expected.append(expected_results(it.net)))
    rows = read_csv(run / 'metrics.csv')
    assert [float(row['macro_f1']) for row in rows] == pytest.approx([f1 for f1, _, _ in expected])
    best = max(range(3), key=lambda epoch: float(rows[epoch]['top1']))
    _, matrix, rates = expected[best]
    classes = read_csv(run / 'classes.csv')
    assert [(row['name'], int(row['images']), int(row['hits']), int(row['predicted'])) for row in classes] == [
        (str(number), *map(int, (matrix[number].sum(), matrix[number, number], matrix[:, number].sum()))) for number in range(5)
    ]
    for name, values in zip(('precision', 'recall', 'f1'), rates):
        np.testing.assert_allclose([float(row[name] or 0) for row in classes], values, err_msg=name)


def test_the_confusion_matrix_that_is_drawn_is_that_of_the_best_epoch(tmp_path, monkeypatch):
    drawn, confusions, draw = [], [], confusion_plot.draw
    monkeypatch.setattr(confusion_plot, 'draw', lambda *arguments: drawn.append(arguments) or draw(*arguments))

    def on_epoch(training):
        confusions.append(expected_results(training.net)[1])
        training.trainer.optimizer.lr_scheduler.base_lr = 0
        if training.progress.epoch == 1:  # the next epochs are worse
            training.net[0].bias.set_data(mx.nd.array([-99, -99, -99, -99, 99]))

    history = fit(make_net(), batches(), batches(), 3, lr=0.1, save_dir=str(tmp_path), on_epoch=on_epoch)
    assert history[0]['top1'] > history[2]['top1']
    ((counts, names, title),) = drawn  # once: it did not change
    np.testing.assert_array_equal(counts, confusions[0])
    assert names == list('01234') and title == f'HybridSequential\nvalidation images, epoch 1: top-1 {history[0]["top1"]:.2%}'
    assert_is_picture(tmp_path / 'confusion.png')


def test_a_resumed_run_has_the_confusion_of_its_best_epoch_although_that_was_before(tmp_path):
    def worse(training):
        training.net[0].bias.set_data(mx.nd.array([-99, -99, -99, -99, 99]))

    fit(make_net(), batches(), batches(), 2, lr=0.01, save_dir=str(tmp_path), on_epoch=worse)
    before = (tmp_path / 'classes.csv').read_bytes()
    for name in ('classes.csv', 'confusion.png'):  # as if the process had been killed before it wrote them
        (tmp_path / name).unlink()
    history = fit(make_net(), batches(), batches(), 3, lr=0.01, save_dir=str(tmp_path), resume=True, on_epoch=worse)
    assert max(history, key=lambda row: row['top1'])['epoch'] == 1 and len(history) == 3
    assert (tmp_path / 'classes.csv').read_bytes() == before
    assert_is_picture(tmp_path / 'confusion.png')


def test_a_run_of_an_earlier_version_without_f1_and_confusion_is_resumed(tmp_path):
    fit(make_net(), batches(), batches(), 2, lr=0.3, save_dir=str(tmp_path))
    for name in ('checkpoint.json', 'checkpoint-previous.json'):
        state = stored_checkpoints.read_state(str(tmp_path / name))
        for row in state['progress']['history']:
            del row['macro_f1']
        state['arrays'] = None
        stored_checkpoints.write_state(str(tmp_path / name), state)
    for name in TABLES_AND_PLOTS:
        (tmp_path / name).unlink()
    history = fit(make_net(), batches(), batches(), 3, lr=0.3, save_dir=str(tmp_path), resume=True)
    assert 'macro_f1' not in history[0]
    rows = read_csv(tmp_path / 'metrics.csv')
    assert [row['macro_f1'] for row in rows] == ['', '', str(history[2]['macro_f1'])] and all(row['top1'] for row in rows)


def test_networks_with_too_many_classes_for_a_matrix_have_no_f1(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, 'CONFUSED_CLASSES', 4)
    (row,) = fit(make_net(), batches(), batches(), 1, save_dir=str(tmp_path))
    assert np.isnan(row['macro_f1']) and row['top1'] > 0
    assert not (tmp_path / 'confusion.png').exists() and not (tmp_path / 'classes.csv').exists()


class OneOfTwo(Workers):
    """A worker with the sums of two workers: `others` are the values of the other worker, one for each call."""

    count = 2

    def __init__(self, others):
        super().__init__()
        self.given, self._others = [], iter(others)

    def sum(self, values):
        self.given.append(list(values))
        return [a + b for a, b in zip(values, next(self._others, values))]


def test_workers_sum_their_confusions_also_one_without_images():
    net = make_net()
    shares = batches(IMAGES[:40], LABELS[:40]), batches(IMAGES[40:], LABELS[40:]), ()

    def evaluate(share, others):
        data, workers = SimpleNamespace(images_per_update=1, classes=5, validation=lambda: iter(share)), OneOfTwo(others)
        trainer = gluon.Trainer(net.collect_params(), 'sgd')
        return workers.given, Training(net, data, Objective(), trainer, num_epochs=1, workers=workers)._evaluate()

    f1, matrix, _ = expected_results(net)
    sent, (_, of_first) = evaluate(shares[0], [[0] * 4, [0] * 25])
    _, (results, confusion) = evaluate(shares[1], sent)
    np.testing.assert_array_equal(confusion.counts, matrix)
    assert results['macro_f1'] == pytest.approx(f1) and results['top1'] == pytest.approx(np.trace(matrix) / 60)
    _, (_, confusion) = evaluate(shares[2], sent)
    np.testing.assert_array_equal(confusion.counts, of_first.counts)


def test_the_training_program_writes_f1_and_confusion_with_the_names_of_classes(tmp_path):
    run = tmp_path / 'run'
    train_apart(*TINY, '--dataset', 'digits', '--num-epochs', '1', '--batch-size', '128', '--save-dir', run)
    model = state_of(run)['network']['model']
    net = get_model(**model)
    net.load_parameters(str(run / 'epoch-0001.params'))
    inputs, labels = inputs_of_digits(open_digits().validation)
    predictions = net(inputs).asnumpy().argmax(axis=1)
    (row,) = read_csv(run / 'metrics.csv')
    assert float(row['macro_f1']) == pytest.approx(sklearn.metrics.f1_score(labels, predictions, average='macro', zero_division=0))
    classes = read_csv(run / 'classes.csv')
    assert [row['name'] for row in classes] == list('0123456789')
    hits = sklearn.metrics.confusion_matrix(labels, predictions).diagonal()
    assert [int(row['hits']) for row in classes] == hits.tolist()
    assert_is_picture(run / 'confusion.png')


# --- the folder and the messages of `fit` ---------------------------------------------------------------------------------------------


def test_fit_writes_a_table_and_plots_that_a_resumed_run_continues(tmp_path):
    options = dict(lr=0.3, save_dir=str(tmp_path))
    fit(make_net(), batches(), batches(), 2, **options)
    first = (tmp_path / 'metrics.csv').read_text()
    history = fit(make_net(), batches(), batches(), 3, resume=True, **options)
    assert (tmp_path / 'metrics.csv').read_text().startswith(first)
    assert [{name: float(value) for name, value in row.items()} for row in read_csv(tmp_path / 'metrics.csv')] == history
    assert {path.name for path in tmp_path.iterdir()} >= TABLES_AND_PLOTS
    for path in tmp_path.glob('*.png'):
        assert_is_picture(path)


def test_plots_have_all_epochs_after_a_callback_ended_the_training_and_come_back_when_a_finished_run_is_resumed(tmp_path, monkeypatch):
    drawn, curve = [], plots.accuracy
    monkeypatch.setattr(plots, 'accuracy', lambda history, title: drawn.append(len(history)) or curve(history, title))
    monkeypatch.setattr(history_files, 'PLOTTING_SHARE', 1e-9)  # plots are left out except after the first and the last epoch
    options = dict(lr=0.3, save_dir=str(tmp_path))
    fit(make_net(), batches(), batches(), 9, on_epoch=lambda training: training.progress.epoch == 3, **options)
    assert drawn[-1] == 3
    for name in TABLES_AND_PLOTS:
        (tmp_path / name).unlink()
    fit(make_net(), batches(), batches(), 3, resume=True, **options)
    assert {path.name for path in tmp_path.iterdir()} >= TABLES_AND_PLOTS


def test_without_validation_data_table_and_plots_have_those_of_training_only(tmp_path, monkeypatch, caplog):
    figures = {}
    for name in ('accuracy', 'loss'):
        curve = getattr(plots, name)
        monkeypatch.setattr(plots, name, lambda *a, name=name, curve=curve, **k: figures.setdefault(name, curve(*a, **k)))
    fit(make_net(), batches(), None, 1, save_dir=str(tmp_path))
    (row,) = csv.DictReader((tmp_path / 'metrics.csv').open())
    assert {name for name, value in row.items() if value == 'nan'} == {'top1', 'top5', 'macro_f1', 'validation_loss'}
    labels = {name: [line.get_label().split(':')[0] for line in figure.axes[0].lines] for name, figure in figures.items()}
    assert labels == {'accuracy': ['training top-5', 'training top-1'], 'loss': ['training']}
    assert not (tmp_path / 'confusion.png').exists()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith('epoch 1: loss ') and 'validation' not in message and 'nan' not in message


def test_the_learning_rates_of_a_trainer_of_the_user_are_those_that_were_used(tmp_path, monkeypatch):
    figures, curve = [], plots.learning_rate
    monkeypatch.setattr(plots, 'learning_rate', lambda *a, **k: figures.append(curve(*a, **k)) or figures[-1])
    net = make_net()
    scheduler = mx.lr_scheduler.FactorScheduler(step=4, factor=0.5, base_lr=0.4)  # asking it for a later rate changes the next rates
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'lr_scheduler': scheduler, 'learning_rate': 0.4})
    history = fit(net, batches(), batches(), 3, trainer=trainer, save_dir=str(tmp_path))
    assert [row['learning_rate'] for row in history] == pytest.approx([0.4, 0.2, 0.1])
    np.testing.assert_allclose(figures[-1].axes[0].lines[0].get_xydata(), [[1, 0.4], [2, 0.2], [3, 0.1]])


PROGRAM = """
import logging
{setup}
import mxnet as mx
from mxnet import gluon
from bmx_melius.training import fit
net = gluon.nn.Dense(2)
net.initialize()
data = [(mx.nd.ones((4, 3)), mx.nd.array([0, 1, 0, 1]))]
fit(net, data, data, num_epochs=2{arguments})
assert logging.getLogger('bmx_melius').handlers == [] and logging.getLogger('bmx_melius').level == logging.NOTSET
"""


@pytest.mark.parametrize(
    'setup,arguments,prefixes',
    [
        ('', '', ['epoch 1: loss ', 'epoch 2: loss ']),
        ('', ', verbose=False', []),
        ('logging.basicConfig()', '', ['INFO:bmx_melius:epoch 1: loss ', 'INFO:bmx_melius:epoch 2: loss ']),  # once, by the user's logging
        ('logging.basicConfig()', ', verbose=False', []),
    ],
)
def test_fit_shows_a_line_for_each_epoch_unless_it_is_not_verbose(setup, arguments, prefixes):
    program = PROGRAM.format(setup=setup, arguments=arguments)
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == '', done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(prefixes) and all(map(str.startswith, lines, prefixes)), lines
    assert all('training top-1 ' in line and 'validation top-1 ' in line for line in lines)


def test_an_error_in_fit_leaves_the_logging_as_it_was():
    log = logging.getLogger('bmx_melius')
    before = log.level, list(log.handlers)
    with pytest.raises(ZeroDivisionError):
        fit(make_net(), batches(), batches(), 1, on_epoch=lambda training: 1 // 0)
    assert (log.level, list(log.handlers)) == before
