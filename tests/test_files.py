"""Files that are replaced: errors name the file that the user knows, and leave the old one and nothing else."""
import errno

import pytest

from bmx_melius.files import replacing


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    with pytest.raises(OSError, match='a.txt') as told, replacing(path) as outer, replacing(outer):
        raise OSError(errno.ENOSPC, 'No space left on device')
    assert told.value.filename == str(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [('a.txt', 'old')]


def test_a_folder_that_cannot_be_written_is_told_with_the_name_of_the_file(tmp_path):
    path = tmp_path / 'missing' / 'a.txt'
    with pytest.raises(FileNotFoundError) as told, replacing(path):
        pass
    assert told.value.filename == str(path)
