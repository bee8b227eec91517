"""The threads of the engine: in which order they work, that they sleep when they have nothing to do, and how many there are."""

import itertools
import json
import os
import subprocess

import numpy as np
import pytest
from support.engines import INSTRUCTION_SETS as ALL_SETS
from support.engines import needs_engine, require_instruction_set
from support.long_runs import mostly_long
from support.native_program import KERNEL_PARTS
from support.packed import make_image, make_program, write_packed
from support.python_programs import run_python

import bmx_melius as bmx
from bmx_melius.deployment.runtime import engine

PARTS = ['thread_team', 'thread_pool', 'thread_count', 'forking']
CHECKS = ['order', 'callers', 'late', 'idle', 'fork', 'end']


@pytest.fixture(scope='module')
def build(build_native):
    """The function name of a build -> program that checks the threads."""
    return lambda name: build_native('tests/csrc/thread_team_test.cc', PARTS, name)


@pytest.mark.parametrize('name', ['optimized', 'thread-sanitized'])
@pytest.mark.parametrize('check', CHECKS)
def test_a_team_computes_in_order_sleeps_when_it_waits_and_ends(build, name, check):
    done = subprocess.run([build(name), check], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    'check, name',
    mostly_long(
        list(itertools.product(('runs', 'loads', 'forks'), ('thread-sanitized', 'optimized'))), 'optimized', key=lambda row: row[1]
    ),
)
def test_concurrent_runs_loads_and_forks_have_no_data_race_and_the_results_of_one_thread(build_native, check, name, long_run, monkeypatch):
    # Kernels compute within a thread, and take long to compile; the optimized ones are those of the library.
    sets = None if long_run or name == 'optimized' else ()
    if sets is not None:
        monkeypatch.delenv('BMX_MELIUS_ISA', raising=False)
    program = build_native('tests/csrc/concurrent_runs_test.cc', None, name, sets)
    repetitions = {'runs': 3000, 'loads': 1000, 'forks': 300} if long_run else {'runs': 100, 'loads': 30, 'forks': 10}
    command = [program, check, str(repetitions[check])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600 if long_run else 600)
    assert done.returncode == 0, done.stdout[:5000]


def test_threads_that_cannot_be_started_are_an_error(build):
    done = subprocess.run([build('optimized'), 'limit'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    'name, instruction_set', [('thread-sanitized', 'reference'), *itertools.product(('optimized', 'sanitized'), ALL_SETS)]
)
def test_threads_can_measure_peaks_of_each_kind_at_once(build_native, name, instruction_set):
    """All functions of the C interface can be called by several threads concurrently.

    Sanitized programs emulate AMX, and end where its tiles are used before the operating system has been asked for them.
    """
    require_instruction_set(instruction_set, emulated=name == 'sanitized')
    sets = () if name == 'thread-sanitized' else None  # all: the measuring loops are the same in all; the kernels compile long
    program = build_native('tests/csrc/peaks_test.cc', [*KERNEL_PARTS, 'peak'], name, sets)
    done = subprocess.run([program, instruction_set], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    'own,quotas,expected',
    [
        ('0::/a/b\n', {'a/b': '150000 100000', 'a': '400000 100000'}, 2),
        ('0::/a/b\n', {'a/b': 'max 100000', 'a': '400000 100000'}, 4),
        ('0::/\n', {'': '50000 100000'}, 1),
        ('0::/hidden/from/a/container\n', {'': '300000 100000'}, 3),
        ('0::/a\n', {'a': 'max 100000'}, 0),
        ('4:cpu:/a\n0::/\n', {}, 0),
        ('', {}, 0),
    ],
)
def test_the_quota_of_a_control_group_is_the_least_of_it_and_those_around_it(build, tmp_path, own, quotas, expected):
    (tmp_path / 'own').write_text(own)
    for group, quota in quotas.items():
        folder = tmp_path / 'groups' / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'cpu.max').write_text(quota + '\n')
    done = subprocess.run([build('optimized'), 'quota', tmp_path / 'groups', tmp_path / 'own'], stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) == expected


def printed(program, *arguments, **environment):
    """Return the JSON that a program prints, in a process with the default number of threads."""
    return json.loads(run_python(program, *arguments, **{'OMP_NUM_THREADS': None, **environment}).stdout)


