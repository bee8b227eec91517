"""The state of an optimizer as a file: it brings everything back, and a damaged or malicious one does no more than raise an error."""

import os
import pickle
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from support.checkpointed_runs import make, step, weights
from support.gradients import descend

from bmx_melius.errors import UserError
from bmx_melius.files.parameters import read_parameters, write_parameters
from bmx_melius.training.optimizer_names import optimizer_names
from bmx_melius.training.saving import pickled_states
from bmx_melius.training.saving.optimizer_state import load_optimizer, save_optimizer


def save_pickle(trainer, path):
    """As MXNet does."""
    trainer.save_states(path)


def states_of(trainer, path):
    """The arrays of the optimizer, of each parameter, as MXNet saves them."""
    trainer.save_states(str(path))
    states, _ = pickle.loads(path.read_bytes())
    return states


MOMENTUM = [('sgd', {'momentum': 0.9}), ('nag', {'momentum': 0.9})]


@pytest.mark.parametrize('save', [save_optimizer, save_pickle])
@pytest.mark.parametrize('optimizer, settings', [*((name, {}) for name in optimizer_names()), *MOMENTUM])
def test_moments_and_counts_of_each_optimizer_are_restored_bit_for_bit(tmp_path, optimizer, settings, save):
    net, trainer = make(optimizer, updates=7, **settings)
    before = weights(net)
    save(trainer, str(tmp_path / 'states'))
    net.save_parameters(str(tmp_path / 'params'))
    other, other_trainer = make(optimizer, seed=1, **settings)
    other.load_parameters(str(tmp_path / 'params'))
    load_optimizer(other_trainer, str(tmp_path / 'states'))
    for number in range(7, 11):
        for each in ((net, trainer), (other, other_trainer)):
            mx.random.seed(number)  # as the training loop does; sgld draws noise
            step(*each, number)
        assert trainer.learning_rate == other_trainer.learning_rate
    np.testing.assert_equal(weights(net), weights(other))
    assert any((array != old).any() for array, old in zip(weights(net), before))


def test_equal_states_are_equal_files(tmp_path):
    _, trainer = make('adam', updates=1)
    save_optimizer(trainer, str(tmp_path / 'a'))
    load_optimizer(trainer, str(tmp_path / 'a'))
    save_optimizer(trainer, str(tmp_path / 'b'))
    assert (tmp_path / 'a').read_bytes() == (tmp_path / 'b').read_bytes()


@pytest.mark.parametrize('save', [save_optimizer, save_pickle])
def test_loading_a_state_keeps_the_settings_of_the_trainer(tmp_path, save):
    _, trainer = make('nag', momentum=0.9, wd=0.1, updates=3)
    save(trainer, str(tmp_path / 'states'))
    other, other_trainer = make('nag', momentum=0.5, wd=0.2, updates=1)
    load_optimizer(other_trainer, str(tmp_path / 'states'))
    assert (other_trainer.optimizer.momentum, other_trainer.optimizer.wd, other_trainer.optimizer.num_update) == (0.5, 0.2, 3)
    assert other_trainer.learning_rate == trainer.learning_rate
    step(other, other_trainer, 3)
    assert other_trainer.optimizer.num_update == 4


def test_a_pickle_without_the_optimizer_sets_the_moments_and_keeps_the_counts(tmp_path):
    _, trainer = make('adam', updates=3)
    states = states_of(trainer, tmp_path / 'with optimizer')
    (tmp_path / 'states').write_bytes(pickle.dumps(states))
    _, other_trainer = make('adam', updates=1)
    load_optimizer(other_trainer, str(tmp_path / 'states'))
    assert other_trainer.optimizer.num_update == 1
    loaded = states_of(other_trainer, tmp_path / 'loaded')
    assert list(loaded) == list(states) and states
    for index, moments in states.items():
        for array, expected in zip(loaded[index], moments):
            np.testing.assert_equal(array.asnumpy(), expected.asnumpy())


