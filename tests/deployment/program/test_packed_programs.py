"""Stored programs of the current version: their words and their results stay the same; programs of other versions are refused."""

import itertools

import numpy as np
import pytest
from support.engines import needs_engine
from support.packed import make_program
from support.paths import DATA

from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import OPERATIONS, ProgramError
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import VERSION
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.engine import Runner

# Programs written by release 0.2.0, with the outputs of earlier implementations; together they have all operations of that release.
STORED = np.load(DATA / 'packed_programs.npz')
PROGRAMS = range(len(STORED['exact']))


def arrays_of(name):
    names = itertools.takewhile(lambda key: key in STORED.files, (f'{name}_{i}' for i in itertools.count()))
    return [STORED[key] for key in names]


def assert_stored_results(number, found):
    for output, expected in itertools.zip_longest(found, arrays_of(f'output{number}')):
        if STORED['exact'][number]:
            np.testing.assert_array_equal(output, expected)
        else:  # float products: NumPy's order of additions depends on the processor
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize('number', PROGRAMS)
def test_stored_programs_are_written_with_the_same_words_and_give_the_same_results(number):
    program = Program.from_words(STORED[f'words{number}'])
    np.testing.assert_array_equal(program.to_words(), STORED[f'words{number}'])
    np.testing.assert_array_equal(program.to_structure(), STORED[f'structure{number}'])
    assert_stored_results(number, reference.run(program, arrays_of(f'input{number}')))


@needs_engine
@pytest.mark.parametrize('number', PROGRAMS)
def test_the_engine_gives_the_same_results_for_stored_programs(number):
    words = STORED[f'words{number}']
    assert_stored_results(number, Runner(Program.from_words(words), words).run(arrays_of(f'input{number}')))


def test_stored_programs_have_every_operation():
    names = {operation.name for number in PROGRAMS for operation in Program.from_words(STORED[f'words{number}']).operations}
    assert len(names) == 29 and names <= set(OPERATIONS)


@pytest.mark.parametrize('version', [0, 1, VERSION + 1])
def test_other_versions_are_refused(version):
    words = make_program().to_words()
    words[1] = version
    advice = 'update bmx-melius' if version > VERSION else 'convert the network again'
    message = f'format version {version}; this release reads version {VERSION}: {advice}'
    with pytest.raises(ProgramError, match=message):
        Program.from_words(words)
    if not engine.missing():
        with pytest.raises(ProgramError, match=message):
            Runner(make_program(), words)
