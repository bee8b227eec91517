"""Compiles the C++ in ``bmx_melius/csrc`` and its folders to two shared libraries, if there is a compiler; used by setup.py.

``_engine.so``    the engine: neither Python nor MXNet
``_mxnet_op.so``  the operator for MXNet, from mxnet_op.cc and the two files of MXNet's extension interface that come with the wheel
"""

import concurrent.futures
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:  # no wheels are to be made
        bdist_wheel = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = pathlib.Path('bmx_melius', 'csrc')  # setuptools wants paths relative to setup.py
OPERATOR_SOURCE = 'mxnet_op.cc'
ENGINE_LIBRARY = '_engine.so'

FLAGS = ['-std=c++17', '-O3', '-g0', '-fPIC', '-fvisibility=hidden', '-Wall', '-Wextra', f'-I{SOURCES}']
THREADS = ['-pthread']
_AVX2 = ['-mavx2', '-mfma', '-mf16c', '-mpopcnt']
_AVX512 = [*_AVX2, *('-mavx512' + part for part in ('f', 'bw', 'dq', 'vl', 'vbmi', 'vbmi2', 'vnni', 'vpopcntdq', 'bitalg'))]
# Instruction sets, by the end of a file's name. One the compiler or its target does not know is left out; dispatch.cc learns of the rest
# by BMX_HAVE_AVX2 and so on.
INSTRUCTION_SETS = {'avx2': _AVX2, 'avx512': _AVX512, 'amx': [*_AVX512, '-mamx-tile', '-mamx-int8', '-mamx-bf16']}


class BuildError(Exception):
    """Why a library cannot be built, in one line."""


def extensions():
    """The two libraries, the engine first, for setuptools; `BuildNative` builds them."""
    sources, headers = (sorted(path.relative_to(ROOT) for path in (ROOT / SOURCES).rglob(pattern)) for pattern in ('*.cc', '*.h'))
    depends = [*map(str, headers), 'tools/native_build.py', 'bmx_melius/_version.py']
    return [
        Extension('bmx_melius._engine', [str(path) for path in sources if path.name != OPERATOR_SOURCE], depends=depends),
        Extension('bmx_melius._mxnet_op', [str(path) for path in sources if path.name == OPERATOR_SOURCE], depends=depends),
    ]


def find_compiler():
    """The command of the C++ compiler, a list: what CXX says, or g++, or c++. Raises `BuildError` if there is none."""
    wanted = shlex.split(os.environ.get('CXX', ''))
    for command in [wanted] if wanted else (['g++'], ['c++']):
        if shutil.which(command[0]):
            return command
    if wanted:
        raise BuildError(f'the C++ compiler {wanted[0]}, which the environment variable CXX names, is not there')
    raise BuildError('there is no C++ compiler (on Debian and Ubuntu: apt-get install g++)')


def known_instruction_sets(compiler):
    """The rows of `INSTRUCTION_SETS` that a compiler, a command as a list, and its target know."""

    def accepts(flags):
        command = [*compiler, *flags, '-x', 'c++', '-fsyntax-only', os.devnull]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    return {name: flags for name, flags in INSTRUCTION_SETS.items() if accepts(flags)}


def find_mxnet():
    """The folder of the installed MXNet, without importing it, or None.

    pip builds in an environment of its own that hides the packages of the one it installs to: those are looked at, too.
    """
    places = [*sys.path, *(sysconfig.get_path(name) for name in ('purelib', 'platlib'))]
    for place in places:
        folder = pathlib.Path(place or '.', 'mxnet')
        if (folder / 'include' / 'mxnet' / 'lib_api.h').exists() and (folder / 'src' / 'lib_api.cc').exists():
            return folder.resolve()
    return None


