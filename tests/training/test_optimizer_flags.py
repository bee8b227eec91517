"""Optimizers by name, their arguments, and separate optimizers for binary weights: what is refused, and runs that resume exactly."""

import signal

import mxnet as mx
import numpy as np
import pytest
from support.checkpointed_runs import make, step, weights
from support.gradients import descend
from support.training_runs import assert_equal_files, interrupted_in, refused, state_of, train

import model_zoo
from bmx_melius.distributed.workers import Workers
from bmx_melius.errors import UserError
from bmx_melius.nn.layers import QDense
from bmx_melius.optimizers import BinarySplit
from bmx_melius.training.optimization import OptimizerOptions, ScheduleOptions, make_trainer
from bmx_melius.training.optimizer_names import optimizer_names
from bmx_melius.training.options.parsing import parse_options
from bmx_melius.training.saving.optimizer_state import load_optimizer, save_optimizer

NETWORK = ['--model', 'meliusnet_flex', '--dataset', 'digits']
TINY = [
    *NETWORK,
    *('--num-epochs', '1', '--batch-size', '256', '--log-interval', '0', '--save-frequency', '0'),
    *('--model-options', '{"block_numbers": [1, 1], "transitions": [8], "growth_rate": 8, "init_features": 8}'),
]


def configured(*flags):
    return parse_options([*NETWORK, '--save-dir', '/nowhere', *map(str, flags)], model_zoo)


def trainer_of(net, *flags, workers=None):
    """The trainer of a network, for epochs of 10 updates of 64 images."""
    return make_trainer(net, 10, 64, workers or Workers(), *map(configured(*flags).make, (OptimizerOptions, ScheduleOptions)))


def small_network(**arguments):
    """A network with a binary and real weights."""
    net = mx.gluon.nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(QDense(4, in_units=3, **arguments), mx.gluon.nn.BatchNorm(in_channels=4), mx.gluon.nn.Dense(2, in_units=4))
    mx.random.seed(0)
    net.initialize(mx.init.Normal(1))
    return net


def test_an_optimizer_of_mxnet_has_its_rate_and_arguments():
    config = configured('--optimizer', 'LAMB', '--optimizer-params', '{"beta1": 0.5}')
    assert (config.optimizer, config.lr, config.wd, config.warmup_epochs, config.momentum) == ('lamb', 0.004, 0, 0, None)
    trainer = trainer_of(small_network(), '--optimizer', 'lamb', '--optimizer-params', '{"beta1": 0.5}')
    assert type(trainer.optimizer) is mx.optimizer.LAMB and trainer.optimizer.beta1 == 0.5


def test_an_optimizer_that_the_user_registers_is_known(monkeypatch):
    monkeypatch.setattr(mx.optimizer.Optimizer, 'opt_registry', dict(mx.optimizer.Optimizer.opt_registry))

    @mx.optimizer.register
    class Halving(mx.optimizer.Optimizer):
        def __init__(self, factor=0.5, **kwargs):
            super().__init__(**kwargs)

    assert configured('--optimizer', 'halving', '--optimizer-params', '{}').lr == 0.04
    with pytest.raises(UserError, match='halving refuses this'):  # it has no update
        configured('--optimizer', 'halving', '--optimizer-params', '{"factor": 2}')


def test_a_file_without_what_nadam_needs_is_refused(tmp_path):
    _, trainer = make('nadam', updates=1)
    trainer.save_states(str(tmp_path / 'pickle'))
    load_optimizer(make('nadam')[1], str(tmp_path / 'pickle'))
    del trainer.optimizer.m_schedule
    trainer.save_states(str(tmp_path / 'pickle'))
    with pytest.raises(UserError, match='lacks m_schedule of Nadam'):
        load_optimizer(make('nadam')[1], str(tmp_path / 'pickle'))


# ---- an optimizer for binary weights ----

SPLIT = ['--optimizer', 'sgd', '--momentum', '0.5', '--lr', '0.1', '--wd', '0.01', '--binary-optimizer', 'nadam', '--binary-lr', '0.02']


