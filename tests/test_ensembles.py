"""Ensembles: bootstrap samples, boosting, votes, and training of the members one after the other."""

import collections
import json
import os
import shutil
import signal

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon.data import ArrayDataset
from training_runs import accuracy_on_test_digits, error_of, train

import bmx_melius as bmx
import bmx_melius.__main__
import model_zoo
from bmx_melius.arithmetic import seed_for
from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.bootstrap import Bootstrap
from bmx_melius.data.data_config import DataConfig
from bmx_melius.data.image_source import ImageSource, TrainingImages
from bmx_melius.data.opening import open_source
from bmx_melius.data.small_images import open_digits
from bmx_melius.data.source import Batching
from bmx_melius.methods.benn import boost
from bmx_melius.preprocessing import InputSpec
from bmx_melius.training import loop
from bmx_melius.training.ensembles import EnsembleTraining
from bmx_melius.training.series import parse_series
from model_zoo import get_model

pytest_plugins = ['training_runs']  # its fixtures
OPTIONS = {'members': 2, 'init_features': 4}
TINY = [
    *('--model', 'resnet18_benn', '--dataset', 'digits', '--num-epochs', '1', '--batch-size', '256', '--lr', '0.01'),
    *('--model-options', json.dumps(OPTIONS), '--log-interval', '0', '--save-frequency', '0', '--seed', '3'),
]
UPDATES = 4  # of an epoch
EXPORTED = 'resnet18_benn'


# --- samples ---------------------------------------------------------------------------------------------------------------------------


def test_a_sample_without_weights_is_drawn_once_with_replacement():
    drawn = Bootstrap(5000, seed=1).indices(0)
    counts = np.bincount(drawn, minlength=5000)
    assert counts.sum() == 5000 and len(counts) == 5000
    assert np.mean(counts > 0) == pytest.approx(1 - np.exp(-1), abs=0.02)  # 63 %
    assert np.mean(counts == 2) == pytest.approx(np.exp(-1) / 2, abs=0.02)  # Poisson
    np.testing.assert_array_equal(Bootstrap(5000, seed=1).indices(7), drawn)
    assert np.any(Bootstrap(5000, seed=2).indices(0) != drawn)


def test_a_sample_with_weights_is_drawn_in_each_epoch_with_these_probabilities():
    weights = np.random.RandomState(0).rand(10)
    weights[4] = 0
    bootstrap = Bootstrap(10, 5, 8 * weights)
    counts = sum(np.bincount(bootstrap.indices(epoch), minlength=10) for epoch in range(3000))
    np.testing.assert_allclose(counts / counts.sum(), weights / weights.sum(), atol=0.01)
    assert counts[4] == 0
    np.testing.assert_array_equal(bootstrap.indices(8), Bootstrap(10, 5, weights).indices(8))


def source_of_numbers(tmp_path, weights=None, batching=None):
    """A source of 24 images whose pixels are their numbers."""
    pixels = [nd.full((2, 2, 1), number, dtype='uint8') for number in range(24)]
    dataset = ArrayDataset(pixels, [number % 2 for number in range(24)])
    spec = InputSpec(channels=1, size=2, resize=2, mean=(0,), std=(1,))
    bootstrap = True
    if weights is not None:
        bootstrap = str(tmp_path / 'weights.npy')
        np.save(bootstrap, weights)
    collection = TrainingImages(dataset, dataset, ['even', 'odd'], 'numbers')
    return ImageSource(collection, spec, Augmentation(), batching or Batching(4, seed=6), 0, bootstrap)


def numbers(batches):
    return [int(x) for pixels, labels in batches for x in pixels.asnumpy()[:, 0, 0, 0]]


@pytest.mark.parametrize('weighted', [False, True])
def test_the_batches_of_an_epoch_are_the_sample_in_another_order_in_each_epoch(tmp_path, weighted):
    weights = np.arange(24) if weighted else None
    source = source_of_numbers(tmp_path, weights)
    for epoch in range(2):
        expected = Bootstrap(24, 6, weights).indices(epoch).tolist()
        assert collections.Counter(numbers(source.train(epoch))) == collections.Counter(expected)
        assert numbers(source.train(epoch, 4)) == numbers(source.train(epoch))[16:]
    assert numbers(source.train(0)) != numbers(source.train(1))
    parts = [numbers(source_of_numbers(tmp_path, weights, Batching(2, 6, part, 2)).train(1)) for part in range(2)]
    assert collections.Counter(sum(parts, [])) == collections.Counter(numbers(source.train(1)))
    assert numbers(source.train_in_order()) == numbers(source.validation()) == list(range(24))


