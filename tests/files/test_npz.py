"""Archives of arrays: what is read, and that others do no more than raise an error."""

import os
import pickle
import zipfile

import numpy as np
import pytest
from support.npy_files import header

from bmx_melius.errors import UserError
from bmx_melius.files import npz
from bmx_melius.files.npz import read_npz


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_written(save, tmp_path):
    arrays = {'counts': np.arange(5), 'scalar': np.array(3.5), 'text': np.array('abc'), 'flags': np.ones((2, 3), bool)}
    arrays.update(none=np.zeros(0, np.int64), by_columns=np.asfortranarray(np.random.RandomState(0).rand(3, 4)))
    save(tmp_path / 'a.npz', **arrays)
    np.testing.assert_equal(read_npz(tmp_path / 'a.npz'), arrays)


class Evil:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def write(path, content, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, 'w', compression) as archive:
        archive.writestr('a.npy', content)


def test_a_pickle_in_an_archive_is_refused_and_not_executed(tmp_path):
    place = str(tmp_path / 'was here')
    np.savez(tmp_path / 'array.npz', a=np.array([Evil(place)], object))
    write(tmp_path / 'whole.npz', pickle.dumps(Evil(place)))
    for name in ('array.npz', 'whole.npz'):
        with pytest.raises(UserError, match=f'{name} is damaged, or is not an .npz file of arrays'):
            read_npz(tmp_path / name)
    assert not os.path.exists(place)


@pytest.mark.parametrize(
    'content',
    [
        b'',
        header((1 << 60,)),
        header((1 << 30, 1 << 30, 1 << 30)),
        header((1 << 31,)) + bytes(100),
        header((-1,)),
        header((3,), "'|O'"),
        header((3,), "'abc'"),
        header('__import__("os").abort()'),
        header('(3,)').replace(b"'descr'", b'1') + bytes(12),
        header('(3,)').replace(b'}', b'') + bytes(12),
    ],
)
def test_an_array_that_is_shorter_than_announced_or_malformed_is_refused(content, tmp_path):
    write(tmp_path / 'a.npz', content)
    with pytest.raises(UserError, match='a.npz is damaged, or is not an .npz file of arrays'):
        read_npz(tmp_path / 'a.npz')


def test_a_compressed_archive_that_expands_beyond_the_limit_is_refused_before_it_is_expanded(tmp_path, monkeypatch):
    write(tmp_path / 'a.npz', bytes(1 << 20))
    assert (tmp_path / 'a.npz').stat().st_size < 10_000
    monkeypatch.setattr(npz, 'MAX_BYTES', (1 << 20) - 1)
    monkeypatch.setattr(zipfile.ZipFile, 'read', lambda *_: pytest.fail('was expanded'))
    with pytest.raises(UserError, match=f'a.npz holds {1 << 20} bytes; at most {(1 << 20) - 1} are possible'):
        read_npz(tmp_path / 'a.npz')


@pytest.mark.parametrize('content', [b'', b'PK\x03\x04', b'text'])
def test_files_that_are_no_archives_are_named(content, tmp_path):
    (tmp_path / 'a.npz').write_bytes(content)
    with pytest.raises(UserError, match='a.npz is damaged, or is not an .npz file of arrays'):
        read_npz(tmp_path / 'a.npz')
    with pytest.raises(UserError, match='none.npz: No such file'):
        read_npz(tmp_path / 'none.npz')
