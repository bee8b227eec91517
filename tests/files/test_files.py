"""Files that are replaced: errors name the file that the user knows, and leave the old one and nothing else."""

import concurrent.futures
import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from bmx_melius import UserError
from bmx_melius.files.io import remove_leftovers, replacing, require_writable


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    with pytest.raises(OSError, match='a.txt') as told, replacing(path) as outer, replacing(outer):
        raise OSError(errno.ENOSPC, 'No space left on device')
    assert told.value.filename == str(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [('a.txt', 'old')]


def test_a_folder_that_cannot_be_written_is_reported_with_the_name_of_the_file(tmp_path):
    path = tmp_path / 'missing' / 'a.txt'
    with pytest.raises(FileNotFoundError) as told, replacing(path):
        pass
    assert told.value.filename == str(path)


@pytest.mark.parametrize(
    'path,words', [('missing/a.txt', 'a.txt: there is no folder'), ('.', 'is a folder'), ('/proc/a.txt', 'can be written to /proc')]
)
def test_a_file_that_could_not_be_written_is_refused_and_nothing_is_left(path, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        require_writable(path)
    require_writable('a.txt')
    assert not os.listdir(tmp_path)


def test_threads_that_write_files_do_not_change_the_permissions_of_later_files(tmp_path, monkeypatch):
    before, umask = os.umask(0o027), os.umask

    def slow_umask(mask):
        found = umask(mask)
        time.sleep(0.01)
        return found

    def write(number):
        with replacing(tmp_path / f'{number}.txt') as path:
            pathlib.Path(path).write_text('content')

    try:
        monkeypatch.setattr(os, 'umask', slow_umask)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(8)))
        assert umask(0o027) == 0o027
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    finally:
        umask(before)


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path):
    program = f"""
import os, signal
from bmx_melius.files.io import replacing, scratch_folder
with replacing({str(tmp_path / 'a.txt')!r}), scratch_folder({str(tmp_path)!r}) as scratch:
    open(os.path.join(scratch, 'b.txt'), 'w').close()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, '-c', program]).returncode == -signal.SIGKILL
    for name in ('.hidden', '.hidden-too', 'a-b.txt'):
        (tmp_path / name).touch()
    (tmp_path / '.personal-folder').mkdir()
    assert len(os.listdir(tmp_path)) == 6
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ['.hidden', '.hidden-too', '.personal-folder', 'a-b.txt']
    remove_leftovers(tmp_path / 'nowhere')
