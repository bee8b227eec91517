"""Optimizers by name, their arguments, and separate optimizers for binary weights: what is refused, and runs that resume exactly."""

import json
import os
import signal

import mxnet as mx
import numpy as np
import pytest
from support.checkpointed_runs import make, step, weights
from support.training_runs import error_of, train

import model_zoo
from bmx_melius.distributed.workers import Workers
from bmx_melius.errors import UserError
from bmx_melius.nn.layers import QDense
from bmx_melius.optimizers import BinarySplit
from bmx_melius.training import Training
from bmx_melius.training.optimization import make_trainer
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
    return make_trainer(net, 10, 64, workers or Workers(), **configured(*flags).pick(make_trainer))


def small_network(**arguments):
    """A network with a binary and real weights."""
    net = mx.gluon.nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(QDense(4, in_units=3, **arguments), mx.gluon.nn.BatchNorm(in_channels=4), mx.gluon.nn.Dense(2, in_units=4))
    mx.random.seed(0)
    net.initialize(mx.init.Normal(1))
    return net


@pytest.mark.parametrize(
    'flags, words',
    [
        (['--optimizer', 'adamm'], "unknown optimizer 'adamm'; did you mean adam or"),
        (['--optimizer', 'adamw'], 'did you mean adam'),  # MXNet 1.9.1 registers none
        (['--optimizer', 'xyz'], 'known: adadelta, adagrad'),
        (['--optimizer', 'lbsgd'], "'lbsgd' cannot be used here: its own warm-up"),
        (['--optimizer', 'BinarySplit'], 'made by --binary-optimizer'),
        (['--optimizer', 'rmsprop', '--optimizer-params', '{"gama1": 0.5}'], "rmsprop has no argument 'gama1'; did you mean gamma1"),
        (['--optimizer', 'lamb', '--optimizer-params', '{"wd": 1}'], '--optimizer-params: wd of lamb is set by --wd'),
        (['--optimizer', 'sgd', '--optimizer-params', '{"momentum": 1}'], '--optimizer-params: momentum of sgd is set by --momentum'),
        (['--optimizer', 'adam', '--optimizer-params', '{"beta1": "x"}'], '--optimizer-params {"beta1": "x"}: adam refuses this'),
        (['--optimizer-params', '{"beta1": 2}'], 'radam refuses this: RAdam: beta1 must be at least 0 and below 1'),
        (['--optimizer-params', '{"param_dict": {}}'], "radam has no argument 'param_dict'"),
        (['--optimizer-params', '[1]'], '--optimizer-params'),
        (['--optimizer', 'signum', '--momentum', '0.5'], '--momentum 0.5: signum has no such argument'),
        (['--binary-lr', '1'], '--binary-lr has no effect without --binary-optimizer'),
        (['--binary-optimizer-params', '{}'], '--binary-optimizer-params has no effect without --binary-optimizer'),
        (['--binary-optimizer', 'adam', '--binary-lr', '-1'], '--binary-lr must not be negative'),
        (['--binary-optimizer', 'adam', '--binary-optimizer-params', '{"b": 1}'], "--binary-optimizer-params: adam has no argument 'b'"),
        (['--lr-decay', '0.5,0.2,0.1', '--lr-mode', 'step'], '--lr-decay has 3 factors, 0.5,0.2,0.1: give one for all'),
        (['--lr-decay', '0.5,-0.2'], '--lr-decay must not be negative'),
        (['--lr-power', '0'], '--lr-power must be positive'),
        (['--no-wd', 'maybe'], "expected on or off, not 'maybe'"),
    ],
)
def test_wrong_optimizers_and_arguments_are_refused_in_one_line(flags, words):
    with pytest.raises(UserError) as raised:
        configured(*flags)
    assert words in str(raised.value) and '\n' not in str(raised.value)


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