@pytest.mark.parametrize('save', [save_optimizer, save_pickle])
def test_each_device_continues_with_separate_moments_and_float32_weights(tmp_path, save):
    """Moments that devices share would be updated twice; float16 weights are too coarse for the updates here."""
    devices = [mx.cpu(0), mx.cpu(1)]

    def make_half():
        net = gluon.nn.Dense(2, in_units=3, dtype='float16', prefix='dense_')
        net.initialize(mx.init.One(), ctx=devices)
        arguments = {'momentum': 0.9, 'multi_precision': True, 'learning_rate': 1e-5}
        return net.weight, gluon.Trainer({'weight': net.weight}, 'sgd', arguments, update_on_kvstore=False)

    def train(weight, trainer, updates):
        for _ in range(updates):
            descend(trainer, 1, lambda: [weight.data(device) * (number + 1) for number, device in enumerate(devices)])

    weight, trainer = make_half()
    train(weight, trainer, 4)
    save(trainer, str(tmp_path / 'states'))
    other, other_trainer = make_half()
    other.set_data(weight.data(devices[0]))
    load_optimizer(other_trainer, str(tmp_path / 'states'))
    for each, each_trainer in ((weight, trainer), (other, other_trainer)):
        train(each, each_trainer, 20)
    assert (weight.data(devices[0]).asnumpy() < 1).all()
    for device in devices:
        np.testing.assert_array_equal(other.data(device).asnumpy(), weight.data(device).asnumpy())


@pytest.mark.parametrize('save', [save_optimizer, save_pickle])
def test_the_state_of_another_optimizer_or_network_is_refused_and_changes_nothing(tmp_path, save):
    path = str(tmp_path / 'states')
    _, trainer = make('adam', updates=1)
    save(trainer, path)
    with pytest.raises(UserError, match='states is the state of Adam, not of SGD'):
        load_optimizer(make('sgd')[1], path)

    for layers, message in ((1, 'it has a parameter number 7, this one has 2'), (5, r'for net_dense\d_\w+ it has \[float32 .* is needed')):
        other = gluon.nn.HybridSequential(prefix='net_')
        with other.name_scope():
            other.add(*(gluon.nn.Dense(4, in_units=4 if number else 3) for number in range(layers)))
        other.initialize()
        other_trainer = gluon.Trainer(other.collect_params(), 'adam', update_on_kvstore=False)
        with pytest.raises(UserError, match=message):
            load_optimizer(other_trainer, path)
        assert not other_trainer.optimizer.num_update

    _, trainer = make('sgd', momentum=0.9, updates=1)
    save(trainer, path)
    with pytest.raises(UserError, match=r'it has float32 \(4,\), but none is needed'):
        load_optimizer(make('sgd')[1], path)


# ---- what else a file may hold ----


class Evil:
    """A pickle of this calls a function when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    'make_evil, name',
    [
        (lambda place: Evil(os.mkdir, place), 'mkdir'),
        (lambda place: Evil(eval, f'__import__("os").mkdir({place!r})'), 'eval'),
        (lambda place: Evil(getattr, 'text', 'upper'), 'getattr'),
        (lambda place: Evil(np.load, place), 'load'),
        (lambda place: Evil(mx.nd.load, place), 'load'),
    ],
)
@pytest.mark.parametrize('wrap', [lambda evil: evil, lambda evil: ({0: evil}, None), lambda evil: {0: (evil,)}])
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path, make_evil, name, wrap):
    place = str(tmp_path / 'was here')
    path = tmp_path / 'states'
    path.write_bytes(pickle.dumps(wrap(make_evil(place))))
    with pytest.raises(UserError, match=rf'states is not the state of an optimizer, or is damaged: it names \S*{name}'):
        load_optimizer(make()[1], str(path))
    assert not os.path.exists(place)


def test_unpickling_creates_no_objects_of_mxnet(tmp_path, monkeypatch):
    """Not even MXNet's run anything: they are stand-ins."""
    _, trainer = make('sgd', updates=1)
    trainer.save_states(str(tmp_path / 'states'))
    for kind in (mx.optimizer.SGD, type(trainer.optimizer.lr_scheduler)):
        monkeypatch.setattr(kind, '__setstate__', lambda *_: pytest.fail('was made'), raising=False)
    load_optimizer(trainer, str(tmp_path / 'states'))


