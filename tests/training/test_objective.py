"""Losses and their gradients against NumPy: labels, smoothed, mixed, and beside a teacher's answers."""

import itertools
import shutil
import struct

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from support.gradients import gradients
from support.losses import CLASSES, LABELS, objective_in_numpy
from support.small_networks import initialized, sequence

import model_zoo
from bmx_melius.errors import UserError
from bmx_melius.training.objective import Assistants, Mixup, Objective, Teacher, make_objective, make_teacher
from bmx_melius.training.options.parsing import parse_options
from bmx_melius.training.teacher import TeacherOptions, load_teacher
from model_zoo import get_model

IMAGES, SHAPE = 6, (2, 3, 3)


@pytest.fixture
def batch():
    return nd.random.normal(shape=(IMAGES, *SHAPE)), nd.array(LABELS)


def teacher_net():
    """A network that does not compute the same in training: its answers must be as in inference."""
    net = sequence(gluon.nn.BatchNorm(in_channels=SHAPE[0]), gluon.nn.Dense(CLASSES, in_units=int(np.prod(SHAPE))), gluon.nn.Dropout(0.5))
    net.initialize(mx.init.Normal(1))
    return net


@pytest.mark.parametrize('smoothing,mixed,temperature', itertools.product([0.0, 0.1], [False, True], [None, 1.0, 20.0]))
def test_loss_and_gradient_of_every_combination_equal_numpy(batch, smoothing, mixed, temperature):
    net, mixup = teacher_net(), Mixup(0.2, seed=3, end=10)
    objective = Objective(CLASSES, smoothing, mixup if mixed else None, Teacher(net, temperature, hard_weight=0.3) if temperature else None)
    images, targets = objective.prepare(*batch, epoch=1, batch=2)
    logits = nd.random.normal(0, 3, shape=(IMAGES, CLASSES))
    loss, gradient = gradients(lambda logits: objective.loss(images, logits, targets), [logits])

    share = mixup.share(1, 2) if mixed else 1
    x, y = batch[0].asnumpy(), np.eye(CLASSES)[LABELS] * (1 - smoothing) + smoothing / CLASSES
    x, y = share * x + (1 - share) * x[::-1], share * y + (1 - share) * y[::-1]
    np.testing.assert_allclose(images.asnumpy(), x, rtol=1e-5, atol=1e-6)
    answers = net(nd.array(x)).asnumpy().astype(np.float64) if temperature else None
    expected = objective_in_numpy(logits.asnumpy().astype(np.float64), y, answers, temperature, 0.3)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-4)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)
    weights = net.collect_params('.*dense.*').values()
    assert all(np.all(weight.grad().asnumpy() == 0) for weight in weights), 'a teacher does not learn'


@pytest.mark.parametrize('epoch, second', [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (7, 2)])
def test_assistants_answer_one_after_the_other_and_their_loss_is_weighted_by_difficulty(batch, epoch, second):
    main, assistants = teacher_net(), [teacher_net() for _ in range(3)]
    objective = Objective(CLASSES, teacher=Teacher(main, 1.0, 0.0, assistants=Assistants(assistants, num_epochs=8)))
    images, targets = objective.prepare(*batch, epoch=epoch, batch=0)
    logits = nd.random.normal(0, 3, shape=(IMAGES, CLASSES))
    loss, gradient = gradients(lambda logits: objective.loss(images, logits, targets), [logits])

    answers = [net(images).asnumpy().astype(np.float64) for net in (main, assistants[second])]
    z, y = logits.asnumpy().astype(np.float64), np.eye(CLASSES)[LABELS]
    both = [objective_in_numpy(z, y, answer, 1.0, 0.0) for answer in answers]
    exponentials = np.exp([of_one for of_one, _ in both])
    weights = (exponentials / exponentials.sum(axis=0)).mean(axis=1)
    np.testing.assert_allclose(loss, sum(weight * of_one for weight, (of_one, _) in zip(weights, both)) / 2, rtol=1e-4)
    np.testing.assert_allclose(gradient, sum(weight * of_one for weight, (_, of_one) in zip(weights, both)) / 2, rtol=1e-4, atol=1e-5)


def test_a_hard_weight_of_zero_uses_only_the_teacher(batch):
    net = teacher_net()
    logits = nd.random.normal(shape=(IMAGES, CLASSES))
    loss = Objective(CLASSES, teacher=Teacher(net, 4.0, 0.0)).loss(batch[0], logits, batch[1])
    expected, _ = objective_in_numpy(logits.asnumpy(), np.eye(CLASSES)[LABELS], net(batch[0]).asnumpy(), 4.0, 0.0)
    np.testing.assert_allclose(loss.asnumpy(), expected, rtol=1e-5)