def test_record_files_are_sampled_like_folders(images):
    def batches(**data):
        config = DataConfig('imagenet', 16, 0.875, 'low', 2, bootstrap=True, **data)
        source = open_source(config, Batching(6, seed=2))
        assert source.class_names is None or len(source.class_names) == source.classes == 3
        return [(pixels.asnumpy(), labels.asnumpy()) for pixels, labels in source.train(0)], source

    records = dict(use_rec=True, rec_train=f'{images}/rec/train.rec', rec_val=f'{images}/rec/val.rec')
    found, source = batches(**records)
    again, _ = batches(**records)
    assert len(found) == 5 and all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in zip(found, again))
    in_order = np.concatenate([labels.asnumpy() for _, labels in source.train_in_order()])
    expected = in_order[Bootstrap(30, 2).indices(0)]
    assert sorted(np.concatenate([labels for _, labels in found])) == sorted(expected)
    source.decode_training_images()
    folders, _ = batches(data_dir=str(images))
    assert len(folders) == 5


@pytest.mark.parametrize(
    'content, words',
    [
        (None, 'cannot be read as an .npy file'),
        (np.ones(23), 'has the shape (23,), but there are 24 training images'),
        (-np.arange(24), 'must be finite, not negative, and not all zero'),
        (np.zeros(24), 'must be finite, not negative, and not all zero'),
        (np.full(24, np.nan), 'must be finite'),
    ],
)
def test_unusable_weights_are_refused(tmp_path, content, words):
    if content is not None:
        with pytest.raises(bmx.UserError, match=words.replace('(', r'\(').replace(')', r'\)')):
            source_of_numbers(tmp_path, content)
    else:
        (tmp_path / 'x.npy').write_text('text')
        spec = InputSpec(channels=1, size=2, resize=2, mean=(0,), std=(1,))
        dataset = ArrayDataset([nd.zeros((2, 2, 1), dtype='uint8')] * 2, [0, 1])
        with pytest.raises(bmx.UserError, match=words):
            ImageSource(TrainingImages(dataset, dataset, ['a', 'b'], ''), spec, Augmentation(), Batching(1), 0, str(tmp_path / 'x.npy'))


# --- boosting --------------------------------------------------------------------------------------------------------------------------


def samme(correct, classes):
    """Algorithm 2 of Zhu et al. 2009, image by image."""
    weights, alphas = [1 / len(correct[0])] * len(correct[0]), []
    for row in correct:
        error = sum(w for w, right in zip(weights, row) if not right) / sum(weights)
        alphas.append(np.log((1 - error) / error) + np.log(classes - 1))
        weights = [w * (1 if right else np.exp(alphas[-1])) for w, right in zip(weights, row)]
        weights = [w / sum(weights) for w in weights]
    return alphas, weights


@pytest.mark.parametrize('classes', [2, 10, 1000])
def test_boosting_is_samme(classes):
    correct = np.random.RandomState(classes).rand(4, 300) < 0.7
    alphas, weights = boost(correct, classes)
    expected = samme(correct.tolist(), classes)
    np.testing.assert_allclose(alphas, expected[0], rtol=1e-12)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-12)
    error = weights[~correct[-1]].sum()
    assert error == pytest.approx(1 - 1 / classes), 'for the new weights the last member is as good as guessing'


def test_a_perfect_member_has_a_finite_vote_and_one_no_better_than_guessing_none():
    correct = np.array([[True] * 8, [False] * 8, [True] * 4 + [False] * 4])
    alphas, weights = boost(correct[:1], 3)
    assert alphas == [pytest.approx(np.log(15) + np.log(2))] and np.ptp(weights) == 0
    alphas, weights = boost(correct[:2], 3)
    assert alphas[1] == 0 and np.ptp(weights) == 0
    alphas, weights = boost(correct, 3)
    assert alphas[2] == pytest.approx(np.log(2)) and weights[-1] == pytest.approx(2 * weights[0])


