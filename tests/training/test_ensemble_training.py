"""Boosting, and training of the members of ensembles one after the other."""

import json
import shutil
import signal

import numpy as np
import pytest
from mxnet import nd
from support.conversions import imported
from support.long_runs import mostly_long
from support.training_runs import (
    Runs,
    accuracy_on_test_digits,
    assert_equal_files,
    contents_of,
    description_of,
    inputs_of_digits,
    interrupt_series,
    interrupted_in,
    printed_by,
    refused,
    series_of,
    state_of,
    train,
    weights_of,
)

import bmx_melius as bmx
import bmx_melius.__main__
from bmx_melius.arithmetic import seed_for
from bmx_melius.data.small_images import open_digits
from bmx_melius.nn.methods.benn import boost

pytest_plugins = ['support.training_runs']  # its fixtures
OPTIONS = {'members': 2, 'init_features': 4}
TINY = [
    *('--model', 'resnet18_benn', '--dataset', 'digits', '--num-epochs', '1', '--batch-size', '256', '--lr', '0.01'),
    *('--model-options', json.dumps(OPTIONS), '--log-interval', '0', '--save-frequency', '0', '--seed', '3'),
]
MEMBER = [*TINY, '--model', 'resnet18_xnor', '--model-options', '{"init_features": 4}']
UPDATES = 4  # of an epoch
EXPORTED = 'resnet18_benn'


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


def test_boosting_of_a_single_class_is_refused():
    with pytest.raises(bmx.UserError, match='at least two classes, not 1'):
        boost(np.ones((1, 4), bool), 1)


# --- training --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def whole(make_once):
    """The folders of uninterrupted trainings, by kind, made when first asked for."""
    return Runs(make_once, {kind: [*TINY, '--ensemble-training', kind] for kind in ('bagging', 'boosting')}, 'ensemble', train)


def assert_same_end(folder, other):
    names = [f'{number}-member/epoch-0001.{kind}' for number in (1, 2) for kind in ('params', 'states')]
    assert_equal_files(folder, other, *names, f'{EXPORTED}-0000.params', *(path.name for path in other.glob('*.np?')))
    assert description_of(folder, EXPORTED) == description_of(other, EXPORTED)


def test_members_are_trained_with_different_seeds_on_different_samples(whole):
    folder = whole['bagging']
    members = [state_of(folder / f'{number}-member')['options'] for number in (1, 2)]
    assert [member['model'] for member in members] == ['resnet18_xnor'] * 2
    assert [member['bootstrap'] for member in members] == [True] * 2
    assert [member['seed'] for member in members] == [seed_for(3, 1), seed_for(3, 2)]
    assert members[0]['model_options'] == {'init_features': 4}
    assert 'drawn once with replacement' in (folder / '1-member' / 'experiment.log').read_text()
    initial = [weights_of(folder / f'{number}-member', 0)['output.weight'] for number in (1, 2)]
    assert np.any(initial[0] != initial[1])


