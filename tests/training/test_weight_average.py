"""Moving averages of weights against plain loops in NumPy, and weights of classes against scikit-learn."""

import json

import numpy as np
import pytest
from mxnet import nd
from sklearn.utils.class_weight import compute_class_weight
from support.checkpointed_runs import make, step, weights
from support.training_runs import TINY, refused, train

from bmx_melius.nn.methods.bnext import BNextConv2D
from bmx_melius.nn.methods.schedules import begin_epoch
from bmx_melius.training.class_weights import class_weights
from bmx_melius.training.objective import Mixup, Objective
from bmx_melius.training.weight_average import WeightAverage


@pytest.mark.parametrize('decay', [0.5, 0.999])
def test_the_average_is_that_of_a_plain_loop_and_the_network_keeps_its_weights(decay):
    net, trainer = make()
    average, expected = WeightAverage(net, decay), [value.astype(np.float64) for value in weights(net)]
    for number in range(1, 6):
        step(net, trainer, number)
        average.update(number)
        share = min(decay, (1 + number) / (10 + number))
        expected = [share * mean + (1 - share) * value for mean, value in zip(expected, weights(net))]
    before = weights(net)
    with average.applied():
        for mean, value in zip(expected, weights(net)):
            np.testing.assert_allclose(value, mean, rtol=1e-5, atol=1e-7)
        assert any(not np.array_equal(*pair) for pair in zip(before, weights(net)))
    assert all(np.array_equal(*pair) for pair in zip(before, weights(net)))


def test_numbers_that_follow_the_progress_of_the_training_are_not_averaged():
    layer = BNextConv2D(2, 1, in_channels=2)
    layer.initialize()
    average = WeightAverage(layer, 0.999)
    for number, progress in enumerate((0, 0.5, 1), start=1):
        begin_epoch(layer, progress)
        average.update(number)
    with average.applied():
        assert layer.qconv.temperature.value.data().asscalar() == np.float32(0.9**512)
        assert set(np.abs(layer(nd.ones((1, 2, 1, 1))).asnumpy()).ravel()) <= {0, 2}  # of binary weights


@pytest.mark.parametrize('mixed,smoothing', [(False, 0.0), (False, 0.1), (True, 0.0)])
def test_the_loss_of_an_image_is_multiplied_by_the_weight_of_its_class_and_that_of_a_mixture_by_the_mean(mixed, smoothing):
    factors, labels = [0.5, 1.0, 4.0], nd.array([0, 2, 1, 2])
    logits, images = nd.random.normal(shape=(4, 3)), nd.zeros((4, 1, 2, 2))
    mixup = Mixup(0.2, seed=3, end=10) if mixed else None
    plain, weighted = Objective(3, smoothing, mixup), Objective(3, smoothing, mixup, class_weights=factors)
    _, targets = weighted.prepare(images, labels, 0, 0)
    shares = targets.asnumpy() if mixed or smoothing else np.eye(3)[labels.asnumpy().astype(int)]
    expected = plain.loss(images, logits, targets).asnumpy() * (shares @ factors)
    np.testing.assert_allclose(weighted.loss(images, logits, targets).asnumpy(), expected, rtol=1e-5)


class Source:
    """Labels of 6 images of three classes."""

    classes, class_names, train_images = 3, ['ant', 'bee', 'cat'], 6

    def training_labels(self):
        return np.array([0, 2, 2, 1, 2, 2])


def test_class_weights_are_balanced_as_in_scikit_learn_or_read_from_a_file(tmp_path):
    labels = Source().training_labels()
    expected = compute_class_weight('balanced', classes=np.arange(3), y=labels)
    assert class_weights('balanced', Source()) == pytest.approx(expected.tolist())
    file = tmp_path / 'weights.json'
    for content, values in (({'cat': 2}, [1, 1, 2]), ([3, 1, 0.5], [3, 1, 0.5])):
        file.write_text(json.dumps(content))
        assert class_weights(str(file), Source()) == values


@pytest.mark.parametrize(
    'flags,content,words',
    [
        (['--class-weights', 'w.json'], '{"11": 2}', "no class '11'"),
        (['--class-weights', 'w.json'], '[1, 2]', 'each of the 10 classes'),
        (['--class-weights', 'w.json'], '[1, 2', 'w.json is not a JSON file'),
        (['--class-weights', 'w.json'], '{"1": -1}', 'a positive number'),
        (['--class-weights', 'w.json'], '{"1": "much"}', 'w.json is not a JSON file'),
        (['--class-weights', 'none.json'], '', 'none.json'),
        (['--ema', '1'], '', '--ema must be above 0 and below 1'),
        (['--early-stop', '-1'], '', '--early-stop must not be negative'),
    ],
)
def test_wrong_weights_and_averages_are_reported_in_one_line(flags, content, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'w.json').write_text(content)
    assert words in refused(capsys, *TINY, '--dataset', 'digits', *flags)


def test_balanced_class_weights_are_part_of_the_plan(tmp_path, capsys):
    train(*TINY, '--dataset', 'digits', '--class-weights', 'balanced', '--dry-run', '--save-dir', tmp_path / 'run')
    assert 'weighted by class (balanced: 0.9' in capsys.readouterr().out
