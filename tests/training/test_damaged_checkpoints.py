"""Checkpoints that are damaged, malformed or of another version: they are named, or a run continues from the previous one."""

import json
import os

import numpy as np
import pytest
from support.checkpointed_runs import OPTIONS, Run, finish_epoch, flip_bit, make, step, weights

from bmx_melius.errors import UserError
from bmx_melius.training.progress import Progress
from bmx_melius.training.saving.checkpoints import Checkpoints
from bmx_melius.training.saving.stored_checkpoints import description_of, read_last, read_state, write_state

MALFORMED = ['{"format":', '[]', 'null', '3', '{}', '{"format": []}', '[' * 100_000, '{"format": 3}']


@pytest.mark.parametrize('content', MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_checkpoint_is_named_in_one_line(tmp_path, content):
    assert read_last(tmp_path) is None
    (tmp_path / 'checkpoint.json').write_text(content)
    with pytest.raises(UserError, match='checkpoint.json .* damaged') as raised:
        read_last(tmp_path)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    'change',
    [
        lambda state: state.pop('weights'),
        lambda state: state.update(weights='../../epoch-0001.params'),
        lambda state: state.update(kept=['epoch-0001.params', 3]),
        lambda state: state.update(options=[]),
        lambda state: state.update(network='a'),
        lambda state: state.update(progress=None),
        lambda state: state['progress'].pop('epoch'),
        lambda state: state['progress'].update(batch=-1),
        lambda state: state['progress'].update(further=0),
        lambda state: state['progress']['history'][0].pop('top1'),
        lambda state: state['progress']['history'].append(None),
    ],
)
def test_a_checkpoint_with_a_field_missing_or_malformed_is_named(tmp_path, change):
    Run(tmp_path, epochs=1)
    state = read_last(tmp_path)
    change(state)
    write_state(str(tmp_path / 'checkpoint.json'), state)
    (tmp_path / 'checkpoint-previous.json').unlink(missing_ok=True)
    with pytest.raises(UserError, match="checkpoint.json is damaged: its field '.*' is missing or malformed"):
        read_last(tmp_path)


@pytest.mark.parametrize('version', [2, 99])
def test_a_checkpoint_of_another_version_is_refused_without_falling_back_to_the_previous_one(tmp_path, version):
    Run(tmp_path, epochs=2)
    (tmp_path / 'checkpoint.json').write_text(json.dumps({'format': version}))
    with pytest.raises(UserError, match='another version'):
        read_last(tmp_path)


@pytest.mark.parametrize('content', [None, b'', b'no weights'])
@pytest.mark.parametrize('suffix', ['params', 'states', 'npz'])
def test_missing_or_damaged_files_are_named(tmp_path, suffix, content):
    net, trainer = make()
    checkpoints = Checkpoints(tmp_path, OPTIONS)
    checkpoints.save(net, trainer, Progress(), {'counts': np.arange(3)})
    file = tmp_path / f'epoch-0000.{suffix}'
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UserError, match='checkpoint.json'):
        checkpoints.load_arrays() if suffix == 'npz' else checkpoints.load(net, trainer)