@pytest.mark.parametrize('kind', ['bagging', 'boosting'])
def test_the_exported_ensemble_is_the_vote_of_the_best_weights_and_is_packed_into_one_operator(whole, kind, tmp_path, capsys):
    folder = whole[kind]
    description, members = description_of(folder, EXPORTED), [folder / f'{number}-member' for number in (1, 2)]
    x = nd.random.normal(shape=(2, 1, 8, 8))
    outputs = [imported(member / 'resnet18_xnor')(x).asnumpy() for member in members]
    votes = description['model'].get('alphas')
    assert (votes is None) == (kind == 'bagging')
    ensemble = imported(folder / EXPORTED)
    np.testing.assert_allclose(ensemble(x).asnumpy(), np.average(outputs, axis=0, weights=votes), rtol=1e-4, atol=1e-5)
    assert description['metrics']['members_top1'] == [description_of(member, 'resnet18_xnor')['metrics']['top1'] for member in members]
    assert description['model'] == {
        **{'name': EXPORTED, 'classes': 10, 'initial_layers': 'thumbnail', 'members': 2, 'init_features': 4},
        **({'alphas': votes} if votes else {}),
    }
    capsys.readouterr()
    assert bmx_melius.__main__.main(['evaluate', str(folder / EXPORTED), 'digits', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['top1'] == pytest.approx(accuracy_on_test_digits(ensemble))
    assert bmx_melius.__main__.main(['convert', str(folder / EXPORTED), str(tmp_path / 'packed')]) == 0
    np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(x.asnumpy()), ensemble(x).asnumpy(), rtol=1e-3, atol=1e-3)


def test_boosting_weights_the_images_by_the_errors_of_the_members_before(whole):
    folder = whole['boosting']
    inputs, labels = inputs_of_digits(open_digits().train)
    correct = imported(folder / '1-member' / 'resnet18_xnor')(inputs).asnumpy().argmax(axis=1) == labels
    assert np.mean(np.load(folder / 'correct-1.npz')['correct'] == correct) > 0.999
    stored = [np.load(folder / f'correct-{number}.npz')['correct'] for number in (1, 2)]
    np.testing.assert_allclose(np.load(folder / 'image-weights-2.npy'), samme(stored[:1], 10)[1], rtol=1e-9)
    assert description_of(folder, EXPORTED)['model']['alphas'] == pytest.approx(np.maximum(samme(stored, 10)[0], 0))
    bootstraps = [state_of(folder / f'{number}-member')['options']['bootstrap'] for number in (1, 2)]
    assert bootstraps == [True, str(folder / 'image-weights-2.npy')]


@pytest.mark.parametrize('kind, update', mostly_long([('bagging', 2), ('boosting', UPDATES + 2)], ('bagging', 2)))
def test_training_interrupted_in_any_member_and_resumed_ends_like_the_uninterrupted_one(whole, tmp_path, capsys, kind, update):
    expected, folder = whole[kind], tmp_path / 'run'
    number = interrupt_series(update, UPDATES, [*TINY, '--ensemble-training', kind], expected, folder, ['1-member', '2-member'])
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


def test_an_interrupted_run_that_is_no_series_names_the_command_that_continues_it(tmp_path, capsys):
    with interrupted_in(1):
        train(*MEMBER, '--save-dir', tmp_path, status=128 + signal.SIGINT)
    assert capsys.readouterr().out.count(f'continue with --resume --save-dir {tmp_path}') == 1


def test_a_resumed_run_accepts_the_same_weights_of_images_in_another_file(tmp_path, capsys):
    weights, copy = tmp_path / 'weights.npy', tmp_path / 'copy.npy'
    np.save(weights, np.arange(1, 1 + len(open_digits().train)))
    train(*MEMBER, '--save-dir', tmp_path / 'run', '--bootstrap', weights)
    weights.rename(copy)
    resumed = ['--resume', '--dry-run', '--save-dir', tmp_path / 'run', '--bootstrap', copy]
    train(*resumed)
    np.save(copy, np.load(copy)[::-1])
    assert f'{copy} has other weights than the run was started with' in refused(capsys, *resumed)


def test_training_killed_between_members_or_before_the_export_is_completed(whole, tmp_path, capsys):
    folder = tmp_path / 'run'
    resumed = unfinished(whole['boosting'], folder)
    for path in folder.glob('correct-*.npz'):
        path.unlink()
    capsys.readouterr()
    train(*resumed)
    assert capsys.readouterr().out.count('-member is finished') == 2
    assert_same_end(folder, whole['boosting'])
    before = contents_of(folder)
    assert f'{folder} is finished' in printed_by(capsys, *resumed)
    assert contents_of(folder) == before


def unfinished(trained, folder):
    """Copy a finished training of an ensemble without its export, so that it can be finished again."""
    shutil.copytree(trained, folder)
    for path in folder.glob(f'{EXPORTED}*'):
        path.unlink()
    return ['--resume', '--save-dir', folder]


def change_correct(path, change):
    """Change which images a member has classified correctly, in the file of a run."""
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **{**content, 'correct': change(content['correct'])})


def test_damaged_or_foreign_classifications_are_computed_again(whole, tmp_path, capsys):
    folder = tmp_path / 'run'
    resumed = unfinished(whole['boosting'], folder)
    first, second = (folder / f'correct-{number}.npz' for number in (1, 2))
    first.write_bytes(first.read_bytes()[:-100])
    np.savez(second, correct=np.ones(10, bool), weights='of others')
    assert f'{first} is damaged: the images are classified again' in printed_by(capsys, *resumed)
    assert_same_end(folder, whole['boosting'])