@pytest.mark.parametrize('name', optimizer_names())
def test_training_with_each_optimizer_continues_from_its_saved_state_bit_for_bit(tmp_path, name):
    def seeded(net, trainer, number):
        mx.random.seed(number)  # as the training loop does; sgld draws noise
        step(net, trainer, number)

    net, trainer = make(name)
    for number in range(3):
        seeded(net, trainer, number)
    save_optimizer(trainer, str(tmp_path / 'states'))
    net.save_parameters(str(tmp_path / 'params'))
    other, other_trainer = make(name, seed=1)
    other.load_parameters(str(tmp_path / 'params'))
    load_optimizer(other_trainer, str(tmp_path / 'states'))
    before = weights(net)
    for number in range(3, 6):
        seeded(net, trainer, number)
        seeded(other, other_trainer, number)
    np.testing.assert_equal(weights(other), weights(net))
    assert any((array != old).any() for array, old in zip(weights(net), before))


def test_a_file_without_what_nadam_needs_is_refused(tmp_path):
    net, trainer = make('nadam')
    step(net, trainer, 0)
    trainer.save_states(str(tmp_path / 'pickle'))
    load_optimizer(make('nadam')[1], str(tmp_path / 'pickle'))
    del trainer.optimizer.m_schedule
    trainer.save_states(str(tmp_path / 'pickle'))
    with pytest.raises(UserError, match='lacks m_schedule of Nadam'):
        load_optimizer(make('nadam')[1], str(tmp_path / 'pickle'))


# ---- an optimizer for binary weights ----

SPLIT = ['--optimizer', 'sgd', '--momentum', '0.5', '--lr', '0.1', '--wd', '0.01', '--binary-optimizer', 'nadam', '--binary-lr', '0.02']


def train_step(net, trainer, number):
    x = mx.nd.array(np.random.RandomState(number).randn(6, 3))
    with mx.autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    trainer.step(6)


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
        train_step(found, trainer, number)
        x = mx.nd.array(np.random.RandomState(number).randn(6, 3))
        with mx.autograd.record():
            loss = (expected(x) ** 2).sum()
        loss.backward()
        for one in alone:
            one.step(6)
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
            with mx.autograd.record():
                losses = [(net(mx.nd.full((2, 3), number + place, ctx=device)) ** 2).sum() for place, device in enumerate(devices)]
            mx.autograd.backward(losses)
            trainer.step(4)

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
    train_step(net, trainer, 0)
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


def test_an_interrupted_run_with_two_optimizers_ends_like_an_uninterrupted_one(tmp_path, monkeypatch, capsys):
    flags = [*TINY, '--preset', 'quicknet', '--binary-lr', '0.05', '--optimizer-params', '{"clip_gradient": 1}']
    train(*flags, '--save-dir', tmp_path / 'whole')
    done, original = 0, Training.update

    def interrupted(*arguments):
        nonlocal done
        done += 1
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Training, 'update', interrupted)
        train(*flags, '--save-dir', tmp_path / 'run', status=128 + signal.SIGINT)
    options = json.loads((tmp_path / 'run' / 'checkpoint.json').read_text())['options']
    assert (options['binary_optimizer'], options['binary_lr']) == ('adam', 0.05)
    train('--resume', '--save-dir', tmp_path / 'run', '--binary-lr', '1', status=2)
    assert 'was started with --binary-lr 0.05' in error_of(capsys)
    train('--resume', '--save-dir', tmp_path / 'run')
    for name in ('epoch-0001.params', 'epoch-0001.states'):
        assert (tmp_path / 'run' / name).read_bytes() == (tmp_path / 'whole' / name).read_bytes(), name


def test_the_plan_names_both_optimizers(tmp_path, capsys):
    train(*TINY, '--preset', 'quicknet', '--binary-lr', '0.04', '--save-dir', tmp_path / 'run', '--dry-run')
    assert 'sgd, binary weights adam at 0.04, weight decay 0' in capsys.readouterr().out
    assert BinarySplit.__name__.lower() not in optimizer_names()