# Working memory grows with the threads, each of which takes an image of a large batch.
MEMORY = """
import json, os, sys
with_mxnet, cores = sys.argv[2] == 'True', int(sys.argv[3])
if not with_mxnet: sys.modules['mxnet'] = None
if cores: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import numpy as np, bmx_melius as bmx
if with_mxnet: import mxnet
assert (sys.modules.get('mxnet') is not None) == with_mxnet
print(json.dumps(bmx.Session(sys.argv[1]).working_memory(np.zeros((64, 5, 8, 6), np.float32))))
"""


def default_memory(folder, with_mxnet=False, cores=0, **environment):
    """Working memory of a run with the default number of threads, in a process with MXNet or without, bound to so many cores."""
    write_packed(folder / 'net', make_program())
    return printed(MEMORY, folder / 'net', with_mxnet, cores, **environment)


@pytest.fixture(scope='module')
def memory_of():
    """Working memory of the same run with a number of threads."""
    return lambda threads: bmx.Session(make_program(), threads=threads).working_memory(np.zeros((64, 5, 8, 6), np.float32))


@needs_engine
def test_the_default_number_of_threads_is_the_same_with_mxnet_and_without(tmp_path, memory_of):
    with_mxnet, without = (default_memory(tmp_path, with_mxnet) for with_mxnet in (True, False))
    assert with_mxnet == without and without in {memory_of(threads + 1) for threads in range(len(os.sched_getaffinity(0)))}


@needs_engine
def test_a_process_bound_to_one_core_computes_with_one_thread(tmp_path, memory_of):
    assert default_memory(tmp_path, cores=1) == memory_of(1)


@needs_engine
@pytest.mark.parametrize('limit', ['1', '1,4', '100000', '0', 'many'])
def test_omp_num_threads_lowers_the_default_if_it_is_a_smaller_number(tmp_path, memory_of, limit):
    expected = memory_of(1) if limit.startswith('1') and limit != '100000' else default_memory(tmp_path)
    assert default_memory(tmp_path, OMP_NUM_THREADS=limit) == expected


# Runs as far apart as in a server that has little to do: what a waiting thread spends on looking for work adds up.
IDLE = """
import json, sys, time
sys.modules['mxnet'] = None
import numpy as np, bmx_melius as bmx
session, x = bmx.Session(sys.argv[1], threads=2), np.zeros((1, 5, 8, 6), np.float32)
session(x)
before = time.process_time()
for _ in range(60):
    time.sleep(0.02)
    session(x)
print(json.dumps(time.process_time() - before))
"""


@needs_engine
def test_threads_sleep_between_the_runs_of_a_session(tmp_path):
    write_packed(tmp_path / 'net', make_program())
    assert printed(IDLE, tmp_path / 'net') < 0.3


# For each thread of a process after a run, its name and the number of signals that it blocks, as the kernel reports them. A run can end
# before a thread has begun.
SIGNALS = """
import json, pathlib, sys, time
sys.modules['mxnet'] = None
import numpy as np, bmx_melius as bmx
session = bmx.Session(sys.argv[1], threads=3)
session(np.zeros((1, 5, 8, 6), np.float32))
for _ in range(3000):
    found = []
    for thread in pathlib.Path('/proc/self/task').iterdir():
        fields = dict(line.split(':', 1) for line in (thread / 'status').read_text().splitlines())
        found.append((fields['Name'].strip(), bin(int(fields['SigBlk'], 16)).count('1')))
    if [name for name, _ in found].count('bmx-melius') == 2: break
    time.sleep(0.01)
print(json.dumps(found))
"""


@needs_engine
def test_threads_have_the_name_of_the_engine_and_leave_signals_to_the_program(tmp_path):
    write_packed(tmp_path / 'net', make_program())
    blocked = printed(SIGNALS, tmp_path / 'net')
    assert [number >= 60 for name, number in blocked if name == 'bmx-melius'] == [True, True]
    assert {number for name, number in blocked if name != 'bmx-melius'} == {0}


@needs_engine
def test_the_engine_refuses_a_number_of_threads_that_is_not_possible():
    program, x = make_program(), make_image()
    runner = engine.Runner(program, program.to_words())
    limit = engine.MAX_THREADS
    assert runner.working_memory([x], limit) >= runner.working_memory([x], 1)
    for threads in (limit + 1, -1):
        with pytest.raises(bmx.UserError, match=f'threads must be from 1 to {limit}, or 0 for the default, not {threads}'):
            runner.working_memory([x], threads)
        with pytest.raises(bmx.UserError, match='threads must be'):
            runner.run([x], threads)


@needs_engine
def test_the_default_of_the_c_interface_is_that_of_a_session(memory_of):
    assert memory_of(engine.default_threads()) == memory_of(0)