def test_missing_weights_and_changed_images_give_a_message(whole, tmp_path, capsys):
    folder = tmp_path / 'run'
    resumed, saved = unfinished(whole['boosting'], folder), folder / 'correct-1.npz'
    change_correct(saved, lambda correct: correct[1:])
    assert f'the members in {folder} have classified' in refused(capsys, *resumed)
    (folder / '1-member' / 'epoch-0001.params').unlink()
    error = refused(capsys, *resumed)
    assert 'epoch-0001.params' in error and 'is missing' in error


def test_members_no_better_than_guessing_are_reported_and_the_way_out_as_well(whole, tmp_path, capsys):
    folder = tmp_path / 'run'
    resumed = unfinished(whole['boosting'], folder)
    for number in (1, 2):
        change_correct(folder / f'correct-{number}.npz', np.zeros_like)
    capsys.readouterr()
    train(*resumed, status=2)
    printed = capsys.readouterr()
    assert f'{folder}/2-member is not better than guessing: it has no vote' in printed.out + printed.err
    assert 'start a new training in another --save-dir' in printed.err


def test_all_members_are_trained_in_one_run_only_on_demand(tmp_path, capsys):
    arguments = [*TINY, '--save-dir', tmp_path / 'run', '--dry-run']
    assert series_of(*arguments, '--ensemble-training', 'joint') is None
    printed = printed_by(capsys, *arguments, '--ensemble-training', 'joint')
    assert 'network    resnet18_benn' in printed and 'stage' not in printed
    for kind in ([], ['--ensemble-training', 'boosting']):
        printed = printed_by(capsys, *arguments, *kind)
        assert printed.count('network    resnet18_xnor') == 2 and printed.count('drawn once with replacement') == 2
    assert not (tmp_path / 'run').exists()


def test_a_resumed_training_keeps_its_kind(whole, tmp_path, capsys):
    resumed = ['--resume', '--dry-run', '--save-dir']
    saved = tmp_path / 'bagging'
    shutil.copytree(whole['bagging'], saved)
    flags = json.loads((saved / 'stages.json').read_text())
    (saved / 'stages.json').write_text(json.dumps({**flags, 'ensemble_training': None}))  # without the flag
    train(*resumed, saved, '--ensemble-training', 'bagging')
    assert 'was started with --ensemble-training bagging' in refused(capsys, *resumed, saved, '--ensemble-training', 'boosting')
    joint = tmp_path / 'joint'
    with interrupted_in(1):
        train(*TINY, '--ensemble-training', 'joint', '--save-dir', joint, status=128 + signal.SIGINT)
    train(*resumed, joint)
    assert 'was started with --ensemble-training joint' in refused(capsys, *resumed, joint, '--ensemble-training', 'bagging')


@pytest.mark.parametrize(
    'flags, words',
    [
        (['--model', 'resnet18_xnor', '--ensemble-training', 'bagging'], 'the network resnet18_xnor is not an ensemble'),
        (['--preset', 'real-to-binary'], 'the members of an ensemble are not trained in stages'),
        (['--model-options', '{"members": 2, "alphas": [1, 2]}'], 'alphas are the votes that'),
        (['--model-options', '{"members": -1}'], 'members must be a positive number'),
        (['--model-options', '{"init_feature": 4}'], 'resnet18_benn takes no argument init_feature; did you mean init_features'),
        (['--dataset', 'dummy'], '--dataset dummy has no images, of which resnet18_benn, --ensemble-training bagging draws samples'),
        (['--bootstrap'], '--bootstrap is set by the members of resnet18_benn'),
        (['--kvstore', 'horovod'], '--kvstore horovod: the members of'),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_any_work(flags, words, tmp_path, capsys):
    if flags[0] == '--model':
        flags = [*flags, '--model-options', '{}']
    assert words in refused(capsys, *TINY, *flags, '--save-dir', tmp_path / 'run')
    assert not (tmp_path / 'run').exists()