def test_logits_in_half_precision_have_a_loss_in_float32(batch):
    logits = nd.random.normal(shape=(IMAGES, CLASSES))
    loss = Objective(CLASSES).loss(batch[0], logits.astype('float16'), batch[1])
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss.asnumpy(), Objective(CLASSES).loss(batch[0], logits, batch[1]).asnumpy(), atol=1e-2)


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_the_accuracy_of_training_counts_the_class_with_the_larger_share(batch, smoothing):
    class Share(Mixup):
        def __init__(self, value):
            self.share = lambda epoch, batch: value

    for share, labels in ((0.7, LABELS), (0.2, LABELS[::-1])):
        objective = Objective(CLASSES, smoothing, Share(share))
        _, targets = objective.prepare(*batch, epoch=0, batch=0)
        np.testing.assert_array_equal(objective.labels(targets).asnumpy(), labels)
    for objective in (Objective(CLASSES), Objective(CLASSES, 0.1)):
        np.testing.assert_array_equal(objective.labels(objective.prepare(*batch, 0, 0)[1]).asnumpy(), LABELS)


def test_shares_follow_from_seed_epoch_and_batch_have_the_distribution_and_end_in_the_last_epochs():
    def shares(seed, alpha, epochs=range(4)):
        mixup = Mixup(alpha, seed, end=4)
        return np.array([mixup.share(epoch, batch) for epoch in epochs for batch in range(500)])

    np.testing.assert_array_equal(shares(1, 0.2), shares(1, 0.2))
    assert len(set(shares(1, 0.2))) > 1900 and not np.any(shares(1, 0.2) == shares(2, 0.2))
    for alpha in (0.2, 1.0):
        values = shares(1, alpha)
        assert values.mean() == pytest.approx(0.5, abs=0.03)
        assert values.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05), 'of Beta(alpha, alpha)'
    assert np.all(shares(1, 0.2, epochs=(4, 5)) == 1)


def test_drawing_shares_does_not_change_other_random_numbers(batch):
    mx.random.seed(5)
    np.random.seed(5)
    expected = nd.random.uniform(shape=(3,)).asnumpy(), np.random.rand(3)
    mx.random.seed(5)
    np.random.seed(5)
    Objective(CLASSES, mixup=Mixup(0.2, 0, 9)).prepare(*batch, 0, 0)
    np.testing.assert_array_equal(nd.random.uniform(shape=(3,)).asnumpy(), expected[0])
    np.testing.assert_array_equal(np.random.rand(3), expected[1])


# ---- teachers ----

ARGUMENTS = {'block_numbers': [1], 'transitions': [], 'initial_layers': 'thumbnail'}


@pytest.fixture
def trained(tmp_path):
    """A network of the zoo, its parameter file, and the prefix of its export."""
    net = initialized(get_model('meliusnet_flex', classes=CLASSES, **ARGUMENTS), (1, 3, 8, 8))
    net.save_parameters(str(tmp_path / 'weights.params'))
    net.export(str(tmp_path / 'exported'))
    return net, str(tmp_path / 'weights.params'), str(tmp_path / 'exported')


