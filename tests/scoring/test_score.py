"""`bmx-melius score`: each image has exactly one row, equal to what `Session` computes, on every engine, also after interruptions."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile

import numpy as np
import PIL.Image
import pytest
from support.classifiers import SPEC, write_image
from support.scoring_runs import (
    IMAGES,
    OPTIONS,
    PACKAGES,
    PART,
    ROOT,
    assert_rows_are_those_of_session,
    change_network,
    copy_network,
    finish,
    open_when_read,
    rows,
    score,
    start,
    wait_until_nobody_reads,
)

import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.errors import UserError
from bmx_melius.scoring.images import list_images
from bmx_melius.scoring.job import Job
from bmx_melius.scoring.part import is_complete, score_part
from bmx_melius.vision.classifier import Classifier

pytest.importorskip('pyarrow', reason='make test-scale installs what `bmx-melius score` needs')
pytest_plugins = ['support.scoring_runs']  # its fixtures


def test_each_image_has_the_classes_of_session_on_every_engine(packed, photos, tmp_path, engine, monkeypatch):
    monkeypatch.setenv('RAY_ADDRESS', '127.0.0.1:1')  # of another cluster, which only --address auto uses
    arguments = [packed, photos, '--output', tmp_path / 'scores', '--engine', engine, '--workers', 2, '--part-size', PART, '--top', 3]
    output = json.loads(score(*arguments, '--json'))
    assert (output['images'], output['scored_now'], output['unreadable_now']) == (IMAGES, IMAGES, 0)
    assert_rows_are_those_of_session(tmp_path / 'scores', packed, photos, 3)
    assert len(list((tmp_path / 'scores').glob('*.parquet'))) == 5 and (tmp_path / 'scores' / '_SUCCESS').exists()


def test_logits_are_those_of_session_for_any_batch(packed, photos, tmp_path):
    score(packed, photos, '--output', tmp_path / 'scores', '--logits', '--batch-size', 4, '--top', 1)
    session = bmx.Session(packed)
    for row in rows(tmp_path / 'scores'):
        np.testing.assert_array_equal(np.float32(row['logits']), session(SPEC.array(row['image']))[0])


def test_an_image_that_cannot_be_decoded_has_a_row_with_the_reason(packed, photos, tmp_path):
    (photos / '4.png').write_bytes(b'no image')
    pathlib.Path(os.fsdecode(os.fsencode(photos) + b'/\xff.png')).write_bytes(b'no image, and its name is not UTF-8')
    output = score(packed, photos, '--output', tmp_path / 'scores', '--logits')
    assert output.startswith(f'{os.path.relpath(tmp_path / "scores", ROOT)}: 10 images') and '2 could not be read' in output
    bad = [row for row in rows(tmp_path / 'scores') if row['error'] is not None]
    assert [row['image'] for row in bad] == [f'{photos}/4.png', f'{photos}/\\udcff.png']
    assert '4.png cannot be decoded' in bad[0]['error'] and '\\udcff.png cannot be decoded' in bad[1]['error']
    assert {value for row in bad for name, value in row.items() if name not in ('image', 'error')} == {None}


def test_the_same_command_computes_only_what_is_missing_or_damaged(packed, photos, tmp_path):
    folder = tmp_path / 'scores'
    arguments = [packed, photos, '--output', folder, '--part-size', PART, '--workers', 1]
    score(*arguments)
    before = {path.name: (path.stat().st_mtime_ns, rows(path)) for path in folder.glob('*.parquet')}
    (folder / 'part-000001.parquet').unlink()
    (folder / 'part-000003.parquet').write_bytes(b'damaged')
    content = (folder / 'part-000000.parquet').read_bytes()
    footer = int.from_bytes(content[-8:-4], 'little')
    (folder / 'part-000000.parquet').write_bytes(content[: -8 - footer] + bytes(footer) + content[-8:])
    (folder / '.abcdefgh-part-000001.parquet').write_bytes(b'from a killed worker')
    assert json.loads(score(*arguments, '--json'))['scored_now'] == 3 * PART
    after = {path.name: (path.stat().st_mtime_ns, rows(path)) for path in folder.glob('*.parquet')}
    assert {name for name in before if before[name][0] != after[name][0]} == {f'part-00000{number}.parquet' for number in (0, 1, 3)}
    assert {name: found for name, (_, found) in before.items()} == {name: found for name, (_, found) in after.items()}
    assert not [path.name for path in folder.iterdir() if path.name.startswith('.')]
    assert json.loads(score(*arguments, '--json'))['scored_now'] == 0


@pytest.mark.parametrize('change', [('--top', 2), ('--part-size', 3), ('--logits',), ('--mean', '1,2,3'), 'image', 'network'])
def test_a_folder_with_the_rows_of_another_job_is_refused_and_unchanged(packed, photos, tmp_path, change, monkeypatch):
    folder, network = tmp_path / 'scores', copy_network(packed, tmp_path / 'packed')
    score(network, photos, '--output', folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if change == 'image':
        write_image(photos / 'new.png')
    elif change == 'network':
        change_network(network)
    errors = score(network, photos, '--output', folder, *([] if isinstance(change, str) else change), status=2)
    assert f'{folder} has the rows of another job' in errors and errors.count('\n') == 1
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_images_that_pillow_reads_with_a_warning_are_scored_without_a_message(packed, photos, tmp_path):
    image = PIL.Image.open(photos / '0.png').convert('RGB').quantize(16)
    image.save(photos / '0.png', transparency=bytes(range(16)))
    with pytest.warns(UserWarning, match='Palette images with Transparency'):
        SPEC.array(photos / '0.png')
    command = [sys.executable, '-m', 'bmx_melius', 'score', packed, photos, '--output', tmp_path / 'scores', '--workers', '1']
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, env=environment)
    assert done.stdout.count(b'\n') == 1 and b'9 images' in done.stdout


def test_a_killed_program_is_continued_and_loses_and_doubles_nothing(packed, photos, pipe, tmp_path):
    image, content = pipe
    arguments = [packed, photos, '--output', tmp_path / 'scores', '--workers', 1, '--part-size', PART, '--top', 3]
    process = start(*arguments)
    with open_when_read(image, process) as file:
        process.kill()
        wait_until_nobody_reads(file)  # the worker does not outlive the program
    process.communicate()
    assert not (tmp_path / 'scores' / '_SUCCESS').exists()
    finish(start(*arguments), image, content, photos)
    assert_rows_are_those_of_session(tmp_path / 'scores', packed, photos, 3)


def test_two_programs_do_not_write_to_one_folder(packed, photos, pipe, tmp_path):
    image, content = pipe
    process = start(packed, photos, '--output', tmp_path / 'scores')
    with open_when_read(image, process) as file:
        errors = score(packed, photos, '--output', tmp_path / 'scores', status=2)
        assert f'{tmp_path / "scores"} is in use: process {process.pid} on ' in errors
        file.write(content)
    assert process.wait() == 0
    process.communicate()


@pytest.mark.parametrize(
    ('engine', 'number', 'send'),
    [
        *[(engine, signal.SIGINT, os.killpg) for engine in PACKAGES],  # Ctrl-C in a terminal: also to the workers
        *[(engine, signal.SIGTERM, os.kill) for engine in PACKAGES],
        ('local', signal.SIGINT, os.kill),
        ('local', signal.SIGTERM, os.killpg),
    ],
)
def test_a_signal_ends_program_and_workers_in_the_midst_of_a_part_without_a_message(packed, photos, pipe, tmp_path, engine, number, send):
    pytest.importorskip(PACKAGES[engine])
    process = start(packed, photos, '--output', tmp_path / 'scores', '--engine', engine, '--workers', 2, '--part-size', PART)
    with open_when_read(pipe[0], process) as file:
        send(process.pid, number)
        wait_until_nobody_reads(file)
    assert process.communicate() == ('', '') and process.returncode == 128 + number
    assert not [path for path in (tmp_path / 'scores').iterdir() if path.name.startswith('.') or path.name in ('_lock', '_SUCCESS')]


def test_the_mark_of_completeness_is_removed_while_rows_are_missing_and_partial_files_at_the_end(job, tmp_path):
    for _ in range(2):
        with job.opened() as missing:
            assert missing == job.parts and not (tmp_path / 'scores' / '_SUCCESS').exists()
            score_part(job.scoring, job.parts[0])
            (tmp_path / 'scores' / '.abcdefgh-part-000000.parquet').write_bytes(b'from a worker that was ended')
            job.finish()
        assert sorted(os.listdir(tmp_path / 'scores')) == ['_SUCCESS', '_job.json', '_part-000000.parquet.sha256', 'part-000000.parquet']
        (tmp_path / 'scores' / job.parts[0].file_name).unlink()


def test_a_part_with_any_damaged_byte_is_not_complete(job, tmp_path):
    with job.opened():
        score_part(job.scoring, job.parts[0])
        path = tmp_path / 'scores' / job.parts[0].file_name
        content = path.read_bytes()
        assert is_complete(job.scoring, job.parts[0])
        for position in range(0, len(content), 13):
            damaged = bytearray(content)
            damaged[position] ^= 1
            path.write_bytes(damaged)
            assert not is_complete(job.scoring, job.parts[0]), position
        path.write_bytes(content)
        assert is_complete(job.scoring, job.parts[0])
        (tmp_path / 'scores' / job.parts[0].checksum_name).unlink()
        assert not is_complete(job.scoring, job.parts[0])


def test_a_part_of_another_job_with_as_many_rows_is_not_complete(packed, photos, job, tmp_path):
    other = Job(list_images([str(photos)]), IMAGES, str(tmp_path / 'scores'), prefix=str(packed), **{**OPTIONS, 'logits': True})
    with other.opened():
        score_part(other.scoring, other.parts[0])
    assert is_complete(other.scoring, other.parts[0]) and not is_complete(job.scoring, job.parts[0])


def test_a_pipe_is_an_image_that_cannot_be_read(packed, photos, tmp_path):
    os.mkfifo(photos / 'pipe.png')
    (photos / 'zero.png').symlink_to('/dev/zero')
    job = Job(list_images([str(photos)]), IMAGES + 2, str(tmp_path / 'scores'), prefix=str(packed), **OPTIONS)
    with job.opened():
        assert score_part(job.scoring, job.parts[0]) == (0, IMAGES + 2, 2)
    errors = [row['error'] for row in rows(tmp_path / 'scores') if row['error']]
    assert errors == [f'{photos}/{name}.png is not a regular file, but a pipe, a device or a folder' for name in ('pipe', 'zero')]


def test_a_file_of_rows_that_cannot_be_read_is_an_error_with_its_name(job, tmp_path):
    path = tmp_path / 'scores' / job.parts[0].file_name
    path.mkdir(parents=True)
    with pytest.raises(OSError, match='Is a directory') as refused:
        is_complete(job.scoring, job.parts[0])
    assert refused.value.filename == str(path)


def test_a_batch_that_needs_too_much_memory_is_refused_with_its_first_image(job, photos, monkeypatch):
    def exhaust(classifier, scores):
        raise MemoryError

    monkeypatch.setattr(Classifier, 'probabilities', exhaust)
    with pytest.raises(UserError, match=f'{photos}/0.png and the 3 images after it need too much memory: choose a smaller --batch-size'):
        score_part(job.scoring, job.parts[0])


@pytest.mark.parametrize(('engine', 'package'), [('local', 'pyarrow'), ('dask', 'distributed'), ('ray', 'ray')])
def test_a_missing_package_is_reported_before_the_images_are_listed(packed, tmp_path, monkeypatch, capsys, engine, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(['score', str(packed), str(tmp_path / 'none'), '--output', str(tmp_path / 'scores'), '--engine', engine]) == 2
    assert f'this command needs the package {package}, which is not installed: pip install' in capsys.readouterr().err
    assert not (tmp_path / 'scores').exists()


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['--address', 'tcp://127.0.0.1:1'], '--engine local'),
        (['--address', 'tcp://127.0.0.1:1', '--engine', 'dask', '--workers', '2'], '--workers'),
    ],
)
def test_contradictions_end_with_one_line(packed, photos, tmp_path, arguments, words):
    errors = score(packed, photos, '--output', tmp_path / 'scores', *arguments, status=2)
    assert errors.startswith('error: ') and errors.count('\n') == 1 and words in errors
    assert not (tmp_path / 'scores').exists()


def test_a_folder_of_something_else_is_refused(packed, photos, tmp_path):
    errors = score(packed, photos, '--output', photos, status=2)
    assert f'{photos} has other files: give a new folder' in errors and len(list(photos.iterdir())) == IMAGES


def test_an_archive_without_its_end_is_scored_without_success_until_it_is_completed(packed, photos, tmp_path):
    archive, end = tmp_path / 'x.tar', tmp_path / 'scores' / '_SUCCESS'
    with tarfile.open(archive, 'w') as file:
        for image in sorted(photos.iterdir()):
            file.add(image, image.name)
            members = file.offset
    whole = archive.read_bytes()
    command = [packed, archive, '--output', tmp_path / 'scores', '--workers', 1]
    os.truncate(archive, members - 512)
    assert 'x.tar is damaged or cut at byte ' in score(*command, status=2).splitlines()[-1]
    assert not (tmp_path / 'scores').exists()
    os.truncate(archive, members)
    warning, error = score(*command, status=2).splitlines()
    assert warning.startswith('archives may be incomplete: ') and f'x.tar ends at byte {members:,} without two blocks of zeros' in warning
    assert error.startswith('error: ') and 'the rows of all images that were found, but not _SUCCESS' in error
    assert len(rows(tmp_path / 'scores')) == IMAGES and not end.exists()
    archive.write_bytes(whole)
    assert json.loads(score(*command, '--json'))['scored_now'] == 0
    assert end.exists()


def test_a_source_that_changes_while_it_is_scored_gets_no_success_and_its_rows_are_computed_again(packed, photos, tmp_path):
    folder, changed = tmp_path / 'scores', photos / '4.png'

    def job():
        return Job(list_images([str(photos)]), PART, str(folder), prefix=str(packed), **OPTIONS)

    first = job()
    with first.opened() as missing:
        for part in missing:
            score_part(first.scoring, part)
        os.utime(changed, (1, 1))
        with pytest.raises(UserError, match=f'the sources were changed while they were scored .*{changed}'):
            first.finish()
    second = job()
    with second.opened() as missing:
        assert [part.number for part in missing] == [4 // PART] and not (folder / '_SUCCESS').exists()
        score_part(second.scoring, missing[0])
        second.finish()
        assert (folder / '_SUCCESS').exists()
        changed.unlink()
        with pytest.raises(UserError, match='changed while they were scored .1 files were removed'):
            second.finish()
    assert not (folder / '_SUCCESS').exists()
