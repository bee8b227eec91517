"""Build of small C++ programs that call the kernels in ``bmx_melius/csrc`` directly, for tests and benchmarks of kernels."""

import concurrent.futures
import os
import pathlib
import shlex
import subprocess
import sys

from support.paths import ROOT

SOURCES = ROOT / 'bmx_melius' / 'csrc'
KERNEL_PARTS = ['binary', 'float', 'int8', 'dispatch']  # parts of a program that calls kernels: the tables, and their selection
sys.path.insert(0, str(ROOT / 'tools'))

from native_build import (  # noqa: E402, F401
    FLAGS,
    INSTRUCTION_SETS,
    SAME_RESULTS,
    BuildError,
    find_compiler,
    fresh_object,
    is_of_operator,
    known_instruction_sets,
    openmp_flags,
    outdated,
)

BUILDS = {
    'optimized': FLAGS,  # as in the library
    # AddressSanitizer detects the accesses that the two checks left out would detect, which take a quarter of the time of compilation. It
    # does not see AMX's, whose tiles are therefore emulated, which also tests these kernels where a processor lacks them.
    'sanitized': [
        *('-O1', '-g1', '-fsanitize=address,undefined', '-fno-sanitize=null,object-size', '-fno-sanitize-recover=all'),
        '-DBMX_EMULATED_TILES',
    ],
    'thread-sanitized': ['-O1', '-g1', '-fsanitize=thread'],
}
# Vector kernels are unrolled by lambdas, whose checks take most of the time of compilation. Calls of AddressSanitizer detect the same as
# inline checks. Not checked are the use of local variables after the end of their block, addresses that wrap around, whose accesses
# AddressSanitizer detects, and alignment, which the kernels' loads of vectors do not need and processors check where others do.
_WITHOUT = ['-fno-sanitize-address-use-after-scope', '-fno-sanitize=pointer-overflow,alignment']
VECTOR_CHECKS = {
    'gcc': [*_WITHOUT, '--param=asan-instrumentation-with-call-threshold=0'],
    'clang': [*_WITHOUT, '-mllvm', '-asan-instrumentation-with-call-threshold=0'],
}


def build_program(folder, source, parts, flags, compiler=None, instruction_sets=INSTRUCTION_SETS):
    """Compile and link a program with files of the engine.

    Parameters
    ----------
    folder : path
        Where everything is written. Objects that are up to date are used again: give each set of flags its own folder.
    source : path
        Main program, relative to the root of the project. BMX_HAVE_AVX2 etc. are defined for the instruction sets that are included.
    parts : list of str or None
        The names of the files without folder and ending: PART.cc and, in every instruction set, PART_reference.cc, PART_avx2.cc,
        PART_planes_avx512.cc and so on. None: all files of the engine. Files of the operators are compiled and linked with OpenMP.
    flags : list of str
        Compiler and linker flags for all files. With the library's and all instruction sets, the objects of its last build are used
        if they are up to date.
    compiler : list of str, optional
        The command of the compiler; default: the one that compiles the library.
    instruction_sets : collection of str
        Those to include, as far as the compiler supports them, beside the reference kernels. Objects of one folder must have the same.

    Returns
    -------
    pathlib.Path
        Path of the program.

    Raises
    ------
    native_build.BuildError
        If there is no compiler.
    subprocess.CalledProcessError
        If the compiler fails; its output is on standard error.
    """
    compiler, folder = compiler or find_compiler(), pathlib.Path(folder)
    known = known_instruction_sets(compiler)
    have = {name: of_set for name, of_set in known.items() if name in instruction_sets}
    of_library = flags == FLAGS and have == known  # objects of the library call the kernels of all instruction sets
    own = [ROOT / name for name in ((source,) if isinstance(source, str) else source)]
    threads = [] if 'em++' in compiler[0] else ['-pthread']  # Emscripten would make a module that needs memory shared by threads
    common = [*compiler, '-std=c++17', *threads, *SAME_RESULTS, f'-I{SOURCES}', f'-I{ROOT / "tests"}', *flags]
    common += [f'-DBMX_HAVE_{name.upper()}' for name in have]
    checks = _vector_checks(compiler, flags)
    headers = [header for place in (SOURCES, ROOT / 'tests') for header in place.rglob('*.h')]
    commands, objects, openmp = [], [], []
    for path, instruction_set in [*_files(parts), *((path, None) for path in own)]:
        if instruction_set is not None and instruction_set not in have:
            continue
        if is_of_operator(path):
            openmp = openmp_flags(compiler)
        built = fresh_object(path) if of_library else None
        objects.append(built or folder / '_'.join(path.relative_to(ROOT).with_suffix('.o').parts))
        if not built and outdated(objects[-1], [path, *headers]):
            vectors = [*have[instruction_set], *checks] if instruction_set else []
            commands.append([*common, *vectors, *openmp, '-c', path, '-o', objects[-1]])
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(_run, commands))
    program = folder / own[0].stem
    if commands or not program.exists():
        _run([*common, *openmp, *objects, '-o', program])
    return program


def with_emulated(available, compiler=None):
    """Return the instruction sets of sanitized programs: of this machine and, where it has AVX-512, AMX, which they emulate."""
    emulates = 'avx512' in available and 'amx' not in available and 'amx' in known_instruction_sets(compiler or find_compiler())
    return [*available, 'amx'] if emulates else list(available)


def _vector_checks(compiler, flags):
    """Return the flags of `VECTOR_CHECKS` that a compiler understands: GCC and Clang ignore or refuse each other's."""
    if not any(flag.startswith('-fsanitize=') for flag in flags):
        return []
    macros = subprocess.run([*compiler, '-x', 'c++', '-dM', '-E', os.devnull], stdout=subprocess.PIPE, text=True, check=True).stdout
    return VECTOR_CHECKS['clang' if '#define __clang__ ' in macros else 'gcc']


def _files(parts):
    """Yield the files of the engine that belong to `parts`, each with its instruction set or None; those that compile longest first."""
    for path in sorted(SOURCES.rglob('*.cc'), key=lambda path: (not path.stem.startswith('float_'), path)):
        part, ending = path.stem.partition('_')[0], path.stem.rpartition('_')[2]
        instruction_set = ending if ending in INSTRUCTION_SETS else None
        names = (path.stem, part) if instruction_set or ending == 'reference' else (path.stem,)
        if not is_of_operator(path) if parts is None else set(names) & set(parts):
            yield path, instruction_set


def _run(command):
    command = list(map(str, command))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    if done.returncode:
        print(shlex.join(command), done.stdout, sep='\n', file=sys.stderr)
    done.check_returncode()