DAMAGES = {
    'flipped': lambda path: flip_bit(path, path.stat().st_size // 2),
    'flipped at the end': lambda path: flip_bit(path, -1, 7),
    'cut off': lambda path: os.truncate(path, path.stat().st_size - 1),
    'empty': lambda path: path.write_bytes(b''),
    'missing': os.unlink,
}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize('name', ['epoch-0002.params', 'epoch-0002.states', 'epoch-0002.npz', 'checkpoint.json'])
def test_a_run_with_a_damaged_file_continues_from_the_previous_checkpoint_and_names_the_file(tmp_path, caplog, name, damage):
    run = Run(tmp_path, epochs=2)
    damage(tmp_path / name)
    resumed = Run(tmp_path)
    assert resumed.resume() == 1 and resumed.checkpoints.load_arrays() == {'number': 1}
    np.testing.assert_equal(weights(resumed.net), run.saved[1])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(tmp_path / name) in warning and 'continuing from the previous checkpoint, at epoch 2, update 1' in warning
    resumed.train_and_save(2)  # and it ends like the uninterrupted one
    np.testing.assert_equal(resumed.saved[2], run.saved[2])
    caplog.clear()
    assert Run(tmp_path).resume() == 2 and not caplog.records


@pytest.mark.parametrize('name', ['epoch-0000.params', 'epoch-0000.states', 'epoch-0000.npz', 'checkpoint.json'])
def test_a_flipped_bit_in_any_file_of_a_checkpoint_is_detected_and_the_file_named(tmp_path, name, long_run):
    net, trainer = make(updates=1)
    Checkpoints(tmp_path, OPTIONS).save(net, trainer, Progress(), {'counts': np.arange(3)})
    content = (tmp_path / name).read_bytes()
    for position in range(0, len(content), 1 if long_run else 29):
        if name == 'checkpoint.json' and content[position : position + 1].isspace():
            continue  # means nothing
        flip_bit(tmp_path / name, position, position % 8)
        with pytest.raises(UserError, match=name) as raised:
            Checkpoints(tmp_path, OPTIONS).load(net, trainer)
        assert len(str(raised.value).splitlines()) == 1
        (tmp_path / name).write_bytes(content)
    Checkpoints(tmp_path, OPTIONS).load(net, trainer)


def test_both_damaged_files_are_named_if_neither_checkpoint_is_intact(tmp_path):
    run = Run(tmp_path, epochs=2)
    for name in ('epoch-0001.states', 'epoch-0002.params'):
        flip_bit(tmp_path / name, 100)
    with pytest.raises(UserError, match='epoch-0002.params is damaged.*epoch-0001.states is damaged.*put back a copy'):
        Checkpoints(tmp_path, OPTIONS).load(run.net, run.trainer)


def test_damaged_best_weights_are_refused_and_missing_ones_passed_over(tmp_path, caplog):
    run = Run(tmp_path)
    for number, top1 in enumerate([0.2, 0.9, 0.3, 0.4], start=1):
        step(run.net, run.trainer, number)
        finish_epoch(run.progress, top1)
        run.checkpoints.save(run.net, run.trainer, run.progress)
    best = tmp_path / 'epoch-0002.params'
    resumed = Run(tmp_path)
    progress = resumed.checkpoints.load(resumed.net, resumed.trainer)
    assert resumed.checkpoints.best(progress) == (progress.history[1], str(best))
    flip_bit(best, 300)
    with pytest.raises(UserError, match='epoch-0002.params is damaged.*or remove the file'):
        resumed.checkpoints.best(progress)
    best.unlink()
    assert resumed.checkpoints.best(progress) == (progress.history[3], str(tmp_path / 'epoch-0004.params'))
    assert 'epoch-0002.params is missing' in caplog.text
    for name in ('epoch-0003.params', 'epoch-0004.params'):
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match='has no weights of a finished epoch'):
        resumed.checkpoints.best(progress)


def test_weights_that_are_taken_from_a_checkpoint_are_verified(tmp_path):
    Run(tmp_path, epochs=1)
    weights = tmp_path / 'epoch-0001.params'
    assert description_of(str(weights)) is None, 'this network has none'
    flip_bit(weights, 300)
    with pytest.raises(UserError, match='epoch-0001.params is damaged'):
        description_of(str(weights))


def test_an_edited_checkpoint_is_detected(tmp_path):
    Run(tmp_path, epochs=1)
    path = tmp_path / 'checkpoint.json'
    state = read_state(str(path))
    path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 0.02'))
    with pytest.raises(UserError, match='damaged or was changed'):
        read_last(tmp_path)
    state['options']['lr'] = 0.03
    write_state(str(path), state)
    assert read_last(tmp_path)['options']['lr'] == 0.03
