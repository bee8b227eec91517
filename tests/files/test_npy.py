"""Arrays in .npy files: what is read, and that others do no more than raise an error of one line."""

import numpy as np
import pytest
from support.npy_files import header

from bmx_melius.errors import UserError
from bmx_melius.files.npy import npy_array, open_npy


@pytest.mark.parametrize('order', ['C', 'F'])
@pytest.mark.parametrize('dtype', ['<f4', '>f4', '<f2', '<f8', '|u1', '<i8', '|b1', '<c8', '<U3', '|S2'])
@pytest.mark.parametrize('shape', [(), (5,), (2, 3), (2, 3, 4, 5), (3, 0), (1,) * 32])
def test_arrays_are_read_as_they_were_written(shape, dtype, order, tmp_path):
    array = np.asarray(np.random.RandomState(0).randint(0, 100, shape).astype(dtype), order=order)
    np.save(tmp_path / 'a.npy', array)
    for read in (open_npy(tmp_path / 'a.npy'), npy_array((tmp_path / 'a.npy').read_bytes())):
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize('version', [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_format_are_read(version, tmp_path):
    with open(tmp_path / 'a.npy', 'wb') as file:
        np.lib.format.write_array(file, np.arange(6).reshape(2, 3), version)
    np.testing.assert_array_equal(open_npy(tmp_path / 'a.npy'), [[0, 1, 2], [3, 4, 5]])


DAMAGED = {
    'empty': b'',
    'text': b'text',
    'pickle': b'\x80\x03N.',
    'start only': b'\x93NUMPY',
    'unknown version': b'\x93NUMPY\x09' + header('(2,)')[7:] + bytes(8),
    'half a header': header('(2,)')[:30],
    'longer header than the file': header('(2,)', length=4000),
    'long header': header('(2,)' + ' ' * 9000) + bytes(8),
    'objects': header('(2,)', "'|O'") + bytes(100),
    'structures': header('(2,)', "[('a', '<f4')]") + bytes(100),
    'two types': header('(2,)', "'f4,f4,(3,'") + bytes(100),
    'unknown type': header('(2,)', "'<f3'") + bytes(100),
    'a type in a tuple': header('(2,)', "('<f4',)") + bytes(100),
    'long text': header('(2,)', "'<U999999999'") + bytes(100),
    'text without characters': header(f'({10**17},)', "'|S0'") + bytes(100),
    'negative': header('(-1,)') + bytes(100),
    'truth': header('(True,)') + bytes(100),
    'nested': header('(' * 900 + ')' * 900) + bytes(100),
    'open parenthesis': header('(2,').replace(b'}', b'') + bytes(100),
    'a number as key': header('(2,)').replace(b"'descr'", b'1') + bytes(100),
    'a list as key': header('(2,)').replace(b"'descr'", b'[]') + bytes(100),
    'code': header('__import__("os").abort()'),
    'truncated': header('(2, 3)') + bytes(23),
    'beyond the file': header(f'({1 << 40}, 3)') + bytes(100),
    'beyond 64 bits': header(f'({1 << 80}, 3)') + bytes(100),
    'empty with large axes': header(f'(0, {10**17}, {10**17})') + bytes(100),
    'too many axes': header(f'({"1, " * 33})') + bytes(100),
    'not UTF-8': header('(2,)', "'\xff'") + bytes(100),
}


@pytest.mark.parametrize('content', DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_or_one_of_other_objects_is_refused_in_one_line(content, tmp_path):
    (tmp_path / 'a.npy').write_bytes(content)
    with pytest.raises(UserError, match=r'a\.npy cannot be read as an \.npy file: ') as caught:
        open_npy(tmp_path / 'a.npy')
    assert '\n' not in str(caught.value)
    with pytest.raises(ValueError):
        npy_array(content)


def test_an_archive_and_a_missing_file_are_named(tmp_path):
    np.savez(tmp_path / 'a.npz', np.zeros(3))
    for content in ((tmp_path / 'a.npz').read_bytes(), b'PK', b'PK\x03\x04damaged'):
        (tmp_path / 'a.npy').write_bytes(content)
        with pytest.raises(UserError, match=r'a\.npy is an archive of arrays'):
            open_npy(tmp_path / 'a.npy')
    with pytest.raises(UserError, match='none.npy: No such file'):
        open_npy(tmp_path / 'none.npy')
