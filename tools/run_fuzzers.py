"""Fuzz the readers of files.

Run: ``python tools/run_fuzzers.py [--minutes N] [TARGET ...]``

Builds the fuzzers of the C++ code with Clang, AddressSanitizer and UndefinedBehaviorSanitizer, writes the seeds, runs every fuzzer for its
share of the time, and prints what each did. A finding is an input that causes a crash, a report of a sanitizer, an exception other than
UserError, or that takes more time or memory than a fuzzer allows. The inputs are kept in build/fuzz/findings, the corpora, with which the
next call continues, in build/fuzz/corpus. The exit status is 1 if there is a finding, 2 if something is missing.

SECURITY.md lists what is fuzzed; docs/internals/fuzzing.md has the figures of a long run.
"""

import argparse
import concurrent.futures
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / 'build' / 'fuzz'
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

from commands import chosen, install_tools  # noqa: E402
from support.native_program import BUILDS, INSTRUCTION_SETS, VECTOR_CHECKS, build_program, with_emulated  # noqa: E402

from bmx_melius.errors import UserError  # noqa: E402

COMPILER = ['clang++']
FLAGS = ['-fsanitize=fuzzer', *BUILDS['sanitized']]
NATIVE = {
    'program': 'programs',
    'params': 'parameter_files',
    'structure': 'structures',
    'description': 'descriptions',
}  # C++ fuzzers -> their functions of fuzz.seeds
RUNS_PROGRAMS = ('program',)  # these are fuzzed with every instruction set

SECONDS_OF_AN_INPUT = 10
MEGABYTES = {True: 512, False: 2048}  # resident memory of a C++ fuzzer with its sanitizers, and of Python with MXNet
MEGABYTES_AT_ONCE = {True: 64, False: 1024}  # the largest single allocation
MAX_BYTES = {True: 1 << 14, False: 1 << 20}  # of an input
_NAMES = re.compile(r'Test unit written to (\S+)')
_DONE = re.compile(r'cov: (\d+) ft: (\d+) corp: (\d+)')


