"""Conversions for tests: networks that are exported and converted, and what the new files hold. Tests name it in `pytest_plugins`."""

import json

import mxnet as mx
import pytest

import bmx_melius as bmx
from bmx_melius.deployment.program.program import Program
from bmx_melius.files.parameters import read_parameters
from support.small_networks import small_network


@pytest.fixture
def convert(export, tmp_path):
    """Export and convert a block that has run: the report and the prefix of the new files."""

    def call(net, input_shape, **options):
        prefix = tmp_path / 'packed'
        return bmx.convert(*export(net), prefix, input_shape, **options), prefix

    return call


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
