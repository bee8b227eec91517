"""Fine-tuning: weights of another number of classes, frozen parameters, separate rates, and class names of ImageNet."""

import json
import logging

import cv2
import gluoncv
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.gradients import descend
from support.images import make_folders
from support.small_networks import sequence
from support.training_runs import OPTIONS, TINY, assert_equal_files, error_of, printed_by, refused, train, weights_of

import bmx_melius as bmx
import model_zoo
from bmx_melius import InputSpec, UserError
from bmx_melius.data.imagenet import identifier, imagenet_classes, with_words
from bmx_melius.data.labelled_images import LabelledImages
from bmx_melius.distributed.workers import Workers
from bmx_melius.nn.fine_tuning import Loaded, freeze, is_frozen, load_weights
from bmx_melius.nn.methods.updates import finish_update
from bmx_melius.training.initial_weights import load_initial_weights
from bmx_melius.training.network import make_network, model_arguments
from bmx_melius.training.options.parsing import parse_options
from model_zoo import get_model

FLEX = {**OPTIONS, 'initial_layers': 'thumbnail'}
OUTPUT = {'output.weight', 'output.bias'}


def changed(before, after):
    """The names of arrays that differ."""
    return {name for name, array in after.items() if not np.array_equal(array, before[name])}


def arrays_of(net):
    return {name: parameter.data().asnumpy() for name, parameter in net._collect_params_with_prefix().items()}


def flex(classes, seed=0):
    mx.random.seed(seed)
    net = get_model('meliusnet_flex', classes=classes, **FLEX)
    net.initialize()
    net(nd.zeros((1, 3, 16, 16)))
    return net


@pytest.fixture(scope='module')
def of_seven_classes(make_once):
    """A file of weights of the network of `flags` with seven classes."""
    return make_once('seven-classes', lambda folder: flex(7, seed=1).save_parameters(str(folder / 'w.params'))) / 'w.params'


def test_all_but_the_output_layer_is_loaded_from_weights_of_other_classes(of_seven_classes):
    net = flex(10)
    before, stored = arrays_of(net), {name: array.asnumpy() for name, array in nd.load(str(of_seven_classes)).items()}
    loaded = load_weights(net, stored, 10)
    assert set(loaded.new) == OUTPUT and (loaded.classes, loaded.weights_classes) == (10, 7)
    for name, array in arrays_of(net).items():
        np.testing.assert_array_equal(array, (before if name in OUTPUT else stored)[name])
    assert str(loaded) == (
        '7 classes, this network 10: the output layer (output.weight, output.bias) is newly initialized; the rest is loaded'
    )


@pytest.mark.parametrize('names', ['structural', 'without prefix', 'full'])
def test_weights_are_loaded_by_each_kind_of_name(names):
    net, other = flex(10), flex(10, seed=1)
    arrays = {
        'structural': arrays_of(other),
        'without prefix': {name[len(other.prefix) :]: parameter.data() for name, parameter in other.collect_params().items()},
        'full': {net.prefix + name[len(other.prefix) :]: parameter.data() for name, parameter in other.collect_params().items()},
    }[names]
    assert load_weights(net, arrays, 10) == Loaded({}, 10, 10)
    np.testing.assert_equal(arrays_of(net), arrays_of(other))


def test_weights_that_differ_in_more_than_the_classes_are_refused_and_nothing_is_loaded():
    net = flex(10)
    before = arrays_of(net)
    wider = arrays_of(flex(7))
    wider['output.weight'] = np.zeros((7, before['output.weight'].shape[1] + 1), 'float32')
    lacking = {name: array for name, array in arrays_of(flex(7)).items() if name != 'features.0.weight'}
    for arrays, words in ((wider, 'output.weight is '), (lacking, 'features.0.weight of the network is missing')):
        with pytest.raises(UserError, match=words):
            load_weights(net, arrays, 10)
    np.testing.assert_equal(arrays_of(net), before)


def normalized():
    net = sequence(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4))
    net.initialize(mx.init.Normal(1))
    return net


def step(net, x):
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'wd': 0.1})
    descend(trainer, len(x), lambda: net(x).square().sum())


