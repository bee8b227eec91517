"""Build of the C++ code in ``bmx_melius/csrc``: two shared libraries, compiled by setup.py if there is a compiler.

``_engine.so``    the engine, independent of Python and MXNet
``_mxnet_op.so``  the operators for MXNet, whose files begin with `OPERATOR_PARTS`, the engine's reader of programs, which also infers
                  shapes (``program``), and the two files of MXNet's extension interface in its wheel

CMakeLists.txt builds the engine as a library for C and C++, by the same rows of compile_flags.txt. Neither description replaces the other:
CMake's needs no Python, for systems that have none, and this one no CMake, finds the MXNet for which pip installs the package, and
leaves out what has no compiler instead of failing.
"""

import concurrent.futures
import contextlib
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:  # not needed unless a wheel is built
        bdist_wheel = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = pathlib.Path('bmx_melius', 'csrc')  # setuptools requires paths relative to setup.py
OPERATOR_PARTS = 'mxnet', 'training', 'normalization'  # what the names of files of the operators for MXNet begin with; as in CMakeLists.txt
SHARED_FOLDER = 'program'  # compiled into both libraries, because the engine exports only its C interface
ENGINE_LIBRARY = '_engine.so'

FLAGS_FILE = 'tools/compile_flags.txt'  # also read by CMakeLists.txt


def _read_flags():
    """Return the rows of `FLAGS_FILE`: a name -> compiler flags."""
    lines = (ROOT / FLAGS_FILE).read_text().splitlines()
    rows = (line.split() for line in lines if line and not line.startswith('#'))
    return {name: flags for name, *flags in rows}


_ROWS = _read_flags()
SAME_RESULTS = _ROWS.pop('same_results')
FLAGS = [*_ROWS.pop('all'), *SAME_RESULTS, f'-I{SOURCES}']
THREADS = _ROWS.pop('threads')
PROCESSORS = {name: macro for name, (macro, *_) in _ROWS.items()}  # instruction set -> the compiler's macro for its processors
INSTRUCTION_SETS = {name: flags for name, (_, *flags) in _ROWS.items()}  # the suffix of a file's name -> the flags of its compilation


def _module(path):
    """Return a module of the package that needs nothing else of it, which cannot be imported before it is installed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ProgressLine = _module(ROOT / 'bmx_melius' / 'reporting.py').ProgressLine


def is_of_operator(source):
    """Return whether a source belongs to the operators for MXNet, not to the engine."""
    return pathlib.Path(source).stem.partition('_')[0] in OPERATOR_PARTS


class BuildError(Exception):
    """A library cannot be built; the message is one line."""


def extensions():
    """Return the two libraries as setuptools extensions, the engine first; `BuildNative` builds them."""
    sources, headers = (sorted(path.relative_to(ROOT) for path in (ROOT / SOURCES).rglob(pattern)) for pattern in ('*.cc', '*.h'))
    depends = [*map(str, headers), 'tools/native_build.py', FLAGS_FILE, 'bmx_melius/_version.py']
    engine = [str(path) for path in sources if not is_of_operator(path)]
    operator = [str(path) for path in sources if is_of_operator(path) or path.parent.name == SHARED_FOLDER]
    return [
        Extension('bmx_melius._engine', engine, depends=depends),
        Extension('bmx_melius._mxnet_op', operator, depends=depends),
    ]


def find_compiler():
    """Return the command of the C++ compiler, a list: CXX, g++ or c++. Raises `BuildError` if there is none."""
    wanted = shlex.split(os.environ.get('CXX', ''))
    for command in [wanted] if wanted else (['g++'], ['c++']):
        if shutil.which(command[0]):
            return command
    if wanted:
        raise BuildError(f'the C++ compiler {wanted[0]}, which the environment variable CXX names, is not there')
    raise BuildError('there is no C++ compiler (on Debian and Ubuntu: apt-get install g++)')


def known_instruction_sets(compiler):
    """Return the rows of `INSTRUCTION_SETS` that a compiler (a command as a list) and its target support."""

    def has(name, flags):
        command = [*compiler, *flags, '-x', 'c++', '-dM', '-E', os.devnull]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return done.returncode == 0 and f'#define {PROCESSORS[name]} ' in done.stdout

    return {name: flags for name, flags in INSTRUCTION_SETS.items() if has(name, flags)}


def fresh_object(source):
    """Return the path of the object file that the last build of the engine made from a source (absolute), or None if it is outdated."""
    engine, _ = extensions()
    result = ROOT / _object_folder() / _inside(source.relative_to(ROOT)).with_suffix('.o')
    return None if outdated(result, [source, *(ROOT / path for path in engine.depends)]) else result


def _object_folder():
    """Return the folder of object files in the tree of the project, relative to it: setuptools' own."""
    build = Distribution().get_command_obj('build')
    build.ensure_finalized()
    return pathlib.Path(build.build_temp)