def test_a_teacher_is_given_by_name_with_weights_or_as_an_exported_network(trained):
    net, params, prefix = trained
    x = nd.random.normal(shape=(2, 3, 8, 8))
    for options in (TeacherOptions('meliusnet_flex', teacher_params=params, teacher_options=ARGUMENTS), TeacherOptions(prefix)):
        teacher = load_teacher(get_model, options, CLASSES, (3, 8, 8), [mx.cpu()])
        np.testing.assert_allclose(teacher(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-5)


def test_a_network_of_gluoncv_teaches_too(tmp_path):
    import gluoncv

    net = gluoncv.model_zoo.get_model('cifar_resnet20_v1', classes=CLASSES)
    net.initialize()
    x = nd.random.normal(shape=(1, 3, 32, 32))
    expected = net(x).asnumpy()
    net.save_parameters(str(tmp_path / 'weights'))
    options = TeacherOptions('cifar_resnet20_v1', teacher_params=str(tmp_path / 'weights'))
    teacher = load_teacher(get_model, options, CLASSES, (3, 32, 32), [mx.cpu()])
    np.testing.assert_allclose(teacher(x).asnumpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    'case,words',
    [
        (dict(teacher='meliusnet_flex'), '--teacher-params'),
        (dict(teacher='meliusnet_flex', teacher_params='PARAMS', teacher_pretrained=True), '--teacher-pretrained'),
        (dict(teacher='meliusnet22', teacher_params='PARAMS'), 'meliusnet22 cannot be used'),
        (dict(teacher='nothing_like_it', teacher_params='PARAMS'), "unknown network 'nothing_like_it'"),
        (dict(teacher='meliusnet_flex', teacher_params='PARAMS', teacher_options={'depth': 3}), 'meliusnet_flex takes no argument depth'),
        (dict(teacher='mobilenet0.5', teacher_params='PARAMS', teacher_options={'depth': 3}), 'mobilenet0.5 .*depth'),
        (dict(teacher='meliusnet22', teacher_pretrained=True), 'publishes no weights of meliusnet22'),
        (dict(teacher='PREFIX', teacher_params='PARAMS'), 'includes its weights'),
        (dict(teacher='PREFIX', classes=7), '7 classes'),
        (dict(teacher='PREFIX', input_shape=(1, 8, 8)), 'cannot be used'),
    ],
)
def test_a_teacher_that_cannot_be_used_is_an_error_of_one_line(trained, case, words):
    files = {'PARAMS': trained[1], 'PREFIX': trained[2]}
    case = {key: files.get(str(value), value) for key, value in case.items()}
    of_data = {'classes': case.pop('classes', CLASSES), 'input_shape': case.pop('input_shape', (3, 8, 8))}
    with pytest.raises(UserError, match=words) as caught:
        load_teacher(get_model, TeacherOptions(**case), devices=[mx.cpu()], **of_data)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('case', [{'teacher': 'cifar_resnet20_v1', 'teacher_params': 'weights'}, {'teacher': 'net'}])
def test_a_teacher_whose_weights_announce_more_than_the_file_holds_is_refused_before_mxnet_allocates_it(
    trained, case, tmp_path, monkeypatch
):
    announced = struct.pack('<QQQIii2qiii', 0x112, 0, 1, 0xF993FAC9, 0, 2, 1 << 20, 1 << 20, 1, 0, 0)  # one array of 2 ** 40 numbers
    (tmp_path / 'weights').write_bytes(announced)
    (tmp_path / 'net-0000.params').write_bytes(announced)
    shutil.copy(f'{trained[2]}-symbol.json', tmp_path / 'net-symbol.json')
    monkeypatch.setattr(mx.nd, 'load', lambda *_: pytest.fail('was loaded'))
    monkeypatch.setattr(mx.gluon.SymbolBlock, 'imports', lambda *_, **__: pytest.fail('was loaded'))
    case = {key: str(tmp_path / value) if value in ('weights', 'net') else value for key, value in case.items()}
    with pytest.raises(UserError, match='is damaged: at byte .* more bytes are expected'):
        load_teacher(get_model, TeacherOptions(**case), CLASSES, (3, 8, 8), [mx.cpu()])


def objective_for(net, config):
    """The objective of a run, as train_imagenet.py makes it."""
    teacher = make_teacher(net, CLASSES, (3, 8, 8), [mx.cpu()], get_model, config.make(TeacherOptions))
    return make_objective(config, CLASSES, teacher)


def test_flags_make_their_objective(trained, batch):
    config = parse_options(
        [
            *('--model', 'meliusnet22', '--save-dir', '/nowhere', '--num-epochs', '3', '--mixup', '--mixup-off-epoch', '2'),
            *('--label-smoothing', '--teacher', str(trained[2]), '--temperature', '2'),
        ],
        model_zoo,
    )
    objective = objective_for(trained[0], config)
    images = nd.random.normal(shape=(IMAGES, 3, 8, 8))
    for epoch, mixed in ((0, True), (1, False), (2, False)):
        prepared, targets = objective.prepare(images, batch[1], epoch, 0)
        assert np.array_equal(prepared.asnumpy(), images.asnumpy()) != mixed
    np.testing.assert_allclose(targets.asnumpy(), np.eye(CLASSES)[LABELS] * 0.9 + 0.1 / CLASSES, rtol=1e-6)


def test_flags_name_assistants(trained, batch):
    run = ['--model', 'meliusnet22', '--save-dir', '/nowhere', '--num-epochs', '4', '--teacher', str(trained[2])]

    def objective_of(*flags):
        return objective_for(trained[0], parse_options([*run, *flags], model_zoo))

    images, logits = nd.random.normal(shape=(IMAGES, 3, 8, 8)), nd.random.normal(shape=(IMAGES, CLASSES))
    alone, assisted = (objective_of(*flags) for flags in ((), ('--assistants', f'{trained[2]},{trained[2]}')))
    expected = alone.loss(*alone.prepare(images, batch[1], 3, 0)[:1], logits, batch[1]).asnumpy()
    found = assisted.loss(*assisted.prepare(images, batch[1], 3, 0)[:1], logits, batch[1]).asnumpy()
    np.testing.assert_allclose(found, expected / 2, rtol=1e-5)  # of the same teacher twice, each with the weight 1/2
    with pytest.raises(UserError, match='--assistants /nowhere/net needs weights|--assistants /nowhere/net cannot be used'):
        objective_of('--assistants', '/nowhere/net')
    with pytest.raises(UserError, match='--assistants: mine:net is neither'):
        objective_of('--assistants', 'mine:net')
