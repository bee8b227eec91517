"""The learning rate over whole runs, against the closed formulas and as the optimizer sees it."""

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from support.gradients import descend

from bmx_melius.errors import UserError
from bmx_melius.training.optimization import decay_epochs, make_schedule

LR, WARMUP_LR = 0.4, 0.1


def formula(mode, update, updates_per_epoch, num_epochs, warmup_epochs, decay=0.1, epochs=()):
    """The rate of update 0, 1 ... as the docstring of `make_schedule` defines it."""
    warmup, total = warmup_epochs * updates_per_epoch, num_epochs * updates_per_epoch
    if update < warmup:
        return WARMUP_LR + (LR - WARMUP_LR) * (update + 1) / warmup
    x = (update - warmup) / (total - warmup)
    return {
        'cosine': LR * (1 + math.cos(math.pi * x)) / 2,
        'poly': LR * (1 - x) ** 2,
        'step': LR * decay ** sum(update >= epoch * updates_per_epoch for epoch in epochs),
    }[mode]


def rates_of_a_run(schedule, updates, optimizer='sgd'):
    """The rates with which an optimizer really makes its updates: with gradient 1 and plain SGD, the steps of the weight."""
    weight = gluon.Parameter('weight', shape=(1,))
    weight.initialize(mx.init.Zero())
    trainer = gluon.Trainer([weight], optimizer, {'lr_scheduler': schedule, 'learning_rate': LR}, kvstore=None)
    values = [0.0]
    for _ in range(updates):
        descend(trainer, 1, lambda: weight.data().sum())
        values.append(float(weight.data().asscalar()))
    return -np.diff(values)


@pytest.mark.parametrize('warmup_epochs', [0, 1, 3])
@pytest.mark.parametrize('mode', ['cosine', 'poly', 'step'])
def test_every_update_of_a_run_has_the_rate_of_the_formula_and_none_has_rate_zero(mode, warmup_epochs):
    updates_per_epoch, num_epochs, epochs = 7, 6, (4, 5)
    total = updates_per_epoch * num_epochs
    schedule = make_schedule(mode, LR, num_epochs, updates_per_epoch, warmup_epochs, WARMUP_LR, 0.1, epochs)
    expected = [formula(mode, update, updates_per_epoch, num_epochs, warmup_epochs, 0.1, epochs) for update in range(total)]
    np.testing.assert_allclose([schedule(update + 1) for update in range(total)], expected, rtol=1e-12)
    np.testing.assert_allclose(rates_of_a_run(schedule, total), expected, atol=1e-6)
    assert min(expected) > 0
    assert max(expected) == pytest.approx(expected[warmup_epochs * updates_per_epoch]) == LR


def test_a_run_of_one_update_has_the_base_rate():
    assert make_schedule('cosine', LR, 1, 1)(1) == LR


def test_the_rate_before_the_first_update_can_be_asked_for():
    assert make_schedule('cosine', LR, 2, 3)(0) == LR
    assert make_schedule('cosine', LR, 2, 3, 1, WARMUP_LR)(0) == pytest.approx(WARMUP_LR)


def test_a_warmup_that_leaves_no_epoch_is_refused():
    with pytest.raises(UserError, match='--warmup-epochs 5 leaves nothing of --num-epochs 5'):
        make_schedule('cosine', LR, 5, 10, warmup_epochs=5)


def test_decay_epochs_are_listed_or_periodic():
    assert decay_epochs([40, 60], 0, 90) == (40, 60)
    assert decay_epochs([40, 60], 30, 90) == (30, 60)


def test_the_optimizer_of_the_paper_takes_the_schedule_without_complaint(capsys):
    import bmx_melius  # noqa: F401  registers radam

    rates_of_a_run(make_schedule('cosine', LR, 2, 3), 2, 'radam')
    rates_of_a_run(make_schedule('cosine', LR, 2, 3), 2, 'adam')
    assert 'overwritten' not in capsys.readouterr().out