def test_frozen_parameters_and_statistics_do_not_change_and_normalize_as_in_inference():
    net, x = normalized(), nd.random.normal(shape=(8, 3))
    net[1].running_mean.set_data(nd.array([1, 2, 3, 4]))
    assert freeze(net, '^[01]') == ['0.weight', '0.bias', '1.gamma', '1.beta', '1.running_mean', '1.running_var']
    before, expected = arrays_of(net), net(x).asnumpy()
    with autograd.train_mode():
        np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5)
    step(net, x)
    assert changed(before, arrays_of(net)) == {'2.weight', '2.bias'}


def test_statistics_that_are_not_frozen_follow_the_batches():
    net = normalized()
    freeze(net, 'gamma')
    before = arrays_of(net)
    step(net, nd.random.normal(shape=(8, 3)))
    assert changed(before, arrays_of(net)) == set(before) - {'1.gamma'}


@pytest.mark.parametrize(
    'pattern, words', [('(', 'not a regular expression'), ('nothing', 'no parameter has a name'), ('.', 'nothing would be trained')]
)
def test_patterns_that_freeze_nothing_or_everything_are_refused(pattern, words):
    with pytest.raises(UserError, match=words):
        freeze(normalized(), pattern)


def test_frozen_weights_are_not_clipped_and_not_averaged_over_workers():
    net = sequence(bmx.QConv2D(1, 1, in_channels=2, weight_threshold=1), nn.BatchNorm(in_channels=1), nn.Dense(1, in_units=1))
    net.initialize()
    net[0].weight.set_data(nd.array([-1.5, 2]).reshape((1, 2, 1, 1)))

    class Three(Workers):
        count = 3

        def _sum(self, array):
            assert len(array) == 0 or not is_frozen(net[1].running_mean)
            return array * 3.3

    freeze(net, '^[01]')
    before = arrays_of(net)
    finish_update(net)
    Three().average_statistics(net)
    np.testing.assert_equal(arrays_of(net), before)


# --- training -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def flags(make_once):
    """Flags of a run of one epoch on a few images of three classes."""
    images = make_once('images-for-fine-tuning', make_folders)
    return [*TINY, '--data-dir', images, '--input-size', '16', '--batch-size', '10', '--num-epochs', '1', '-j', '0']


@pytest.fixture(scope='module')
def tuned(make_once, flags, of_seven_classes):
    """The folder of a run of one epoch that trains the output layer only."""
    tuning = ['--resume-params', of_seven_classes, '--freeze', 'features']
    return make_once('fine-tuned', lambda folder: train(*flags, *tuning, '--save-dir', folder / 'run')) / 'run'


def test_a_run_begins_with_the_weights_and_a_new_output_layer_and_trains_what_is_not_frozen(tuned, of_seven_classes):
    stored, first, last = nd.load(str(of_seven_classes)), weights_of(tuned, 0), weights_of(tuned, 1)
    assert first['output.weight'].shape[0] == 3 and first['output.weight'].std() > 0
    assert all(np.array_equal(first[name], stored[name].asnumpy()) for name in set(first) - OUTPUT)
    assert changed(first, last) == OUTPUT
    log = (tuned / 'experiment.log').read_text()
    assert (
        f'{of_seven_classes}: 7 classes, this network 3: the output layer (output.weight, output.bias) is newly initialized; the rest is'
        in log
    )
    assert f'{len(first) - 2} of {len(first)} parameters (' in log and 'trained: output.weight, output.bias' in log
    (session,) = json.loads((tuned / 'config.json').read_text())['sessions']
    assert session['arguments']['freeze'] == 'features' and set(session['arguments']['new_parameters']) == OUTPUT


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_new_output_layers_of_trainings_with_the_same_seed_have_independent_random_numbers(dtype, tmp_path):
    outputs = []

    def initial_weights(classes, *flags):
        config = parse_options([*TINY, '--seed', '1', '--dtype', dtype, '--save-dir', str(tmp_path), *flags], model_zoo)
        model = model_arguments(config, classes)
        net = make_network(config, get_model, model, InputSpec(1, 16, 16, mean=[0], std=[1]), [mx.cpu()])
        load_initial_weights(config, get_model, net, model)
        return net

    def add(number, net):
        net.save_parameters(str(tmp_path / f'{number}.params'))
        outputs.append(net.output.weight.data().asnumpy()[:8])

    add(0, initial_weights(8))
    for number, classes in enumerate((10, 8), start=1):  # each starts from the weights of the one before
        add(number, initial_weights(classes, '--resume-params', str(tmp_path / f'{number - 1}.params')))
    correlations = np.corrcoef([output.ravel() for output in outputs])
    assert outputs[1].dtype == dtype and abs(correlations[np.triu_indices(3, 1)]).max() < 0.3
    again = initial_weights(10, '--resume-params', str(tmp_path / '0.params'))
    np.testing.assert_array_equal(again.output.weight.data().asnumpy()[:8], outputs[1])


