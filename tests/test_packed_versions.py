"""Files of version 1 of the packed format: their results in NumPy, the engine and MXNet; and versions that are refused."""

import itertools
import json
import pathlib

import mxnet as mx
import numpy as np
import pytest
from engines import needs_engine
from packed import make_program, write_packed
from packed_networks import engine_of

import bmx_melius as bmx
from bmx_melius.container import write_parameters
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import ProgramError
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import VERSION
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.engine import Runner

# Written by version 1, with the outputs of its reference implementation: programs with all operations of that version.
VERSION_1 = np.load(pathlib.Path(__file__).parent / 'data' / 'packed_version_1.npz')
PROGRAMS = range(len(VERSION_1['exact']))
NETWORK = 0  # the number of the program of `make_program`


def arrays_of(name):
    names = itertools.takewhile(lambda key: key in VERSION_1.files, (f'{name}_{i}' for i in itertools.count()))
    return [VERSION_1[key] for key in names]


def assert_results_of_version_1(number, found, expected):
    if VERSION_1['exact'][number]:
        np.testing.assert_array_equal(found, expected)
    else:  # float products: NumPy's order of additions depends on the processor
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize('number', PROGRAMS)
def test_numpy_gives_the_results_of_version_1_for_its_programs(number):
    program = Program.from_words(VERSION_1[f'words{number}'])
    for found, expected in zip(reference.run(program, arrays_of(f'input{number}')), arrays_of(f'output{number}')):
        assert_results_of_version_1(number, found, expected)


@needs_engine
@pytest.mark.parametrize('number', PROGRAMS)
def test_the_engine_runs_programs_of_version_1_as_those_of_the_current_one(number):
    words, inputs = VERSION_1[f'words{number}'], arrays_of(f'input{number}')
    program = Program.from_words(words)
    for old, new, expected in zip(Runner(program, words).run(inputs), engine_of(program).run(inputs), arrays_of(f'output{number}')):
        np.testing.assert_array_equal(old, new)
        assert_results_of_version_1(number, old, expected)


def test_files_of_version_1_run_in_mxnet_in_a_session_and_are_written_in_the_current_version(tmp_path):
    prefix, (x,), expected = str(tmp_path / 'net'), arrays_of(f'input{NETWORK}'), arrays_of(f'output{NETWORK}')
    write_packed(prefix, Program.from_words(VERSION_1[f'words{NETWORK}']))
    graph = json.loads(pathlib.Path(f'{prefix}-symbol.json').read_text())
    words, structure = VERSION_1[f'words{NETWORK}'], VERSION_1[f'structure{NETWORK}']
    assert words[1] == structure[1] == 1 and VERSION == 2
    graph['nodes'][-1]['attrs'] = {'structure': ' '.join(map(str, structure.tolist()))}
    graph['nodes'][-2]['attrs']['__shape__'] = f'({len(words)},)'
    pathlib.Path(f'{prefix}-symbol.json').write_text(json.dumps(graph))
    write_parameters(f'{prefix}-0000.params', {'arg:net_program': words})

    block = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data0'], f'{prefix}-0000.params')
    for outputs in (bmx.Session(prefix)(x), [y.asnumpy() for y in block(mx.nd.array(x))]):
        for found, wanted in zip(outputs, expected):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert Program.from_words(words).to_words()[1] == VERSION


@pytest.mark.parametrize('version', [0, 3])
def test_other_versions_are_refused(version):
    words = make_program().to_words()
    words[1] = version
    message = f'format version {version}; this release reads versions 1 and 2: convert the network again'
    with pytest.raises(ProgramError, match=message):
        Program.from_words(words)
    if not engine.missing():
        with pytest.raises(ProgramError, match=message):
            Runner(make_program(), words)
