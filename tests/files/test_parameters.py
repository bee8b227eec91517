"""Parameter files: files of MXNet are read, MXNet reads the files written here, and damaged files give one error."""

import pathlib

import mxnet as mx
import numpy as np
import pytest

from bmx_melius.errors import UserError
from bmx_melius.files.parameters import read_parameters, write_parameters

DTYPES = ('float32', 'float64', 'float16', 'uint8', 'int32', 'int8', 'int64')


def examples():
    arrays = {f'arg:{dtype}': (np.random.randn(2, 3, 1) * 50).astype(dtype) for dtype in DTYPES}
    arrays['aux:größe'] = np.arange(5, dtype=np.float32)
    return arrays


def assert_equal(actual, expected):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype and actual[name].shape == array.shape
        np.testing.assert_array_equal(actual[name], array)


def test_mxnet_reads_files_of_write_parameters(tmp_path):
    arrays = examples()
    arrays['arg:transposed'] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    write_parameters(tmp_path / 'a.params', arrays)
    loaded = mx.nd.load(str(tmp_path / 'a.params'))
    assert_equal({name: array.asnumpy() for name, array in loaded.items()}, arrays)


@pytest.mark.parametrize('numpy_shapes', [False, True])
def test_read_parameters_reads_files_of_mxnet(tmp_path, numpy_shapes):
    arrays = examples()
    path = str(tmp_path / 'a.params')
    with mx.util.np_shape(numpy_shapes):
        mx.nd.save(path, {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()})
    assert_equal(read_parameters(path), arrays)


def test_the_bytes_are_those_that_mxnet_writes(tmp_path):
    arrays = examples()
    ours, theirs = tmp_path / 'a.params', tmp_path / 'b.params'
    write_parameters(ours, arrays)
    mx.nd.save(str(theirs), {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()})
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    'save,message',
    [
        (lambda path: mx.nd.save(path, [mx.nd.zeros(3)]), 'arrays without names'),
        (lambda path: mx.nd.save(path, {'a': mx.nd.zeros((3, 2)).tostype('csr')}), 'sparse'),
        (lambda path: pathlib.Path(path).write_text(''), 'not a parameter file'),
        (lambda path: pathlib.Path(path).write_text('{"nodes": [], "arg_nodes": []}'), 'not a parameter file'),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path, save, message):
    path = str(tmp_path / 'a.params')
    save(path)
    with pytest.raises(UserError, match=f'^{path} .*{message}'):
        read_parameters(path)


@pytest.mark.parametrize('name', ['arg:a\x1b[2J', 'arg:a\nb', 'arg:\x9b', 'arg:a\u2028b'])
def test_names_that_a_terminal_could_execute_are_refused(tmp_path, name):
    write_parameters(tmp_path / 'a.params', {name: np.ones(1, 'f')})
    with pytest.raises(UserError, match='a.params is damaged: the name at byte .* has control characters'):
        read_parameters(tmp_path / 'a.params')


def test_a_truncated_file_is_an_error_wherever_it_ends(tmp_path):
    path = tmp_path / 'a.params'
    write_parameters(path, examples())
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match='a.params'):
            read_parameters(path)
