"""Conversions for tests: networks that are exported and converted, and what the new files hold. Tests name it in `pytest_plugins`."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

import bmx_melius as bmx
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.packed_operator import NAME
from bmx_melius.deployment.program.program import Program
from bmx_melius.files.parameters import read_parameters
from support.reference_network import load_reference_network
from support.small_networks import initialized, randomize_statistics, small_network


@pytest.fixture
def convert(export, tmp_path):
    """Export and convert a block that has run: the report and the prefix of the new files."""

    def call(net, input_shape, **options):
        prefix = tmp_path / 'packed'
        return bmx.convert(*export(net), prefix, input_shape, **options), prefix

    return call


@pytest.fixture
def pack(convert):
    """Give a network random parameters (`randomize_statistics`) and convert it: the report and the prefix of the new files."""

    def call(net, shape, **values):
        randomize_statistics(initialized(net, shape), **values)
        return convert(net, shape)

    return call


@pytest.fixture
def pack_whole(pack):
    """Convert a network to one operator as `pack`, and compare it with MXNet: its program, and the report.

    Another batch than at conversion is compared, and other `sizes`: in a session, in MXNet, and by the interpreter except for volumes.
    """

    def call(net, shape, sizes=(), x=None, **values):
        report, prefix = pack(net, shape, **values)
        assert report.packed_operators == 1 and not report.left
        assert [node['op'] for node in operators(prefix) if node['op'] not in ('expand_dims', 'squeeze', 'Reshape')] == [NAME]
        (program,), session, block = programs(prefix), bmx.Session(prefix), imported(prefix)
        assert session.input_shapes == [(None, *shape[1:])]
        for size in (shape[2:], *sizes):
            image = nd.random.normal(shape=(3, *shape[1:2], *size)) if x is None else x
            expected = net(image).asnumpy()
            assert session.output_shapes(image.shape) == [expected.shape]
            results = [session(image.asnumpy()), block(image).asnumpy()]
            if len(shape) < 5:
                (result,) = reference.run(program, [image.asnumpy()[:, :, None] if len(shape) == 3 else image.asnumpy()])
                results.append(result.reshape(expected.shape))
            for result in results:
                assert result.shape == expected.shape
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
        return program, report

    return call


@pytest.fixture(scope='session')
def packed_reference(make_once):
    """The prefix of the packed files of the reference network."""

    def make(folder):
        load_reference_network(folder)[0].export(str(folder / 'net'))
        bmx.convert(folder / 'net-symbol.json', folder / 'net-0000.params', folder / 'packed', (1, 3, 224, 224), verify=False)

    return make_once('packed-reference', make) / 'packed'


@pytest.fixture
def small(export):
    """Files of a small network."""
    return export(small_network())


def imported(prefix, inputs=('data',)):
    return mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', list(inputs), f'{prefix}-0000.params')


def operators(prefix):
    return [node for node in json.loads((prefix.parent / f'{prefix.name}-symbol.json').read_text())['nodes'] if node['op'] != 'null']


def programs(prefix):
    arrays = read_parameters(f'{prefix}-0000.params')
    return [Program.from_words(words) for name, words in arrays.items() if name.endswith('_program')]


def program_of(packed):
    """Return the program of a packed block."""
    (words,) = (parameter.data().asnumpy() for name, parameter in packed.collect_params().items() if name.endswith('_program'))
    return Program.from_words(words)


def names_of(program):
    return [operation.name for operation in program.operations]


def signs(*shape):
    return np.where(np.random.randn(*shape) >= 0, 1, -1).astype(np.float32)


def next_to(thresholds, shape):
    """Return a map of a shape with 256 elements whose channels have the threshold of each and the float32 numbers beside it."""
    thresholds = thresholds.reshape(1, -1, *[1] * len(shape))
    steps = np.arange(-128, 128, dtype=np.float32).reshape(shape) * np.maximum(np.spacing(np.abs(thresholds)), np.finfo('f').tiny)
    return (thresholds + steps).astype(np.float32)