# --- votes -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('vote', ['logits', 'softmax', 'hard'])
@pytest.mark.parametrize('alphas', [None, [1.0, 0.0, 0.5]])
def test_the_output_is_the_vote_of_networks_loaded_separately(vote, alphas, tmp_path):
    options = {'classes': 4, 'initial_layers': 'thumbnail', 'init_features': 4}
    net, x = get_model(EXPORTED, members=3, vote=vote, alphas=alphas, **options), nd.random.normal(shape=(5, 3, 8, 8))
    net.initialize()
    net.hybridize()
    net(x)
    terms = []
    for number, member in enumerate(net.members):
        single = get_model('resnet18_xnor', **options)
        single.initialize(mx.init.Normal(1))
        logits = single(x).asnumpy().astype(np.float64)
        single.save_parameters(str(tmp_path / f'{number}.params'))
        member.load_parameters(str(tmp_path / f'{number}.params'))
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        terms.append(
            {
                'logits': logits,
                'softmax': exponentials / exponentials.sum(axis=1, keepdims=True),
                'hard': np.eye(4)[logits.argmax(axis=1)],
            }[vote]
        )
    expected = np.average(terms, axis=0, weights=alphas)
    found = net(x).asnumpy()
    if vote != 'logits':
        found = np.exp(found)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    'options, words',
    [
        ({'members': 0}, 'members must be a positive number'),
        ({'vote': 'loud'}, "vote must be logits, softmax, hard, not 'loud'"),
        ({'members': 2, 'alphas': [1]}, 'alphas must be 2 numbers'),
        ({'members': 2, 'alphas': [0, 0]}, 'alphas must be 2 numbers, at least 0 and not all 0'),
        ({'members': 2, 'alphas': [2, -1]}, 'alphas must be 2 numbers'),
    ],
)
def test_wrong_options_of_ensembles_are_refused(options, words):
    with pytest.raises(bmx.UserError, match=words):
        get_model(EXPORTED, **options)


# --- training --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """The folders of uninterrupted trainings, by kind, made when first asked for."""

    class Whole(dict):
        def __missing__(self, kind):
            self[kind] = tmp_path_factory.mktemp(kind) / 'run'
            train(*TINY, '--ensemble-training', kind, '--save-dir', self[kind])
            return self[kind]

    return Whole()


def load_exported(prefix):
    return mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')


def options_of(folder):
    return json.loads((folder / 'checkpoint.json').read_text())['options']


def assert_same_end(folder, other):
    names = [f'{number}-member/epoch-0001.{kind}' for number in (1, 2) for kind in ('params', 'states')]
    names += [f'{EXPORTED}-0000.params', *(path.name for path in other.glob('*.npy'))]
    for name in names:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    described = [json.loads((path / f'{EXPORTED}-summary.json').read_text()) for path in (folder, other)]
    assert described[0] == described[1]


def test_members_are_trained_with_different_seeds_on_different_samples(whole):
    folder = whole['bagging']
    members = [options_of(folder / f'{number}-member') for number in (1, 2)]
    assert [member['model'] for member in members] == ['resnet18_xnor'] * 2
    assert [member['bootstrap'] for member in members] == [True] * 2
    assert [member['seed'] for member in members] == [seed_for(3, 1), seed_for(3, 2)]
    assert members[0]['model_options'] == {'init_features': 4}
    assert 'drawn once with replacement' in (folder / '1-member' / 'experiment.log').read_text()
    initial = [nd.load(str(folder / f'{number}-member' / 'epoch-0000.params'))['output.weight'].asnumpy() for number in (1, 2)]
    assert np.any(initial[0] != initial[1])