def test_the_exported_network_of_a_run_with_frozen_layers_can_be_converted(tuned, run, tmp_path):
    status, output, errors = run('convert', tuned / 'meliusnet_flex', tmp_path / 'packed')
    assert status == 0 and 'equal those of MXNet' in output, errors


def test_a_dry_run_says_what_the_run_would_load_and_freeze(flags, of_seven_classes, tmp_path, capsys):
    flags = [*flags, '--resume-params', of_seven_classes, '--save-dir', tmp_path / 'run', '--dry-run']
    printed = printed_by(capsys, *flags, '--freeze', r'^features\.0', '--pretrained-lr-factor', '0.1')
    assert 'is newly initialized; the rest is loaded' in printed and 'frozen     1 of ' in printed and '0.1 times the rate' in printed
    train(*flags, '--freeze', 'nothing', status=2)
    assert error_of(capsys).startswith("error: --freeze nothing: no parameter has a name in which 'nothing' is found")
    assert 'is found in the names of all parameters' in refused(capsys, *flags, '--freeze', '')
    assert not (tmp_path / 'run').exists()


def test_a_resumed_run_freezes_and_slows_down_the_same_parameters_bit_for_bit(flags, of_seven_classes, tmp_path, monkeypatch):
    flags = [*flags, '--num-epochs', '2', '--resume-params', of_seven_classes, '--freeze', r'features\.[0-2]']
    flags += ['--pretrained-lr-factor', '0.01', '--save-frequency', '1']
    train(*flags, '--save-dir', tmp_path / 'whole')
    real = bmx.optimizers.RAdam.update

    def interrupted(self, index, *arguments):
        if self._index_update_count.get(index, 0) == 4:  # in the second epoch
            raise UserError('interrupted')
        return real(self, index, *arguments)

    monkeypatch.setattr(bmx.optimizers.RAdam, 'update', interrupted)
    train(*flags, '--save-dir', tmp_path / 'resumed', status=2)
    monkeypatch.undo()
    train('--resume', '--save-dir', tmp_path / 'resumed')
    assert_equal_files(tmp_path / 'resumed', tmp_path / 'whole', 'epoch-0002.params', 'epoch-0002.states')
    stored, last = nd.load(str(of_seven_classes)), weights_of(tmp_path / 'whole', 2)
    same = {name for name in last if name not in OUTPUT and np.array_equal(last[name], stored[name].asnumpy())}
    assert same == {name for name in last if name[:10] in ('features.0', 'features.1', 'features.2')}


def test_a_run_takes_the_options_of_its_network_from_the_weights_of_another_run(tuned, tmp_path, capsys):
    start = ['--dataset', 'digits', '--batch-size', '256', '--num-epochs', '1', '--save-dir', tmp_path / 'run', '--dry-run']
    for weights in (tuned / 'epoch-0001.params', tuned / 'meliusnet_flex-0000.params'):
        printed = printed_by(capsys, *start, '--resume-params', weights)
        assert 'network    meliusnet_flex, thumbnail, 10 classes' in printed and 'is newly initialized; the rest is loaded' in printed
    train(*start, '--model', 'meliusnet_flex', '--clip-threshold', '1', '--resume-params', tuned / 'epoch-0001.params')
    assert 'these weights are of a network with --clip-threshold (default) (here 1.0)' in capsys.readouterr().out
    for flags, words in (
        (['--initial-layers', 'grouped_stem', '--input-size', '32'], '--initial-layers thumbnail (here grouped_stem)'),
        (['--model-options', '{"growth_rate": 64}'], '--growth-rate 32 (here 64)'),
        (['--model', 'meliusnet22'], '--model meliusnet_flex (here meliusnet22)'),
    ):
        assert words in refused(capsys, *start, *flags, '--resume-params', tuned / 'epoch-0001.params')


@pytest.mark.parametrize(
    'tuning, words',
    [
        (['--freeze', 'features'], '--freeze features applies to loaded weights'),
        (['--pretrained-lr-factor', '0.1'], '--pretrained-lr-factor 0.1 applies to loaded weights'),
        (['--pretrained-lr-factor', '0', '--use-pretrained'], '--pretrained-lr-factor must be positive'),
    ],
)
def test_flags_without_weights_are_refused(flags, tuning, words, tmp_path, capsys):
    assert words in refused(capsys, *flags, '--save-dir', tmp_path / 'run', *tuning)


