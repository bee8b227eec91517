"""Builds small C++ programs that call the kernels in ``bmx_melius/csrc`` directly: tests and benchmarks of single kernels."""

import concurrent.futures
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / 'bmx_melius' / 'csrc'
sys.path.insert(0, str(ROOT / 'tools'))

from native_build import INSTRUCTION_SETS, BuildError, find_compiler, known_instruction_sets  # noqa: E402, F401


def build_program(folder, source, parts, flags):
    """Compile and link a program with kernels of every instruction set that the compiler has.

    Parameters
    ----------
    folder : path
        Where everything is written.
    source : path
        Of the main program, from the root of the project. It finds BMX_HAVE_AVX2 and so on defined where these kernels are in.
    parts : list of str
        The beginnings of the kernels' file names: PART_reference.cc, PART_avx2.cc and so on, and PART.cc.
    flags : list of str
        For all files.

    Returns
    -------
    path of the program

    Raises
    ------
    native_build.BuildError
        If there is no compiler.
    subprocess.CalledProcessError
        If it fails; what it said is on standard error.
    """
    compiler, folder = find_compiler(), pathlib.Path(folder)
    have = known_instruction_sets(compiler)
    common = [*compiler, '-std=c++17', '-pthread', *flags, *(f'-DBMX_HAVE_{name.upper()}' for name in have)]
    jobs = {ROOT / source: []}
    for part in parts:
        for name, options in {'reference': [], **have}.items():
            jobs[SOURCES / f'{part}_{name}.cc'] = options
        jobs[SOURCES / f'{part}.cc'] = []
    objects = {path: folder / f'{path.stem}.o' for path in jobs if path.exists()}
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        commands = [[*common, *jobs[path], '-c', path, '-o', result] for path, result in objects.items()]
        list(pool.map(_run, commands))
    program = folder / pathlib.Path(source).stem
    _run([*common, *objects.values(), '-o', program])
    return program


def _run(command):
    command = list(map(str, command))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    if done.returncode:
        print(shlex.join(command), done.stdout, sep='\n', file=sys.stderr)
    done.check_returncode()