def test_each_kind_of_weights_is_updated_as_by_its_optimizer_alone():
    found = small_network()
    trainer = trainer_of(found, *SPLIT, '--warmup-epochs', 0, '--binary-optimizer-params', '{"beta1": 0.8}')
    expected = small_network()
    alone = []
    for name, arguments, parameters in (
        ('sgd', {'momentum': 0.5, 'learning_rate': 0.1}, [p for n, p in expected.collect_params().items() if 'qdense' not in n]),
        ('nadam', {'beta1': 0.8, 'learning_rate': 0.02}, [expected[0].weight]),
    ):
        schedule = trainer.optimizer.parts['main' if name == 'sgd' else 'binary'].lr_scheduler
        assert schedule.base_lr == arguments['learning_rate']
        optimizer = mx.optimizer.create(name, wd=0.01, lr_scheduler=schedule, **arguments)
        alone.append(mx.gluon.Trainer(parameters, optimizer, kvstore=None))
    for number in range(4):
        step(found, trainer, number)
        step(expected, alone[0], number)
        alone[1].step(6)
    np.testing.assert_equal(weights(found), weights(expected))
    assert trainer.optimizer.num_update == 4 and trainer.learning_rate == alone[0].learning_rate


def test_two_optimizers_continue_from_their_saved_state_bit_for_bit_on_several_devices(tmp_path):
    devices = [mx.cpu(0), mx.cpu(1)]

    def make_split():
        net = small_network()
        net.collect_params().reset_ctx(devices)
        return net, trainer_of(net, *SPLIT, workers=Workers('device'))

    def train_on_both(net, trainer, numbers):
        for number in numbers:
            images = [mx.nd.full((2, 3), number + place, ctx=device) for place, device in enumerate(devices)]
            descend(trainer, 4, lambda images=images: [(net(x) ** 2).sum() for x in images])

    net, trainer = make_split()
    train_on_both(net, trainer, range(3))
    save_optimizer(trainer, str(tmp_path / 'states'))
    net.save_parameters(str(tmp_path / 'params'))
    other, other_trainer = make_split()
    other.load_parameters(str(tmp_path / 'params'), ctx=devices)
    load_optimizer(other_trainer, str(tmp_path / 'states'))
    for each in ((net, trainer), (other, other_trainer)):
        train_on_both(*each, range(3, 6))
    for name, parameter in net._collect_params_with_prefix().items():
        for device in devices if parameter.grad_req != 'null' else []:  # devices have running statistics of their own
            found = other._collect_params_with_prefix()[name].data(device)
            np.testing.assert_array_equal(found.asnumpy(), parameter.data(device).asnumpy(), err_msg=name)


def test_the_state_of_other_optimizers_is_refused(tmp_path):
    path = str(tmp_path / 'states')
    net = small_network()
    trainer = trainer_of(net, *SPLIT)
    step(net, trainer, 0)
    save_optimizer(trainer, path)
    for flags in (SPLIT[:8], [*SPLIT[:-4], '--binary-optimizer', 'adam']):
        other = trainer_of(small_network(), *flags)
        with pytest.raises(UserError, match='is the state of SGD and Nadam for binary weights, not of'):
            load_optimizer(other, path)


def test_a_network_without_binary_weights_has_one_optimizer():
    with pytest.raises(UserError, match='--binary-optimizer adam: this network has no binary weights'):
        trainer_of(small_network(bits=32), '--binary-optimizer', 'adam')
    for flags in (['--bits', '32'], ['--weight-bits', '32'], ['--model', 'mobilenet0.5']):
        assert configured('--preset', 'quicknet', *flags).binary_optimizer is None


def test_an_interrupted_run_with_two_optimizers_ends_like_an_uninterrupted_one(tmp_path, capsys):
    flags = [*TINY, '--preset', 'quicknet', '--binary-lr', '0.05', '--optimizer-params', '{"clip_gradient": 1}']
    train(*flags, '--save-dir', tmp_path / 'whole')
    with interrupted_in(3):
        train(*flags, '--save-dir', tmp_path / 'run', status=128 + signal.SIGINT)
    options = state_of(tmp_path / 'run')['options']
    assert (options['binary_optimizer'], options['binary_lr']) == ('adam', 0.05)
    assert 'was started with --binary-lr 0.05' in refused(capsys, '--resume', '--save-dir', tmp_path / 'run', '--binary-lr', '1')
    train('--resume', '--save-dir', tmp_path / 'run')
    assert_equal_files(tmp_path / 'run', tmp_path / 'whole', 'epoch-0001.params', 'epoch-0001.states')


def test_the_plan_names_both_optimizers(tmp_path, capsys):
    train(*TINY, '--preset', 'quicknet', '--binary-lr', '0.04', '--save-dir', tmp_path / 'run', '--dry-run')
    assert 'sgd, binary weights adam at 0.04, weight decay 0' in capsys.readouterr().out
    assert BinarySplit.__name__.lower() not in optimizer_names()