def find_mxnet():
    """Return the folder of the installed MXNet without importing it, or None.

    pip builds in an isolated environment that hides the packages of the target environment, so the latter is also searched.
    """
    places = [*sys.path, *(sysconfig.get_path(name) for name in ('purelib', 'platlib'))]
    for place in places:
        folder = pathlib.Path(place or '.', 'mxnet')
        if (folder / 'include' / 'mxnet' / 'lib_api.h').exists() and (folder / 'src' / 'lib_api.cc').exists():
            return folder.resolve()
    return None


class BuildNative(build_ext):
    """Command ``build_ext`` for the two libraries: without a compiler it prints a warning and succeeds."""

    def run(self):
        try:
            super(build_ext, self).run()  # run of setuptools would build elsewhere and copy, and so always rebuild
        except BuildError as error:
            print(
                f'warning: bmx-melius is installed without compiled libraries: {error}. Everything works, but packed networks run'
                ' on NumPy, many times slower. Fix this and install again.',
                file=sys.stderr,
            )

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split('.')) + '.so'  # not Python modules, so without the Python version in their names

    def get_export_symbols(self, extension):
        return []

    def build_extension(self, extension):
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        sources, headers = ([pathlib.Path(path) for path in paths] for paths in (extension.sources, extension.depends))
        if not self.force and not outdated(target, [*sources, *headers]):
            return
        compiler = find_compiler()
        # Editable installations have a temporary folder; kept objects save later builds and the tests of kernels a minute.
        objects = _object_folder() if self.inplace or self.editable_mode else pathlib.Path(self.build_temp)
        objects.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if extension.name.endswith('_mxnet_op'):
            _build_operator(compiler, sources, headers, objects, target)
        else:
            _build_engine(compiler, sources, headers, objects, target, self.distribution.get_version())


COMMANDS = {'build_ext': BuildNative}
if bdist_wheel:

    class Wheel(bdist_wheel):
        """A wheel for any Python version: the libraries depend on the platform, but are not Python modules."""

        def get_tag(self):
            return ('py3', 'none', super().get_tag()[2])

    COMMANDS['bdist_wheel'] = Wheel


def engine_jobs(sources, have, flags):
    """Return pairs of a source of the engine and its flags: `flags`, and those of its instruction set, which must be one of `have`.

    `have` is the result of `known_instruction_sets`.
    """
    common, jobs = [*flags, *(f'-DBMX_HAVE_{name.upper()}' for name in have)], []
    for source in sources:
        suffix = source.stem.rpartition('_')[2]
        if suffix in have or suffix not in INSTRUCTION_SETS:
            jobs.append((source, [*common, *have.get(suffix, [])]))
    return jobs


def _build_engine(compiler, sources, headers, objects, target, version):
    have = known_instruction_sets(compiler)
    jobs = engine_jobs(sources, have, [*FLAGS, *THREADS, f'-DBMX_VERSION="{version}"'])
    link_flags = [*THREADS, *_thread_library(compiler), f'-Wl,-soname,{ENGINE_LIBRARY}', '-Wl,-z,defs']
    _compile_and_link(compiler, jobs, headers, objects, target, link_flags)


