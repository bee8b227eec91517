"""The self-test of the engine: every layer of the zoo with every instruction set, and what it reports about an engine that is wrong."""

import collections
import json
import sys

import pytest
from support.engines import needs_engine
from support.native_program import ROOT

from bmx_melius.cli import info
from bmx_melius.deployment.runtime import self_test
from bmx_melius.deployment.runtime.engine import instruction_sets
from bmx_melius.deployment.runtime.self_test import LAYERS_FILE, Result, ZooLayer, run_self_test, zoo_layers

sys.path.insert(0, str(ROOT / 'tools'))
import zoo_layers as tool  # noqa: E402

ROWS = 4  # of the maps in `make test`
COUNTS = ('channels', 'out_channels', 'groups')

DENSE = ZooLayer('binary', (65, 1, 1, 7, 1, 1, 1, 1, 1, 1, 0, 0, 1))
STEM = ZooLayer('float', (3, 9, 9, 8, 3, 3, 2, 2, 1, 1, 1, 1, 1))


def test_the_file_has_the_layers_of_all_networks_of_the_registry():
    assert json.loads(LAYERS_FILE.read_text()) == tool.zoo_layers(), 'run tools/zoo_layers.py'


def test_the_layers_of_resnet18_are_those_of_its_stages():
    stages = [(64, 56), (128, 28), (256, 14), (512, 7)]
    for channels, size in stages:
        assert ZooLayer('binary', (channels, size, size, channels, 3, 3, 1, 1, 1, 1, 1, 1, 1)) in zoo_layers()


def representatives(layers):
    """Of the layers that differ only in their channels, the one with the fewest and one of medium width; grouped ones are others."""
    alike = collections.defaultdict(list)
    for layer in layers:
        a = layer.attributes
        alike[(layer.kind, a['groups'] > 1, *(number for name, number in a.items() if name not in COUNTS))].append(layer)
    sizes = [sorted(row, key=lambda layer: [layer.attributes[name] for name in COUNTS]) for row in alike.values()]
    return list(dict.fromkeys(layer for row in sizes for layer in (row[0], row[len(row) // 2])))


@pytest.mark.timeout(1200)  # on busy cores
@needs_engine
def test_layers_of_the_zoo_equal_the_interpreter_with_every_instruction_set(long_run):
    layers = zoo_layers() if long_run else representatives(zoo_layers(ROWS))
    results = run_self_test(layers)
    assert [result.instruction_set for result in results] == instruction_sets()[1]
    for result in results:
        assert result.failure is None and result.differences == ()
        assert result.binary_layers + result.float_layers + result.int8_layers == len(layers) > (400 if long_run else 100)
        assert result.int8_layers == result.float_layers  # each of them


@pytest.mark.parametrize('rows', [1, 4])
@pytest.mark.parametrize('layer', [STEM, ZooLayer('binary', (64, 56, 56, 64, 3, 3, 1, 1, 2, 2, 2, 2, 1)), DENSE])
def test_a_cropped_layer_has_the_wanted_rows(layer, rows):
    a = layer.cropped(rows).attributes
    extent = (a['kernel_h'] - 1) * a['dilation_h'] + 1
    whole = ZooLayer.cropped(layer, 1000).attributes
    assert whole == layer.attributes
    assert (a['height'] + 2 * a['pad_h'] - extent) // a['stride_h'] + 1 <= rows + -(-a['pad_h'] // a['stride_h'])
    assert {**a, 'height': 0} == {**layer.attributes, 'height': 0}


@needs_engine
def test_layers_that_differ_are_named(monkeypatch):
    expected = self_test._expected
    monkeypatch.setattr(self_test, '_expected', lambda layer: ['0' * 64] if layer is STEM else expected(layer))
    for result in run_self_test([DENSE, STEM]):
        assert not result.passed and result.differences == ('float layer of 3 to 8 channels on 9 x 9, 3 x 3, stride 2, dilation 1',)


@needs_engine
def test_an_engine_that_fails_is_a_result_that_names_the_layer(monkeypatch):
    impossible = ZooLayer('binary', (65, 1, 1, 7, 1, 1, 1, 1, 1, 1, 0, 0, 3))
    monkeypatch.setattr(self_test, '_expected', lambda layer: [])
    for result in run_self_test([DENSE, impossible]):
        assert result.binary_layers == 1 and not result.passed
        assert 'in 3 groups at the binary layer of 65 to 7 channels on 1 x 1' in result.failure


def test_the_command_prints_a_table_and_fails_where_the_engine_is_wrong(run, monkeypatch):
    differences = ('binary layer of 128', 'float layer of 3')
    right, wrong = Result('avx2', 168, 121, 120, (), None), Result('avx512', 168, 121, 120, differences, None)
    killed = Result('amx', 5, 0, 0, (), 'ended by SIGILL at the binary layer of 64')
    monkeypatch.setattr(info, 'run_self_test', lambda layers: [right])
    status, output, _ = run('info', '--self-test')
    assert status == 0 and 'avx2                       168           121          120  equal' in output and 'wrong' not in output
    monkeypatch.setattr(info, 'run_self_test', lambda layers: [right, wrong, killed])
    status, output, _ = run('info', '--self-test')
    assert status == 1
    for line in (
        'avx512                     168           121          120  2 WRONG',
        'avx512: differs from the interpreter: binary layer of 128',
        'amx: ended by SIGILL at the binary layer of 64',
        'The engine is wrong on this processor: please report this output; BMX_MELIUS_ISA=avx2 selects kernels that are correct here.',
    ):
        assert line in output.splitlines()
    status, output, _ = run('info', '--self-test', '--json')
    tested = json.loads(output)['self_test']
    assert status == 1 and [one['passed'] for one in tested] == [True, False, False] and tested[1]['differences'] == list(wrong.differences)
