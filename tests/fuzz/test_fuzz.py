"""A short form of the fuzzers: the seeds are valid, and readers withstand mutations of them; `make fuzz` is the long one."""

import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
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

MUTATIONS = {'program': 1000, 'params': 1000, 'packed': 1000, 'keras': 6, 'onnx': 40}  # of others 150
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
