"""A packed network in files, a program in the engine, and the comparison of outputs, for tests. Tests name it in `pytest_plugins`."""

import numpy as np
import pytest

from bmx_melius.deployment.runtime.engine import Runner
from support.packed import make_program, write_packed


@pytest.fixture()
def prefix(tmp_path):
    write_packed(tmp_path / 'net', make_program())
    return tmp_path / 'net'


def assert_same(outputs, expected):
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected):
        assert output.dtype == np.float32 and output.shape == wanted.shape
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


def engine_of(program):
    return Runner(program, program.to_words())