def test_a_pickle_that_refers_to_objects_elsewhere_is_refused_with_one_line(tmp_path):
    (tmp_path / 'states').write_bytes(b'\x80\x04NQ.')  # BINPERSID
    with pytest.raises(UserError, match='states is not the state of an optimizer, or is damaged') as raised:
        load_optimizer(make()[1], str(tmp_path / 'states'))
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize(
    'content',
    [
        b'\x80\x04Nr\xff\xff\xff\x7f.',  # LONG_BINPUT: a memo of 2 ** 31 entries
        b'\x80\x04Np1000000000\n.',  # PUT
        b'\x80\x05\x96' + (1 << 40).to_bytes(8, 'little') + b'.',  # BYTEARRAY8 of a terabyte
    ],
)
def test_a_small_pickle_cannot_take_much_memory(tmp_path, content, monkeypatch):
    (tmp_path / 'states').write_bytes(content)
    monkeypatch.setattr(pickled_states, '_Unpickler', lambda file: pytest.fail('was unpickled'))
    with pytest.raises(UserError, match='states is not the state of an optimizer, or is damaged'):
        load_optimizer(make()[1], str(tmp_path / 'states'))


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'nonsense',
        b'\x80\x04.',
        pickle.dumps(None),
        pickle.dumps([1, 2]),
        pickle.dumps({'weight': None}),
        pickle.dumps({-1: None}),
        pickle.dumps({0: 'text'}),
        pickle.dumps({0: (((((None,),),),),)}),
        pickle.dumps(({}, 'optimizer')),
        pickle.dumps({0: bytearray(3)}),
    ],
)
def test_a_file_that_is_no_state_is_named_in_one_line(tmp_path, content):
    (tmp_path / 'states').write_bytes(content)
    with pytest.raises(UserError, match='states is not the state of an optimizer, or is damaged') as raised:
        load_optimizer(make()[1], str(tmp_path / 'states'))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize('change', ['format', 'optimizer', 'counts', 'states', 'num_update', 'array', 'text', 'nesting'])
def test_a_state_with_a_part_missing_or_malformed_is_named_in_one_line(tmp_path, change):
    path = str(tmp_path / 'states')
    _, trainer = make('adam', updates=1)
    save_optimizer(trainer, path)
    arrays = dict(read_parameters(path))
    text = arrays['json'].tobytes().decode()
    if change == 'array':
        del arrays['0.0']
    elif change == 'text':
        text = text[:-1]
    elif change == 'nesting':
        text = '[' * 100_000
    else:
        text, found = re.subn(f'"{change}": ', '"other": ', text)
        assert found
    write_parameters(path, {**arrays, 'json': np.frombuffer(text.encode(), np.uint8)})
    with pytest.raises(UserError, match='states is damaged') as raised:
        load_optimizer(make('adam')[1], path)
    assert len(str(raised.value).splitlines()) == 1
    del arrays['json']
    write_parameters(path, arrays)
    with pytest.raises(UserError, match='states does not contain the state of an optimizer'):
        load_optimizer(make('adam')[1], path)


@pytest.mark.parametrize('of_version', ['before', 'this'])
def test_damaged_files_cause_nothing_but_an_error_or_other_numbers(tmp_path, of_version, long_run):
    path = tmp_path / 'states'
    _, trainer = make(updates=1)
    (save_pickle if of_version == 'before' else save_optimizer)(trainer, str(path))
    content = path.read_bytes()
    random, refused = np.random.RandomState(0), 0
    for _ in range(5000 if long_run else 150):
        damaged = bytearray(content[: random.randint(len(content))] if random.rand() < 0.2 else content)
        for position in random.randint(0, max(1, len(damaged)), random.randint(1, 4)):
            damaged[position : position + 1] = bytes([random.randint(256)])
        path.write_bytes(damaged)
        try:
            load_optimizer(trainer, str(path))
        except UserError as error:
            assert str(path) in str(error) and len(str(error).splitlines()) == 1
            refused += 1
    assert refused > 30
