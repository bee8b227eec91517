"""A short form of the fuzzers: the seeds are valid, and readers withstand mutations of them; `make fuzz` is the long one."""

import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from support import native_program
from support.engines import INSTRUCTION_SETS, require_instruction_set
from support.native_program import ROOT

from bmx_melius.deployment.program.operations import OPERATIONS
from bmx_melius.deployment.program.words import MAGIC
from bmx_melius.deployment.runtime import engine
from fuzz import seeds
from fuzz.mutators import join, split
from fuzz.targets import TARGETS

sys.path.insert(0, str(ROOT / 'tools'))
import run_fuzzers  # noqa: E402

MUTATIONS = {'program': 1000, 'params': 1000, 'packed': 1000, 'keras': 6}  # of others 150
# Seeds of other networks and optimizers, to compare with, and images of five channels.
SOME_REFUSED = {'optimizer', 'bmxnet-checkpoint', 'loaded-symbol', 'keras', 'upload', 'log'}


@pytest.mark.filterwarnings('ignore')  # of MXNet and Pillow, about files that they do not refuse
@pytest.mark.parametrize('name', TARGETS)
def test_seeds_are_accepted_and_mutations_cause_nothing_but_errors_of_users(name, long_run):
    if name == 'program' and engine.missing():
        pytest.skip('the engine has not been compiled')
    if name == 'keras':
        pytest.importorskip('h5py')
    target = TARGETS[name]
    corpus = target.corpus()
    accepted = [target.run(content) for content in corpus]
    assert any(accepted) and (all(accepted) or name in SOME_REFUSED or name == 'program')
    mutations = MUTATIONS.get(name, 150) * (20 if long_run else 1)
    answers = {target.run(target.mutate(corpus[number % len(corpus)], number)) for number in range(mutations)}
    assert False in answers


def test_the_seeds_have_every_operation():
    assert {operation.name for program in seeds.small_programs() for operation in program.operations} == set(OPERATIONS)


def test_parts_survive_being_joined_and_missing_ones_are_empty():
    parts = [b'', b'abc', bytes(300)]
    assert split(join(parts), 3) == parts
    assert split(b'\x05\0\0\0ab', 2) == [b'ab', b'']


def test_a_program_of_few_words_in_a_packed_network_can_be_mutated():
    """Its mutations may end within a word."""
    few_words = struct.pack('<q12xI2i', 3, MAGIC, 1, 2)
    content, results = join([b'{"nodes": []}', few_words]), set()
    for seed in range(200):
        results.add(TARGETS['packed'].mutate(content, seed))
    assert len(results) > 50


def test_most_mutated_programs_have_a_right_checksum_and_some_are_valid():
    target, right, valid = TARGETS['program'], 0, 0
    corpus = target.corpus()
    for number in range(200):
        (content,) = split(target.mutate(corpus[number % len(corpus)], number), 1)
        words = np.frombuffer(content[: len(content) // 4 * 4], '<i4')
        right += len(words) > 8 and words[3] == np.int32(np.uint32(zlib.crc32(words[4:].tobytes())))
        valid += target.run(join([content]))
    assert right > 100 and valid > 10


@pytest.mark.parametrize(
    'name, instruction_set',
    [(name, isa) for name in run_fuzzers.NATIVE for isa in (INSTRUCTION_SETS if name in run_fuzzers.RUNS_PROGRAMS else ['reference'])],
)
def test_fuzzers_of_the_engine_find_nothing_in_the_seeds_and_some_mutations(name, instruction_set, build_native, tmp_path, long_run):
    require_instruction_set(instruction_set, emulated=True)
    files = []
    for number, (content,) in enumerate(getattr(seeds, run_fuzzers.NATIVE[name])()[: None if long_run else 40]):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(content)
    program = build_native((f'tests/fuzz/{name}_fuzzer.cc', 'tests/fuzz/run_files.cc'), None, 'sanitized')
    command, environment = [program, str(2000 if long_run else 20), *files], {**os.environ, 'BMX_MELIUS_ISA': instruction_set}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize('macro, flag', [('__GNUC__ 12', '--param=asan'), ('__clang__ 1', '-mllvm')])
def test_vector_kernels_are_checked_by_calls_with_every_compiler_and_unchecked_builds_get_no_flags(macro, flag, tmp_path):
    """Inline checks take Clang more than twice as long, and each compiler ignores the flag of the other."""
    compiler = tmp_path / 'compiler'
    compiler.write_text(f'#!/bin/sh\necho "#define {macro} "\n')
    compiler.chmod(0o755)
    flags = native_program._vector_checks([str(compiler)], native_program.BUILDS['sanitized'])
    assert any(one.startswith(flag) for one in flags) and any('call-threshold=0' in one for one in flags)
    assert native_program._vector_checks([str(compiler)], native_program.FLAGS) == []


@pytest.mark.parametrize(
    'available, expected',
    [(['reference', 'avx512'], ['reference', 'avx512', 'amx']), (['avx2'], ['avx2']), (['avx512', 'amx'], ['avx512', 'amx'])],
)
def test_amx_is_emulated_where_only_its_vectors_are_available(available, expected, monkeypatch):
    monkeypatch.setattr(native_program, 'known_instruction_sets', lambda compiler: native_program.INSTRUCTION_SETS)
    assert native_program.with_emulated(available, ['g++']) == expected
    monkeypatch.setattr(native_program, 'known_instruction_sets', lambda compiler: ['avx512'])
    assert native_program.with_emulated(available, ['g++']) == available, 'a compiler without AMX'


LOG = """\
#38	REDUCE cov: 120 ft: 310 corp: 30/1024b exec/s: 0 rss: 90Mb
==3755==ERROR: AddressSanitizer: heap-buffer-overflow
artifact_prefix='/tmp/findings/a-'; Test unit written to /tmp/findings/a-crash-1
stat::number_of_executed_units: 221
stat::peak_rss_mb:              215
"""


def test_figures_are_those_of_the_last_line_and_findings_are_listed():
    figures = run_fuzzers._figures(LOG)
    assert figures['findings'] == ['/tmp/findings/a-crash-1']
    assert [figures[name] for name in ('executions', 'coverage', 'features', 'corpus', 'megabytes')] == [221, 120, 310, 30, 215]


@pytest.mark.parametrize('status, findings, expected', [(0, [], 0), (1, ['crash-1'], 1), (1, [], 1)])
def test_the_status_is_that_of_the_findings_and_the_log_is_named(status, findings, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_fuzzers, 'FOLDER', tmp_path)
    figures = {**run_fuzzers._figures(''), 'status': status, 'findings': findings, 'log': 'a.log'}
    assert run_fuzzers._report({'python a': figures}) == expected
    assert ('a.log' in capsys.readouterr().err) == bool(expected)


@pytest.mark.parametrize('arguments', [['nonsense'], ['--minutes', '1', 'python', 'nonsense']])
def test_an_unknown_target_is_an_error_that_lists_all(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['run_fuzzers.py', *arguments])
    assert run_fuzzers.main() == 2
    error = capsys.readouterr().err
    assert 'there is no target nonsense' in error and 'python keras' in error and error.count('\n') == 1