class BuildNative(build_ext):
    """setuptools' command ``build_ext`` for these two: without a compiler it warns and succeeds."""

    def run(self):
        try:
            super(build_ext, self).run()  # setuptools' own run would build elsewhere and copy, and so always build anew
        except BuildError as error:
            print(
                f'warning: bmx-melius is installed without compiled libraries: {error}. Everything works, but packed networks run'
                ' on NumPy, many times slower. Once this is mended, install again.',
                file=sys.stderr,
            )

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split('.')) + '.so'  # they are no modules of Python's, so its version is not in their names

    def get_export_symbols(self, extension):
        return []

    def build_extension(self, extension):
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        inputs = [pathlib.Path(path) for path in (*extension.sources, *extension.depends)]
        if not self.force and not _outdated(target, inputs):
            return
        compiler = find_compiler()
        objects = pathlib.Path(self.build_temp)
        objects.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if extension.name.endswith('_mxnet_op'):
            _build_operator(compiler, inputs, objects, target, target.with_name(ENGINE_LIBRARY))
        else:
            headers = [pathlib.Path(path) for path in extension.depends]
            _build_engine(compiler, extension.sources, headers, objects, target, self.distribution.get_version())


COMMANDS = {'build_ext': BuildNative}
if bdist_wheel:

    class Wheel(bdist_wheel):
        """A wheel for any Python: its libraries are of one kind of machine, but no modules of Python's."""

        def get_tag(self):
            return ('py3', 'none', super().get_tag()[2])

    COMMANDS['bdist_wheel'] = Wheel


def _build_engine(compiler, sources, headers, objects, target, version):
    have = known_instruction_sets(compiler)
    common = [*FLAGS, *THREADS, f'-DBMX_VERSION="{version}"', *(f'-DBMX_HAVE_{name.upper()}' for name in have)]
    jobs = []
    for source in map(pathlib.Path, sources):
        suffix = source.stem.rpartition('_')[2]
        if suffix in have or suffix not in INSTRUCTION_SETS:
            jobs.append((source, [*common, *have.get(suffix, [])]))
    _compile_and_link(compiler, jobs, headers, objects, target, [*THREADS, f'-Wl,-soname,{ENGINE_LIBRARY}', '-Wl,-z,defs'])


def _build_operator(compiler, inputs, objects, target, engine):
    mxnet = find_mxnet()
    if mxnet is None:
        target.unlink(missing_ok=True)  # one of an MXNet that is gone
        return  # an installation for Session alone
    flags = [*FLAGS, '-fvisibility=default', '-isystem', str(mxnet / 'include')]  # MXNet looks its functions up by name
    (source,) = (path for path in inputs if path.name == OPERATOR_SOURCE)
    headers = [path for path in inputs if path != source]
    foreign = (mxnet / 'src' / 'lib_api.cc', [*flags, '-w'])
    _compile_and_link(compiler, [(source, flags), foreign], headers, objects, target, [str(engine), '-Wl,-rpath,$ORIGIN'])


def _compile_and_link(compiler, jobs, headers, objects, target, link_flags):
    """Compile each (source, flags) whose object file is out of date, as many at a time as there are cores, and link them all."""
    results, commands = [], []
    for source, flags in jobs:
        result = objects / _inside(source).with_suffix('.o')
        result.parent.mkdir(parents=True, exist_ok=True)
        results.append(str(result))
        if _outdated(result, [source, *headers]):
            commands.append([*compiler, *flags, '-c', str(source), '-o', str(result)])
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(_run, commands))
    fresh = target.with_name(target.name + '.new')
    _run([*compiler, '-shared', *results, *link_flags, '-o', str(fresh)])
    os.replace(fresh, target)  # a process that has the old one loaded keeps it


def _inside(source):
    """The path of a source inside csrc, which tells files of one name apart; the name of one from elsewhere."""
    return source.relative_to(SOURCES) if SOURCES in source.parents else pathlib.Path(source.name)


def _outdated(target, inputs):
    return not target.exists() or any(path.stat().st_mtime > target.stat().st_mtime for path in inputs)


def _run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    if done.returncode:
        print(shlex.join(command), done.stdout, sep='\n', file=sys.stderr)
        problem = next((line for line in done.stdout.splitlines() if 'error' in line), f'exit status {done.returncode}')
        raise BuildError(f'the compiler failed ({problem.strip()})')