@pytest.mark.parametrize('kind', ['bagging', 'boosting'])
def test_the_exported_ensemble_is_the_vote_of_the_best_weights_and_is_packed_into_one_operator(whole, kind, capsys):
    folder = whole[kind]
    description = json.loads((folder / f'{EXPORTED}-summary.json').read_text())
    x, outputs = nd.random.normal(shape=(2, 1, 8, 8)), []
    for number in (1, 2):
        net = load_exported(str(folder / f'{number}-member' / 'resnet18_xnor'))
        outputs.append(net(x).asnumpy())
    votes = description['model'].get('alphas')
    assert (votes is None) == (kind == 'bagging')
    ensemble = load_exported(str(folder / EXPORTED))
    np.testing.assert_allclose(ensemble(x).asnumpy(), np.average(outputs, axis=0, weights=votes), rtol=1e-4, atol=1e-5)
    assert description['metrics']['members_top1'] == [
        json.loads((folder / f'{number}-member' / 'resnet18_xnor-summary.json').read_text())['metrics']['top1'] for number in (1, 2)
    ]
    assert description['model'] == {
        **{'name': EXPORTED, 'classes': 10, 'initial_layers': 'thumbnail', 'members': 2, 'init_features': 4},
        **({'alphas': votes} if votes else {}),
    }
    capsys.readouterr()
    assert bmx_melius.__main__.main(['evaluate', str(folder / EXPORTED), 'digits', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['top1'] == pytest.approx(accuracy_on_test_digits(ensemble))
    packed = folder.parent / 'packed'
    assert bmx_melius.__main__.main(['convert', str(folder / EXPORTED), str(packed)]) == 0
    session = bmx.Session(str(packed))
    np.testing.assert_allclose(session(x.asnumpy()), ensemble(x).asnumpy(), rtol=1e-3, atol=1e-3)


def test_boosting_weights_the_images_by_the_errors_of_the_members_before(whole):
    folder = whole['boosting']
    member = load_exported(str(folder / '1-member' / 'resnet18_xnor'))
    pixels, labels = zip(*open_digits().train)
    inputs = (np.stack([image.asnumpy()[1:-1, 1:-1, 0] for image in pixels])[:, None] - 77.9) / 95.9
    correct = member(nd.array(inputs)).asnumpy().argmax(axis=1) == np.array(labels)
    assert np.mean(np.load(folder / 'correct-1.npy') == correct) > 0.999
    stored = [np.load(folder / f'correct-{number}.npy') for number in (1, 2)]
    np.testing.assert_allclose(np.load(folder / 'image-weights-2.npy'), samme(stored[:1], 10)[1], rtol=1e-9)
    described = json.loads((folder / f'{EXPORTED}-summary.json').read_text())
    assert described['model']['alphas'] == pytest.approx(np.maximum(samme(stored, 10)[0], 0))
    assert [options_of(folder / f'{number}-member')['bootstrap'] for number in (1, 2)] == [True, str(folder / 'image-weights-2.npy')]


@pytest.mark.parametrize('kind, update', [('bagging', 2), ('boosting', UPDATES + 2)])
def test_training_interrupted_in_any_member_and_resumed_ends_like_the_uninterrupted_one(whole, tmp_path, monkeypatch, capsys, kind, update):
    expected, folder, original = whole[kind], tmp_path / 'run', loop.update
    number, flags = (update - 1) // UPDATES + 1, TINY
    done = UPDATES * (number - 1)
    if number > 1:  # the first member is trained alike
        shutil.copytree(expected / '1-member', folder / '1-member')
        shutil.copy(expected / 'stages.json', folder)
        flags = ['--resume']

    def interrupted(*arguments):
        nonlocal done
        done += 1
        if done == update:
            os.kill(os.getpid(), signal.SIGINT)
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, 'update', interrupted)
        train(*flags, *(['--ensemble-training', kind] if number == 1 else []), '--save-dir', folder, status=128 + signal.SIGINT)
    printed = capsys.readouterr().out
    assert f'stopped in member {number} of 2; continue with --resume --save-dir {folder}' in printed and printed.count('continue with') == 1
    shutil.copytree(folder, tmp_path / 'copy')
    moved = folder.rename(tmp_path / 'moved')
    train('--resume', '--save-dir', moved)
    assert_same_end(moved, expected)
    if kind == 'boosting':
        np.save(moved / 'image-weights-2.npy', np.ones(10))
        train('--resume', '--save-dir', tmp_path / 'copy')
        assert_same_end(tmp_path / 'copy', expected)


def test_a_resumed_run_accepts_the_same_weights_of_images_in_another_file(tmp_path, capsys):
    weights, copy = tmp_path / 'weights.npy', tmp_path / 'copy.npy'
    np.save(weights, np.arange(1, 1 + len(open_digits().train)))
    flags = [*TINY, '--model', 'resnet18_xnor', '--model-options', '{"init_features": 4}', '--save-dir', tmp_path / 'run']
    train(*flags, '--bootstrap', weights)
    weights.rename(copy)
    resumed = ['--resume', '--dry-run', '--save-dir', tmp_path / 'run', '--bootstrap', copy]
    train(*resumed)
    np.save(copy, np.load(copy)[::-1])
    train(*resumed, status=2)
    assert f'{copy} has other weights than the run was started with' in error_of(capsys)


def test_training_killed_between_members_or_before_the_export_is_completed(whole, tmp_path, capsys):
    folder = tmp_path / 'run'
    shutil.copytree(whole['boosting'], folder)
    for path in (*folder.glob('correct-*.npy'), *folder.glob(f'{EXPORTED}*')):
        path.unlink()
    capsys.readouterr()
    train('--resume', '--save-dir', folder)
    assert capsys.readouterr().out.count('-member is finished') == 2
    assert_same_end(folder, whole['boosting'])
    before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
    train('--resume', '--save-dir', folder)
    assert f'{folder} is finished' in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_all_members_are_trained_in_one_run_only_on_demand(tmp_path, capsys):
    arguments = [*TINY, '--save-dir', str(tmp_path / 'run'), '--dry-run']
    assert parse_series([*arguments, '--ensemble-training', 'joint'], model_zoo, [EnsembleTraining]) is None
    train(*arguments, '--ensemble-training', 'joint')
    printed = capsys.readouterr().out
    assert 'network    resnet18_benn' in printed and 'stage' not in printed
    for kind in ([], ['--ensemble-training', 'boosting']):
        train(*arguments, *kind)
        printed = capsys.readouterr().out
        assert printed.count('network    resnet18_xnor') == 2 and printed.count('drawn once with replacement') == 2
    assert not (tmp_path / 'run').exists()


def test_a_resumed_training_keeps_its_kind(whole, tmp_path, capsys):
    resumed = ['--resume', '--dry-run', '--save-dir']
    saved = tmp_path / 'bagging'
    shutil.copytree(whole['bagging'], saved)
    flags = json.loads((saved / 'stages.json').read_text())
    (saved / 'stages.json').write_text(json.dumps({**flags, 'ensemble_training': None}))  # without the flag
    train(*resumed, saved, '--ensemble-training', 'bagging')
    train(*resumed, saved, '--ensemble-training', 'boosting', status=2)
    assert 'was started with --ensemble-training bagging' in error_of(capsys)
    joint = tmp_path / 'joint'
    train(*TINY, '--ensemble-training', 'joint', '--save-dir', joint)
    train(*resumed, joint)
    train(*resumed, joint, '--ensemble-training', 'bagging', status=2)
    assert 'was started with --ensemble-training joint' in error_of(capsys)


@pytest.mark.parametrize(
    'flags, words',
    [
        (['--model', 'resnet18_xnor', '--ensemble-training', 'bagging'], 'the network resnet18_xnor is no ensemble'),
        (['--preset', 'real-to-binary'], 'the members of an ensemble are not trained in stages'),
        (['--model-options', '{"members": 2, "alphas": [1, 2]}'], 'alphas are the votes that'),
        (['--model-options', '{"members": -1}'], 'members must be a positive number'),
        (['--model-options', '{"init_feature": 4}'], 'resnet18_benn takes no argument init_feature; known: clip_threshold, bits,'),
        (['--dataset', 'dummy'], '--dataset dummy has no images, of which resnet18_benn, --ensemble-training bagging draws samples'),
        (['--bootstrap'], '--bootstrap is set by the members of resnet18_benn'),
        (['--kvstore', 'horovod'], '--kvstore horovod: the members of'),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_any_work(flags, words, tmp_path, capsys):
    if flags[0] == '--model':
        flags = [*flags, '--model-options', '{}']
    train(*TINY, *flags, '--save-dir', tmp_path / 'run', status=2)
    assert words in error_of(capsys)
    assert not (tmp_path / 'run').exists()