def main():
    """Fuzz and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('targets', nargs='*', metavar='TARGET', help='default: all')
    parser.add_argument('--minutes', type=float, default=8, help='time of all fuzzers together, without the build (default: %(default)g)')
    parser.add_argument('--jobs', type=int, default=len(os.sched_getaffinity(0)), help='fuzzers at a time (default: the cores)')
    parser.add_argument('--list', action='store_true', help='list the targets')
    arguments = parser.parse_args()
    try:
        rows = _rows()
        if arguments.list:
            print('\n'.join(rows))
            return 0
        if any(rows[name][0] for name in chosen(arguments.targets, rows)):
            _install_compiler()
            rows = _rows()  # with the instruction sets that it emulates
        fuzzed = {name: rows[name] for name in chosen(arguments.targets, rows)}
        seconds = max(1, round(arguments.minutes * 60 * arguments.jobs / len(fuzzed)))
        results = _fuzz(fuzzed, seconds, arguments.jobs)
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return _report(results)


def _rows():
    """Return name of each row of the table -> (whether it is C++, the target, the instruction set or None)."""
    from fuzz.targets import TARGETS

    rows = {}
    for name in NATIVE:
        sets = _instruction_sets() if name in RUNS_PROGRAMS else [None]
        rows.update({f'c++ {name}{f" {isa}" if isa else ""}': (True, name, isa) for isa in sets or [None]})
    rows.update({f'python {name}': (False, name, None) for name in TARGETS})
    return rows


def _fuzz(rows, seconds, jobs):
    """Run the fuzzers, `jobs` at a time; return row -> figures."""
    if importlib.util.find_spec('atheris') is None and any(not is_native for is_native, *_ in rows.values()):
        raise UserError('fuzzing the Python code needs Atheris, which only x86-64 has (for the C++ code only: ARGS=c++)')
    programs = _build([name for is_native, name, _ in rows.values() if is_native])
    (FOLDER / 'findings').mkdir(parents=True, exist_ok=True)

    def run(row):
        return row, _run(row, *rows[row], programs, seconds)

    print(f'{len(rows)} fuzzers, {seconds} s each, {jobs} at a time', flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(run, rows))


def _install_compiler():
    """Install Clang with libFuzzer and the sanitizers, separate packages in some releases, unless it links a fuzzer with them."""

    def works():
        target = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
        command = [*COMPILER, '-fsanitize=fuzzer,address,undefined', '-x', 'c++', '-', '-o', os.devnull]
        return shutil.which(COMPILER[0]) and not subprocess.run(command, input=target, stderr=subprocess.DEVNULL, text=True).returncode

    packages = {'clang++': 'clang', 'the libraries of Clang': 'libclang-rt-dev'}
    for name, package in packages.items():
        if not works():
            install_tools({name: package})


def _build(names):
    """Compile the C++ fuzzers unless they are up to date; return name -> program."""
    if not names:
        return {}
    instruction_sets = _compiled_instruction_sets()
    folder = _native_folder(instruction_sets)
    print('compiling the C++ fuzzers', flush=True)
    try:
        return {
            name: build_program(folder, f'tests/fuzz/{name}_fuzzer.cc', None, FLAGS, COMPILER, instruction_sets)
            for name in dict.fromkeys(names)
        }
    except subprocess.CalledProcessError as error:
        raise UserError(f'a fuzzer cannot be built (see above): {error}') from error


def _instruction_sets():
    """Return the instruction sets that are fuzzed: of this machine, and AMX where it is emulated; [] without the engine."""
    from bmx_melius.deployment.runtime import engine

    return with_emulated(engine.instruction_sets()[1], COMPILER) if shutil.which(COMPILER[0]) else engine.instruction_sets()[1]


def _compiled_instruction_sets():
    """Return the instruction sets that are compiled: only those that are fuzzed, because vector kernels take most of the time."""
    fuzzed = _instruction_sets()
    return [name for name in INSTRUCTION_SETS if name in fuzzed or not fuzzed or name == 'bf16' and 'avx512' in fuzzed]


def _native_folder(instruction_sets):
    """Return the folder of objects that were compiled with the present flags; those with other flags are removed."""
    settings = COMPILER, FLAGS, VECTOR_CHECKS, instruction_sets, (ROOT / 'tools' / 'compile_flags.txt').read_text()
    folder = FOLDER / 'native' / hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
    for other in folder.parent.glob('*'):
        if other != folder:
            shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(row, is_native, name, isa, programs, seconds):
    """Run one fuzzer; return its figures."""
    label = row.replace(' ', '-')
    corpus, seeds = FOLDER / 'corpus' / label, _write_seeds(is_native, name, label)
    corpus.mkdir(parents=True, exist_ok=True)
    command = [programs[name]] if is_native else [sys.executable, ROOT / 'tests' / 'fuzz' / 'python_fuzzer.py', name]
    command += [
        *(f'-max_total_time={seconds}', f'-timeout={SECONDS_OF_AN_INPUT}', f'-rss_limit_mb={MEGABYTES[is_native]}'),
        *(f'-malloc_limit_mb={MEGABYTES_AT_ONCE[is_native]}', f'-max_len={MAX_BYTES[is_native]}', '-print_final_stats=1'),
        *(f'-artifact_prefix={FOLDER}/findings/{label}-', corpus, seeds),
    ]
    environment = {
        **os.environ,
        **({'BMX_MELIUS_ISA': isa} if isa else {}),
        'ASAN_OPTIONS': 'quarantine_size_mb=16:allocator_may_return_null=1',
        'OMP_NUM_THREADS': '1',
    }
    log = FOLDER / f'{label}.log'
    with open(log, 'w') as file:
        status = subprocess.run(list(map(str, command)), env=environment, stdout=file, stderr=file, cwd=FOLDER).returncode
    return {**_figures(log.read_text(errors='replace')), 'status': status, 'log': str(log)}


def _write_seeds(is_native, name, label):
    from fuzz import seeds
    from fuzz.targets import TARGETS

    folder = FOLDER / 'seeds' / label
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    contents = [content for (content,) in getattr(seeds, NATIVE[name])()] if is_native else TARGETS[name].corpus()
    for number, content in enumerate(contents):
        (folder / f'{number:03d}').write_bytes(content)
    return folder


def _figures(log):
    """Return the figures in the output of libFuzzer: executions, coverage, corpus, memory, and the inputs that are findings."""
    numbers = {name: int(number) for name, number in re.findall(r'stat::(\w+): +(\d+)', log)}
    last = (_DONE.findall(log) or [(0, 0, 0)])[-1]
    return {
        'executions': numbers.get('number_of_executed_units', 0),
        'coverage': int(last[0]),
        'features': int(last[1]),
        'corpus': int(last[2]),
        'megabytes': numbers.get('peak_rss_mb', 0),
        'findings': list(dict.fromkeys(_NAMES.findall(log))),
    }


def _report(results):
    """Print a table and the findings, write both as JSON; return the exit status."""
    columns = ('executions', 'coverage', 'features', 'corpus', 'megabytes')
    print(f'{"fuzzer":27}' + ''.join(f'{column:>12}' for column in columns) + '    findings')
    for row, figures in results.items():
        failed = figures['status'] and not figures['findings']
        found = 'failed' if failed else len(figures['findings'])
        print(f'{row:27}' + ''.join(f'{figures[column]:>12}' for column in columns) + f'    {found}')
    (FOLDER / 'results.json').write_text(json.dumps(results, indent=1))
    wrong = {row: figures for row, figures in results.items() if figures['status'] or figures['findings']}
    for row, figures in wrong.items():
        print(
            f'{row}: {", ".join(figures["findings"]) or "ended with status " + str(figures["status"])}, see {figures["log"]}',
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