def _thread_library(compiler):
    """Return flags that link libpthread.so.0 also where it is empty, from glibc 2.34 on: on older systems it has the threads."""
    found = subprocess.run([*compiler, '-print-file-name=libpthread.so.0'], stdout=subprocess.PIPE, text=True).stdout.strip()
    return ['-Wl,--push-state,--no-as-needed', found, '-Wl,--pop-state'] if os.path.isabs(found) else []


def openmp_flags(compiler):
    """Return the flags for OpenMP if the compiler is GCC. Clang's has other threads than MXNet's: without flags loops have one."""
    macros = subprocess.run([*compiler, '-x', 'c++', '-dM', '-E', os.devnull], stdout=subprocess.PIPE, text=True).stdout
    return ['-Wno-unknown-pragmas'] if '__clang__' in macros else ['-fopenmp']


def _build_operator(compiler, sources, headers, objects, target):
    mxnet = find_mxnet()
    if mxnet is None:
        target.unlink(missing_ok=True)  # built for an MXNet that has been uninstalled
        return  # an installation only for Session
    openmp = openmp_flags(compiler)
    flags = [*FLAGS, *openmp, '-fvisibility=default', '-isystem', str(mxnet / 'include')]  # MXNet looks up the functions by name
    # the objects of the shared folder belong to the engine, which has been built before
    shared = [(source, [*FLAGS, *THREADS]) for source in sources if not is_of_operator(source)]
    jobs = [
        *engine_jobs(filter(is_of_operator, sources), known_instruction_sets(compiler), flags),
        *shared,
    ]
    jobs.append((mxnet / 'src' / 'lib_api.cc', [*flags, '-w']))
    _compile_and_link(compiler, jobs, headers, objects, target, [str(target.with_name(ENGINE_LIBRARY)), '-Wl,-rpath,$ORIGIN', *openmp])


def compile_all(compiler, jobs, headers, objects):
    """Compile each (source, flags) whose object file in a folder is outdated, in parallel on all cores; return all object files."""
    results, commands = [], []
    for source, flags in jobs:
        result = objects / _inside(source).with_suffix('.o')
        result.parent.mkdir(parents=True, exist_ok=True)
        results.append(str(result))
        if outdated(result, [source, *headers]):
            commands.append([*compiler, *flags, '-c', str(source), '-o', str(result)])
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, _terminal() as terminal:
        for _ in ProgressLine(pool.map(_run, commands), total=len(commands), description='compiling', unit='files', stream=terminal):
            pass
    return results


def _compile_and_link(compiler, jobs, headers, objects, target, link_flags):
    results, fresh = compile_all(compiler, jobs, headers, objects), target.with_name(target.name + '.new')
    _run([*compiler, '-shared', *results, *link_flags, '-o', str(fresh)])
    os.replace(fresh, target)  # processes that have loaded the old library keep it


_OF_PIP = '_PYPROJECT_HOOKS_BUILD_BACKEND', 'PEP517_BUILD_BACKEND'  # variables that it sets for a build


@contextlib.contextmanager
def _terminal():
    """Yield the terminal for messages: standard error, or the user's where pip runs the build and shows nothing of it."""
    with contextlib.ExitStack() as stack:
        stream = None
        if any(name in os.environ for name in _OF_PIP):
            with contextlib.suppress(OSError):  # there is none
                stream = stack.enter_context(open('/dev/tty', 'wb', buffering=0))
        yield stream


def _inside(source):
    """Return the path of a source relative to csrc, which is unique, or the file name of a source outside of it."""
    return source.relative_to(next((folder for folder in (SOURCES, ROOT / SOURCES) if folder in source.parents), source.parent))


def outdated(target, inputs):
    """Return whether a file is missing or older than one of its inputs."""
    return not target.exists() or any(path.stat().st_mtime > target.stat().st_mtime for path in inputs)


def _run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    if done.returncode:
        print(shlex.join(command), done.stdout, sep='\n', file=sys.stderr)
        problem = next((line for line in done.stdout.splitlines() if 'error' in line), f'exit status {done.returncode}')
        raise BuildError(f'the compiler failed ({problem.strip()})')