# --- published weights and class names ------------------------------------------------------------------------------------------------


@pytest.fixture
def published(monkeypatch, tmp_path):
    """A network whose weights GluonCV finds as published weights."""
    net = gluoncv.model_zoo.get_model('mobilenet0.25')
    net.initialize()
    net(nd.zeros((1, 3, 32, 32)))
    net.save_parameters(str(tmp_path / 'published.params'))
    monkeypatch.setattr('gluoncv.model_zoo.model_store.get_model_file', lambda *_, **__: str(tmp_path / 'published.params'))
    return net


def test_get_model_fits_weights_of_gluoncv_to_other_classes(published, caplog):
    with caplog.at_level(logging.WARNING):
        net = get_model('mobilenet0.25', pretrained=True, classes=5)
    assert '1000 classes, this network 5: the output layer (' in caplog.text
    assert net(nd.zeros((1, 3, 32, 32))).shape == (1, 5)
    expected, x = arrays_of(published), nd.random.normal(shape=(2, 3, 32, 32))
    assert all(np.array_equal(array, expected[name]) for name, array in arrays_of(net).items() if not name.startswith('output'))
    caplog.clear()
    for classes in (1000, None):
        same = get_model('mobilenet0.25', pretrained=True, classes=classes)
        np.testing.assert_array_equal(same(x).asnumpy(), published(x).asnumpy())
    assert not caplog.text


def test_weights_for_colours_are_summed_for_gray_images_and_give_the_same_values(published, tmp_path, capsys):
    gray = nd.random.normal(shape=(2, 1, 32, 32))
    net = gluoncv.model_zoo.get_model('mobilenet0.25')
    net.initialize()
    net(gray)
    loaded = load_weights(net, arrays_of(published), 1000)
    np.testing.assert_allclose(net(gray).asnumpy(), published(nd.repeat(gray, 3, axis=1)).asnumpy(), rtol=1e-4, atol=1e-5)
    assert loaded.summed == 'features.0.weight' and 'features.0.weight is summed over the colours' in str(loaded)
    digits = ['--dataset', 'digits', '--batch-size', '256', '--num-epochs', '1', '--save-dir', tmp_path / 'run', '--dry-run']
    assert 'summed over the colours, for gray images' in printed_by(capsys, '--model', 'mobilenet0.25', '--use-pretrained', *digits)


def test_weights_whose_stem_does_not_fit_the_images_name_a_size_that_does(tmp_path, capsys):
    digits = ['--model', 'meliusnet22', '--use-pretrained', 'larq', '--dataset', 'digits', '--save-dir', tmp_path / 'run', '--dry-run']
    message = refused(capsys, *digits)
    assert 'with initial_layers grouped_stem, which the weights of --use-pretrained need: --input-size 32 fits' in message
    assert 'MXNetError' not in message


def test_imagenet_networks_that_are_imported_predict_with_names(meliusnet22_file, run, tmp_path):
    status, _, errors = run('import-larq', meliusnet22_file, tmp_path / 'larq', '--model', 'meliusnet22')
    assert status == 0, errors
    names = json.loads((tmp_path / 'larq-summary.json').read_text())['class_names']
    assert names == imagenet_classes() and names[0] == 'n01440764 tench, Tinca tinca' and len(set(names)) == 1000
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((40, 40, 3), np.uint8))
    status, output, errors = run('predict', tmp_path / 'larq', tmp_path / 'a.png', '--input-size', '32', '--top', '1')
    assert status == 0 and output.split('%  ')[1].strip() in names, errors


def test_folders_named_by_identifiers_are_matched_with_classes_that_have_words_too():
    images = LabelledImages('photos', [0], ['a'], 2, ['n01443537', 'n01440764'])
    np.testing.assert_array_equal(images.numbers_in(1000, imagenet_classes()), [1, 0])
    assert with_words(['n01440764', 'n99999999']) == ['n01440764 tench, Tinca tinca', 'n99999999']
    assert with_words(['cat', 'dog']) == ['cat', 'dog'] and with_words(None) is None
    assert identifier('crane') == 'crane' and identifier('n01440764') == 'n01440764'
